"""`superbloom prepare`: turn files into a corpus folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from superbloom.commands.console import command, notice, print_json, print_rows, q
from superbloom.commands.examples import epilog
from superbloom.commands.options import Json, Out, given, may_overwrite, options_of
from superbloom.config import (
    InteractionsOptions,
    SequencesOptions,
    SyntheticOptions,
    TextOptions,
    WikipediaOptions,
    WriteOptions,
    make,
)

EXIT_DAMAGED = 3  # a corpus was written, but a dump was damaged
EXIT_INTERRUPTED = 130

app = typer.Typer(help="Turn your data into a corpus folder.", no_args_is_help=True)


@app.command("wikipedia", epilog=epilog("wikipedia"))
@options_of(WikipediaOptions, WriteOptions)
def prepare_wikipedia(
    dumps: Annotated[list[str], typer.Argument(help="pages-articles files: .xml, .bz2, .xz, .gz, .zst; - is stdin.")],
    out: Out,
    json_: Json = False,
    **options: Any,
) -> None:
    """The entity links of a Wikipedia dump (Sec. 3 of the paper). After a kill, the same command resumes."""
    from superbloom.prepare.wikipedia import prepare_wikipedia

    try:
        _prepare(prepare_wikipedia, dumps, out, WikipediaOptions, options, json_)
    except KeyboardInterrupt:
        notice(f"stopped; the same command resumes (or remove {q(out)}.parts)")
        raise typer.Exit(EXIT_INTERRUPTED) from None


@app.command("sequences", epilog=epilog("sequences"))
@options_of(SequencesOptions, WriteOptions)
def prepare_sequences(
    files: Annotated[
        list[str], typer.Argument(help="Text, one sequence per line; also .gz .xz .zst .bz2; - is stdin.")
    ],
    out: Out,
    json_: Json = False,
    **options: Any,
) -> None:
    """Sequences of names from text files."""
    from superbloom.prepare.sequences import prepare_sequences

    _prepare(prepare_sequences, files, out, SequencesOptions, options, json_)


@app.command("interactions", epilog=epilog("interactions"))
@options_of(InteractionsOptions, WriteOptions)
def prepare_interactions(
    files: Annotated[
        list[str],
        typer.Argument(
            help="CSV, TSV, JSON lines, Parquet, .inter or lines, packed or not; files, folders or s3://…; - is stdin."
        ),
    ],
    out: Out,
    json_: Json = False,
    **options: Any,
) -> None:
    """An interaction log: one row per user, items in the order of events (docs/recommendation.md)."""
    from superbloom.prepare.interactions import prepare_interactions

    _prepare(prepare_interactions, files, out, InteractionsOptions, options, json_)


@app.command("text", epilog=epilog("text"))
@options_of(TextOptions, WriteOptions)
def prepare_text(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Text with blank lines or <doc> between documents, or a MediaWiki dump; packed or not; files or "
            "folders; - is stdin."
        ),
    ],
    out: Out,
    json_: Json = False,
    **options: Any,
) -> None:
    """Natural language as word pieces, words and bigrams (Sec. 4 of the paper; docs/text.md)."""
    from superbloom.prepare.text import prepare_text

    _prepare(prepare_text, files, out, TextOptions, options, json_)


@app.command("synthetic", epilog=epilog("synthetic"))
@options_of(SyntheticOptions, WriteOptions)
def prepare_synthetic(out: Out, json_: Json = False, **options: Any) -> None:
    """A made-up world of lists, countries and capitals, with the best possible recall (docs/results/index.md)."""
    from superbloom.prepare.synthetic import prepare_synthetic

    _prepare(prepare_synthetic, None, out, SyntheticOptions, options, json_)


def _prepare(
    read: Callable[..., Any], files: list[str] | None, out: Path, kind: type, options: dict[str, Any], json_: bool
) -> None:
    """Run a reader with options of its kind and print what it counted. files: None for a reader without."""
    from superbloom.progress import counting

    chosen: Any = make(kind, given(kind, options))
    given_files = () if files is None else (files,)
    report = read(*given_files, out, chosen, overwrite=may_overwrite(options), notice=notice, watch=counting)
    if json_:
        print_json({"corpus": str(out), **report.document()})
    else:
        print_rows(report.table())
        model, minutes = f"{out}-model", report.train_minutes
        train = f"{command()} train {q(out)} --out {q(model)} {report.train_options}--minutes {minutes}"
        typer.echo(f"The corpus is in {out}. Next:\n  {train}")
    if report.damage:
        raise typer.Exit(EXIT_DAMAGED)
