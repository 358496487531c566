"""Where training starts: from what can be counted, instead of from noise (not in the paper).

Output biases start at log token frequencies. Embeddings start at the leading factors of the yardstick's co-occurrence
matrix, divided among the tokens of each id by least squares in which frequent ids count more; and the last layer starts
as the mean of what it attends to. The first answers are then about those of a factorised co-occurrence model, and
training goes on from there. Ids without a count get what the other members of their buckets have.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from superbloom.corpus import Corpus
from superbloom.hashing import BloomHash
from superbloom.model import Layer, Model
from superbloom.yardsticks import similarity

NAMES, LINKS = 100_000, 1_000_000  # at most, so that it takes seconds and some hundred megabytes at any size
SPARE = 16  # vectors beyond those wanted, which the power iterations lose precision in
PASSES = 4  # power iterations
SWEEPS = 10  # of least squares, hash by hash
LENGTH = 1.0  # root mean square length of the embeddings


@torch.no_grad()
def start_from_frequencies(model: Model, corpus: Corpus) -> None:
    """Set the output bias to log token frequencies, so that training does not begin by learning them."""
    if model.network.bias is None:
        return
    counts = torch.from_numpy(corpus.id_counts("train")).float()
    table = model.target_bloom.table.long()
    bias_of_hash = model.network.bias.unflatten(0, (model.config.num_hashes, -1))
    for bias, buckets in zip(bias_of_hash, table.T, strict=True):
        frequency = torch.ones_like(bias).index_add_(0, buckets, counts)
        bias.copy_(torch.log(frequency / frequency.mean()))


@torch.no_grad()
def start_from_cooccurrence(model: Model, corpus: Corpus) -> None:
    """Set the embeddings to factors of the co-occurrence matrix, and the last layer to average what it attends to."""
    network, dim = model.network, model.config.dim
    inputs, outputs = factors(similarity(corpus, NAMES, LINKS), dim)
    if network.output is None:  # one embedding for both can only have factors of one sign
        inputs = inputs * ((inputs * outputs).sum(axis=0) > 0)
    # Turned at random, so that no head has all the leading factors to itself.
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((dim, dim)))[0][: inputs.shape[1]]
    _set(network.embedding.weight, model.bloom, inputs @ rotation, corpus.id_counts("train", inputs=True))
    if network.output is not None:
        _set(network.output, model.target_bloom, outputs @ rotation, corpus.id_counts("train"))
    last = network.layers[-1]
    assert isinstance(last, Layer)
    last.key_value.weight[dim:] += torch.eye(dim)
    last.mix.weight += torch.eye(dim)


def factors(similar: sparse.csr_matrix, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Singular vectors of a matrix times the roots of its values, up to `most`: (inputs, rank) and (outputs, rank).

    >>> pairs = sparse.csr_matrix(np.kron(np.eye(3), np.ones((2, 2))))     # three pairs of ids that go together
    >>> inputs, outputs = factors(pairs, most=3)
    >>> np.round(inputs @ outputs.T).astype(int).tolist() == pairs.toarray().astype(int).tolist()
    True
    """
    rank = min(most, *similar.shape)
    basis = np.random.default_rng(0).standard_normal((similar.shape[1], min(rank + SPARE, *similar.shape)))
    basis = basis.astype(np.float32)
    for _ in range(PASSES):
        basis = np.linalg.qr(similar.T @ (similar @ basis))[0]
    left, values, right = np.linalg.svd(similar @ basis, full_matrices=False)
    scale = np.sqrt(values[:rank])
    return left[:, :rank] * scale, basis @ right.T[:, :rank] * scale


def _set(table: Tensor, bloom: BloomHash, vectors: np.ndarray, counts: np.ndarray) -> None:
    """Make the tokens of each id add up to its vector, at length one, as nearly as they can; others stay."""
    names, lengths = len(vectors), np.linalg.norm(vectors, axis=1)
    weights = np.sqrt(counts[:names]) * (lengths > 1e-6)
    vectors = vectors / np.maximum(lengths, 1e-6)[:, None]
    parts, used = spread_over_tokens(vectors, bloom.table[:names].numpy(), bloom.num_buckets, weights)
    length = np.sqrt((parts[used] ** 2).sum(axis=1).mean()) if used.any() else 1.0
    chosen = torch.from_numpy(np.flatnonzero(used))
    table[chosen] = torch.from_numpy(parts[used] * (LENGTH / length)).to(table.dtype)


def spread_over_tokens(
    vectors: np.ndarray, buckets: np.ndarray, num_buckets: int, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Token vectors (m · num_buckets, d) that, added up over the buckets (ids, m) of each id, come close to its vector.

    Weighted least squares, hash by hash in turn. Also which tokens have an id of any weight.
    """
    ids, m = buckets.shape
    totals = np.stack([np.bincount(column, weights, minlength=num_buckets) for column in buckets.T])
    sums = [sparse.csr_matrix((weights, (column, np.arange(ids))), shape=(num_buckets, ids)) for column in buckets.T]
    parts = np.zeros((m, num_buckets, vectors.shape[1]), dtype=np.float32)
    left = vectors.astype(np.float32)  # what the tokens so far do not explain
    for _ in range(SWEEPS if m > 1 else 1):
        for j, column in enumerate(buckets.T):
            more = (sums[j] @ left) / np.maximum(totals[j], 1e-9)[:, None]
            parts[j] += more
            left -= more[column]
    return parts.reshape(m * num_buckets, -1), totals.reshape(-1) > 0
