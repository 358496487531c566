"""Do NumPy, DuckDB and Spark count the same pairs, and at what cost?   python -m benchmarks.memory_scale count FILE
--engine numpy --engine duckdb --engine spark --engine cluster

Each engine counts the same events in a process of its own. spark is local[2]; cluster is a standalone master with one
worker on this machine. Time includes the start of the engine, writing events and reading pairs. Memory is VmHWM of each
process, CPU the time of all of them, disk the largest size of the temporary folder; these are looked at every 0.2 s.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from superbloom.memory import Events, Pairs
from tools.record import between_marks, keep, markdown

ENGINES = ("numpy", "duckdb", "spark", "cluster")
NEIGHBOURS = 32
SECONDS_BETWEEN_LOOKS = 0.2
DOC = Path(__file__).parents[1] / "docs" / "memory.md"
RESULTS = Path(__file__).parent / "results" / "memory_count.json"
JAVA_ROLES = {"SparkSubmit": "driver", "CoarseGrainedExecutorBackend": "executor"}
ROLES = JAVA_ROLES | {"\0superbloom\0": "command"}


def compare(events: Events, engines: Sequence[str], megabytes: int) -> None:
    """Measure each engine, keep what was measured, and write the table of all that counted these events."""
    figures = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    size = {"names": events.num_ids, "events": len(events.ids), "neighbours": NEIGHBOURS}
    runs = figures.get("runs", {}) if figures.get("size") == size else {}
    for engine in engines:
        label = engine if engine == "numpy" else f"{engine}, {megabytes:,} MB"
        runs[label] = measured(events, engine, megabytes)
        print(label, json.dumps(runs[label]), flush=True)
    keep(RESULTS, {"size": size, "runs": runs})
    header = ["engine", "time", "CPU", "this process", "Java", "temporary files"]
    table = markdown(header, [[label, *_row(run)] for label, run in sorted(runs.items(), key=_order)])
    between_marks(DOC, {"engines": f"\n{table}\n"})
    print(f"{table}\n\nsame counts: {len({run['sha256'] for run in runs.values()}) == 1}")


def _order(entry: tuple[str, Any]) -> tuple[int, str]:
    return ENGINES.index(entry[0].split(",")[0]), entry[0]


def _row(run: dict[str, Any]) -> list[str]:
    java = " + ".join(f"{value:.1f} GB ({role})" for role, value in run["java GB"].items()) or "–"
    memory, disk = f"{run['GB']['with the events']:.1f} → {run['GB']['peak']:.1f} GB", f"{run['disk GB']:.1f} GB"
    return [f"{run['seconds']:.0f} s", f"{run['CPU seconds']:.0f} s", memory, java, disk]


def measured(events: Events, engine: str, megabytes: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "events.npz", **vars(events))
        scratch = Path(folder) / "scratch"
        scratch.mkdir()
        with standalone(scratch) if engine == "cluster" else nullcontext("local[2]") as master:
            asked = json.dumps(["spark" if engine == "cluster" else engine, master, megabytes])
            command = [sys.executable, "-m", "benchmarks.count_engines", f"{folder}/events.npz", asked]
            with Watched(scratch) as watched:
                done = subprocess.run(
                    command, env=os.environ | {"TMPDIR": str(scratch)}, stdout=subprocess.PIPE, check=True
                )
        found: dict[str, Any] = json.loads(done.stdout)
    java = {role: value for role, value in watched.peaks.items() if role in JAVA_ROLES.values()}
    return found | {"CPU seconds": sum(watched.cpu.values()), "java GB": java, "disk GB": watched.disk}


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """The address of a standalone master with one worker of two cores and 4 GB, both on this machine."""
    import pyspark

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        master = f"127.0.0.1:{free.getsockname()[1]}"
    host, port = master.split(":")
    start = [str(Path(pyspark.__file__).parent / "bin" / "spark-class")]
    work, here = str(folder / "worker"), ["--host", host, "--webui-port", "0"]
    roles = (
        ["org.apache.spark.deploy.master.Master", "--port", port],
        ["org.apache.spark.deploy.worker.Worker", f"spark://{master}", "--cores", "2", "--memory", "4g", "-d", work],
    )
    surroundings, processes = os.environ | {"SPARK_LOCAL_DIRS": str(folder)}, []
    try:
        for role in roles:
            processes.append(subprocess.Popen([*start, *role, *here], env=surroundings, stderr=subprocess.DEVNULL))
            time.sleep(10)  # until it listens
        yield f"spark://{master}"
    finally:
        for process in processes[::-1]:
            process.terminate()
            process.wait()


@dataclass
class Watched:
    """What the descendants of this process take, and the size of a folder."""

    folder: Path
    peaks: dict[str, float] = field(default_factory=dict)  # GB by role, the largest of each
    cpu: dict[int, float] = field(default_factory=dict)  # seconds by process
    disk: float = 0.0  # GB

    def __enter__(self) -> Watched:
        self.ended, self.before = threading.Event(), {process: _cpu(process) for process in _descendants()}
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def _run(self) -> None:
        while not self.ended.wait(SECONDS_BETWEEN_LOOKS):
            files = [Path(root) / name for root, _, names in os.walk(self.folder) for name in names]
            self.disk = max(self.disk, sum(_size(file) for file in files) / 1e9)
            for process in _descendants():
                try:
                    command = Path(f"/proc/{process}/cmdline").read_text()
                    self.cpu[process] = _cpu(process) - self.before.get(process, 0.0)
                    peak = _peak_gb(process)
                except (OSError, IndexError):  # it has ended
                    continue
                role = _role(command)
                self.peaks[role] = max(self.peaks.get(role, 0.0), peak)


def _role(command: str) -> str:
    return next((role for part, role in ROLES.items() if part in command), "other")


def _descendants() -> list[int]:
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
    found = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {os.getpid()})


def _cpu(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _size(file: Path) -> int:
    try:
        return file.stat().st_blocks * 512
    except OSError:
        return 0


def count_once(file: str, engine: str, master: str, megabytes: int) -> dict[str, Any]:
    """Count the events of a file: seconds, memory, and the checksum of the pairs."""
    with np.load(file) as stored:
        events = Events(stored["ids"], stored["row"], stored["starts"], int(stored["num_ids"]))
    before, start = _peak_gb(os.getpid()), time.perf_counter()
    if engine == "numpy":
        pairs = Pairs.count(events, NEIGHBOURS)
    else:
        from superbloom.memory.sql import count_in_sql

        pairs = count_in_sql(events, NEIGHBOURS, engine, master if engine == "spark" else None, megabytes)
    seconds, peak = time.perf_counter() - start, _peak_gb(os.getpid())
    digest = hashlib.sha256()
    for column in vars(pairs).values():
        digest.update(str(column.dtype).encode() + column.tobytes())
    memory = {"with the events": before, "peak": peak}
    return {"seconds": seconds, "GB": memory, "pairs": len(pairs.ids), "sha256": digest.hexdigest()}


def _peak_gb(process: int) -> float:
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e9


if __name__ == "__main__":
    print(json.dumps(count_once(sys.argv[1], *json.loads(sys.argv[2]))))
