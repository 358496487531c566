"""Which ids stand near each other in training rows, and the leading factors of that matrix."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from superbloom.corpus.corpus import SPLITS, Corpus

WINDOW = 16


PAIRS_AT_ONCE = 8_000_000


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


SPARE = 16  # vectors beyond those wanted, which the power iterations lose precision in


PASSES = 4  # power iterations


def factors(similar: sparse.csr_matrix, most: int, one_for_both: bool) -> tuple[np.ndarray, np.ndarray]:
    """Up to `most` columns whose products inputs · outputsᵀ come close to a matrix: (inputs, rank) and (outputs, rank).

    one_for_both: of a symmetric matrix, with inputs = outputs; what has a negative eigenvalue is left out.

    >>> pairs = sparse.csr_matrix(np.kron(np.eye(3), np.ones((2, 2))))     # three pairs of ids that go together
    >>> for one_for_both in (True, False):
    ...     inputs, outputs = factors(pairs, 3, one_for_both)
    ...     print(np.abs(inputs @ outputs.T - pairs).max() < 1e-5)
    True
    True
    """
    rank = min(most, *similar.shape)
    basis = np.random.default_rng(0).standard_normal((similar.shape[1], min(rank + SPARE, *similar.shape)))
    basis = basis.astype(np.float32)
    for _ in range(PASSES):
        basis = np.linalg.qr(similar.T @ (similar @ basis))[0]
    if one_for_both:
        values, vectors = np.linalg.eigh(basis.T @ (similar @ basis))
        both = basis @ vectors[:, ::-1][:, :rank] * np.sqrt(np.maximum(values[::-1][:rank], 0))
        return both, both
    left, values, right = np.linalg.svd(similar @ basis, full_matrices=False)
    scale = np.sqrt(values[:rank])
    return left[:, :rank] * scale, basis @ right.T[:, :rank] * scale
