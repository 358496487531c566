"""Evaluation on held-out rows (Sec. 3.1): hide one element of a segment of each row, and rank it among all ids.

Rows in order of time hide the element after a cut, and the model sees those before it. rec@k is the share of rows whose
hidden id is among the k best of the whole catalogue. token rec@1 is the share of hidden tokens that are the best of
their hash. Which element is hidden depends only on the seed and the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from superbloom.config import EvaluateOptions, make
from superbloom.corpus import Corpus
from superbloom.corpus.cooccurrence import similarity
from superbloom.evaluate.ghosts import ghost_share
from superbloom.evaluate.held_out import HeldOut
from superbloom.evaluate.metrics import DEEPEST, breadth, by_kind, calibration, deciles, mrr, ndcg, recall, share
from superbloom.evaluate.yardsticks import cooccurrence, popularity, repetition
from superbloom.model import check_vocabulary
from superbloom.predict import Predictor
from superbloom.search import TopK


class Ranks(NamedTuple):
    """The result of each row. A rank is 0 for the best answer and DEEPEST beyond the answers."""

    rank: np.ndarray  # (rows,) of the hidden id
    by_sum: np.ndarray  # (rows,) the same by the paper's sum over hashes; equal to rank unless both were computed
    log_probability: np.ndarray  # (rows,) of the hidden id
    certified: np.ndarray  # (rows,) whether the answers are proven to be the best
    tokens: np.ndarray  # (rows, m) whether the hidden id's token is the best of its hash
    answers: np.ndarray  # (rows, DEEPEST) the best ids
    probability: np.ndarray  # (rows, DEEPEST) of the answers


def ranks(
    predictor: Predictor,
    held_out: HeldOut,
    *,
    chunk: int | None = None,
    beam: int | None = None,
    max_rounds: int | None = None,
    combine: str | None = None,
    both: bool = False,
    with_probabilities: bool = True,
    filter_seen: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Ranks:
    """Rank every hidden id among the whole catalogue, a chunk of rows at a time.

    combine: how scores are made, instead of as the model says.
    both: also rank by the paper's sum over hashes. with_probabilities=False leaves them 0, for validation.
    filter_seen: leave out ids that precede the hidden one in its row.
    """
    found: list[tuple[np.ndarray, ...]] = []
    chunk, k = chunk or predictor.chunk, min(DEEPEST, predictor.model.target_bloom.num_ids)
    for number, (ids, places, targets) in enumerate(held_out.parts(chunk)):
        seen = held_out.seen(slice(number * chunk, (number + 1) * chunk)) if filter_seen else None
        options = {"beam": beam, "max_rounds": max_rounds, "exclude": seen}
        log_probs = predictor.log_probs(ids, places)
        top = predictor.search(log_probs, k, combine=combine, **options)
        rank = by_sum = _rank_of(targets, top)
        if both and predictor.is_posterior(combine):
            by_sum = _rank_of(targets, predictor.search(log_probs, k, combine="sum", **options))
        hidden, likely = torch.zeros(len(ids)), torch.zeros(top.ids.shape)
        if with_probabilities:
            hidden = predictor.log_probability(log_probs, targets[:, None].to(log_probs.device))[:, 0]
            likely = predictor.log_probability(log_probs, top.ids).exp()
        tokens = log_probs.argmax(-1).cpu() == predictor.model.target_bloom.buckets(targets)
        columns = (hidden, top.certified, tokens, top.ids, likely)
        found.append((rank, by_sum, *(column.cpu().numpy() for column in columns)))
        progress(len(ids))
    return Ranks(*map(np.concatenate, zip(*found, strict=True)))


def _rank_of(targets: Tensor, top: TopK) -> np.ndarray:
    hit = top.ids.cpu() == targets[:, None]
    return torch.where(hit.any(1), hit.int().argmax(1), DEEPEST).numpy()


def evaluate(
    predictor: Predictor,
    corpus: Corpus,
    options: EvaluateOptions | None = None,
    *,
    progress: Callable[[int], None] = lambda _: None,
    **given: Any,
) -> dict[str, Any]:
    """All figures of a model on a split, as plain numbers ready for JSON.

    Give options as EvaluateOptions or as keywords; keywords win. There are no yardsticks with filter_seen, and only
    the fast ones for text. progress is called with the number of rows after each chunk.
    """
    asked = make(EvaluateOptions, (vars(options) if options else {}) | given)
    check_vocabulary(predictor.model, corpus)
    held_out = HeldOut.of(
        corpus, asked.split, predictor.model.config.seq_len, seed=asked.seed, limit=asked.rows, draws=asked.draws
    )
    found = ranks(
        predictor,
        held_out,
        beam=asked.beam,
        max_rounds=asked.max_rounds,
        both=True,
        filter_seen=asked.filter_seen,
        progress=progress,
    )
    rank, tokens = found.rank, found.tokens
    counts = corpus.id_counts("train")
    figures = {
        "split": asked.split,
        "rows": len(held_out),
        "filter_seen": asked.filter_seen,
        "recall": recall(rank),
        "token_recall_at_1": share(int(tokens.sum()), tokens.size),
        "ndcg": ndcg(rank),
        "mrr": mrr(rank),
        **breadth(found.answers, held_out.targets, counts),
        "certified": float(found.certified.mean()),
        "negative log-likelihood": float(-found.log_probability.mean()),
        "calibration": calibration(found.probability, found.answers == held_out.targets[:, None]),
        "ghosts": ghost_share(corpus, predictor.model.target_bloom, held_out.ids, found.answers),
        "deciles": deciles(rank, counts[held_out.targets]),
    }
    if predictor.is_posterior(None):
        figures["by sum"] = recall(found.by_sum)
    kinds = (corpus.target_vocab or corpus.vocab).kinds
    if kinds is not None:
        figures["kinds"] = by_kind(rank, kinds[held_out.targets])
    if asked.yardsticks and not asked.filter_seen:
        figures["yardsticks"] = _yardsticks(corpus, held_out, is_text=kinds is not None)
    return figures


def _yardsticks(corpus: Corpus, held_out: HeldOut, is_text: bool) -> dict[str, Any]:
    """Recall of answers that only count. Co-occurrence takes long for text, so it is left out there."""
    found = {
        "popularity": recall(popularity(corpus, held_out, DEEPEST)),
        "repetition": recall(repetition(held_out, DEEPEST)),
    }
    if is_text:
        return found
    similar = similarity(corpus)
    return found | {
        "co-occurrence": recall(cooccurrence(similar, held_out, DEEPEST)),
        "co-occurrence, near": recall(cooccurrence(similar, held_out, DEEPEST, near=True)),
    }
