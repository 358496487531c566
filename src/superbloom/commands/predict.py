"""`superbloom predict`: the best names for each [MASK], from a model folder or from a server."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from superbloom.answers import Explanation, Prediction
from superbloom.commands.console import print_json, print_wrapped, printable, warnings_as_lines
from superbloom.commands.options import (
    ApiKey,
    FolderOrName,
    Json,
    Server,
    check_head_for_server,
    folder_and_names,
    given,
    options_of,
)
from superbloom.commands.reasons import print_reasons, print_similar_rows
from superbloom.config import HeadOptions, QueryOptions, make
from superbloom.errors import InputError

EXPLAINED = [field.name for field in fields(Explanation)]
# For each mask, the predictions and, if they are explained, the reasons as the server sends them.
Answers = list[tuple[list[Prediction], dict[str, Any]]]


@options_of(QueryOptions, HeadOptions)
def predict(
    model: FolderOrName = None,
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
    server: Server = None,
    api_key: ApiKey = None,
    json_: Json = False,
    **options: Any,
) -> None:
    """The most likely names for each [MASK] of a context, with the certificate."""
    folder, names = folder_and_names(model, names, server)
    if (not names) == (text is None):
        raise InputError("give the names of a context, or a --text with [MASK], and not both")
    context = names or text or ""
    query, head = given(QueryOptions, options), vars(make(HeadOptions, given(HeadOptions, options)))
    if allow_file is not None:
        query["allow"] = [*query.get("allow", []), *_names(allow_file)]
    with warnings_as_lines():
        if folder is None:
            found = _ask_server(str(server), api_key, context, query, head)
        else:
            found = _ask_folder(folder, context, query, head)
    if json_:
        document: dict[str, Any] = {"context": context}
        document["predictions"] = [[asdict(p) for p in predictions] for predictions, _ in found]
        if query.get("explain"):
            document["explanations"] = [explanation for _, explanation in found]
        print_json(document)
    else:
        _print(found)


def _ask_folder(folder: Path, context: list[str] | str, query: dict[str, Any], head: dict[str, Any]) -> Answers:
    from superbloom.predict import Predictor
    from superbloom.store import load

    if "," in query.get("combine", ""):
        query["combine"] = _weights(query["combine"])
    found = Predictor(load(folder).model, **head).ask(context, **query)
    return [(one.predictions, {} if one.explanation is None else asdict(one.explanation)) for one in found]


def _ask_server(
    url: str, key: str | None, context: list[str] | str, query: dict[str, Any], head: dict[str, Any]
) -> Answers:
    """Ask a server; needs neither torch nor the model."""
    from superbloom.client import Client, predictions_of

    check_head_for_server(head)
    max_rounds = query.pop("max_rounds", None)
    if query.pop("combine", None) is not None or max_rounds not in (None, 1):
        raise InputError(
            "a server scores names as its model does, and makes one round or as many as needed; "
            "leave out --combine, and --max-rounds unless it is 1"
        )
    client = Client(url, key=key)
    ask = client.ask_text if isinstance(context, str) else client.ask
    answer = ask(context, exact=max_rounds is None, **query)  # type: ignore[arg-type]
    explanations = [{name: mask.get(name) for name in EXPLAINED} for mask in answer["masks"]]
    return list(zip(predictions_of(answer), explanations, strict=True))


def _names(file: Path) -> list[str]:
    from superbloom.prepare.files import open_lines

    return [name for name in open_lines(file) if name.strip()]


def _weights(combine: str) -> list[float]:
    try:
        return [float(weight) for weight in combine.split(",")]
    except ValueError:
        raise InputError(f"combine={combine!r} given; numbers with commas between them are weights: 0.7,0.3") from None


def _print(found: Answers) -> None:
    for number, (predictions, explanation) in enumerate(found, 1):
        if len(found) > 1:
            typer.echo(f"[MASK] {number}")
        for rank, prediction in enumerate(predictions, 1):
            typer.echo(
                f"{rank:4d}  {prediction.score:8.3f}  {prediction.probability:6.1%}  {printable(prediction.name)}"
            )
            if explanation.get("why"):
                print_reasons(prediction.probability, explanation["why"][rank - 1])
        print_wrapped(f"({_proof(predictions)})", " " * 6)
        print_similar_rows(explanation.get("similar_rows") or [])


def _proof(predictions: list[Prediction]) -> str:
    if not predictions:
        return "no name is left: all are excluded, or less likely than --min-score"
    if not predictions[0].certified:
        return "not certified: search cut short"
    return "certified: no other allowed name is more likely under this model"
