"""`superbloom similar`: the names that are most similar to some names."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from superbloom.commands.console import notice, print_json, printable
from superbloom.commands.options import Json, ModelFolder, given, options_of
from superbloom.config import HeadOptions, SimilarOptions


@options_of(SimilarOptions, HeadOptions, leave_out=["precision", "prior"])
def similar(
    model: ModelFolder,
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="Names; several are taken together.")],
    json_: Json = False,
    **options: Any,
) -> None:
    """The names that are most similar to some names: their neighbours in training rows."""
    from superbloom.predict import Predictor
    from superbloom.predict import similar as find
    from superbloom.store import load

    predictor = Predictor(load(model).model, **given(HeadOptions, options))
    (found,) = find(predictor, [names], **given(SimilarOptions, options))
    if json_:
        print_json(asdict(found))
        return
    for rank, neighbour in enumerate(found.neighbours, 1):
        typer.echo(f"{rank:4d}  {neighbour.score:8.3f}  {printable(neighbour.name)}")
    if found.note:
        notice(found.note)
