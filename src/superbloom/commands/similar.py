"""`superbloom similar`: the names that are most similar to some names, from a model folder or from a server."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from superbloom.answers import Similar
from superbloom.commands.console import notice, print_json, printable
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
from superbloom.config import HeadOptions, SimilarOptions
from superbloom.errors import InputError


@options_of(SimilarOptions, HeadOptions, leave_out=["precision", "prior"])
def similar(
    model: FolderOrName = None,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME…", help="Names; several are taken together.")
    ] = None,
    server: Server = None,
    api_key: ApiKey = None,
    json_: Json = False,
    **options: Any,
) -> None:
    """The names that are most similar to some names: their neighbours in training rows."""
    folder, names = folder_and_names(model, names, server)
    if not names:
        raise InputError("no names given; give one name or more, e.g. superbloom similar MODEL Copenhagen")
    asked, head = given(SimilarOptions, options), given(HeadOptions, options)
    if folder is None:
        found = _ask_server(str(server), api_key, names, asked, head)
    else:
        found = _ask_folder(folder, names, asked, head)
    if json_:
        print_json(asdict(found))
        return
    for rank, neighbour in enumerate(found.neighbours, 1):
        typer.echo(f"{rank:4d}  {neighbour.score:8.3f}  {printable(neighbour.name)}")
    if found.note:
        notice(found.note)


def _ask_folder(folder: Path, names: list[str], asked: dict[str, Any], head: dict[str, Any]) -> Similar:
    from superbloom.predict import Predictor
    from superbloom.predict import similar as find
    from superbloom.store import load

    return find(Predictor(load(folder).model, **head), [names], **asked)[0]


def _ask_server(url: str, key: str | None, names: list[str], asked: dict[str, Any], head: dict[str, Any]) -> Similar:
    """Ask a server; needs neither torch nor the model."""
    from superbloom.client import Client

    check_head_for_server(head)
    return Client(url, key=key).similar(names, **asked)
