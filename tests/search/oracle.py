"""The plain ranking: every id is scored in Python, independently of the search."""

import numpy as np
import torch

from superbloom.hashing.bloom import BloomHash


def slow_ranking(log_probs: np.ndarray, bloom: BloomHash, k: int, combine, may, *, floor=-np.inf, bonus=None):
    """Ids and scores, higher score first, then smaller id. may(id) says whether an id may be returned."""
    scores = []
    for id_, buckets in enumerate(bloom.buckets(torch.arange(bloom.num_ids)).tolist()):
        per_hash = [log_probs[j, bucket] for j, bucket in enumerate(buckets)]
        score = combine(per_hash)
        scores.append(score if bonus is None else np.float32(score + bonus[id_]))
    answers = (id_ for id_ in range(bloom.num_ids) if may(id_) and scores[id_] >= floor)
    ranked = sorted(answers, key=lambda id_: (-scores[id_], id_))[:k]
    return ranked, [float(scores[id_]) for id_ in ranked]


def add(values):
    """The sum from left to right in float32."""
    total = values[0]
    for value in values[1:]:
        total = np.float32(total + value)
    return total
