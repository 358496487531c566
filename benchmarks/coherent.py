"""What do coherent hash functions cost to make?   python -m benchmarks.coherent --ids 500000 --coherent 2

A made-up corpus: each row is of one of many clusters of 40 ids, frequent ones by Zipf's law, a fifth of it of any ids.
Processor seconds of each part, one thread, and the peak of memory; how many neighbours in a bucket are of one cluster.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.peers.measuring import highest
from superbloom import BloomHash
from superbloom.corpus import SPLITS
from superbloom.hashing import coherent
from tools.record import report

CLUSTER, LENGTH = 40, 12


class Made:
    """As much of a corpus as counting needs."""

    target_vocab, cuts = None, False

    def __init__(self, num_ids: int, links: int) -> None:
        rng = np.random.default_rng(0)
        rows, clusters = links // LENGTH, num_ids // CLUSTER
        members = rng.permutation(clusters * CLUSTER).reshape(-1, CLUSTER)
        share = 1 / np.arange(1, clusters + 1) ** 0.8
        chosen = rng.choice(clusters, rows, p=share / share.sum())
        ids = members[chosen[:, None], rng.integers(0, CLUSTER, (rows, LENGTH))]
        any_ = rng.random(ids.shape) < 0.2
        ids[any_] = rng.integers(0, num_ids, int(any_.sum()))
        rank = np.argsort(np.argsort(-np.bincount(ids.ravel(), minlength=num_ids), kind="stable"), kind="stable")
        self.ids = self.targets = rank[ids.ravel()].astype(np.int32)
        self.cluster = np.full(num_ids, -1)
        self.cluster[rank[members.ravel()]] = np.repeat(np.arange(clusters), CLUSTER)
        self.num_ids, self.vocab = num_ids, range(num_ids)
        self.splits = np.full(rows, SPLITS["train"])
        self.offsets = np.arange(rows + 1) * LENGTH
        self.ends = self.offsets[1:]

    def id_counts(self, _: str, inputs: bool = False) -> np.ndarray:
        del inputs
        return np.bincount(self.ids, minlength=self.num_ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ids", type=int, default=500_000)
    parser.add_argument("--links", type=int, default=4_000_000)
    parser.add_argument("--alpha", type=int, default=20)
    parser.add_argument("--coherent", type=int, default=2)
    given = parser.parse_args()
    corpus: Any = Made(given.ids, given.links)
    parts: list[tuple[str, float]] = []

    def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            began = time.process_time()
            found = work(*arguments, **options)
            parts.append((name, time.process_time() - began))
            return found

        return run

    for name, what in (("vectors_of", "count and factorise"), ("grouped", "group"), ("_mend", "mend")):
        setattr(coherent, name, timed(what, getattr(coherent, name)))
    before, began = highest(), time.process_time()
    bloom = BloomHash.coherent(corpus, 2, given.alpha, given.coherent, spread=True)
    whole = time.process_time() - began
    bloom.verify()
    of_one = []
    for order, buckets in zip(bloom.order.numpy(), bloom.table.numpy().T, strict=True):
        together = buckets[order[1:]] == buckets[order[:-1]]
        of_one.append(float((corpus.cluster[order[1:]] == corpus.cluster[order[:-1]])[together].mean()))
    rows = [[name, f"{seconds:.1f} s"] for name, seconds in (*parts, ("all", whole))]
    rows += [["peak of memory, before", f"{before:,.0f} MB"], ["peak of memory", f"{highest():,.0f} MB"]]
    rows += [[f"hash {j}: neighbours in a bucket of one cluster", f"{share:.3f}"] for j, share in enumerate(of_one)]
    figures = vars(given) | {"parts": parts, "seconds": whole, "before_mb": before, "peak_mb": highest()}
    report("Coherent hash functions, one thread", ["part", ""], rows, figures | {"of_one_cluster": of_one})


if __name__ == "__main__":
    main()
