"""The engines that run the Ibis expressions of events.py: DuckDB on this machine, or Spark. Both use Parquet files."""

from __future__ import annotations

import glob
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import ibis
import ibis.expr.types as ir

from superbloom.config import InteractionsOptions
from superbloom.errors import InputError
from superbloom.prepare.duck import duckdb_errors
from superbloom.prepare.scratch import scratch_folder
from superbloom.runtime import available_cores

NO_JAVA = "--engine spark needs Java 17; apt install openjdk-17-jre-headless (and see JAVA_HOME), or use DuckDB"
THREAD_BYTES = 125_000_000  # that DuckDB wants for each thread
MIN_SPARK_BYTES = 10**9
MB = 10**6


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
        threads=max(1, min(available_cores(), limit // THREAD_BYTES)),
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
        return self.backend.read_parquet(re.sub(r"([*?\[\]{}\\])", r"\\\1", str(folder)))

    def write(self, table: ir.Table, folder: Path) -> None:
        table.to_parquet(folder)


@contextmanager
def _spark(folder: Path, memory: int) -> Iterator[Engine]:
    """Spark in the active or configured session (SPARK_REMOTE, spark-defaults.conf), or in a new one here."""
    try:
        from py4j.protocol import Py4JError
        from pyspark import SparkContext
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError:
        raise InputError("--engine spark needs PySpark; pip install 'superbloom[spark]', or use DuckDB") from None
    active, remote = SparkSession.getActiveSession(), "SPARK_REMOTE" in os.environ
    if active is None and not remote and not (shutil.which("java") or "JAVA_HOME" in os.environ):
        raise InputError(NO_JAVA)
    settings: dict[str, Any] = {
        "spark.driver.memory": f"{max(MIN_SPARK_BYTES, memory) // MB}m",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    ours = active is None and SparkContext._active_spark_context is None
    try:
        if active is None:
            with _silent_start(folder / "spark.log"):
                builder = SparkSession.builder.appName("superbloom")
                session = (builder.config(map=settings) if ours and not remote else builder).getOrCreate()
        else:
            session = active.newSession()  # Ibis changes settings
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # PySpark's, about pandas, which is not used
                backend = ibis.pyspark.connect(session)
            yield Spark(backend)
        finally:
            if ours:
                session.stop()
    except (PySparkException, Py4JError) as error:
        reason = " ".join(str(error).split())[:200]
        no_java = "JAVA_GATEWAY_EXITED" in reason
        raise InputError(NO_JAVA if no_java else f"Spark gave up: {reason}; fix that, or use DuckDB") from None


@contextmanager
def _silent_start(log: Path) -> Iterator[None]:
    """Send what processes started inside print on standard error to a file."""
    kept = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
