"""Initial weights from counts instead of noise (not in the paper).

Output biases start at log token frequencies. Embeddings start at the leading factors of the co-occurrence matrix that
the yardstick uses. Least squares divide each id's vector among its tokens, and frequent ids count more. The last layer
starts as the mean of what it attends to. So the first answers are about those of a factorised co-occurrence model, and
training improves them. Ids without a count share the embeddings of the other members of their buckets.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from superbloom.corpus import Corpus
from superbloom.corpus.cooccurrence import factors, similarity
from superbloom.hashing import BloomHash
from superbloom.model import Layer, Model

# Limits of what is counted, so that it takes seconds and a few hundred megabytes for a corpus of any size.
MAX_NAMES, MAX_LINKS, MAX_FACTORS = 100_000, 1_000_000, 256
SWEEPS = 10  # of least squares, hash by hash
TOKEN_RMS_LENGTH = 1.0  # root mean square length of the embeddings of the tokens


@torch.no_grad()
def initialise_from_frequencies(model: Model, corpus: Corpus) -> None:
    """Set the output bias to log token frequencies, so that training need not learn them first."""
    if model.network.bias is None:
        return
    counts = torch.from_numpy(corpus.id_counts("train")).float()
    table = model.target_bloom.table.long()
    bias_of_hash = model.network.bias.unflatten(0, (model.config.num_hashes, -1))
    for bias, buckets in zip(bias_of_hash, table.T, strict=True):
        frequency = torch.ones_like(bias).index_add_(0, buckets, counts)
        bias.copy_(torch.log(frequency / frequency.mean()))


@torch.no_grad()
def initialise_from_cooccurrence(model: Model, corpus: Corpus) -> None:
    """Set embeddings to factors of the co-occurrence matrix, and the last layer to the mean of what it attends to."""
    network, dim = model.network, model.config.dim
    if network.transform is not None:  # a random layer between mean and output: this start would be worse than noise
        return
    similar = similarity(corpus, MAX_NAMES, MAX_LINKS)
    inputs, outputs = factors(similar, min(dim, MAX_FACTORS), is_symmetric=network.output is None)
    # A random rotation divides the leading factors among the heads.
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((dim, dim)))[0][: inputs.shape[1]]
    _set(network.embedding.weight, model.bloom, inputs @ rotation, corpus.id_counts("train", inputs=True))
    if network.output is not None:
        _set(network.output, model.target_bloom, outputs @ rotation, corpus.id_counts("train"))
    last = network.layers[-1]
    assert isinstance(last, Layer)
    last.key_value.weight[-dim:] += torch.eye(dim)
    last.mix.weight += torch.eye(dim)


def _set(table: Tensor, bloom: BloomHash, vectors: np.ndarray, counts: np.ndarray) -> None:
    """Set the tokens so that those of each id add up, as nearly as possible, to the id's vector of length 1.

    Tokens without a counted id stay as they are.
    """
    lengths = np.linalg.norm(vectors, axis=1)
    counted = np.flatnonzero((lengths > 1e-6) & (counts[: len(vectors)] > 0))
    if not len(counted):
        return
    vectors = vectors[counted] / lengths[counted, None]
    tokens, numbers = np.unique(bloom.digest(counted).numpy(), return_inverse=True)
    parts = spread_over_tokens(vectors, numbers.reshape(len(counted), -1), np.sqrt(counts[counted]))
    length = np.sqrt(np.square(parts).sum(axis=1).mean())
    table[torch.from_numpy(tokens)] = torch.from_numpy(parts * (TOKEN_RMS_LENGTH / length)).to(table.dtype)


def spread_over_tokens(vectors: np.ndarray, tokens: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Token vectors (size, d) whose sums over the tokens (ids, m) of each id approximate the id vectors (ids, d).

    Weighted least squares. The first step updates all hashes at once, so that they share the work evenly. The sweeps
    after it update one hash at a time.
    """
    ids, m = tokens.shape
    size, weights = tokens.max() + 1, weights.astype(np.float32)
    means = []
    for column in tokens.T:
        total = np.maximum(np.bincount(column, weights, minlength=size), 1e-9).astype(np.float32)
        means.append(sparse.csr_matrix((weights / total[column], (column, np.arange(ids))), shape=(size, ids)))
    left = vectors.astype(np.float32)  # what the tokens do not explain yet
    parts = sum(mean @ left for mean in means) / np.float32(m)
    left = left - parts[tokens].sum(axis=1)
    for _ in range(SWEEPS):
        for mean, column in zip(means, tokens.T, strict=True):
            more = mean @ left
            parts += more
            left -= more[column]
    return parts
