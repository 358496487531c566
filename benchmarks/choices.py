"""When does hashing pay, and how much of it?   python -m benchmarks.choices DATA WORK [CORPUS …] [--cores 0 1]

Each corpus of CHOICES is trained as `train` chooses, and with other alphas and widths, for ten minutes of one core,
which are about five of two. Kept are the curve of the network alone on validation rows, and the recall of network,
memory and both on test rows in the end.

A run that is interrupted continues: results are kept in benchmarks/results/choices.json, models in WORK/choices.
--table only writes the tables of docs/sizes.md from what is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.corpora import corpus_of
from tools.record import between_marks, keep, markdown, report

DOC = Path(__file__).parents[1] / "docs" / "sizes.md"
RESULTS = Path(__file__).parent / "results" / "choices.json"
SEQUENCE = {"preset": "sequence"}
SETS = {"positions": False, "distance": False}
ONE: dict[str, Any] = {"alpha": 1, "num_hashes": 1}
AS_CHOSEN: dict[str, Any] = {}
# corpus → (options that all its models share, what differs)
CHOICES: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "enwik8-20000": ({}, [AS_CHOSEN, {"alpha": 4}]),
    "pypi": ({}, [AS_CHOSEN]),
    "linux-calls": ({}, [AS_CHOSEN]),
    "enwik8-5000": ({}, [AS_CHOSEN]),
    "beauty": (SEQUENCE, [AS_CHOSEN]),
    "file-sessions": (SEQUENCE, [AS_CHOSEN]),
    "nowplaying": (SEQUENCE, [AS_CHOSEN, ONE]),
    "ml-1m": (SEQUENCE, [AS_CHOSEN]),
    "book-crossing": (SETS, [AS_CHOSEN]),
    "wikispeedia": ({}, [AS_CHOSEN]),
    "enwik8": ({}, [{"alpha": 20}, {"alpha": 10}, ONE, {"alpha": 4}, {"alpha": 50}, {"alpha": 10, "dim": 256}]),
    "linux-identifiers": ({}, [AS_CHOSEN]),
}
MINUTES = 10  # on one core; about five minutes on two
UNSEEN = ("ml-1m", "beauty", "book-crossing")  # where what was seen is left out
TEST_ROWS = 5000  # at most


def label(options: dict[str, Any]) -> str:
    """How a choice is named in the results.

    >>> label({"alpha": 1, "num_hashes": 1}), label({"alpha": 10, "dim": 256})
    ('no hashing', 'α=10, d=256')
    """
    if options in (ONE, AS_CHOSEN):
        return "no hashing" if options else "as chosen"
    signs = {"alpha": "α", "num_hashes": "m", "dim": "d"}
    return ", ".join(f"{signs[name]}={value}" for name, value in options.items())


def measure(name: str, options: dict[str, Any], data: Path, work: Path) -> dict[str, Any]:
    """Train one model and ask it; in a process of its own."""
    from superbloom import Superbloom
    from superbloom.config import train_config
    from superbloom.training.finish import finished

    shared, _ = CHOICES[name]
    corpus = corpus_of(name, data, work)
    began = time.process_time()
    model = Superbloom(**shared, **options).fit(corpus, minutes=MINUTES, remember="none", valid_rows=2000, quiet=True)
    busy = time.process_time() - began
    history = model.metrics["history"]
    model._use(finished(model.model, corpus, train_config(**model.training["config"] | {"remember": "both"})))
    model.training["config"] |= {"remember": "both"}
    model.save_pretrained(work / "choices" / name / label(options).replace(" ", ""))
    figures = model.evaluate(corpus, rows=TEST_ROWS, filter_seen=name in UNSEEN, yardsticks=False)
    config, steps = model.model.config, model.training["steps"]
    return {
        "names": corpus.num_ids,
        "tokens": config.num_tokens,
        "parameters": model.model.network.num_parameters(),
        "minutes": MINUTES,
        "alpha": config.alpha,
        "steps": steps,
        "seconds": model.training["seconds"],
        "processor seconds": busy,
        "history": history,
        **{row: {k: figures[key][k]["value"] for k in figures[key]} for row, key in ROWS.items()},
    }


ROWS = {"both": "recall", "network": "network", "memory": "memory"}


def in_process(name: str, options: dict[str, Any], given: argparse.Namespace, core: int) -> dict[str, Any]:
    call = [sys.executable, "-m", "benchmarks.choices", given.data, given.work, "--one", json.dumps([name, options])]
    done = subprocess.run(
        [str(word) for word in call],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    if done.returncode:
        raise RuntimeError(f"{name} {label(options)}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


AFTER = (2, 4, 6, 9)  # minutes of the processor


def at(found: dict[str, Any], minutes: float) -> float | None:
    """The recall of the last validation before that much time of the processor; None if there was none.

    Other work may have shared the core, so minutes on the clock say less.
    """
    share = found["processor seconds"] / found["seconds"]
    if found["processor seconds"] < 60 * minutes:
        return None
    return [point["recall_at_10"] for point in found["history"] if point["seconds"] * share <= 60 * minutes][-1]


def tables(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    curve = [f"{minutes} min" for minutes in AFTER]
    header = ["names", "model", "CPU min", "steps", *curve, "test: network", "both"]
    rows = []
    for name, measured in results.items():
        for choice, found in measured.items():
            shown = [at(found, minutes) for minutes in AFTER]
            cells = ["–" if value is None else f"{value:.3f}".lstrip("0") for value in shown]
            ends = [f"{found[row]['10']:.3f}".lstrip("0") for row in ("network", "both")]
            kind = f"{choice} (α={found['alpha']})" if choice == label(AS_CHOSEN) else choice
            minutes = f"{found['processor seconds'] / 60:.1f}"
            rows.append([f"{name}, {found['names']:,}", kind, minutes, f"{found['steps']:,}", *cells, *ends])
    return header, rows


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("names", nargs="*", help=", ".join(CHOICES))
    parser.add_argument("--cores", type=int, nargs="+", default=[0, 1], help="train one model on each of these cores")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--table", action="store_true", help="train nothing")
    given = parser.parse_args(arguments)
    if given.one:
        print(json.dumps(measure(*json.loads(given.one), given.data, given.work)))
        return
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"corpora": {}}
    todo = []
    for name in given.names or CHOICES:
        if not given.table:
            corpus_of(name, given.data, given.work)  # once, before several processes need it
        known = results["corpora"].setdefault(name, {})
        todo += [(name, options) for options in CHOICES[name][1] if label(options) not in known and not given.table]

    def run(job: tuple[str, dict[str, Any]]) -> None:
        name, options = job
        core = free.get()
        try:
            found = in_process(name, options, given, core)
        finally:
            free.put(core)
        results["corpora"][name][label(options)] = found
        keep(RESULTS, results)
        shown = {row: round(found[row]["10"], 4) for row in ROWS}
        print(name, label(options), f"alpha={found['alpha']}, {found['steps']:,} steps", shown, flush=True)

    free: queue.Queue[int] = queue.Queue()
    for core in given.cores:
        free.put(core)
    with ThreadPoolExecutor(len(given.cores)) as pool:
        list(pool.map(run, todo))
    header, rows = tables(results["corpora"])
    between_marks(DOC, {"choices": f"\n{markdown(header, rows)}\n"})
    report("recall@10 by how much is hashed", header, rows, results["corpora"])


if __name__ == "__main__":
    main(sys.argv[1:])
