"""Add names to a trained model: each new name gets its own digest, and old digests stay (hashing/growth.py).

The tokens learned their meaning from other names. At first, the model treats a new name like the names that share its
buckets. More training lets it learn the name itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from superbloom.config import ExtendOptions
from superbloom.errors import InputError
from superbloom.hashing import extended
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
    network.load_state_dict(model.network.state_dict(), assign=True)
    network.train(model.network.training)
    prior = None
    if model.prior is not None:
        counts = torch.cat([model.prior.counts, torch.full((len(new),), -1, dtype=model.prior.counts.dtype)])
        prior = Prior(counts)
    return Model(network, bloom, vocab, bloom, vocab, prior, model.repetition, model.memory, model.repeats)
