"""Spark, as `prepare interactions` and the memory use it: a session that ends with its block, errors as one line."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from superbloom.errors import InputError

NO_JAVA = "Spark needs Java 17; apt install openjdk-17-jre-headless (and see JAVA_HOME), or use DuckDB"
MIN_SPARK_BYTES = 10**9
MB = 10**6
MASTER = re.compile(r"local(\[(\d+|\*)(,\d+)?\])?|yarn|k8s://.+|spark://([^:/,]+:\d+)(,[^:/,]+:\d+)*")
PYTHON_ERROR = re.compile(r"^Traceback .*?^([\w.]+(?:Error|Exception): .*?)$", re.DOTALL | re.MULTILINE)
SECONDS_TO_ANSWER = 5.0  # a master has this long to answer; Spark itself would wait for a minute


@contextmanager
def spark_session(folder: Path, memory: int, master: str | None = None) -> Iterator[Any]:
    """A session on `master`. Without it: the active or configured one (SPARK_REMOTE, spark-defaults.conf), or one here.

    A new session keeps its temporary files in `folder`, and its driver has `memory` bytes.
    """
    try:
        from py4j.protocol import Py4JError
        from pyspark import SparkContext
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError:
        raise InputError("Spark needs PySpark; pip install 'superbloom[spark]', or use DuckDB") from None
    active, remote = SparkSession.getActiveSession(), "SPARK_REMOTE" in os.environ
    if active is None and not remote and not (shutil.which("java") or "JAVA_HOME" in os.environ):
        raise InputError(NO_JAVA)
    if master is not None:
        if active is not None or remote:
            raise InputError(f"Spark master {master!r} given, but a session is active; stop it, or give no master")
        _check_master(master)
    settings: dict[str, Any] = {
        "spark.driver.memory": f"{max(MIN_SPARK_BYTES, memory) // MB}m",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if master is not None:
        settings["spark.master"] = master
    ours = active is None and SparkContext._active_spark_context is None
    try:
        if active is None:
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Python workers need this package, too
            with _silent_start(folder / "spark.log"):
                builder = SparkSession.builder.appName("superbloom")
                session = (builder.config(map=settings) if ours and not remote else builder).getOrCreate()
        else:
            session = active.newSession()  # settings and views of the user's session stay as they are
        try:
            yield session
        finally:
            if ours:
                session.stop()
    except (PySparkException, Py4JError) as error:
        of_python = PYTHON_ERROR.search(str(error))
        reason = " ".join((of_python[1] if of_python else str(error)).split())[:200]
        no_java = "JAVA_GATEWAY_EXITED" in reason
        raise InputError(NO_JAVA if no_java else f"Spark gave up: {reason}; fix that, or use DuckDB") from None


def _check_master(master: str) -> None:
    """Raise InputError if this is no address of a master, or if no standalone master answers there."""
    if not MASTER.fullmatch(master):
        raise InputError(
            f"Spark master {master!r:.80} given; spark://HOST:PORT, local[N], yarn or k8s://URL is allowed"
        )
    if not master.startswith("spark://"):
        return
    for address in master.removeprefix("spark://").split(","):
        host, port = address.rsplit(":", 1)
        try:
            socket.create_connection((host, int(port)), SECONDS_TO_ANSWER).close()
        except (OSError, OverflowError):
            continue
        return
    raise InputError(f"no Spark master answers at {master}; start it, or use DuckDB")


def literal_path(path: Path) -> str:
    """A path for Spark's readers, which would take brackets and stars for a pattern."""
    return re.sub(r"([*?\[\]{}\\])", r"\\\1", str(path))


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
