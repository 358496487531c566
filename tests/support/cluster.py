"""A Spark standalone cluster on loopback: a master and workers, each a process of its own.

with cluster(folder, workers=2) as (master, workers):
    …                                       # master: spark://127.0.0.1:PORT; workers: processes, to kill one
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark

LOOPBACK = "127.0.0.1"
HOME = Path(pyspark.__file__).parent
PACKAGE = "org.apache.spark.deploy"
# Java would spend more time on making code fast than on small tables.
JAVA = ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-cp", str(HOME / "jars" / "*"))
STARTED_SECONDS = 120.0
# What Spark's start scripts find out; workers need it to start executors.
ENVIRONMENT = {"SPARK_HOME": str(HOME), "SPARK_SCALA_VERSION": "2.13", "SPARK_LOCAL_IP": LOOPBACK}


@contextmanager
def cluster(folder: Path, workers: int = 2, memory: str = "1g") -> Iterator[tuple[str, list[subprocess.Popen]]]:
    """The address of a master, and its workers with one core each. All end with the block."""
    port = _free_port()
    master = f"spark://{LOOPBACK}:{port}"
    place = ("--host", LOOPBACK, "--webui-port", "0")
    processes = [_start(folder / "master", f"{PACKAGE}.master.Master", *place, "--port", str(port))]
    try:
        _wait(folder / "master" / "log", "New state: ALIVE")
        for number in range(workers):
            size = ("--cores", "1", "--memory", memory, "--work-dir", str(folder / f"worker-{number}" / "work"))
            processes.append(_start(folder / f"worker-{number}", f"{PACKAGE}.worker.Worker", *place, *size, master))
        for number in range(workers):
            _wait(folder / f"worker-{number}" / "log", "Successfully registered with master")
        yield master, processes[1:]
    finally:
        for process in reversed(processes):
            kill(process)


def kill(worker: subprocess.Popen) -> None:
    """Kill a worker with all that it started: executors, and their Python workers."""
    with suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def executors_of(worker: subprocess.Popen) -> list[int]:
    """The processes of a worker's group, itself left out."""
    found = subprocess.run(["pgrep", "-g", str(worker.pid)], capture_output=True, text=True, check=False).stdout
    return [int(line) for line in found.split() if int(line) != worker.pid]


def _start(folder: Path, name: str, *arguments: str) -> subprocess.Popen:
    folder.mkdir(parents=True)
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [*JAVA, name, *arguments],
            stdout=log,
            stderr=log,
            cwd=folder,
            env=os.environ | ENVIRONMENT,
            start_new_session=True,
        )


def _wait(log: Path, line: str) -> None:
    until = time.monotonic() + STARTED_SECONDS
    while line not in log.read_text(errors="replace"):
        assert time.monotonic() < until, log.read_text(errors="replace")[-2000:]
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind((LOOPBACK, 0))
        return int(listening.getsockname()[1])
