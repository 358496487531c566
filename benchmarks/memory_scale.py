"""What does a memory cost at scale?   python -m benchmarks.memory_scale count FILE | ask [--names 5281889]

count: rows of names in a file (key, tab, names …), such as the identifiers of Linux's functions: time, peak memory and
file size of counting pairs and keeping rows. A trailing `(` of names is cut off. With --engine, all rows are counted by
each engine instead, and the pairs compared (count_engines.py).
ask: the time of one query with and without a memory of random pairs, 32 for each name, in a model of the paper's size
(alpha=50, d=768, one layer); the file is memory-mapped. Ratios of one run.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.count_engines import ENGINES, compare
from superbloom import Corpus, Superbloom
from superbloom.config import ModelConfig, TrainConfig
from superbloom.corpus import SPLITS, Vocab
from superbloom.memory import PARTS, Events, Memory, Pairs, Rows
from superbloom.model import Model, Prior
from superbloom.predict import Predictor
from superbloom.prepare.files import open_lines
from superbloom.store.memory_file import write_memory
from tools.record import report

NEIGHBOURS, REPEATS, CONTEXT = 32, 30, 8


def count(given: argparse.Namespace) -> None:
    def rows() -> Any:
        for line in open_lines(given.file):
            key, *names = line.rstrip("\n").split("\t")
            yield key, [name.rstrip("(") for name in names]

    corpus = Corpus.from_keyed(rows(), source="a file of rows")
    if given.engine:
        compare(Events.of(corpus, tuple(SPLITS)), given.engine, given.mb)
        return
    before, start = peak_gb(), time.perf_counter()
    events = Events.of(corpus)
    pairs = Pairs.count(events, NEIGHBOURS)
    middle = time.perf_counter()
    kept = Rows.keep(events)
    seconds = {"pairs": middle - start, "rows": time.perf_counter() - middle}
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "memory.safetensors"
        write_memory(Memory(pairs, kept, dict.fromkeys(PARTS, 1 / 7)), file)
        size = file.stat().st_size
    figures = {
        "names": corpus.num_ids,
        "events": len(events.ids),
        "pairs kept": len(pairs.ids),
        "seconds": seconds,
        "peak GB": {"with the corpus": before, "after counting": peak_gb()},
        "file bytes": size,
    }
    row = [f"{corpus.num_ids:,}", f"{len(events.ids):,}", *(f"{value:.1f} s" for value in seconds.values())]
    row += [f"{before:.1f} → {peak_gb():.1f} GB", f"{size / 1e6:,.0f} MB"]
    header = ["names", "events", "pairs", "rows", "peak memory: corpus → counted", "file"]
    report("counting a memory", header, [row], figures)


def ask(given: argparse.Namespace) -> None:
    names, rng = given.names, np.random.default_rng(0)
    torch.manual_seed(0)
    vocab = Vocab.from_counts({f"n{i}": names - i for i in range(names)})
    config = ModelConfig(num_ids=names, alpha=50, dim=768, heads=12, ffn_dim=3072, layers=1)
    model = replace(Model.create(config, vocab), prior=Prior(torch.arange(names, 0, -1, dtype=torch.int32)))
    pairs = Pairs(
        np.arange(names + 1) * NEIGHBOURS,
        rng.integers(names, size=names * NEIGHBOURS, dtype=np.int32),
        rng.random(names * NEIGHBOURS, dtype=np.float32).astype(np.float16),
        rng.integers(256, size=names * NEIGHBOURS).astype(np.uint8),
        np.ones(names, np.int32),
    )
    ids = rng.integers(names, size=4_000_000, dtype=np.int32)
    rows = Rows.keep(Events(ids, np.arange(len(ids) // 20), np.arange(0, len(ids) + 1, 20), names))
    superbloom = Superbloom()
    superbloom._use(replace(model, memory=Memory(pairs, rows, dict.fromkeys(PARTS, 1 / 7))))
    with tempfile.TemporaryDirectory(dir=given.work) as scratch:
        folder = Path(scratch) / "model"
        superbloom.save_pretrained(folder)
        size = (folder / "memory.safetensors").stat().st_size
        del superbloom, pairs, rows, model
        before = resident_gb()
        stored = Superbloom.from_pretrained(folder, verify=False).model
        loaded = resident_gb()
        both, alone = Predictor(stored), Predictor(stored, network_only=True)
        contexts = [[f"n{i}" for i in rng.integers(names, size=CONTEXT)] for _ in range(REPEATS)]
        times: dict[str, list[float]] = {"network": [], "both": []}
        for context in contexts:
            for name, predictor in (("network", alone), ("both", both)):
                times[name].append(taken(lambda predictor=predictor, context=context: predictor.predict(context, 20)))
        after = resident_gb()
    medians = {name: 1000 * statistics.median(values[3:]) for name, values in times.items()}
    figures = {"names": names, "ms": medians, "memory file": size, "resident GB": [before, loaded, after]}
    row = [f"{names:,}", *(f"{value:.1f} ms" for value in medians.values())]
    row += [f"{medians['both'] / medians['network']:.2f}", f"{size / 1e9:.2f} GB", f"{loaded:.1f} → {after:.1f} GB"]
    header = ["names", "network alone", "with the memory", "ratio", "file", "resident: loaded → asked"]
    report("one query, k=20", header, [row], figures)


def taken(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def resident_gb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e9


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    counted = parts.add_parser("count")
    counted.add_argument("file", type=Path)
    counted.add_argument("--engine", action="append", choices=ENGINES, help="may be repeated")
    counted.add_argument("--mb", type=int, default=TrainConfig.count_mb, help="megabytes of DuckDB or Spark")
    counted.set_defaults(run=count)
    asked = parts.add_parser("ask")
    asked.add_argument("--names", type=int, default=5_281_889)
    asked.add_argument("--work", type=Path, help="folder for the model (default: the system's)")
    asked.set_defaults(run=ask)
    given = parser.parse_args(arguments)
    given.run(given)


if __name__ == "__main__":
    main(sys.argv[1:])
