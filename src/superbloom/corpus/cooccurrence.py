"""Which ids occur near each other in training rows, and the leading factors of that matrix.

`similarity` counts pairs of ids at most WINDOW_IDS apart and divides by the roots of their frequencies: a sparse
matrix, inputs × outputs. `factors` approximates it by a product of two dense matrices, (inputs, rank) and
(outputs, rank). Coherent hashing (App. D) and the initial embeddings begin with these factors.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from superbloom.corpus.corpus import Corpus
from superbloom.corpus.splits import SPLITS

WINDOW_IDS = 16  # the largest distance in a row between two ids that count as a pair
MAX_BATCH_PAIRS = 8_000_000  # pairs counted at once, a limit of memory
EXTRA_VECTORS = 16  # beyond the rank; the power iterations lose precision in the last ones
POWER_ITERATIONS = 4


def similarity(corpus: Corpus, max_names: int | None = None, max_links: int | None = None) -> sparse.csr_matrix:
    """Return the scaled co-occurrence matrix of the training rows, inputs × outputs.

    max_names: count only the most frequent names. max_links: count only random rows that hold about this number of ids.
    """
    rows = np.flatnonzero(corpus.splits == SPLITS["train"])
    if max_links is not None and len(corpus.ids) > max_links:
        rows = np.random.default_rng(0).permutation(rows)
        rows = rows[: np.searchsorted(np.cumsum((corpus.ends - corpus.offsets[:-1])[rows]), max_links) + 1]
    lengths = (corpus.ends - corpus.offsets[:-1])[rows]
    row_of = np.repeat(np.arange(len(rows)), lengths)
    at = np.arange(len(row_of)) + np.repeat(corpus.offsets[rows] - np.cumsum(lengths) + lengths, lengths)
    ids, targets = corpus.ids[at], corpus.targets[at]
    shape = tuple(min(size, max_names or size) for size in (corpus.num_ids, len(corpus.target_vocab or corpus.vocab)))
    kept = (ids < shape[0]) & (targets < shape[1])
    ids, targets, row_of = ids[kept], targets[kept], row_of[kept]
    counts = sparse.csr_matrix(shape, dtype=np.float32)
    batch_ids = MAX_BATCH_PAIRS // (2 * WINDOW_IDS)
    for begin in range(0, len(ids), batch_ids):
        end = min(begin + batch_ids, len(ids))
        left, right = [], []
        for distance in range(1, WINDOW_IDS + 1):
            first = np.arange(begin, min(end, len(ids) - distance))
            first = first[row_of[first] == row_of[first + distance]]
            left += [ids[first], ids[first + distance]]
            right += [targets[first + distance], targets[first]]
        pairs = (np.concatenate(left), np.concatenate(right))
        counts = counts + sparse.csr_matrix((np.ones(len(pairs[0]), np.float32), pairs), shape=shape)
    return sparse.diags(_inverse_root(ids, shape[0])) @ counts @ sparse.diags(_inverse_root(targets, shape[1]))


def _inverse_root(ids: np.ndarray, size: int) -> np.ndarray:
    """Return 1/√count of each id, float32 (size,)."""
    return (1 / np.sqrt(np.maximum(1, np.bincount(ids, minlength=size)))).astype(np.float32)


def factors(similar: sparse.csr_matrix, max_rank: int, is_symmetric: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return (inputs, rank) and (outputs, rank) with inputs · outputsᵀ close to a matrix; rank is at most max_rank.

    is_symmetric: the matrix is symmetric, and inputs = outputs is wanted. This leaves out negative eigenvalues.

    >>> pairs = sparse.csr_matrix(np.kron(np.eye(3), np.ones((2, 2))))     # three pairs of ids that go together
    >>> for is_symmetric in (True, False):
    ...     inputs, outputs = factors(pairs, 3, is_symmetric)
    ...     print(np.abs(inputs @ outputs.T - pairs).max() < 1e-5)
    True
    True
    """
    rank = min(max_rank, *similar.shape)
    basis = np.random.default_rng(0).standard_normal((similar.shape[1], min(rank + EXTRA_VECTORS, *similar.shape)))
    basis = basis.astype(np.float32)
    for _ in range(POWER_ITERATIONS):
        basis = np.linalg.qr(similar.T @ (similar @ basis))[0]
    if is_symmetric:
        values, vectors = np.linalg.eigh(basis.T @ (similar @ basis))
        both = basis @ vectors[:, ::-1][:, :rank] * np.sqrt(np.maximum(values[::-1][:rank], 0))
        return both, both
    left, values, right = np.linalg.svd(similar @ basis, full_matrices=False)
    scale = np.sqrt(values[:rank])
    return left[:, :rank] * scale, basis @ right.T[:, :rank] * scale
