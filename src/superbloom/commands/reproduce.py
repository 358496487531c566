"""`superbloom reproduce`: the paper's tables and figures on your corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from superbloom.commands.console import command, notice, print_json, q
from superbloom.commands.options import CorpusFolder, Json


def reproduce(
    corpus: CorpusFolder,
    out: Annotated[Path, typer.Option("--out", help="Folder for the report. Resumes an earlier call in this folder.")],
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Some parts: table1 to table7, figure3, costs, examples, sensitivity. (default: all the corpus allows)"
        ),
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Time for all of it: 3h, 1h30m, 45m. (default: 3h)")] = None,
    seeds: Annotated[int, typer.Option(help="Train Tables 2, 3 and 5 with this number of seeds.", min=1, max=100)] = 1,
    json_: Json = False,
) -> None:
    """The paper's tables and figures on your corpus, in the time you have, beside the paper's numbers."""
    from superbloom.reproduce.run import reproduce

    found = reproduce(corpus, out, only=only or (), budget=budget, seeds=seeds, notice=notice)
    if json_:
        print_json(found)
    elif found["done"] < found["cells"]:
        typer.echo(
            f"{found['done']} of {found['cells']} models; the report so far is {found['report']}. Continue with:"
        )
        parts = "".join(f" --only {q(part)}" for part in only or ()) + (f" --seeds {seeds}" if seeds > 1 else "")
        typer.echo(f"  {command()} reproduce {q(corpus)} --out {q(out)}{parts}")
    else:
        typer.echo(f"the report is {found['report']}")
