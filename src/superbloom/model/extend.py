"""Add names to a trained model: each new name gets its own digest, and old digests stay (hashing/growth.py).

The tokens learned their meaning from other names. At first, the model treats a new name like the names that share its
buckets. More training lets it learn the name itself. Without hashing, a new name has a token of its own: it begins as
the mean of the names that it is like, or else as nothing, as likely as the rarest name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from superbloom.config import ExtendOptions
from superbloom.errors import InputError
from superbloom.hashing import extended, is_hashed
from superbloom.model.model import Model
from superbloom.model.network import Network
from superbloom.model.prior import Prior


def extend(
    model: Model,
    names: Iterable[str],
    *,
    like: Mapping[str, Sequence[str]] | None = None,
    reserve: float = ExtendOptions.reserve,
) -> Model:
    """The model with more names. Their ids follow the old ids, in the given order.

    like: {new name: [known names]} puts a new name into the buckets of these known names.
    reserve: the growth of a bucket beyond alpha, as a share of alpha.
    """
    if model.target_vocab is not model.vocab:
        raise InputError(
            "this model predicts other names than it reads; only a model of one vocabulary can be extended"
        )
    like = like or {}
    vocab, new = model.vocab.extended(names)
    if strangers := like.keys() - set(new):
        raise InputError(f"like has {min(strangers)!r}, which is not a new name; add it to the names, or leave it out")
    similar = [[model.vocab.id(other) for other in like.get(name, ())] for name in new]
    bloom = extended(model.bloom, similar, reserve)
    config = replace(model.config, num_ids=len(vocab), buckets=bloom.num_buckets)
    with torch.device("meta"):
        network = Network(config)
    weights = model.network.state_dict()
    if not is_hashed(model.bloom):
        weights |= _with_own_tokens(model.network, similar)
    network.load_state_dict(weights, assign=True)
    network.train(model.network.training)
    prior = None
    if model.prior is not None:
        counts = torch.cat([model.prior.counts, torch.full((len(new),), -1, dtype=model.prior.counts.dtype)])
        prior = Prior(counts)
    return Model(network, bloom, vocab, bloom, vocab, prior, model.repetition, model.memory, model.repeats)


@torch.no_grad()
def _with_own_tokens(network: Network, similar: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """The tables of an unhashed network with a row for each new name, after the old names and before special tokens."""
    ids = network.config.num_buckets

    def grown(table: Tensor, otherwise: float) -> Tensor:
        new = [table[list(others)].mean(0) if others else torch.full_like(table[0], otherwise) for others in similar]
        return torch.cat([table[:ids], torch.stack(new), table[ids:]])

    tables = {"embedding.weight": grown(network.embedding.weight, 0.0)}
    if network.output is not None:
        tables["output"] = grown(network.output, 0.0)
    if network.bias is not None:
        tables["bias"] = grown(network.bias, float(network.bias.min()))
    return tables
