"""Recall on held-out rows (Sec. 3.1): one random element of one random segment of each row is hidden.

rec@k is the share of rows whose hidden id is among the k best of the whole catalogue; token rec@1 the share of
hidden tokens that are the best of their hash. Which element is hidden depends on the seed and the rows alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from superbloom.batches import segments
from superbloom.corpus import Corpus
from superbloom.errors import InputError
from superbloom.hashing import Special
from superbloom.predict import Predictor
from superbloom.search import TopK

KS = (1, 10, 20)
DEEPEST = max(KS)
DECILES = 10


@dataclass(frozen=True)
class HeldOut:
    """Segments (rows, n) with one element masked, where it stands, and what it was."""

    ids: np.ndarray
    places: np.ndarray
    targets: np.ndarray

    @classmethod
    def of(
        cls,
        corpus: Corpus,
        split: str,
        seq_len: int,
        *,
        seed: int = 0,
        limit: int | None = None,
        draws: int | None = None,
    ) -> HeldOut:
        """One hidden element of each row of a split, of `limit` rows at most.

        With draws there are as many hidden elements: rows are drawn from several times, or some are left out.
        """
        if not 0 <= seed < 2**63:
            raise InputError(f"seed={seed} given; 0 to 2^63 − 1 is allowed")
        rows = corpus.rows(split)[:limit]
        if not len(rows):
            raise InputError(
                f"the corpus has no {split} row of two or more ids; rows are assigned to splits by their keys: "
                "give more rows"
            )
        if draws is not None:
            rows = np.resize(rows, draws)
        uniform = np.random.Generator(np.random.Philox(key=seed)).random((len(rows), 2))
        start, length = segments(corpus.offsets, rows, uniform[:, 0], seq_len)
        places = (uniform[:, 1] * length).astype(np.int64)
        inside = np.arange(length.max()) < length[:, None]
        at = np.where(inside, start[:, None] + np.arange(length.max()), 0)
        ids = np.where(inside, corpus.ids[at], int(Special.PAD)).astype(np.int64)
        ids[np.arange(len(rows)), places] = Special.MASK
        return cls(ids, places, corpus.targets[start + places].astype(np.int64))

    def __len__(self) -> int:
        return len(self.ids)

    def parts(self, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """ids (q, n), places (q, 1) and targets (q,) of `size` rows at a time, as a model takes them."""
        for start in range(0, len(self), size):
            part = slice(start, start + size)
            places = self.places[part, None]
            yield torch.from_numpy(self.ids[part]), torch.from_numpy(places), torch.from_numpy(self.targets[part])


class Ranks(NamedTuple):
    """Of each hidden id: its rank (0 is best, max(KS) if beyond), also without the prior; of its answer: the proof."""

    rank: np.ndarray  # (rows,)
    without_prior: np.ndarray  # (rows,), the same unless both were asked for
    certified: np.ndarray  # (rows,)
    tokens: np.ndarray  # (rows, m) whether the token is the best of its hash


def ranks(
    predictor: Predictor,
    held_out: HeldOut,
    *,
    chunk: int | None = None,
    beam: int | None = None,
    max_rounds: int | None = None,
    both: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Ranks:
    """Rank every hidden id among the whole catalogue; with both, also without the prior."""
    found: list[tuple[np.ndarray, ...]] = []
    chunk, k = chunk or predictor.chunk, min(DEEPEST, predictor.model.target_bloom.num_ids)
    for ids, places, targets in held_out.parts(chunk):
        log_probs = predictor.log_probs(ids, places)
        top = predictor.search(log_probs, k, beam=beam, max_rounds=max_rounds)
        rank = plain = _rank_of(targets, top)
        if both and predictor.bonus is not None:
            plain = _rank_of(targets, predictor.search(log_probs, k, beam=beam, max_rounds=max_rounds, bonus=None))
        tokens = log_probs.argmax(-1).cpu() == predictor.model.target_bloom.buckets(targets)
        found.append((rank, plain, top.certified.cpu().numpy(), tokens.numpy()))
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
    return {str(k): _share(int((rank < k).sum()), len(rank)) for k in KS}


def evaluate(
    predictor: Predictor,
    corpus: Corpus,
    *,
    split: str = "test",
    seed: int = 0,
    beam: int | None = None,
    max_rounds: int | None = None,
    rows: int | None = None,
    yardsticks: bool = True,
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """All figures of a model on a split, as plain numbers ready for JSON."""
    check_vocabulary(predictor, corpus)
    held_out = HeldOut.of(corpus, split, predictor.model.config.seq_len, seed=seed, limit=rows)
    found = ranks(predictor, held_out, beam=beam, max_rounds=max_rounds, both=True, progress=progress)
    rank, tokens = found.rank, found.tokens
    figures = {
        "split": split,
        "rows": len(held_out),
        "recall": recall(rank),
        "token_recall_at_1": _share(int(tokens.sum()), tokens.size),
        "certified": float(found.certified.mean()),
        "deciles": deciles(rank, corpus.id_counts("train")[held_out.targets]),
    }
    if predictor.bonus is not None:
        figures["without prior"] = recall(found.without_prior)
    if yardsticks:
        from superbloom.yardsticks import cooccurrence, popularity, repetition, similarity

        similar = similarity(corpus)
        figures["yardsticks"] = {
            "popularity": recall(popularity(corpus, held_out, DEEPEST)),
            "repetition": recall(repetition(held_out, DEEPEST)),
            "co-occurrence": recall(cooccurrence(similar, held_out, DEEPEST)),
            "co-occurrence, near": recall(cooccurrence(similar, held_out, DEEPEST, near=True)),
        }
    return figures


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


def check_vocabulary(predictor: Predictor, corpus: Corpus) -> None:
    """A model can only be asked about the names it was made with."""
    for ours, theirs in (
        (predictor.model.vocab, corpus.vocab),
        (predictor.model.target_vocab, corpus.target_vocab or corpus.vocab),
    ):
        if not ours.table["name"].equals(theirs.table["name"]):
            raise InputError(
                f"the model knows {len(ours):,} names, the corpus {len(theirs):,}, and they differ; "
                "evaluate on the corpus the model was trained on, or one prepared with the same names"
            )


def _share(hits: int, total: int) -> dict[str, float]:
    """A share with its Wilson score interval at 95 %."""
    z, p = 1.959964, hits / total
    centre = p + z * z / (2 * total)
    spread = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return {"value": p, "low": max(0.0, (centre - spread) / scale), "high": min(1.0, (centre + spread) / scale)}
