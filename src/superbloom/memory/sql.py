"""Pairs counted in SQL, for logs that outgrow memory: by DuckDB on disk, or by Spark. Both run the same query.

    events (line, place, id)  →  the strongest neighbours of each name (name, other, whole, after, place)

Sums are whole numbers, so both give the pairs of Pairs.count, to the last. Events and neighbours are Parquet files in a
temporary folder. This process holds the events and the pairs that are kept, and reads neighbours in batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from superbloom.memory.events import Events
from superbloom.memory.pairs import UNITS, WINDOW_IDS, Pairs, stored
from superbloom.prepare.duck import literal_paths, new_database, threads_for
from superbloom.prepare.scratch import scratch_folder
from superbloom.prepare.spark import literal_path, spark_session

BATCH_ROWS = 2**20
MB = 10**6
EVENTS = pa.schema([("line", pa.int32()), ("place", pa.int32()), ("id", pa.int32())])
MORE_ROOM = "raise --count-mb, or make room in the folder of temporary files (TMPDIR)"


def count_in_sql(events: Events, neighbours: int, engine: str, master: str | None, megabytes: int) -> Pairs:
    """The pairs of all rows, counted by "duckdb", or by "spark" on `master` (None: as configured, or this machine)."""
    with scratch_folder(None) as folder:
        (folder / "events").mkdir()
        _write_events(events, folder / "events" / "part-0.parquet")
        if engine == "spark":
            _run_spark(folder, query(neighbours), master, megabytes * MB)
        else:
            _run_duckdb(folder, query(neighbours), megabytes * MB)
        return _read_pairs(sorted((folder / "neighbours").glob("part-*.parquet")), events.counts())


def query(neighbours: int) -> str:
    """The query, in SQL that DuckDB and Spark share.

    Each event gets the events that follow it as columns. A join with the table of distances turns these into rows.
    Their sums, mirrored, are the sums of what precedes.
    """
    distances = range(1, WINDOW_IDS + 1)
    columns = ", ".join(f"lead(id, {distance}) OVER in_line AS id_{distance}" for distance in distances)
    cases = " ".join(f"WHEN {distance} THEN id_{distance}" for distance in distances)
    values = ", ".join(f"({distance}, {UNITS // distance})" for distance in distances)
    return f"""
        WITH near AS (
            SELECT id, {columns} FROM events WINDOW in_line AS (PARTITION BY line ORDER BY place)
        ), occurrences AS (
            SELECT id AS name, CASE distance {cases} END AS other, weight
            FROM near CROSS JOIN (VALUES {values}) AS distances (distance, weight)
        ), following AS (
            SELECT name, other, CAST(sum(weight) AS BIGINT) AS weight
            FROM occurrences WHERE other IS NOT NULL GROUP BY name, other
        ), sides AS (
            SELECT name, other, weight AS whole, weight AS after FROM following
            UNION ALL
            SELECT other, name, weight, 0 FROM following
        ), pairs AS (
            SELECT name, other, CAST(sum(whole) AS BIGINT) AS whole, CAST(sum(after) AS BIGINT) AS after
            FROM sides GROUP BY name, other
        ), ranked AS (
            SELECT *, row_number() OVER (PARTITION BY name ORDER BY whole DESC, other) AS place FROM pairs
        )
        SELECT * FROM ranked WHERE place <= {neighbours}
    """


def _write_events(events: Events, path: Path) -> None:
    with pq.ParquetWriter(path, EVENTS) as file:
        for begin in range(0, len(events.ids), BATCH_ROWS):
            at = np.arange(begin, min(begin + BATCH_ROWS, len(events.ids)))
            line = np.searchsorted(events.starts, at, side="right") - 1
            columns = (line, at - events.starts[line], events.ids[at])
            file.write_batch(pa.record_batch([column.astype(np.int32) for column in columns], schema=EVENTS))


def _run_duckdb(folder: Path, sql: str, memory: int) -> None:
    with new_database(folder / "counts.duckdb", memory, threads_for(memory), MORE_ROOM) as database:
        database.read_parquet(literal_paths([folder / "events" / "part-0.parquet"])).create_view("events")
        (folder / "neighbours").mkdir()
        database.sql(sql).write_parquet(str(folder / "neighbours" / "part-0.parquet"))


def _run_spark(folder: Path, sql: str, master: str | None, memory: int) -> None:
    with spark_session(folder, memory, master) as session:
        session.read.parquet(literal_path(folder / "events")).createOrReplaceTempView("events")
        session.sql(sql).write.parquet(str(folder / "neighbours"))


def _read_pairs(parts: Sequence[Path], counts: np.ndarray) -> Pairs:
    """The pairs of neighbours in any order. counts: how often each name occurs."""
    lengths = np.zeros(len(counts), np.int64)
    for (names,) in _batches(parts, ["name"]):
        lengths += np.bincount(names, minlength=len(counts))
    starts, total = np.cumsum(lengths) - lengths, lengths.sum()
    ids, weights, after = (np.empty(total, kind) for kind in (np.int32, np.float16, np.uint8))
    for names, others, whole, follows, place in _batches(parts, ["name", "other", "whole", "after", "place"]):
        at = starts[names] + place - 1
        ids[at] = others
        weights[at], after[at] = stored(whole, follows, counts[names])
    return Pairs.of_lists(lengths, ids, weights, after, counts)


def _batches(parts: Sequence[Path], columns: list[str]) -> Iterator[list[np.ndarray]]:
    for part in parts:
        with pq.ParquetFile(part, pre_buffer=False) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=columns, use_threads=False):
                yield [column.to_numpy() for column in batch.select(columns).columns]
