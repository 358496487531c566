"""Add names to a trained model: each gets a digest of its own, and old digests stay.

The meaning of the tokens was learned from other names. A new name is read and predicted at once like the names it
shares buckets with, and as itself after some more training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from superbloom.errors import InputError
from superbloom.hashing import RESERVE, extended
from superbloom.model.model import Model
from superbloom.model.network import Network
from superbloom.model.prior import Prior


def extend(
    model: Model, names: Iterable[str], *, like: Mapping[str, Sequence[str]] | None = None, reserve: float = RESERVE
) -> Model:
    """The model with more names, whose ids follow the old ones in the order given.

    like: {new name: [known names]} puts a new name into buckets of the known ones.
    """
    if model.target_vocab is not model.vocab:
        raise InputError(
            "this model predicts other names than it reads; only a model of one vocabulary can be extended"
        )
    like = like or {}
    vocab, new = model.vocab.extended(names)
    if strangers := like.keys() - set(new):
        raise InputError(f"like tells of {min(strangers)!r}, which is not a new name; give it as one, or leave it out")
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
        prior = Prior(counts, model.prior.weight, model.prior.temperature)
    return Model(network, bloom, vocab, bloom, vocab, prior)
