"""Coherent hash functions (App. D): ids that go together share a bucket, where random ones share it by chance.

Ids get the leading factors of the yardstick's co-occurrence matrix as vectors. From the most frequent id to the rarest,
each one that is still free founds a bucket with the nearest free ids, by cosine similarity. A second function takes of
each bucket of the first one id at most, so that no two ids meet in both. Similarities are computed for many founders
at a time and dropped again: memory is bounded, neighbours are exact.

    vectors (num_ids, d), ids by frequency  →  group (num_ids,), the bucket of each
"""

from __future__ import annotations

import numpy as np
import torch

from superbloom.corpus import Corpus
from superbloom.corpus.cooccurrence import factors, similarity
from superbloom.hashing.construct import shifted
from superbloom.ranking import best_keys, unkey

FACTORS, LINKS = 64, 4_000_000  # what is counted and kept of it, at most
ROOM = 2**26  # similarities held at a time: 256 MB
# Vectors are whole numbers of this length: sums of their products stay below 2^24, so that they are exact in fp32, and
# the order of additions, which differs between processors, cannot decide who is nearer.
LENGTH = 2048


def coherent_columns(
    corpus: Corpus, num_buckets: int, columns: int, rng: np.random.Generator, targets: bool
) -> np.ndarray:
    """Buckets of all ids under one or two coherent functions, (num_ids, columns)."""
    vectors = vectors_of(corpus, targets)
    order = np.argsort(-corpus.id_counts("train", inputs=not targets), kind="stable")
    sizes = np.bincount(np.arange(len(order)) * num_buckets // len(order))
    table = np.empty((len(order), columns), dtype=np.int32)
    first = grouped(vectors[order], sizes)
    table[order, 0] = first
    if columns == 2:
        second = grouped(vectors[order], sizes, first)
        if not _mend(second, first, vectors[order]):
            second = shifted(first, num_buckets, 2, rng)[:, 0]
        table[order, 1] = second
    return table


def vectors_of(corpus: Corpus, targets: bool = False) -> np.ndarray:
    """A vector for each id to be read, or to be predicted: (num_ids, d) of whole numbers, all about as long.

    Ids that never stood beside another have a direction of their own, so that they are like each other and no one else.
    """
    similar = similarity(corpus, links=LINKS)
    inputs, outputs = factors(similar, FACTORS, one_for_both=corpus.target_vocab is None)
    vectors = outputs if targets else inputs
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    alone = lengths < 1e-6
    directions = np.hstack([np.where(alone, 0, vectors / np.maximum(lengths, 1e-6)), alone])
    return np.rint(LENGTH * directions).astype(np.float32)


def grouped(vectors: np.ndarray, sizes: np.ndarray, apart: np.ndarray | None = None) -> np.ndarray:
    """Groups of the given sizes, each founded by the first vector that is free, with the nearest that are.

    apart: numbers (n,); of those with the same one, a group takes one only, as long as there are others.

    >>> line = np.array([[1, 8], [8, 1], [2, 8], [8, 2], [8, 3], [3, 8]], dtype=np.float32)
    >>> first = grouped(line, np.array([3, 3]))
    >>> first.tolist(), grouped(line, np.array([2, 2, 2]), first).tolist()
    ([0, 1, 0, 1, 1, 0], [0, 1, 2, 2, 0, 1])
    """
    everyone = torch.from_numpy(vectors)
    group = np.full(len(vectors), -1)
    free, done, width = np.arange(len(vectors)), 0, 2 * int(sizes.max())
    while done < len(sizes):
        free = free[group[free] < 0]
        pool = everyone[torch.from_numpy(free)]
        # Not so many at once that most of them would be taken by those before.
        founders = max(1, min(ROOM // len(free), len(free) // (4 * int(sizes.max()))))
        depths = []
        for founder, near in zip(free[:founders], pool[:founders] @ pool.T, strict=True):
            if group[founder] >= 0:
                continue
            wanted, depth = int(sizes[done]) - 1, min(width, len(free))
            while True:
                nearest = free[unkey(best_keys(near, None, None, depth))[1].numpy()]
                mates = _mates(founder, nearest, group, apart)
                if len(mates) >= wanted or depth == len(free):
                    break
                depth = min(4 * depth, len(free))
            if len(mates) < wanted:  # no others are left; _mend exchanges them
                rest = _mates(founder, nearest, group, None)
                mates = np.concatenate([mates, rest[~np.isin(rest, mates)]])
            mates = mates[:wanted]
            group[mates] = group[founder] = done
            done += 1
            depths.append(int(np.flatnonzero(nearest == mates[-1])[0]) if wanted else 0)
        width = max(2 * int(sizes.max()), int(1.25 * np.quantile(depths, 0.9)))
    return group


def _mates(founder: int, nearest: np.ndarray, group: np.ndarray, apart: np.ndarray | None) -> np.ndarray:
    """Those of the nearest that may join, nearest first."""
    nearest = nearest[(group[nearest] < 0) & (nearest != founder)]
    if apart is None:
        return nearest
    nearest = nearest[apart[nearest] != apart[founder]]
    return nearest[np.sort(np.unique(apart[nearest], return_index=True)[1])]


def _mend(group: np.ndarray, apart: np.ndarray, vectors: np.ndarray) -> bool:
    """Exchange members, in place, until no two of a group have the same number; False if there is no one to exchange.

    Such pairs are among the last that were grouped, when no others were left. Of those who fit, the nearest comes.
    """
    pairs = group * (int(apart.max()) + 1) + apart
    _, first = np.unique(pairs, return_index=True)
    for one in np.setdiff1d(np.arange(len(group)), first):
        mates = np.flatnonzero(group == group[one])
        mates = mates[mates != one]
        taken = np.isin(apart, apart[mates]) | np.isin(group, group[apart == apart[one]])
        if taken.all():
            return False
        nearness = vectors @ vectors[mates].sum(axis=0, dtype=np.float64)  # exact beyond 2^24, too
        other = int(np.argmax(np.where(taken, -np.inf, nearness)))
        group[one], group[other] = group[other], group[one]
    return True
