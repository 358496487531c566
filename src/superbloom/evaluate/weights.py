"""The weights of a model's memory, from held-out rows: how much to trust the network, pairs and rows."""

from __future__ import annotations

import numpy as np
import torch

from superbloom.evaluate.held_out import HeldOut
from superbloom.memory import Memory
from superbloom.predict import Beliefs, Predictor


def memory_probabilities(memory: Memory, held_out: HeldOut, num_ids: int, chunk: int) -> np.ndarray:
    """The probability that each part of a memory gives to each hidden id, (rows, parts)."""
    parts = (
        memory.probabilities_of(targets.numpy(), ids.numpy(), places[:, 0].numpy(), num_ids)
        for ids, places, targets in held_out.parts(chunk)
    )
    return np.concatenate(list(parts))


def network_probabilities(predictor: Predictor, held_out: HeldOut) -> np.ndarray:
    """The probability that the network alone gives to each hidden id, (rows,)."""
    found = []
    for ids, places, targets in held_out.parts(predictor.chunk):
        log_probs = predictor.network(ids, places)
        found.append(predictor.log_probability(Beliefs(log_probs), targets[:, None].to(log_probs.device))[:, 0])
    return torch.cat(found).double().exp().cpu().numpy()
