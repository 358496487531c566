"""A log as histories: what each user took, in order, with all items and users that the log has.

events.py drops rare items and users before it sorts, because a model learns from what is left. Here nothing is dropped:
the histories are asked about.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import ibis.expr.types as ir
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from superbloom.config import InteractionsOptions
from superbloom.prepare.interactions.engines import Engine
from superbloom.prepare.interactions.events import _check_events, _clean, _missing, _named, _only_row, _parts, _table
from superbloom.prepare.interactions.tables import Log
from superbloom.progress import Watch

BATCH_EVENTS = 2**18
HISTORIES = pa.schema({"user": pa.string(), "history": pa.list_(pa.string())})


@dataclass(frozen=True)
class UserEvents:
    """The events of a log. users: the ones that were asked for and are there."""

    folder: Path  # Parquet files of user, item, at
    num_users: int
    users: Sequence[str]
    items: pa.Array  # the distinct items


def user_events(
    log: Log, options: InteractionsOptions, engine: Engine, folder: Path, users: Sequence[str] | None, watch: Watch
) -> UserEvents:
    """The complete events of a log, without exact repeats; those of some users, or of all."""

    def step(table: ir.Table, name: str) -> ir.Table:
        engine.write(table, folder / name)
        return engine.read(folder / name)

    with watch("counting users", None, False):
        raw = _named(engine.read(log.folder), log, is_split=False)
        engine.write(_missing(raw), folder / "missing")
        _check_events(_only_row(folder / "missing"), log, options)
        events = _clean(raw, options)
        if users is not None:
            events = events.filter(events.user.isin(list(users)))
        events = step(events, "events")
        engine.write(events.agg(users=events.user.nunique()), folder / "users")
        engine.write(events.select("item").distinct(), folder / "items")
        there: list[str] = []
        if users is not None:
            engine.write(events.select("user").distinct(), folder / "there")
            there = _table(folder / "there")["user"].to_pylist()
    items = _table(folder / "items")["item"].combine_chunks()
    return UserEvents(folder / "events", _only_row(folder / "users")["users"], there, items)


def sorted_batches(events: UserEvents, engine: Engine, folder: Path, watch: Watch) -> Iterator[pa.RecordBatch]:
    """user and item of each event, by user, time and item; sorted on disk."""
    with watch("ordering events", None, False):
        engine.write(
            engine.read(events.folder).order_by("user", "at", "item").select("user", "item"), folder / "sorted"
        )
    for part in _parts(folder / "sorted"):
        with pq.ParquetFile(part, pre_buffer=False) as file:
            yield from file.iter_batches(BATCH_EVENTS, use_threads=False)


def gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Histories of consecutive events (user, item) of one user, whatever the batches.

    >>> events = pa.record_batch({"user": ["a", "a", "b"], "item": ["x", "y", "x"]})
    >>> [batch.to_pylist() for batch in gathered(iter([events.slice(0, 1), events.slice(1)]))]
    [[{'user': 'a', 'history': ['x', 'y']}], [{'user': 'b', 'history': ['x']}]]
    """
    held: pa.Table | None = None  # the events of the last user, who may have more in the next batch
    for batch in chain(batches, [None]):
        if batch is not None and not batch.num_rows:
            continue
        table = held if batch is None else pa.Table.from_batches([batch]).cast(EVENTS)
        if batch is not None and held is not None:
            table = pa.concat_tables([held, table])
        if table is None:
            return
        table = table.combine_chunks()
        runs = pc.run_end_encode(table["user"].chunk(0))
        ends, count = runs.run_ends, len(runs.values) - (batch is not None)
        start_of_last = ends[count - 1].as_py() if count else 0
        held = table.slice(start_of_last)
        if count:
            offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends[:count]])
            items = pa.ListArray.from_arrays(offsets, table["item"].chunk(0))
            yield pa.RecordBatch.from_arrays([runs.values[:count], items], schema=HISTORIES)


EVENTS = pa.schema({"user": pa.string(), "item": pa.string()})
