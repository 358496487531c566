"""The engines that run the Ibis expressions of events.py: DuckDB on this machine, or Spark. Both use Parquet files."""

from __future__ import annotations

import glob
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import ibis
import ibis.expr.types as ir
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from superbloom.config import InteractionsOptions
from superbloom.prepare.duck import duckdb_errors, threads_for
from superbloom.prepare.scratch import scratch_folder
from superbloom.prepare.spark import literal_path, spark_session

BATCH_ROWS = 2**18


@contextmanager
def working(options: InteractionsOptions, out: Path | None) -> Iterator[tuple[Engine, Path]]:
    """An engine and a temporary folder beside `out`. Both end with the block."""
    start = _spark if options.engine == "spark" else _duckdb
    with scratch_folder(out) as folder, start(folder, options.memory) as engine:
        yield engine, folder


class Engine(Protocol):
    """Runs Ibis expressions on Parquet files."""

    def read(self, folder: Path) -> ir.Table:
        """The Parquet files of a folder as one table."""

    def keep(self, table: ir.Table, name: str) -> ir.Table:
        """Compute a table once, for the steps that follow. Its rows are in any order."""

    def distinct(self, table: ir.Table, name: str) -> ir.Table:
        """Compute the distinct rows of a table without nulls once, for the steps that follow."""

    def batches(self, table: ir.Table, name: str) -> Iterator[pa.RecordBatch]:
        """The rows of a table, in its order. They are not in memory together."""


class DuckDB:
    def __init__(self, backend: Any) -> None:
        self.backend = backend

    def read(self, folder: Path) -> ir.Table:
        return self.backend.read_parquet(f"{glob.escape(str(folder))}/*.parquet", hive_partitioning=False)

    def keep(self, table: ir.Table, name: str) -> ir.Table:
        return self.backend.create_table(name, table, temp=True)

    def distinct(self, table: ir.Table, name: str) -> ir.Table:
        # The steps that follow take half of the time on sorted rows, which SELECT DISTINCT does not give.
        order = [column for column in ("user", "part", "at", "item") if column in table.columns]
        batches = self.batches(table.order_by(order), name)
        reader = pa.RecordBatchReader.from_batches(table.schema().to_pyarrow(), _without_repeats(batches))
        self.backend.con.cursor().from_arrow(reader).create(name)
        return self.backend.table(name)

    def batches(self, table: ir.Table, name: str) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        # subtle: to_pyarrow_batches of Ibis 12 calls a method that DuckDB 2 does not have.
        yield from self.backend.con.sql(self.backend.compile(table)).to_arrow_reader(BATCH_ROWS)


@contextmanager
def _duckdb(folder: Path, memory: int) -> Iterator[Engine]:
    limit = memory // 2  # this process needs the rest, for the pieces that it reads and writes
    backend = ibis.duckdb.connect(
        memory_limit=f"{limit}B",
        threads=threads_for(limit),
        temp_directory=str(folder / "spilled"),
        preserve_insertion_order=False,
    )
    backend.raw_sql("SET enable_progress_bar = false")  # it would go to standard output
    try:
        with duckdb_errors():
            yield DuckDB(backend)
    finally:
        backend.disconnect()


def _without_repeats(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sorted rows without those that equal the row before."""
    last: list[Any] | None = None
    for batch in batches:
        columns = [column.to_numpy() for column in batch.columns]
        is_new = np.zeros(len(batch), bool)
        is_new[0] = last is None or any(column[0] != value for column, value in zip(columns, last, strict=True))
        for column in columns:
            is_new[1:] |= column[1:] != column[:-1]
        yield batch if is_new.all() else batch.filter(pa.array(is_new))
        last = [column[-1] for column in columns]


class Spark:
    """Executors write what they compute as Parquet files in the temporary folder; this process reads it from there."""

    def __init__(self, backend: Any, folder: Path) -> None:
        self.backend, self.folder = backend, folder

    def read(self, folder: Path) -> ir.Table:
        return self.backend.read_parquet(literal_path(folder))

    def keep(self, table: ir.Table, name: str) -> ir.Table:
        table.to_parquet(self.folder / name)
        return self.read(self.folder / name)

    def distinct(self, table: ir.Table, name: str) -> ir.Table:
        return self.keep(table.distinct(), name)

    def batches(self, table: ir.Table, name: str) -> Iterator[pa.RecordBatch]:
        table.to_parquet(self.folder / name)
        for part in sorted((self.folder / name).glob("part-*.parquet")):  # their names keep the order of the table
            with pq.ParquetFile(part, pre_buffer=False) as file:
                yield from file.iter_batches(BATCH_ROWS, use_threads=False)


@contextmanager
def _spark(folder: Path, memory: int) -> Iterator[Engine]:
    with spark_session(folder, memory) as session:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # PySpark's, about pandas, which is not used
            backend = ibis.pyspark.connect(session)
        yield Spark(backend, folder)
