"""From an interaction log to a corpus: one row a user, items in the order of events.

    read     tables.py: any file or DataFrame → Parquet files of user, item, time
    clean    names as text, events without user, item or time left out, repeated ones counted once
    cut      items seen too rarely, those beyond the most frequent, users with too few events left
    order    by user, then time, then item; without times as the rows lie
    number   the items that are left by falling count, ties by name

Everything up to the order is written once, as Ibis expressions, and run by DuckDB or, for logs beyond one machine, by
Spark. Each step goes to Parquet files in a temporary folder and both engines sort text by its bytes, so both give the
same corpus, and neither holds the log in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ibis
import ibis.expr.types as ir
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from ibis import _

from superbloom.corpus import SPLITS, Corpus, Vocab, split_of
from superbloom.errors import InputError, check_whole
from superbloom.prepare.files import mapped
from superbloom.prepare.interactions.columns import Columns
from superbloom.prepare.interactions.engines import Engine, working
from superbloom.prepare.interactions.tables import Log, find_files, log_of_files, log_of_frame
from superbloom.progress import counting

RULES = {
    "last": "the last element of each row of 3 or more is for the test, the one before it for validation",
    "time": "the last 10 % of all events are for the test, the last 5 % of those before them for validation, by time",
    "user": "of users whose key's md5 says test or validation, the last element; all elements of the others train",
}
CHUNK = 2**22


@dataclass(frozen=True)
class Options:
    """What is taken of a log, and how its rows are split."""

    user: str
    item: str
    time: str | None
    min_item_count: int
    min_user_count: int
    max_names: int | None
    split: str
    drop_repeats: bool

    def check(self) -> None:
        check_whole(
            min_item_count=self.min_item_count,
            min_user_count=self.min_user_count,
            max_names=1 if self.max_names is None else self.max_names,
        )
        if self.split not in RULES:
            raise InputError(f"split {self.split!r} given; {', '.join(RULES)} are allowed")
        if self.split == "time" and self.time is None:
            raise InputError("split 'time' given without a column of times; name it: --time timestamp")


def prepare_interactions(
    files: Iterable[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    user: str | int = "user_id",
    item: str | int = "item_id",
    time: str | int | None = None,
    min_item_count: int = 5,
    min_user_count: int = 2,
    max_names: int | None = None,
    split: str = "last",
    drop_repeats: bool = False,
    engine: str = "duckdb",
    memory: float = 2.0,
    format: str = "auto",
    encoding: str = "utf-8",
    scratch: str | os.PathLike[str] | None = None,
) -> Corpus:
    """The corpus of the interaction log in these files (docs/interactions.md).

    memory, in GB, bounds what is held at once; the rest lies in a temporary folder in `scratch` meanwhile.
    """
    options = _options(user, item, time, min_item_count, min_user_count, max_names, split, drop_repeats)
    paths = [os.fspath(path) for path in ([files] if isinstance(files, str | os.PathLike) else files)]
    with working(engine, memory, scratch) as (run, folder):
        found = find_files(paths, folder)
        sizes = [file.path.stat().st_size for file in found if file.path.is_file()]
        with counting("reading", sum(sizes) if len(sizes) == len(found) else None, in_bytes=True) as progress:
            log = log_of_files(found, _columns(options), folder / "log", format, encoding, progress)
        source = ", ".join(Path(path).name or path for path in paths)
        return _corpus(log, options, run, folder, source)


def from_interactions(
    df: Any,
    user: str = "user_id",
    item: str = "item_id",
    time: str | None = None,
    min_item_count: int = 5,
    min_user_count: int = 2,
    max_names: int | None = None,
    split: str = "last",
    drop_repeats: bool = False,
    engine: str = "duckdb",
    memory: float = 2.0,
) -> Corpus:
    """The corpus of a DataFrame with one event a row: pandas, polars, Arrow and whatever else narwhals reads.

    >>> log = pa.table({"user_id": [1, 1, 2, 2], "item_id": ["b", "a", "b", "c"], "ts": [7, 3, 5, 6]})
    >>> corpus = from_interactions(log, time="ts", min_item_count=1)
    >>> [corpus.vocab.names(corpus.row(row)) for row in range(2)], corpus.vocab.names([0, 1, 2])
    ([['a', 'b'], ['b', 'c']], ['b', 'a', 'c'])
    """
    options = _options(user, item, time, min_item_count, min_user_count, max_names, split, drop_repeats)
    with working(engine, memory, None) as (run, folder):
        log = log_of_frame(df, _columns(options), folder / "log")
        return _corpus(log, options, run, folder, type(df).__name__)


def _options(user: str | int, item: str | int, time: str | int | None, *others: Any) -> Options:
    numbers: list[Any] = [
        int(other) if isinstance(other, np.integer) else other for other in others
    ]  # as JSON takes them
    options = Options(str(user), str(item), None if time is None else str(time), *numbers)
    options.check()
    return options


def _columns(options: Options) -> Columns:
    return Columns(options.user, options.item, options.time)


def _corpus(log: Log, options: Options, engine: Engine, folder: Path, source: str) -> Corpus:
    """Clean, cut, order and number the events of a log."""

    def step(table: ir.Table, name: str) -> ir.Table:
        engine.write(table, folder / name)
        return engine.read(folder / name)

    with counting("counting items", None):
        raw = _named(engine.read(log.folder), log)
        engine.write(_missing(raw), folder / "missing")
        missing = _one_row(folder / "missing")
        _check_events(missing, log, options)
        events = _events(raw, options)
        if options.time is not None or options.drop_repeats:
            events = step(events, "events")
        counts = step(events.group_by("item").agg(count=_.count()), "counts")
        items = step(_kept_items(counts, options), "items")
        engine.write(_cut(counts, items, options), folder / "cut")
        cut = _one_row(folder / "cut")
    _check_items(cut, options)
    with counting("counting users", None):
        kept = events.join(items, "item").select("user", "at", "number")
        users = step(_kept_users(kept, options), "users")
    with counting("ordering events", None):
        ordered = kept.semi_join(users, "user").order_by("user", "at", "number")
        engine.write(
            ordered.select("number", "at") if options.split == "time" else ordered.select("number"), folder / "ordered"
        )
    with counting("numbering items", None):
        return _assemble(folder, options, missing | cut, log, source)


def _named(table: ir.Table, log: Log) -> ir.Table:
    """user, item and at: names as text, and what orders a user's events."""
    columns = log.columns
    names = {role: _text(table[name]) for role, name in (("user", columns.user), ("item", columns.item))}
    at = table["row"] if columns.time is None else table[columns.time]
    if log.seen.fractions:
        at = at.cast("float64") + table["fraction"]
    return table.select(**names, at=at)


def _text(column: Any) -> Any:
    return column.nullif("") if column.type().is_string() else column.cast("string")


def _missing(raw: ir.Table) -> ir.Table:
    named = raw.user.notnull() & raw.item.notnull()
    return raw.agg(
        events=raw.count(),
        user=raw.user.isnull().sum(),
        item=(raw.user.notnull() & raw.item.isnull()).sum(),
        at=(named & raw["at"].isnull()).sum(),
    )


def _events(raw: ir.Table, options: Options) -> ir.Table:
    """The events that count: whole ones, exact repeats and perhaps all repeats once."""
    whole = raw.drop_null()
    if options.drop_repeats:
        return whole.group_by("user", "item").agg(at=_["at"].min())
    return whole if options.time is None else whole.distinct()


def _cut(counts: ir.Table, items: ir.Table, options: Options) -> ir.Table:
    """What the cuts of items leave, in one row."""
    frequent = counts["count"] >= options.min_item_count
    found = counts.agg(
        distinct=counts.count(),
        most=counts["count"].max(),
        counted=counts["count"].sum(),
        frequent=counts["count"].sum(where=frequent),
    )
    return found.cross_join(items.agg(items=items.count(), kept=items["count"].sum()))


def _kept_items(counts: ir.Table, options: Options) -> ir.Table:
    """The items that are kept, numbered in order of their names for now."""
    kept = counts.filter(counts["count"] >= options.min_item_count)
    if options.max_names is not None:
        kept = kept.order_by(ibis.desc("count"), "item").limit(options.max_names)
    number = ibis.row_number().over(order_by="item").cast("int32")
    return kept.select("item", "count", number=number).order_by("number")


def _kept_users(kept: ir.Table, options: Options) -> ir.Table:
    counted = kept.group_by("user").agg(count=_.count())
    return counted.filter(counted["count"] >= options.min_user_count).order_by("user")


def _check_events(missing: dict[str, int], log: Log, options: Options) -> None:
    if not missing["events"]:
        raise InputError("the log holds no events; at least one is needed")
    whole = missing["events"] - missing["user"] - missing["item"] - missing["at"]
    if not whole and missing["at"]:
        shown = f"one is {log.seen.example!r:.80}; " if log.seen.unreadable else ""
        raise InputError(
            f"none of the times in column {options.time!r} can be read; {shown}"
            "numbers, timestamps and ISO dates like 2020-12-31T23:59:59 are allowed"
        )
    if not whole:
        what = "user" if missing["user"] >= missing["item"] else "item"
        raise InputError(f"all {missing['events']:,} events lack a user or an item; is --{what} the right column?")


def _check_items(cut: dict[str, int], options: Options) -> None:
    if cut["distinct"] < 2:
        raise InputError(f"the log holds {cut['distinct']} distinct items; at least 2 are needed")
    if cut["items"] < 2:
        raise InputError(
            f"{cut['items']} of {cut['distinct']:,} items are left by min_item_count={options.min_item_count}, "
            f"max_names={options.max_names}; at least 2 are needed (the most frequent has {cut['most']:,} events)"
        )


def _parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.parquet"))


def _table(folder: Path) -> pa.Table:
    """What an engine wrote, small enough to be held."""
    return pa.concat_tables([pq.read_table(part, partitioning=None) for part in _parts(folder)])


def _one_row(folder: Path) -> dict[str, int]:
    (row,) = _table(folder).to_pylist()
    return {name: int(value or 0) for name, value in row.items()}


def _assemble(folder: Path, options: Options, counts: dict[str, int], log: Log, source: str) -> Corpus:
    """The corpus of what the engine has ordered; only names, lengths and four bytes an event are kept."""
    users = _table(folder / "users")
    if not len(users):
        raise InputError(
            f"no user has {options.min_user_count} events left; lower --min-user-count or --min-item-count"
        )
    lengths = users["count"].to_numpy().astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    total = int(offsets[-1])
    ids = mapped(folder / "ids", np.int32, total)
    times = None
    if options.split == "time":
        times = mapped(folder / "times", np.float64 if log.seen.fractions else np.int64, total)
    filled = 0
    for batch in _batches(folder / "ordered", ["number"] if times is None else ["number", "at"]):
        part = slice(filled, filled := filled + len(batch))
        ids[part] = batch["number"].to_numpy()
        if times is not None:
            times[part] = _numbers(batch["at"])
    assert filled == total
    vocab = _number(ids, _table(folder / "items"))
    keys = _one_piece(users["user"].cast(pa.large_string()))
    split, valid_from, test_from = _split(options, keys, lengths, offsets, times, folder)
    sequences = pa.table(
        {
            "key": keys,
            "ids": pa.LargeListArray.from_arrays(pa.array(offsets), _zero_copy(ids)),
            "split": split,
            "valid_from": pa.array(valid_from, pa.int32()),
            "test_from": pa.array(test_from, pa.int32()),
        }
    )
    dropped = _dropped(counts, log, options, total)
    info = {"source": source, "options": asdict(options), "dropped": dropped, "split": RULES[options.split]}
    return Corpus(vocab, sequences, None, info)


def _batches(folder: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    for part in _parts(folder):
        with pq.ParquetFile(part, pre_buffer=False) as file:
            yield from file.iter_batches(2**18, columns=columns, use_threads=False)


def _zero_copy(values: np.ndarray) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(values)])


def _one_piece(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _numbers(times: pa.Array) -> np.ndarray:
    times = times.cast(pa.timestamp("us")) if pa.types.is_date(times.type) else times
    return (times.cast(pa.int64()) if pa.types.is_timestamp(times.type) else times).to_numpy()


def _number(ids: np.ndarray, items: pa.Table) -> Vocab:
    """The vocabulary by falling count of what is left; ids, numbers by name until now, are changed in place."""
    counts = np.zeros(len(items), np.int64)
    for start in range(0, len(ids), CHUNK):
        counts += np.bincount(ids[start : start + CHUNK], minlength=len(items))
    ranked = np.argsort(-counts, kind="stable")  # stable: of equal counts the first name stays first
    ranked = ranked[: np.count_nonzero(counts)]
    if len(ranked) < 2:
        raise InputError(f"{len(ranked)} items are left by min_user_count; at least 2 are needed: lower it")
    new = np.empty(len(items), np.int32)
    new[ranked] = np.arange(len(ranked), dtype=np.int32)
    for start in range(0, len(ids), CHUNK):
        ids[start : start + CHUNK] = new[ids[start : start + CHUNK]]
    names = _one_piece(items["item"].cast(pa.large_string())).take(pa.array(ranked))
    return Vocab.from_ranked(names, counts[ranked])


def _split(
    options: Options, keys: pa.Array, lengths: np.ndarray, offsets: np.ndarray, times: np.ndarray | None, folder: Path
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The split of each row, and where in it the elements for validation and for the test begin."""
    split = np.zeros(len(lengths), np.int8)
    if options.split == "last":
        long = lengths >= 3
        return split, lengths - 2 * long, lengths - long
    if options.split == "user":
        split = split_of(keys.to_pylist())
        return split, lengths - (split != SPLITS["train"]), lengths - (split == SPLITS["test"])
    assert times is not None
    total = len(times)
    ranks = [total * 855 // 1000, total * 9 // 10]  # 5 % of the first 90 %, and 10 %
    by_time = mapped(folder / "by-time", times.dtype.type, total)
    by_time[:] = times
    by_time.partition(ranks)
    valid_from, test_from = (np.add.reduceat(times < by_time[rank], offsets[:-1], dtype=np.int32) for rank in ranks)
    return split, valid_from, test_from


def _dropped(counts: dict[str, int], log: Log, options: Options, kept: int) -> dict[str, int]:
    """How many events were left out, by reason, in the order in which it is found out."""
    whole = counts["events"] - counts["user"] - counts["item"] - counts["at"]
    dropped = {
        "without a user": counts["user"],
        "without an item": counts["item"],
        "without a time": counts["at"] - log.seen.unreadable,
        "with a time that cannot be read": log.seen.unreadable,
        "repeated": whole - counts["counted"],
        f"of items with fewer than {options.min_item_count} events": counts["counted"] - counts["frequent"],
        "of items beyond the most frequent": counts["frequent"] - counts["kept"],
        f"of users with fewer than {options.min_user_count} events": counts["kept"] - kept,
    }
    return {reason: count for reason, count in dropped.items() if count}
