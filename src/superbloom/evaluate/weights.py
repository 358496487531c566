"""The weights and the ranker of a model's memory, from held-out rows: how much to trust the network, pairs and rows."""

from __future__ import annotations

import numpy as np
import torch

from superbloom.evaluate.held_out import HeldOut
from superbloom.memory import FIT_NAMES, Examples, Memory, Recalled
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


def ranking_examples(predictor: Predictor, memory: Memory, held_out: HeldOut) -> Examples:
    """What a ranker learns from: the names that the memory brings for each hidden id."""
    num_ids, found = predictor.model.target_bloom.num_ids, []
    for ids, places, targets in held_out.parts(predictor.chunk):
        recalled = memory.recall(ids.numpy(), places[:, 0].numpy(), num_ids)
        beliefs = Beliefs(predictor.network(ids, places))
        asked = torch.cat([torch.from_numpy(recalled.ids), targets[:, None]], dim=1).to(beliefs.log_probs.device)
        network = predictor.log_probability(beliefs, asked).double().cpu().numpy()
        found.append(_examples(memory, recalled, network[:, :-1], network[:, -1], targets.numpy()))
    return Examples.join(found)


def _examples(
    memory: Memory, recalled: Recalled, network: np.ndarray, hidden: np.ndarray, targets: np.ndarray
) -> Examples:
    """The first names of each query as examples; all other names keep the probability of the mixture.

    network (q, names) and hidden (q,) are log-probabilities by the network alone.
    """
    mixture = memory.mixture(recalled, network)
    features = memory.features(recalled, network, mixture)
    is_target = recalled.ids == targets[:, None]
    own = (recalled.share * is_target).sum(axis=1) + recalled.network * np.exp(hidden)
    seen, pad = min(FIT_NAMES, mixture.shape[1]), max(0, FIT_NAMES - mixture.shape[1])
    rest = recalled.network * (1 - np.exp(network[:, :seen]).sum(axis=1)) + recalled.share[:, seen:].sum(axis=1)
    is_seen = is_target[:, :seen]
    columns = (
        np.pad(features[:, :seen], ((0, 0), (0, pad), (0, 0))),
        np.pad(mixture[:, :seen], ((0, 0), (0, pad)), constant_values=-np.inf),
        np.where(is_seen.any(axis=1), is_seen.argmax(axis=1), -1) if seen else np.full(len(targets), -1),
        np.log(np.maximum(rest, np.finfo(float).tiny)),
        np.log(np.maximum(own, np.finfo(float).tiny)),
    )
    return Examples(*(torch.from_numpy(np.ascontiguousarray(column)) for column in columns)).single()
