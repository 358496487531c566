"""What a model has to beat: popularity, repetition of the context, and co-occurrence. None of them learns.

Each returns the rank (rows,) of each hidden id: 0 is the best, `deepest` means not among the answers. All counts come
from training rows.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from superbloom.corpus import Corpus
from superbloom.evaluate.counting import rank_of
from superbloom.evaluate.held_out import HeldOut

ROWS_PER_CHUNK = 256


def popularity(corpus: Corpus, held_out: HeldOut, deepest: int) -> np.ndarray:
    """Answers with the most frequent ids, whatever the context."""
    counts = corpus.id_counts("train")
    best = np.argsort(-counts, kind="stable")[:deepest]
    rank = np.full(len(counts), deepest)
    rank[best] = np.arange(len(best))
    return rank[held_out.targets]


def repetition(held_out: HeldOut, deepest: int) -> np.ndarray:
    """Answers with the ids of the context, the most frequent first: a page may link to another more than once."""
    ranks = []
    for context, target in zip(held_out.ids, held_out.targets, strict=True):
        ids, counts = np.unique(context[context >= 0], return_counts=True)
        ranks.append(min(deepest, rank_of(target, ids, counts)))
    return np.array(ranks)


def cooccurrence(similar: sparse.csr_matrix, held_out: HeldOut, deepest: int, near: bool = False) -> np.ndarray:
    """Answers with the ids that are most similar to the context (corpus/cooccurrence.py), summed over its elements.

    near: an element of the context counts with 1 / its distance, which a model that sees distances may learn.
    """
    ranks = []
    for start in range(0, len(held_out.ids), ROWS_PER_CHUNK):
        context = held_out.ids[start : start + ROWS_PER_CHUNK]
        row, column = np.nonzero(context >= 0)  # neither PAD nor MASK
        shape = (len(context), similar.shape[0])
        distance = np.abs(column - held_out.places[start + row]) if near else np.ones(len(row))
        weights = (1 / np.maximum(distance, 1)).astype(np.float32)
        contexts = sparse.csr_matrix((weights, (row, context[row, column])), shape=shape)
        scores = contexts @ similar
        for i, target in enumerate(held_out.targets[start : start + ROWS_PER_CHUNK]):
            mine = slice(scores.indptr[i], scores.indptr[i + 1])
            ranks.append(min(deepest, rank_of(target, scores.indices[mine], scores.data[mine])))
    return np.array(ranks)
