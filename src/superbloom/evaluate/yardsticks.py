"""What a model has to beat: popularity, repetition of the context, neighbours by co-occurrence. None of them learns.

All return the rank of each hidden id as evaluate.ranks does, counts being those of training rows.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from superbloom.corpus import Corpus
from superbloom.evaluate.held_out import HeldOut


def popularity(corpus: Corpus, held_out: HeldOut, deepest: int) -> np.ndarray:
    """The most frequent ids, whatever the context."""
    counts = corpus.id_counts("train")
    best = np.argsort(-counts, kind="stable")[:deepest]
    rank = np.full(len(counts), deepest)
    rank[best] = np.arange(len(best))
    return rank[held_out.targets]


def repetition(held_out: HeldOut, deepest: int) -> np.ndarray:
    """What the context itself holds, most often first: pages link to the same page more than once."""
    ranks = []
    for context, target in zip(held_out.ids, held_out.targets, strict=True):
        ids, counts = np.unique(context[context >= 0], return_counts=True)
        ranks.append(_rank(target, ids, counts, deepest))
    return np.array(ranks)


def cooccurrence(similar: sparse.csr_matrix, held_out: HeldOut, deepest: int, near: bool = False) -> np.ndarray:
    """Counts within 16 elements over the square roots of both frequencies (`similarity`), summed over the context.

    near: an element of the context counts by one over its distance, as a model may learn that sees distances.
    """
    ranks = []
    for start in range(0, len(held_out.ids), 256):
        context = held_out.ids[start : start + 256]
        row, column = np.nonzero(context >= 0)  # neither PAD nor MASK
        shape = (len(context), similar.shape[0])
        distance = np.abs(column - held_out.places[start + row]) if near else np.ones(len(row))
        weights = (1 / np.maximum(distance, 1)).astype(np.float32)
        asked = sparse.csr_matrix((weights, (row, context[row, column])), shape=shape)
        scores = asked @ similar
        for i, target in enumerate(held_out.targets[start : start + 256]):
            mine = slice(scores.indptr[i], scores.indptr[i + 1])
            ranks.append(_rank(target, scores.indices[mine], scores.data[mine], deepest))
    return np.array(ranks)


def _rank(target: int, ids: np.ndarray, scores: np.ndarray, deepest: int) -> int:
    """How many of ids score above the target; ties go to the smaller id, as in search.py."""
    own = scores[ids == target]
    if not len(own):
        return deepest
    ahead = (scores > own) | ((scores == own) & (ids < target))
    return min(int(ahead.sum()), deepest)
