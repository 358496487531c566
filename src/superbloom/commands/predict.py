"""`superbloom predict`: the best names for each [MASK], from a model folder or from a server."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from superbloom.answers import Prediction
from superbloom.commands.console import print_json, printable, warnings_as_lines
from superbloom.commands.options import ApiKey, Json, given, options_of
from superbloom.config import HeadOptions, QueryOptions, make
from superbloom.errors import InputError


@options_of(QueryOptions, HeadOptions, leave_out=["explain"])
def predict(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="A model folder; left out with --server.", show_default=False)
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME…", help="The context; [MASK] is what to predict, put at the end if left out."),
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="Instead of names, for a model of text: a sentence with one [MASK] or more.")
    ] = None,
    allow_file: Annotated[
        Path | None, typer.Option(help="A text file, one name per line: return only these names.")
    ] = None,
    server: Annotated[str | None, typer.Option(help="Ask the server at this address, instead of a folder.")] = None,
    api_key: ApiKey = None,
    json_: Json = False,
    **options: Any,
) -> None:
    """The most likely names for each [MASK] of a context, with the certificate."""
    if model is None and server is None:
        raise InputError("give a model folder, or --server with the address of one that `superbloom serve` made")
    if server is not None and model is not None and Path(model).is_dir():
        raise InputError(f"the folder {model} and --server {server} given; give one of them, then the names")
    if server is not None:
        names = [*([] if model is None else [model]), *(names or [])]
    if (not names) == (text is None):
        raise InputError("give the names of a context, or a --text with [MASK], and not both")
    context = names or text or ""
    query, head = given(QueryOptions, options), vars(make(HeadOptions, given(HeadOptions, options)))
    if allow_file is not None:
        query["allow"] = [*query.get("allow", []), *_names(allow_file)]
    with warnings_as_lines():
        if server is not None:
            found = _ask_server(server, api_key, context, query, head)
        else:
            found = _ask_folder(Path(str(model)), context, query, head)
    if json_:
        print_json({"context": context, "predictions": [[asdict(p) for p in predictions] for predictions in found]})
    else:
        _print(found)


def _ask_folder(
    folder: Path, context: list[str] | str, query: dict[str, Any], head: dict[str, Any]
) -> list[list[Prediction]]:
    from superbloom.predict import Predictor
    from superbloom.store import load

    if "," in query.get("combine", ""):
        query["combine"] = _weights(query["combine"])
    return Predictor(load(folder).model, **head).predict(context, **query)


def _ask_server(
    url: str, key: str | None, context: list[str] | str, query: dict[str, Any], head: dict[str, Any]
) -> list[list[Prediction]]:
    """Ask a server; needs neither torch nor the model."""
    from superbloom.client import Client

    if any(getattr(HeadOptions, name) != value for name, value in head.items()):
        raise InputError(
            "--precision, --prior and --network-only are the server's to choose; leave them out with --server"
        )
    max_rounds = query.pop("max_rounds", None)
    if query.pop("combine", None) is not None or max_rounds not in (None, 1):
        raise InputError(
            "a server scores names as its model does, and makes one round or as many as needed; "
            "leave out --combine, and --max-rounds unless it is 1"
        )
    client = Client(url, key=key)
    ask = client.fill_in if isinstance(context, str) else client.predict_all
    return ask(context, exact=max_rounds is None, **query)  # type: ignore[arg-type]


def _names(file: Path) -> list[str]:
    from superbloom.prepare.files import open_lines

    return [name for name in open_lines(file) if name.strip()]


def _weights(combine: str) -> list[float]:
    try:
        return [float(weight) for weight in combine.split(",")]
    except ValueError:
        raise InputError(f"combine={combine!r} given; numbers with commas between them are weights: 0.7,0.3") from None


def _print(found: list[list[Prediction]]) -> None:
    for number, predictions in enumerate(found, 1):
        if len(found) > 1:
            typer.echo(f"[MASK] {number}")
        for rank, prediction in enumerate(predictions, 1):
            typer.echo(
                f"{rank:4d}  {prediction.score:8.3f}  {prediction.probability:6.1%}  {printable(prediction.name)}"
            )
        typer.echo(f"      ({_proof(predictions)})")


def _proof(predictions: list[Prediction]) -> str:
    if not predictions:
        return "no name is left: all are excluded, or less likely than --min-score"
    if not predictions[0].certified:
        return "not certified: search cut short"
    return "certified: no other name is more likely under this model"
