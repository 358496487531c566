"""What runs the expressions of interactions.py: DuckDB on this machine, or Spark; both read and write Parquet files."""

from __future__ import annotations

import glob
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import ibis
import ibis.expr.types as ir

from superbloom.errors import InputError
from superbloom.prepare.duck import duckdb_told
from superbloom.runtime import available_cores

LEAST_MEMORY = 0.25  # GB
MOST_MEMORY = 100_000
NO_JAVA = "--engine spark needs Java 17; apt install openjdk-17-jre-headless (and see JAVA_HOME), or use DuckDB"
PER_THREAD = 0.125  # GB that DuckDB wants for each thread


@contextmanager
def working(engine: str, memory: float, scratch: str | os.PathLike[str] | None) -> Iterator[tuple[Engine, Path]]:
    """An engine and a temporary folder, both gone afterwards."""
    if engine not in ENGINES:
        raise InputError(f"engine {engine!r} given; {', '.join(ENGINES)} are allowed")
    if not LEAST_MEMORY <= memory <= MOST_MEMORY:
        raise InputError(f"memory={memory} GB given; {LEAST_MEMORY} to {MOST_MEMORY:,} are allowed")
    if scratch is not None:
        Path(scratch).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".interactions-", dir=scratch)).resolve()
    try:
        with ENGINES[engine](folder, memory) as run:
            yield run, folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Engine(Protocol):
    """What runs expressions."""

    def read(self, folder: Path) -> ir.Table:
        """The Parquet files of a folder as one table."""

    def write(self, table: ir.Table, folder: Path) -> None:
        """A table as Parquet files of a new folder, in order of their names if the table is ordered."""


class DuckDB:
    def __init__(self, backend: Any) -> None:
        self.backend = backend

    def read(self, folder: Path) -> ir.Table:
        return self.backend.read_parquet(f"{glob.escape(str(folder))}/*.parquet", hive_partitioning=False)

    def write(self, table: ir.Table, folder: Path) -> None:
        folder.mkdir()
        table.to_parquet(folder / "part-0.parquet")


@contextmanager
def _duckdb(folder: Path, memory: float) -> Iterator[Engine]:
    limit = memory / 2  # the rest is for what is not DuckDB: this process itself, pieces being read and written
    backend = ibis.duckdb.connect(
        memory_limit=f"{int(limit * 1000)}MB",
        threads=max(1, min(available_cores(), int(limit / PER_THREAD))),
        temp_directory=str(folder / "spilled"),
        preserve_insertion_order=False,
    )
    backend.raw_sql("SET enable_progress_bar = false")  # it would go to standard output
    try:
        with duckdb_told():
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
def _spark(folder: Path, memory: float) -> Iterator[Engine]:
    """The session that is active or configured (SPARK_REMOTE, spark-defaults.conf), or one on this machine."""
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
        "spark.driver.memory": f"{max(1000, int(memory * 1000))}m",
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
        raise InputError(NO_JAVA if no_java else f"Spark gave up: {reason}; mend that, or use DuckDB") from None


@contextmanager
def _silent_start(log: Path) -> Iterator[None]:
    """What processes started inside write to standard error goes to a file."""
    kept = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


ENGINES = {"duckdb": _duckdb, "spark": _spark}
