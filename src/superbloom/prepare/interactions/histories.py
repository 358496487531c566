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
from superbloom.prepare.interactions.events import check_events, count_missing, only_row, raw_events
from superbloom.prepare.interactions.tables import Log
from superbloom.progress import Watch

HISTORIES = pa.schema({"user": pa.string(), "history": pa.list_(pa.string())})
EVENTS = pa.schema({"user": pa.string(), "item": pa.string()})
TEXT = pa.string()


@dataclass(frozen=True)
class UserEvents:
    """The events of a log, as a table of user, item and at. users: the ones that were asked for and are there.

    names: users and items in order, if the table holds their places instead of names.
    """

    table: ir.Table
    names: dict[str, pa.LargeStringArray] | None
    num_users: int
    users: Sequence[str]
    items: pa.Array  # the distinct items


def user_events(
    log: Log, options: InteractionsOptions, engine: Engine, users: Sequence[str] | None, watch: Watch
) -> UserEvents:
    """The complete events of a log, without exact repeats; those of some users, or of all."""
    with watch("counting users", None, False):
        raw = raw_events(engine.read(log.folder), log, is_split=False)
        check_events(only_row(engine.batches(count_missing(raw), "missing")), log, options)
        events = raw.drop_null()
        if users is not None:
            events = events.filter(events.user.isin(_as_in(log, users)))
        events = engine.keep(events, "events") if options.time is None else engine.distinct(events, "events")
        counted = only_row(engine.batches(events.agg(users=events.user.nunique()), "users"))
        there = () if users is None else _distinct(events, "user", log, engine).to_pylist()
        return UserEvents(events, log.names, counted["users"], there, _distinct(events, "item", log, engine))


def _as_in(log: Log, users: Sequence[str]) -> list[str] | list[int]:
    """Users as the table has them; those that it has not are left out."""
    if log.names is None:
        return list(users)
    places = pc.index_in(pa.array(users, pa.large_string()), value_set=log.names["user"]).drop_null().to_pylist()
    return places or [-1]


def _distinct(events: ir.Table, role: str, log: Log, engine: Engine) -> pa.Array:
    batches = engine.batches(events.select(role).distinct(), f"distinct-{role}s")
    return pa.chunked_array([_names(batch[role], role, log.names) for batch in batches], TEXT).combine_chunks()


def _names(column: pa.Array, role: str, names: dict[str, pa.LargeStringArray] | None) -> pa.Array:
    return (column if names is None else names[role].take(column)).cast(TEXT)


def sorted_batches(events: UserEvents, engine: Engine) -> Iterator[pa.RecordBatch]:
    """user and item of each event, by user, time and item; sorted on disk."""
    ordered = events.table.order_by("user", "at", "item").select("user", "item")
    for batch in engine.batches(ordered, "sorted"):
        columns = [_names(batch[role], role, events.names) for role in EVENTS.names]
        yield pa.RecordBatch.from_arrays(columns, schema=EVENTS)


def named_events(events: UserEvents, engine: Engine, folder: Path) -> Path:
    """A folder of Parquet files of user, item and at, with names, in any order."""
    if events.names is None:  # Spark has written them
        return folder / "events"
    target = folder / "named"
    target.mkdir()
    writer: pq.ParquetWriter | None = None
    for batch in engine.batches(events.table.select("user", "item", "at"), "unsorted"):
        columns = [_names(batch[role], role, events.names) for role in EVENTS.names]
        named = pa.record_batch([*columns, batch["at"]], names=["user", "item", "at"])
        writer = writer or pq.ParquetWriter(target / "part-0.parquet", named.schema)
        writer.write_batch(named)
    if writer is not None:
        writer.close()
    return target


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
