"""How much slower is everything beside one busy process?   python -m benchmarks.neighbour --work FOLDER [--out FILE]

Training steps (100,000 ids, α=20, d=128), a certified top-20 of 5,281,889 ids for one query and for 64, and answers of
a server (500,000 names, d=768) to eight clients: alone, and beside a process that computes without end. Two ways for
OpenMP's threads to wait: ours, as `import superbloom` sets it, and spinning, which is GNU OpenMP's own default.
Every figure is the median of a process of its own; ways take turns. Four minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
CHOICES = (
    "OMP_WAIT_POLICY",
    "GOMP_SPINCOUNT",
    "OMP_NUM_THREADS",
)  # unset for every measurement, as for a user who sets none
# 300,000 rounds are what GNU OpenMP spins where nobody chose.
WAYS = {"spinning": {"GOMP_SPINCOUNT": "300000"}, "ours": {}}
PLACES = ("alone", "beside")
WHAT = ("training step", "search, 1 query", "search, 64 queries", "serving, 8 clients")
ROUNDS = 3
SECONDS = 4.0  # for each measurement
NUM_IDS, SERVED_IDS = 5_281_889, 500_000


@contextmanager
def busy_neighbour() -> Iterator[None]:
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        neighbour.kill()
        neighbour.wait()


def timed(call: Any) -> float:
    """Median milliseconds."""
    call()
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - start))
    return median(times)


def measure(beside: bool) -> dict[str, float]:
    """Training and search, in this process."""
    from superbloom.runtime.threads import SPIN_COUNT  # before torch: superbloom sets how threads wait

    import torch  # isort: skip
    from benchmarks.beliefs import TRAINED, beliefs
    from benchmarks.search import K
    from benchmarks.train_step import measure as measure_steps
    from superbloom.hashing.bloom import BloomHash
    from superbloom.search.certified import top_k

    print(f"OpenMP's threads spin for {os.environ['GOMP_SPINCOUNT']} rounds; ours is {SPIN_COUNT}", file=sys.stderr)
    bloom = BloomHash.random(NUM_IDS, num_hashes=2, alpha=50)
    log_probs = beliefs(bloom, 64, *TRAINED, seed=0)
    threads = torch.get_num_threads()
    with busy_neighbour() if beside else nullcontext():
        return {
            WHAT[0]: 1000 * measure_steps("superbloom", 100_000, 30, threads)["seconds_per_step"],
            WHAT[1]: timed(lambda: top_k(log_probs[:1], bloom, K)),
            WHAT[2]: timed(lambda: top_k(log_probs, bloom, K)),
        }


def serve(work: Path, beside: bool) -> float:
    """Median milliseconds of an answer, of eight clients."""
    from tools.load import serving

    with serving(work) as server:
        queries = work / "queries-fp32.json"
        server.clients(queries, clients=8, seconds=2)
        with busy_neighbour() if beside else nullcontext():
            return 1000 * server.clients(queries, clients=8, seconds=SECONDS)["p50"]


def in_a_process(beside: bool) -> dict[str, float]:
    command = [sys.executable, "-m", __spec__.name, "--one", *(["--beside"] if beside else [])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def environment(way: dict[str, str]) -> Iterator[None]:
    """What processes that are started here find: the choices of a way, and no others."""
    before = dict(os.environ)
    for name in CHOICES:
        os.environ.pop(name, None)
    os.environ.update(way)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def whole(work: Path, rounds: int = ROUNDS, ways: dict[str, dict[str, str]] = WAYS) -> dict[str, dict[str, float]]:
    """Milliseconds by way and place, "ours, beside"; of each the median of the rounds."""
    if not (work / "queries-fp32.json").is_file():
        parts = ["make", "queries", "--ids", str(SERVED_IDS), "--precisions", "fp32", "--work", str(work.resolve())]
        subprocess.run([sys.executable, "-m", "benchmarks.serve", *parts], cwd=ROOT, check=True)
    cells: dict[str, list[dict[str, float]]] = {}
    for _ in range(rounds):
        for way, choices in ways.items():
            for place in PLACES:
                with environment(choices):
                    found = in_a_process(place == "beside")
                    found[WHAT[3]] = serve(work, place == "beside")
                cells.setdefault(f"{way}, {place}", []).append(found)
                print(f"{way}, {place}: {found}", file=sys.stderr, flush=True)
    return {cell: {what: median(one[what] for one in found) for what in WHAT} for cell, found in cells.items()}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--work", type=Path, default=Path("neighbour-work"))
    options.add_argument("--out", type=Path, help="a JSON file; the table goes into docs/reliability.md, too")
    options.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--beside", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.one:
        print(json.dumps(measure(given.beside)))
        return
    from tools.record import between_marks, keep, markdown, report

    given.work.mkdir(parents=True, exist_ok=True)
    cells = whole(given.work)
    rows = []
    for what in WHAT:
        row = [what]
        for way in WAYS:
            alone, beside = (cells[f"{way}, {place}"][what] for place in PLACES)
            row += [f"{alone:.2f}", f"{beside:.2f}", f"{beside / alone:.1f} ×"]
        rows.append(row)
    header = ["ms", *(f"{way}: {column}" for way in WAYS for column in ("alone", "beside", "ratio"))]
    report("How much slower is everything beside one busy process?", header, rows, cells)
    if given.out is not None:
        keep(given.out, {"milliseconds": cells})
        between_marks(ROOT / "docs" / "reliability.md", {"neighbour": markdown(header, rows)})


if __name__ == "__main__":
    main()
