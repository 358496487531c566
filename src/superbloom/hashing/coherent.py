"""Coherent hash functions (App. D): ids that occur together share a bucket.

    vectors (num_ids, d), most frequent id first  →  group (num_ids,), the bucket of each id

Vectors are the leading factors of the co-occurrence matrix (corpus/cooccurrence.py). From the most frequent id to the
rarest, each free id founds a bucket with its nearest free ids, by cosine similarity. Each bucket of a second function
takes at most one id from a bucket of the first, so no two ids share both. Neighbours are exact and memory is bounded.
"""

from __future__ import annotations

import numpy as np
import torch

from superbloom.corpus import Corpus
from superbloom.corpus.cooccurrence import factors, similarity
from superbloom.hashing.construct import even_runs, repeated, shifted
from superbloom.ranking import best_keys, unkey

NUM_FACTORS = 64  # dimensions of the vectors
MAX_LINKS = 4_000_000  # elements of training rows that are counted, from a random sample of rows if there are more
MAX_SIMILARITIES = 2**26  # held at a time: 256 MB
# Vectors are whole numbers of this length. Sums of their products stay below 2^24 and are exact in fp32. So the order
# of additions, which differs between processors, cannot decide which id is nearer.
VECTOR_LENGTH = 2048


def coherent_columns(
    corpus: Corpus, num_buckets: int, columns: int, rng: np.random.Generator, targets: bool
) -> np.ndarray:
    """The buckets of all ids under one or two coherent functions, (num_ids, columns)."""
    vectors = vectors_of(corpus, targets)
    order = np.argsort(-corpus.id_counts("train", inputs=not targets), kind="stable")
    sizes = np.bincount(even_runs(len(order), num_buckets))
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
    """A vector of whole numbers for each input id, or target id, (num_ids, d); all have about the same length.

    Ids that never occur with another share one extra direction, so they are similar to each other only.
    """
    similar = similarity(corpus, max_links=MAX_LINKS)
    inputs, outputs = factors(similar, NUM_FACTORS, is_symmetric=corpus.target_vocab is None)
    vectors = outputs if targets else inputs
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    alone = lengths < 1e-6
    directions = np.hstack([np.where(alone, 0, vectors / np.maximum(lengths, 1e-6)), alone])
    return np.rint(VECTOR_LENGTH * directions).astype(np.float32)


def grouped(vectors: np.ndarray, sizes: np.ndarray, apart: np.ndarray | None = None) -> np.ndarray:
    """Groups of the given sizes: the first free vector founds a group with the nearest free vectors.

    apart: a number for each vector (n,); a group takes only one vector per number, as long as others are left.

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
        # Few at a time: earlier founders take later ones into their groups, and those similarities would be wasted.
        founders = max(1, min(MAX_SIMILARITIES // len(free), len(free) // (4 * int(sizes.max()))))
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
            if len(mates) < wanted:  # no others are left; _mend exchanges these later
                rest = _mates(founder, nearest, group, None)
                mates = np.concatenate([mates, rest[~np.isin(rest, mates)]])
            mates = mates[:wanted]
            group[mates] = group[founder] = done
            done += 1
            depths.append(int(np.flatnonzero(nearest == mates[-1])[0]) if wanted else 0)
        width = max(2 * int(sizes.max()), int(1.25 * np.quantile(depths, 0.9)))
    return group


def _mates(founder: int, nearest: np.ndarray, group: np.ndarray, apart: np.ndarray | None) -> np.ndarray:
    """The nearest that may join the founder's group, nearest first."""
    nearest = nearest[(group[nearest] < 0) & (nearest != founder)]
    if apart is None:
        return nearest
    nearest = nearest[apart[nearest] != apart[founder]]
    return nearest[np.sort(np.unique(apart[nearest], return_index=True)[1])]


def _mend(group: np.ndarray, apart: np.ndarray, vectors: np.ndarray) -> bool:
    """Exchange members in place until no two of a group have the same number; False if none can be exchanged.

    Such pairs are in the last groups, which had no other ids to take. The nearest id that fits is exchanged.
    """
    pairs = group * (int(apart.max()) + 1) + apart
    for one in np.flatnonzero(repeated(pairs)):
        mates = np.flatnonzero(group == group[one])
        mates = mates[mates != one]
        taken = np.isin(apart, apart[mates]) | np.isin(group, group[apart == apart[one]])
        if taken.all():
            return False
        nearness = vectors @ vectors[mates].sum(axis=0, dtype=np.float64)  # exact beyond 2^24
        other = int(np.argmax(np.where(taken, -np.inf, nearness)))
        group[one], group[other] = group[other], group[one]
    return True
