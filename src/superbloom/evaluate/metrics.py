"""Metrics of ranks: one small pure function per formula.

rank (rows,) holds the rank of each hidden id among the answers: 0 is the best answer, DEEPEST means not among them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from superbloom.corpus import Kind

KS = (1, 10, 20)
DEEPEST = max(KS)
DECILES = 10
BINS = 10  # in a reliability diagram
Z_95 = 1.959964  # standard deviations of a two-sided 95 % interval


def recall(rank: np.ndarray) -> dict[str, Any]:
    """recall@k with 95 % intervals: the share of rows whose hidden id is among the k best.

    >>> recall(np.array([0, 3, 20, 20]))["10"]["value"]     # two of four within the first ten
    0.5
    """
    return {str(k): share(int((rank < k).sum()), len(rank)) for k in KS}


def ndcg(rank: np.ndarray) -> dict[str, float]:
    """NDCG@k with one hidden id per row: 1 / log2(2 + rank) within the k best, otherwise 0.

    >>> ndcg(np.array([0, 2, 15]))["10"]      # (1 + 1/2 + 0) / 3
    0.5
    """
    gain = 1 / np.log2(2 + rank)
    return {str(k): float(np.where(rank < k, gain, 0).mean()) for k in KS}


def mrr(rank: np.ndarray) -> dict[str, float]:
    """MRR@k: 1 / (1 + rank) within the k best, otherwise 0.

    >>> mrr(np.array([0, 1, 15]))["10"]       # (1 + 1/2 + 0) / 3
    0.5
    """
    return {str(k): float(np.where(rank < k, 1 / (1 + rank), 0).mean()) for k in KS}


def breadth(answers: np.ndarray, targets: np.ndarray, counts: np.ndarray) -> dict[str, Any]:
    """How much of the catalogue the answers cover, and how popular they are.

    coverage@k: the share of the catalogue among the k best of any row. popularity bias@k: the mean training count of
    the k best, divided by that of the hidden ids. answers (rows, k) may hold −1 for no answer.

    >>> breadth(np.array([[0], [1]]), np.array([1, 1]), np.array([30, 10, 5, 5]))   # 2 of 4 ids; (30 + 10) / 2 over 10
    {'coverage': {'1': 0.5}, 'popularity bias': {'1': 2.0}}
    """
    coverage, bias = {}, {}
    for k in [k for k in KS if k <= answers.shape[1]]:
        given = answers[:, :k][answers[:, :k] >= 0]
        coverage[str(k)] = len(np.unique(given)) / len(counts)
        bias[str(k)] = float(counts[given].mean() / max(1e-9, counts[targets].mean()))
    return {"coverage": coverage, "popularity bias": bias}


def by_kind(rank: np.ndarray, kinds: np.ndarray) -> dict[str, Any]:
    """Recall of rows that hide a word piece, a unigram or a bigram, and the number of such rows.

    >>> found = by_kind(np.array([0, 20, 0]), np.array([Kind.BIGRAM, Kind.BIGRAM, Kind.UNIGRAM]))
    >>> [(kind, of["hidden"], of["10"]["value"]) for kind, of in found.items()]
    [('unigram', 1, 1.0), ('bigram', 2, 0.5)]
    """
    return {
        kind.name.lower().replace("_", " "): {"hidden": int((kinds == kind).sum()), **recall(rank[kinds == kind])}
        for kind in Kind
        if (kinds == kind).any()
    }


def deciles(rank: np.ndarray, frequency: np.ndarray) -> list[dict[str, float]]:
    """Recall of ten equal groups of rows, from the most frequent labels to the rarest (Figure 3).

    >>> frequent_first = deciles(np.array([0] * 10 + [20] * 10), frequency=np.arange(20, 0, -1))
    >>> [decile["recall_at_1"] for decile in frequent_first]
    [1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    """
    groups = np.array_split(np.argsort(-frequency, kind="stable"), DECILES)
    return [
        {
            "recall_at_1": float((rank[group] == 0).mean()),
            "recall_at_10": float((rank[group] < 10).mean()),
            "lowest_frequency": int(frequency[group].min()),
        }
        for group in groups
        if len(group)
    ]


def share(hits: float, total: int) -> dict[str, float]:
    """A share with its Wilson score interval at 95 %.

    >>> {name: round(value, 3) for name, value in share(30, 100).items()}
    {'value': 0.3, 'low': 0.219, 'high': 0.396}
    """
    z, p = Z_95, hits / total
    centre = p + z * z / (2 * total)
    spread = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return {"value": p, "low": max(0.0, (centre - spread) / scale), "high": min(1.0, (centre + spread) / scale)}


def calibration(predicted: np.ndarray, observed: np.ndarray) -> dict[str, Any]:
    """Predicted probabilities against what is observed, in ten bins with as many answers each.

    error is the mean difference between both, the expected calibration error. Every answer counts, not only the first.

    >>> found = calibration(np.array([0.1] * 10 + [0.9] * 10), np.array([0] * 9 + [1] + [1] * 9 + [0]))
    >>> round(found["error"], 6)
    0.0
    """
    predicted, observed = predicted.ravel().astype(np.float64), observed.ravel().astype(np.float64)
    order = np.argsort(predicted, kind="stable")
    edges = np.unique(np.searchsorted(predicted[order], np.quantile(predicted, np.arange(1, BINS) / BINS)))
    groups = [group for group in np.split(order, edges) if len(group)]
    bins = [
        {
            "predicted": float(predicted[group].mean()),
            "observed": float(observed[group].mean()),
            "answers": len(group),
        }
        for group in groups
    ]
    gaps = [abs(each["predicted"] - each["observed"]) * each["answers"] for each in bins]
    return {"error": sum(gaps) / max(1, len(predicted)), "bins": bins}
