"""`superbloom recommend`: the best next items of users, printed or written as a table."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated, Any

import typer

from superbloom.commands.console import print_json, printable, warnings_as_lines
from superbloom.commands.options import CorpusFolder, Json, ModelFolder, given, may_overwrite, options_of
from superbloom.config import RecommendOptions, WriteOptions
from superbloom.errors import InputError

FORMULA = r"\A[=+\-@\t\r\n\x00]"  # how a cell begins that a spreadsheet may run

MAX_USERS_SHOWN = 3


@options_of(RecommendOptions, WriteOptions)
def recommend(
    model: ModelFolder,
    corpus: CorpusFolder,
    user: Annotated[list[str] | None, typer.Option(help="A user; may be repeated. (default: all)")] = None,
    users_file: Annotated[Path | None, typer.Option(help="A text file, one user per line.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse unknown users and items. (default: leave them out)")
    ] = False,
    titles: Annotated[
        Path | None, typer.Option(help="A text file of lines item, tab, title; the titles are shown next to the items.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="A .csv or .parquet file to write.")] = None,
    safe_csv: Annotated[
        bool, typer.Option("--safe-csv", help="Mark text that a spreadsheet would run as a formula with an apostrophe.")
    ] = False,
    json_: Json = False,
    **options: Any,
) -> None:
    """The best next items of users, from all they had: user, item, score, rank, certified."""
    if safe_csv and (out is None or out.suffix != ".csv"):
        place = "no --out" if out is None else f"--out {out}"
        raise InputError(f"--safe-csv with {place} given; it goes with an --out that ends in .csv")
    if out is not None:
        _check_table(out, may_overwrite(options))
    shown = None if titles is None else _titles(titles)
    with warnings_as_lines():
        found = _recommend(model, corpus, user or [], users_file, strict, given(RecommendOptions, options))
    if shown is not None:
        found["title"] = [shown.get(item, "") for item in found["item"]]
    if out is not None:
        _write_table(found, out, safe_csv)
    rows = list(zip(*found.values(), strict=True))
    if json_:
        print_json([dict(zip(found, row, strict=True)) for row in rows])
    elif out is not None:
        typer.echo(f"{len(rows):,} recommendations for {len(set(found['user'])):,} users are in {out}")
    else:
        for who, item, score, rank, certified, *title in rows:
            line = "\t".join(map(printable, [item, *title])) + ("" if certified else "  (not certified)")
            typer.echo(f"{printable(str(who))}\t{rank}\t{score:.3f}\t{line}")


def _recommend(
    model: Path, corpus: Path, users: list[str], users_file: Path | None, strict: bool, options: dict[str, Any]
) -> dict[str, Any]:
    from superbloom.corpus import Corpus
    from superbloom.predict import Predictor
    from superbloom.predict.recommend import Histories, recommend
    from superbloom.prepare.files import open_lines
    from superbloom.progress import counting
    from superbloom.store import load

    predictor, rows = Predictor(load(model).model), Corpus.open(corpus)
    if users_file is not None:
        users = users + [user for user in open_lines(users_file) if user.strip()]
    chosen = users if users or users_file is not None else None
    histories = Histories.of_users(rows, predictor.model.vocab, chosen, strict)
    if chosen and not histories.who:
        keys = rows.sequences["key"]
        shown = [", ".join(map(repr, few)) for few in (chosen[:MAX_USERS_SHOWN], keys[:MAX_USERS_SHOWN].to_pylist())]
        raise InputError(f"no user {shown[0]} in {corpus}; it has {len(keys):,} users, for example {shown[1]}")
    with counting("recommending", len(histories.who)) as progress:
        return recommend(predictor, histories, progress=progress, **options)


def _titles(file: Path) -> dict[str, str]:
    """Titles by item; anything after a second tab is left out."""
    from superbloom.prepare.files import open_lines

    titles = {}
    for number, line in enumerate(open_lines(file), 1):
        item, tab, rest = line.partition("\t")
        if line and not tab:
            raise InputError(f"line {number:,} of {file} is {line!r:.80}; give an item, a tab and its title")
        titles[item] = rest.split("\t")[0]
    return titles


def _check_table(out: Path, overwrite: bool) -> None:
    from superbloom.storage import already_there

    if out.suffix not in (".csv", ".parquet"):
        raise InputError(f"--out {out} given; a file that ends in .csv or .parquet is allowed")
    if out.is_dir() or not out.parent.is_dir():
        raise InputError(f"--out {out} is a folder, or lies in none; choose a file in a folder that is there")
    if out.exists() and not overwrite:
        raise already_there(out, "exists")


def _write_table(columns: dict[str, Any], out: Path, safe_csv: bool) -> None:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    from superbloom.storage import write_atomically

    table, sink = pa.table(columns), io.BytesIO()
    if out.suffix == ".csv":
        pyarrow.csv.write_csv(without_formulas(table) if safe_csv else table, sink)
    else:
        pyarrow.parquet.write_table(table, sink)
    write_atomically(out, sink.getvalue())


def without_formulas(table: Any) -> Any:
    """The Arrow table with an apostrophe before text that a spreadsheet would run as a formula (CSV injection).

    >>> import pyarrow as pa
    >>> without_formulas(pa.table({"item": ["=1+1", "a=b"], "score": [-1.0, 2.0]})).to_pydict()
    {'item': ["'=1+1", 'a=b'], 'score': [-1.0, 2.0]}
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    marked = (
        pc.replace_substring_regex(column, FORMULA, r"'\0") if pa.types.is_string(column.type) else column
        for column in table.columns
    )
    return pa.table(list(marked), names=table.column_names)
