"""Recall on held-out rows (Sec. 3.1): one random element of one random segment of each row is hidden.

Of rows in the order of time, the element after a cut is to be told from those before it.

rec@k is the share of rows whose hidden id is among the k best of the whole catalogue; token rec@1 the share of
hidden tokens that are the best of their hash. Which element is hidden depends on the seed and the rows alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from superbloom.corpus import Corpus, Kind
from superbloom.corpus.cooccurrence import similarity
from superbloom.evaluate.held_out import HeldOut
from superbloom.evaluate.yardsticks import cooccurrence, popularity, repetition
from superbloom.model import check_vocabulary
from superbloom.predict import Predictor
from superbloom.search import TopK

KS = (1, 10, 20)
DEEPEST = max(KS)
DECILES = 10


class Ranks(NamedTuple):
    """Of each hidden id: its rank (0 is best, max(KS) if beyond), also without the prior; of its answer: the proof."""

    rank: np.ndarray  # (rows,)
    without_prior: np.ndarray  # (rows,), the same unless both were asked for
    certified: np.ndarray  # (rows,)
    tokens: np.ndarray  # (rows, m) whether the token is the best of its hash
    answers: np.ndarray  # (rows, max(KS)) the best ids


def ranks(
    predictor: Predictor,
    held_out: HeldOut,
    *,
    chunk: int | None = None,
    beam: int | None = None,
    max_rounds: int | None = None,
    both: bool = False,
    filter_seen: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Ranks:
    """Rank every hidden id among the whole catalogue, or what was not seen of it; with both, also without the prior."""
    found: list[tuple[np.ndarray, ...]] = []
    chunk, k = chunk or predictor.chunk, min(DEEPEST, predictor.model.target_bloom.num_ids)
    for number, (ids, places, targets) in enumerate(held_out.parts(chunk)):
        seen = held_out.seen(slice(number * chunk, (number + 1) * chunk)) if filter_seen else None
        options = {"beam": beam, "max_rounds": max_rounds, "exclude": seen}
        log_probs = predictor.log_probs(ids, places)
        top = predictor.search(log_probs, k, **options)
        rank = plain = _rank_of(targets, top)
        if both and predictor.bonus is not None:
            plain = _rank_of(targets, predictor.search(log_probs, k, bonus=None, **options))
        tokens = log_probs.argmax(-1).cpu() == predictor.model.target_bloom.buckets(targets)
        found.append((rank, plain, top.certified.cpu().numpy(), tokens.numpy(), top.ids.cpu().numpy()))
        progress(len(ids))
    return Ranks(*map(np.concatenate, zip(*found, strict=True)))


def _rank_of(targets: Tensor, top: TopK) -> np.ndarray:
    hit = top.ids.cpu() == targets[:, None]
    return torch.where(hit.any(1), hit.int().argmax(1), DEEPEST).numpy()


def recall(rank: np.ndarray) -> dict[str, Any]:
    """rec@k with 95 % confidence intervals.

    >>> recall(np.array([0, 3, 20, 20]))["10"]["value"]     # two of four within the first ten
    0.5
    """
    return {str(k): share(int((rank < k).sum()), len(rank)) for k in KS}


def ndcg(rank: np.ndarray) -> dict[str, float]:
    """NDCG@k of one hidden id each: 1 / log2(2 + rank) within the k best.

    >>> ndcg(np.array([0, 2, 15]))["10"]      # (1 + 1/2 + 0) / 3
    0.5
    """
    gain = 1 / np.log2(2 + rank)
    return {str(k): float(np.where(rank < k, gain, 0).mean()) for k in KS}


def mrr(rank: np.ndarray) -> dict[str, float]:
    """MRR@k: 1 / (1 + rank) within the k best.

    >>> mrr(np.array([0, 1, 15]))["10"]       # (1 + 1/2 + 0) / 3
    0.5
    """
    return {str(k): float(np.where(rank < k, 1 / (1 + rank), 0).mean()) for k in KS}


def breadth(answers: np.ndarray, targets: np.ndarray, counts: np.ndarray) -> dict[str, Any]:
    """Of the k best: the share of the catalogue among them, and how often they occur in training, over what is asked.

    >>> breadth(np.array([[0], [1]]), np.array([1, 1]), np.array([30, 10, 5, 5]))
    {'coverage': {'1': 0.5}, 'popularity bias': {'1': 2.0}}
    """
    coverage, bias = {}, {}
    for k in [k for k in KS if k <= answers.shape[1]]:
        given = answers[:, :k][answers[:, :k] >= 0]
        coverage[str(k)] = len(np.unique(given)) / len(counts)
        bias[str(k)] = float(counts[given].mean() / max(1e-9, counts[targets].mean()))
    return {"coverage": coverage, "popularity bias": bias}


def evaluate(
    predictor: Predictor,
    corpus: Corpus,
    *,
    split: str = "test",
    seed: int = 0,
    beam: int | None = None,
    max_rounds: int | None = None,
    rows: int | None = None,
    draws: int | None = None,
    yardsticks: bool = True,
    filter_seen: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """All figures of a model on a split, as plain numbers ready for JSON.

    filter_seen: answers are what does not stand before in the row, as recommendations are; then without yardsticks.
    draws: as many hidden elements in all, several of a row if need be. Of text, only the cheap yardsticks are told.
    """
    check_vocabulary(predictor.model, corpus)
    held_out = HeldOut.of(corpus, split, predictor.model.config.seq_len, seed=seed, limit=rows, draws=draws)
    options: dict[str, Any] = {"beam": beam, "max_rounds": max_rounds, "filter_seen": filter_seen}
    found = ranks(predictor, held_out, both=True, progress=progress, **options)
    rank, tokens = found.rank, found.tokens
    figures = {
        "split": split,
        "rows": len(held_out),
        "filter_seen": filter_seen,
        "recall": recall(rank),
        "token_recall_at_1": share(int(tokens.sum()), tokens.size),
        "ndcg": ndcg(rank),
        "mrr": mrr(rank),
        **breadth(found.answers, held_out.targets, corpus.id_counts("train")),
        "certified": float(found.certified.mean()),
        "deciles": deciles(rank, corpus.id_counts("train")[held_out.targets]),
    }
    if predictor.bonus is not None:
        figures["without prior"] = recall(found.without_prior)
    kinds = (corpus.target_vocab or corpus.vocab).kinds
    if kinds is not None:
        figures["kinds"] = by_kind(rank, kinds[held_out.targets])
    if yardsticks and not filter_seen:
        figures["yardsticks"] = {
            "popularity": recall(popularity(corpus, held_out, DEEPEST)),
            "repetition": recall(repetition(held_out, DEEPEST)),
        }
        if kinds is None:
            similar = similarity(corpus)
            figures["yardsticks"] |= {
                "co-occurrence": recall(cooccurrence(similar, held_out, DEEPEST)),
                "co-occurrence, near": recall(cooccurrence(similar, held_out, DEEPEST, near=True)),
            }
    return figures


def by_kind(rank: np.ndarray, kinds: np.ndarray) -> dict[str, Any]:
    """Recall where a word piece, a unigram or a bigram is hidden, and how often that is."""
    return {
        kind.name.lower().replace("_", " "): {"hidden": int((kinds == kind).sum()), **recall(rank[kinds == kind])}
        for kind in Kind
        if (kinds == kind).any()
    }


def deciles(rank: np.ndarray, frequency: np.ndarray) -> list[dict[str, float]]:
    """rec@1 of ten equal groups of rows, from the most frequent labels to the rarest (Figure 3)."""
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
    """A share with its Wilson score interval at 95 %."""
    z, p = 1.959964, hits / total
    centre = p + z * z / (2 * total)
    spread = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return {"value": p, "low": max(0.0, (centre - spread) / scale), "high": min(1.0, (centre + spread) / scale)}
