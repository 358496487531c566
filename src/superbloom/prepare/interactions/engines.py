"""The engines that run the Ibis expressions of events.py: DuckDB on this machine, or Spark. Both use Parquet files."""

from __future__ import annotations

import glob
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import ibis
import ibis.expr.types as ir

from superbloom.config import InteractionsOptions
from superbloom.prepare.duck import duckdb_errors, threads_for
from superbloom.prepare.scratch import scratch_folder
from superbloom.prepare.spark import literal_path, spark_session


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

    def write(self, table: ir.Table, folder: Path) -> None:
        """Write a table to a new folder. The names of the files keep the order of a sorted table."""


class DuckDB:
    def __init__(self, backend: Any) -> None:
        self.backend = backend

    def read(self, folder: Path) -> ir.Table:
        return self.backend.read_parquet(f"{glob.escape(str(folder))}/*.parquet", hive_partitioning=False)

    def write(self, table: ir.Table, folder: Path) -> None:
        folder.mkdir()
        table.to_parquet(folder / "part-0.parquet")


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


class Spark:
    def __init__(self, backend: Any) -> None:
        self.backend = backend

    def read(self, folder: Path) -> ir.Table:
        return self.backend.read_parquet(literal_path(folder))

    def write(self, table: ir.Table, folder: Path) -> None:
        table.to_parquet(folder)


@contextmanager
def _spark(folder: Path, memory: int) -> Iterator[Engine]:
    with spark_session(folder, memory) as session:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # PySpark's, about pandas, which is not used
            backend = ibis.pyspark.connect(session)
        yield Spark(backend)
