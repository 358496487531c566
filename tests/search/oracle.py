"""The plain ranking: every id is scored in Python, independently of the search."""

import math

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


def plain_surplus(counts: list[int], table: list[list[int]]) -> list[float]:
    """log prior(s) − Σ_i log π_i(b_i(s)) of each id; a prior is the share of counts plus one.

    Ids with the count −1 were added later: they add nothing to the prior of a bucket, and have that of a count of 0. A
    bucket that holds no others, as without hashing, counts as 1.
    """
    total = sum(count + 1 for count in counts)
    surplus = []
    for count, digest in zip(counts, table, strict=True):
        value = math.log(max(count, 0) + 1) - math.log(total)
        for i, bucket in enumerate(digest):
            mass = sum(other + 1 for other, row in zip(counts, table, strict=True) if row[i] == bucket)
            value -= math.log(max(1, mass)) - math.log(total)
        surplus.append(value)
    return surplus


def plain_log_probability(log_p: list[list[float]], table: list[list[int]], surplus: list[float]) -> list[float]:
    """log p(s) of every id for one query, by the formula in posterior.py; log_p is m rows over buckets."""
    m = len(log_p)
    weights = [
        extra + math.fsum(log_p[i][bucket] for i, bucket in enumerate(digest))
        for extra, digest in zip(surplus, table, strict=True)
    ]
    members: list[dict[int, list[float]]] = [{} for _ in range(m)]
    for weight, digest in zip(weights, table, strict=True):
        for of_bucket, bucket in zip(members, digest, strict=True):
            of_bucket.setdefault(bucket, []).append(weight)
    totals = [{bucket: log_sum(them) for bucket, them in of_bucket.items()} for of_bucket in members]
    return [
        -math.inf
        if weight == -math.inf
        else log_sum([log_p[j][bucket] + weight - totals[j][bucket] for j, bucket in enumerate(digest)]) - math.log(m)
        for weight, digest in zip(weights, table, strict=True)
    ]


def log_sum(values: list[float]) -> float:
    top = max(values)
    return top if top == -math.inf else top + math.log(math.fsum(math.exp(value - top) for value in values))
