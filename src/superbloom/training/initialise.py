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
from superbloom.corpus.cooccurrence import factors, similarity
from superbloom.hashing import BloomHash
from superbloom.model import Layer, Model

# At most as many names, links and factors are counted, so that it takes seconds and some hundred megabytes at any size.
NAMES, LINKS, FACTORS = 100_000, 1_000_000, 256
SWEEPS = 10  # of least squares, hash by hash
LENGTH = 1.0  # root mean square length of the tokens' embeddings


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
    if network.transform is not None:  # what stands between the mean and the output would have to be known, too
        return
    similar = similarity(corpus, NAMES, LINKS)
    inputs, outputs = factors(similar, min(dim, FACTORS), one_for_both=network.output is None)
    # Turned at random, so that no head has all the leading factors to itself.
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((dim, dim)))[0][: inputs.shape[1]]
    _set(network.embedding.weight, model.bloom, inputs @ rotation, corpus.id_counts("train", inputs=True))
    if network.output is not None:
        _set(network.output, model.target_bloom, outputs @ rotation, corpus.id_counts("train"))
    last = network.layers[-1]
    assert isinstance(last, Layer)
    last.key_value.weight[-dim:] += torch.eye(dim)
    last.mix.weight += torch.eye(dim)


def _set(table: Tensor, bloom: BloomHash, vectors: np.ndarray, counts: np.ndarray) -> None:
    """Make the tokens of each id add up to its vector, all as long as another, as nearly as they can.

    Tokens that have no counted id stay as they are.
    """
    lengths = np.linalg.norm(vectors, axis=1)
    counted = np.flatnonzero((lengths > 1e-6) & (counts[: len(vectors)] > 0))
    if not len(counted):
        return
    vectors = vectors[counted] / lengths[counted, None]
    tokens, numbers = np.unique(bloom.digest(counted).numpy(), return_inverse=True)
    parts = spread_over_tokens(vectors, numbers.reshape(len(counted), -1), np.sqrt(counts[counted]))
    length = np.sqrt(np.square(parts).sum(axis=1).mean())
    table[torch.from_numpy(tokens)] = torch.from_numpy(parts * (LENGTH / length)).to(table.dtype)


def spread_over_tokens(vectors: np.ndarray, tokens: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Vectors of tokens which, added up over the m tokens (ids, m) of each id, come close to that id's of (ids, d).

    Weighted least squares: first all hashes at once, so that they share evenly what is to be explained, then in turn.
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
