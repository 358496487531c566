"""`superbloom reproduce`: the paper's tables and figures on your corpus, or in a laboratory of made-up worlds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from superbloom.commands.console import command, notice, print_json, q
from superbloom.commands.options import Json
from superbloom.errors import InputError

CorpusOrNone = Annotated[
    Path | None,
    typer.Argument(metavar="CORPUS", help="A corpus folder; left out with --lab.", show_default=False),
]


def reproduce(
    out: Annotated[Path, typer.Option("--out", help="Folder for the report. Resumes an earlier call in this folder.")],
    corpus: CorpusOrNone = None,
    lab: Annotated[
        bool,
        typer.Option("--lab", help="In made-up worlds, whose best possible recall is known, until recall is flat."),
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Some parts: table1 to table7, figure3, costs, examples, sensitivity; with --lab depth, table2, "
            "table3, table6, table7, figure3, m, alpha, names, rows, lists. (default: all the corpus allows)"
        ),
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Time for all of it: 3h, 1h30m, 45m. (default: 3h)")] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Train Tables 2, 3 and 5, or all of --lab, with this number of seeds. (default: 1; 3 with --lab)",
            min=1,
            max=100,
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """The paper's tables and figures on your corpus, in the time you have, beside the paper's numbers."""
    if lab == (corpus is not None):
        raise InputError("give a corpus folder, or --lab for made-up worlds" + (", not both" if lab else ""))
    options: dict[str, Any] = {"only": only or (), "budget": budget, "notice": notice} | (
        {} if seeds is None else {"seeds": seeds}
    )
    if corpus is None:
        from superbloom.reproduce.laboratory.run import reproduce_lab

        found = reproduce_lab(out, **options)
    else:
        from superbloom.reproduce.run import reproduce

        found = reproduce(corpus, out, **options)
    if json_:
        print_json(found)
    elif found["done"] < found["cells"]:
        typer.echo(
            f"{found['done']} of {found['cells']} models; the report so far is {found['report']}. Continue with:"
        )
        parts = "".join(f" --only {q(part)}" for part in only or ())
        parts += f" --seeds {seeds}" if seeds is not None else ""
        typer.echo(f"  {command()} reproduce {'--lab' if corpus is None else q(corpus)} --out {q(out)}{parts}")
    else:
        typer.echo(f"the report is {found['report']}")
