"""What a model has to beat: popularity, repetition of the context, and co-occurrence. None of them learns.

Each returns the rank (rows,) of each hidden id: 0 is the best, `deepest` means not among the answers. All counts come
from training rows.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from scipy import sparse

from superbloom.corpus import Corpus
from superbloom.evaluate.counting import CHUNK_ROWS, rank_of, ranks_of
from superbloom.evaluate.held_out import HeldOut
from superbloom.memory import Context


def popularity(corpus: Corpus, held_out: HeldOut, deepest: int, filter_seen: bool = False) -> np.ndarray:
    """Answers with the most frequent ids, whatever the context; filter_seen: except those that were seen."""
    counts = corpus.id_counts("train")
    place = np.empty(len(counts), dtype=np.int64)
    place[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    rank = place[held_out.targets]
    for start in range(0, len(rank) if filter_seen else 0, CHUNK_ROWS):
        part = slice(start, start + CHUNK_ROWS)
        seen, targets = held_out.seen(part).numpy(), held_out.targets[part, None]
        ahead = (seen >= 0) & (place[seen] < place[targets])
        rank[part] = np.where((seen == targets).any(axis=1), deepest, rank[part] - ahead.sum(axis=1))
    return np.minimum(rank, deepest)


def repetition(held_out: HeldOut, deepest: int) -> np.ndarray:
    """Answers with the ids of the context, the most frequent first: a page may link to another more than once."""
    ranks = []
    for context, target in zip(held_out.ids, held_out.targets, strict=True):
        ids, counts = np.unique(context[context >= 0], return_counts=True)
        ranks.append(min(deepest, rank_of(target, ids, counts)))
    return np.array(ranks)


def cooccurrence(
    similar: sparse.csr_matrix, held_out: HeldOut, deepest: int, near: bool = False, filter_seen: bool = False
) -> np.ndarray:
    """Answers with the ids that are most similar to the context (corpus/cooccurrence.py), summed over its elements.

    near: an element of the context counts with 1 / its distance, which a model that sees distances may learn.
    """
    ranks = ranks_of(partial(_together, similar, near), held_out, similar.shape[0], filter_seen)
    return np.minimum(ranks, deepest)


def _together(similar: sparse.csr_matrix, near: bool, context: Context) -> sparse.csr_matrix:
    weights = context.nearness if near else np.ones_like(context.nearness)
    return context.matrix(weights, context.query, context.names) @ similar
