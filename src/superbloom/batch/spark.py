"""Recommendations on Spark: each Python worker opens the model once, and asks recommend_arrow with one thread.

Spark's own committer moves what a task wrote into the table when the task is done. So a task that failed, or ran twice,
leaves no rows, and the table is renamed into its place when all are there.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from superbloom.batch.arrow import recommend_arrow, schema_of
from superbloom.batch.sources import Source
from superbloom.errors import InputError
from superbloom.prepare.interactions.histories import HISTORIES, gathered
from superbloom.prepare.scratch import scratch_folder
from superbloom.prepare.spark import literal_path
from superbloom.storage import already_there, swap

USERS_PER_TASK = 20_000
TASKS_PER_CORE = 4
EVENTS_PER_BATCH = 100_000
DONE = "_SUCCESS"  # Spark writes it into a table that is complete
ARCHIVE = "superbloom-model"  # where workers find a model that is sent to them


@dataclass(frozen=True)
class Job:
    """What a task does. model: a folder that every worker sees, or None if the model is sent to them."""

    model: str | None
    options: dict[str, Any]
    is_sorted: bool  # rows are events in the order of users; otherwise they are histories

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import torch

        torch.set_num_threads(1)
        yield from recommend_arrow(gathered(batches) if self.is_sorted else batches, self._folder(), **self.options)

    def _folder(self) -> str:
        if self.model is not None:
            return self.model
        from pyspark import SparkFiles

        return SparkFiles.get(ARCHIVE)


def check_spark_table(out: Path, overwrite: bool) -> None:
    """Raise InputError if no table can be written there."""
    if out.suffix in (".csv", ".parquet"):
        raise InputError(f"--out {out} given; Spark writes a folder of Parquet files: give a name without {out.suffix}")
    if not out.resolve().parent.is_dir():
        raise InputError(f"--out {out} lies in no folder; choose a name in a folder that is there")
    if out.exists() and not overwrite:
        raise already_there(out, "exists")
    if out.exists() and not (out / DONE).is_file():
        raise InputError(f"{out} is no table that Spark wrote; --overwrite replaces only those: choose another --out")


def recommend_on_spark(
    session: Any, source: Source, model: Path, options: dict[str, Any], own: dict[str, pa.Table], out: Path, ship: bool
) -> dict[str, int]:
    """Write the table, a folder of Parquet files; the number of users by the source of their rows."""
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(EVENTS_PER_BATCH))
    context = session.sparkContext
    tasks = max(TASKS_PER_CORE * context.defaultParallelism, -(-source.num_users // USERS_PER_TASK))
    with scratch_folder(out) as folder:
        frame, is_sorted = _histories(session, source, own, folder, tasks)
        if ship:
            context.addArchive(f"{shutil.make_archive(str(folder / 'model'), 'zip', model)}#{ARCHIVE}")
        schema = _spark_schema("titles" in options and options["titles"] is not None)
        job = Job(None if ship else str(model.resolve()), options, is_sorted)
        found = frame.mapInArrow(partial(_answer, job), schema)
        committer = {"mapreduce.fileoutputcommitter.algorithm.version": "1"}
        found.write.options(**committer).parquet(str(folder / "table"))
        counts = _counts(folder / "table")
        swap(folder / "table", out)
    return counts


def _answer(job: Job, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return job(batches)


def _histories(session: Any, source: Source, own: dict[str, pa.Table], folder: Path, tasks: int) -> tuple[Any, bool]:
    """The DataFrame of what tasks read, each user whole in one task; and whether its rows are sorted events."""
    if source.events is not None and not own:
        events = session.read.parquet(literal_path(source.events()))
        ordered = events.repartition(tasks, "user").sortWithinPartitions("user", "at", "item")
        return ordered.select("user", "item"), True
    with pq.ParquetWriter(folder / "histories.parquet", HISTORIES) as writer:
        for batch in source.batches():
            writer.write_batch(batch)
    frame = session.read.parquet(literal_path(folder / "histories.parquet"))
    for name, lists in own.items():
        pq.write_table(lists.rename_columns(["user", name]), folder / f"{name}.parquet")
        frame = frame.join(session.read.parquet(literal_path(folder / f"{name}.parquet")), "user", "left")
    return frame.repartition(tasks, "user"), False


def _spark_schema(has_titles: bool) -> str:
    kinds = {pa.string(): "string", pa.float64(): "double", pa.int64(): "bigint", pa.bool_(): "boolean"}
    return ", ".join(f"{field.name} {kinds[field.type]}" for field in schema_of(pa.string(), has_titles))


def _counts(table: Path) -> dict[str, int]:
    """The number of users by the source of their rows, and the number of rows."""
    counts = {"rows": 0}
    for part in table.glob("*.parquet"):
        with pq.ParquetFile(part) as file:
            for batch in file.iter_batches(columns=["rank", "source"]):
                counts["rows"] += batch.num_rows
                first = batch.filter(pc.equal(batch["rank"], 1))
                for entry in pc.value_counts(first["source"]).to_pylist():
                    counts[entry["values"]] = counts.get(entry["values"], 0) + entry["counts"]
    return counts
