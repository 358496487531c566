"""`superbloom recommend`: the best next items of users, printed or written as a table while they come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from superbloom.commands.console import notice, print_json, printable, warnings_as_lines
from superbloom.commands.options import Json, ModelFolder, given, may_overwrite, options_of
from superbloom.config import (
    HISTORY_OPTIONS,
    BatchOptions,
    InteractionsOptions,
    RecommendOptions,
    WriteOptions,
    make,
)
from superbloom.errors import InputError

# --user has another meaning for a corpus, so it is written out below.
NOT_READ = [spec.name for spec in fields(InteractionsOptions) if spec.name not in HISTORY_OPTIONS[1:]]


@options_of(RecommendOptions)
@options_of(InteractionsOptions, leave_out=NOT_READ)
@options_of(BatchOptions, WriteOptions)
def recommend(
    model: ModelFolder,
    log: Annotated[
        str,
        typer.Argument(
            metavar="LOG",
            help="A corpus folder, or a log as `prepare interactions` reads it, whose users may be new; "
            "or Parquet files with a list of items per user.",
        ),
    ],
    user: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Column of users in a log. (default: {InteractionsOptions.user}) With a corpus folder: a user, as "
            "--only."
        ),
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="Answer this user; may be repeated. (default: all)")] = None,
    users_file: Annotated[Path | None, typer.Option(help="A text file of users to answer, one per line.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse unknown users and items. (default: leave them out)")
    ] = False,
    allow_file: Annotated[
        Path | None,
        typer.Option(help="Recommend only these: lines of an item, or of a user, a tab and an item for that user."),
    ] = None,
    exclude_file: Annotated[Path | None, typer.Option(help="Never recommend these: lines as of --allow-file.")] = None,
    categories: Annotated[
        Path | None, typer.Option(help="A text file of lines item, tab, category, for --max-per-category.")
    ] = None,
    titles: Annotated[
        Path | None, typer.Option(help="A text file of lines item, tab, title; the titles are shown next to the items.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="A .csv or .parquet file to write; with --engine spark, a folder of Parquet files."),
    ] = None,
    safe_csv: Annotated[
        bool, typer.Option("--safe-csv", help="Mark text that a spreadsheet would run as a formula with an apostrophe.")
    ] = False,
    json_: Json = False,
    **options: Any,
) -> None:
    """The best next items of users, from all they had: user, item, score, rank, certified, source."""
    batch = make(BatchOptions, given(BatchOptions, options))
    reading = make(
        InteractionsOptions, {n: v for n, v in given(InteractionsOptions, options).items() if n not in NOT_READ}
    )
    _check_batch(batch, reading.engine == "spark", out)
    if safe_csv and (out is None or out.suffix != ".csv"):
        place = "no --out" if out is None else f"--out {out}"
        raise InputError(f"--safe-csv with {place} given; it goes with an --out that ends in .csv")
    from superbloom.batch.sources import is_corpus
    from superbloom.batch.spark import check_spark_table
    from superbloom.batch.tables import check_table

    if out is not None:
        (check_spark_table if reading.engine == "spark" else check_table)(out, may_overwrite(options))
    asked = list(only or [])
    if is_corpus(log):
        asked += user or []
    elif user:
        if len(user) > 1:
            raise InputError(
                f"--user given {len(user)} times; of a log it is the one column of users: --only names a user"
            )
        reading = replace(reading, user=user[0])
    if users_file is not None:
        from superbloom.prepare.files import open_lines

        asked += [name for name in open_lines(users_file) if name.strip()]
    whom = Whom(log, reading, asked if asked or users_file is not None else None, strict)
    with warnings_as_lines():
        rules = Rules.read(model, allow_file, exclude_file, categories, titles, strict)
        settings = given(RecommendOptions, options) | rules.options
        if reading.engine == "spark":
            assert out is not None
            found = _on_spark(model, whom, settings, rules.own, out, batch)
        else:
            found = _here(
                model, whom, settings, rules.own, batch.processes, lambda schema: _sink(schema, out, safe_csv, json_)
            )
    _report(found, out, json_)


@dataclass(frozen=True)
class Whom:
    """Whom to answer: some users of a log, or all."""

    log: str
    reading: InteractionsOptions
    users: list[str] | None
    strict: bool

    @contextmanager
    def open(self, model: Path, near: Path | None) -> Iterator[Any]:
        """The histories, with a line about names that the model does not know."""
        from superbloom.batch.arrow import opened
        from superbloom.batch.sources import open_source
        from superbloom.predict.recommend import leave_out
        from superbloom.progress import counting

        vocab = opened(model).model.vocab
        with open_source(self.log, vocab, self.reading, self.users, self.strict, near, counting, notice) as source:
            leave_out("names", source.unknown, len(vocab), self.strict)
            yield source


@dataclass(frozen=True)
class Rules:
    """What the files of rules say. options: those of recommend_arrow. own: tables of lists of single users."""

    options: dict[str, Any]
    own: dict[str, Any]

    @classmethod
    def read(
        cls,
        model: Path,
        allow_file: Path | None,
        exclude_file: Path | None,
        categories: Path | None,
        titles: Path | None,
        strict: bool,
    ) -> Rules:
        import pyarrow as pa

        from superbloom.batch.arrow import opened
        from superbloom.batch.lists import read_lists, read_pairs
        from superbloom.predict.recommend import leave_out

        options: dict[str, Any] = {}
        own = {}
        for name, column, file in (("items_to_recommend", "allow", allow_file), ("exclude", "exclude", exclude_file)):
            if file is None:
                continue
            lists = read_lists(file)
            items = lists.items().unique()
            vocab = opened(model).model.target_vocab
            unknown = items.filter(pa.array(vocab.find_all(items) < 0)).to_pylist()
            leave_out(f"names of {file}", unknown, len(vocab), strict)
            if lists.own is not None:
                own[column] = lists.own
            if lists.shared or lists.own is None:
                options[name] = lists.shared
        if categories is not None:
            options["categories"] = read_pairs(categories, "category")
        if titles is not None:
            options["titles"] = read_pairs(titles, "title")
        return cls(options, own)


def _check_batch(batch: BatchOptions, is_spark: bool, out: Path | None) -> None:
    if is_spark and out is None:
        raise InputError("--engine spark without --out given; it writes a folder of Parquet files: give --out FOLDER")
    if is_spark and batch.processes != BatchOptions.processes:
        raise InputError("--processes with --engine spark given; Spark decides how many there are: leave it out")
    if not is_spark and (batch.master is not None or batch.ship_model):
        raise InputError("--master and --ship-model go with --engine spark; give it, or leave them out")


def _here(
    model: Path, whom: Whom, options: dict[str, Any], own: dict[str, Any], processes: int, sink: Callable[[Any], Any]
) -> Counter[str]:
    """Answer on this machine; the number of users, of rows, and of users by the source of their rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from superbloom.batch.arrow import schema_of
    from superbloom.batch.lists import with_lists
    from superbloom.batch.local import recommend_locally
    from superbloom.progress import counting

    counts: Counter[str] = Counter()
    schema = schema_of(pa.string(), options.get("titles") is not None)
    with (
        whom.open(model, None) as source,
        counting("recommending", source.num_users) as progress,
        sink(schema) as write,
    ):
        batches = (with_lists(batch, own) for batch in source.batches())
        for users, found in recommend_locally(batches, str(model), options, processes):
            write(found)
            first = found.filter(pc.equal(found["rank"], 1))
            for entry in pc.value_counts(first["source"]).to_pylist():
                counts[entry["values"]] += entry["counts"]
            counts["rows"] += found.num_rows
            progress(users)
        counts["users"] = source.num_users
    return counts


def _on_spark(
    model: Path, whom: Whom, options: dict[str, Any], own: dict[str, Any], out: Path, batch: BatchOptions
) -> Counter[str]:
    from superbloom.batch.spark import recommend_on_spark
    from superbloom.prepare.scratch import scratch_folder
    from superbloom.prepare.spark import spark_session

    with (
        scratch_folder(out) as folder,
        spark_session(folder, whom.reading.memory, batch.master) as session,
        whom.open(model, out) as source,
    ):
        counts = recommend_on_spark(session, source, model, options, own, out, batch.ship_model)
        return Counter({"users": source.num_users, **counts})


@contextmanager
def _sink(schema: Any, out: Path | None, safe_csv: bool, json_: bool) -> Iterator[Callable[[Any], None]]:
    """Where rows go: to a file, to one JSON document, or to lines."""
    from superbloom.batch.tables import new_table

    if out is not None:
        with new_table(out, schema, safe_csv) as write:
            yield write
    elif json_:
        rows: list[dict[str, Any]] = []
        yield lambda batch: rows.extend(batch.to_pylist())
        print_json(rows)
    else:
        yield _print


def _print(batch: Any) -> None:
    for row in batch.to_pylist():
        line = "\t".join(map(printable, [row["item"], *([row["title"]] if "title" in row else [])]))
        typer.echo(
            f"{printable(str(row['user']))}\t{row['rank']}\t{row['score']:.3f}\t{line}"
            f"{'' if row['certified'] else '  (not certified)'}"
        )


def _report(found: Counter[str], out: Path | None, json_: bool) -> None:
    answered = found["history"] + found["start"]
    if found["start"]:
        notice(
            f"{found['start']:,} of {found['users']:,} users have no item that the model knows; they get what rows "
            "begin with (source: start)"
        )
    if found["users"] > answered:
        notice(f"{found['users'] - answered:,} of {found['users']:,} users have no item left by the rules: no rows")
    if out is None:
        return
    if json_:
        counts = {name: found[name] for name in ("users", "rows", "history", "start")}
        print_json({"out": str(out), **counts})
    else:
        typer.echo(f"{found['rows']:,} recommendations for {answered:,} users are in {out}")
