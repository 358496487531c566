"""What a model has to beat: popularity, repetition of the context, neighbours by co-occurrence. None of them learns.

All return the rank of each hidden id as evaluate.ranks does, counts being those of training rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from superbloom.corpus import SPLITS, Corpus

if TYPE_CHECKING:
    from superbloom.evaluate import HeldOut

WINDOW = 16
PAIRS_AT_ONCE = 8_000_000


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


def similarity(corpus: Corpus, names: int | None = None, links: int | None = None) -> sparse.csr_matrix:
    """The scaled co-occurrence matrix of the training rows, inputs × outputs.

    names: of as many of the most frequent ones only. links: of rows drawn at random that hold about as many only.
    """
    rows = np.flatnonzero(corpus.splits == SPLITS["train"])
    if links is not None and len(corpus.ids) > links:
        rows = np.random.default_rng(0).permutation(rows)
        rows = rows[: np.searchsorted(np.cumsum((corpus.ends - corpus.offsets[:-1])[rows]), links) + 1]
    lengths = (corpus.ends - corpus.offsets[:-1])[rows]
    row_of = np.repeat(np.arange(len(rows)), lengths)
    at = np.arange(len(row_of)) + np.repeat(corpus.offsets[rows] - np.cumsum(lengths) + lengths, lengths)
    ids, targets = corpus.ids[at], corpus.targets[at]
    shape = tuple(min(size, names or size) for size in (corpus.num_ids, len(corpus.target_vocab or corpus.vocab)))
    kept = (ids < shape[0]) & (targets < shape[1])
    ids, targets, row_of = ids[kept], targets[kept], row_of[kept]
    counts = sparse.csr_matrix(shape, dtype=np.float32)
    for begin in range(0, len(ids), PAIRS_AT_ONCE // (2 * WINDOW)):
        end = min(begin + PAIRS_AT_ONCE // (2 * WINDOW), len(ids))
        left, right = [], []
        for distance in range(1, WINDOW + 1):
            first = np.arange(begin, min(end, len(ids) - distance))
            first = first[row_of[first] == row_of[first + distance]]
            left += [ids[first], ids[first + distance]]
            right += [targets[first + distance], targets[first]]
        pairs = (np.concatenate(left), np.concatenate(right))
        counts = counts + sparse.csr_matrix((np.ones(len(pairs[0]), np.float32), pairs), shape=shape)
    return sparse.diags(_inverse_root(ids, shape[0])) @ counts @ sparse.diags(_inverse_root(targets, shape[1]))


def _inverse_root(ids: np.ndarray, size: int) -> np.ndarray:
    return (1 / np.sqrt(np.maximum(1, np.bincount(ids, minlength=size)))).astype(np.float32)
