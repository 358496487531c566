"""The layer probe: how well can the identity of an input be read off the output of layer l?

An input token stands for α names. A linear softmax over all names, learned on states of some rows and tried on others,
shows at which layer the context has told which of them it is: the paper's "unhashing", seen.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from superbloom.corpus import Corpus
from superbloom.evaluate import HeldOut
from superbloom.model import Model

ROWS = 4000  # of the test split; a quarter of them is tried
EPOCHS, BATCH_STATES, LEARNING_RATE = 12, 512, 2e-2


def probe(model: Model, corpus: Corpus, seed: int = 0) -> list[float]:
    """The share of inputs whose id is read correctly: off the embeddings, then off each layer that inputs go through.

    Of m tokens per id, the first one is asked. The last layer computes only the masked places, so it is not probed.
    """
    held_out = HeldOut.of(corpus, "test", model.config.seq_len, draws=ROWS)
    parts = [_states(model, ids, places) for ids, places, _ in held_out.parts(256)]
    labels = torch.cat([ids for _, ids in parts])
    learned = int(0.75 * len(labels))
    found = []
    for layer in range(model.config.layers):
        states = torch.cat([states[layer] for states, _ in parts])
        found.append(_read(states, labels, learned, model.config.num_ids, seed))
    return found


@torch.no_grad()
def _states(model: Model, ids: Tensor, places: Tensor) -> tuple[list[Tensor], Tensor]:
    """What enters each layer, [(inputs, d)] by layer, for every input that is a name, and the ids of these inputs."""
    network, entered = model.network, list[Tensor]()
    hooks = [
        layer.register_forward_pre_hook(lambda _, given: entered.append(given[1].detach())) for layer in network.layers
    ]
    try:
        model.encode_only(ids, places)
    finally:
        for hook in hooks:
            hook.remove()
    elements = network.scheme.read(ids, places).elements
    each = entered[0].shape[1] // elements.shape[1]  # states of an element
    is_name = elements >= 0
    return [states[:, ::each][is_name] for states in entered], elements[is_name]


def _read(states: Tensor, labels: Tensor, learned: int, num_ids: int, seed: int) -> float:
    """Learn to read labels off the first states, and return the share of the others that is read correctly."""
    mean, spread = states[:learned].mean(0), states[:learned].std(0) + 1e-6
    x = (states - mean) / spread
    order = torch.Generator().manual_seed(seed)
    reader = nn.Linear(x.shape[1], num_ids)
    nn.init.zeros_(reader.weight)
    nn.init.zeros_(reader.bias)
    optimizer = torch.optim.Adam(reader.parameters(), LEARNING_RATE)
    for epoch in range(EPOCHS):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * (1 - epoch / EPOCHS)
        for some in torch.randperm(learned, generator=order).split(BATCH_STATES):
            optimizer.zero_grad()
            F.cross_entropy(reader(x[some]), labels[some]).backward()
            optimizer.step()
    with torch.no_grad():
        return float((reader(x[learned:]).argmax(1) == labels[learned:]).float().mean())


def ceiling(model: Model, corpus: Corpus) -> dict[str, Any]:
    """What can be read off a single token without context: the most frequent name of each bucket."""
    counts = torch.from_numpy(corpus.id_counts("train")).float()
    best = torch.zeros(model.config.num_buckets).scatter_reduce(0, model.bloom.table[:, 0].long(), counts, "amax")
    return {"token alone": float(best.sum() / counts.sum())}
