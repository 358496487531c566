"""Evaluation on held-out rows (Sec. 3.1): hide one element of a segment of each row, and rank it among all ids.

Rows in order of time hide the element after a cut, and the model sees those before it. recall@k is the share of rows
whose hidden id is among the k best of the whole catalogue. token recall@1 is the share of hidden tokens that are the
best of their hash. Which element is hidden depends only on the seed and the rows.
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
from superbloom.evaluate.content import is_content
from superbloom.evaluate.counting import rank_of, strong_yardsticks
from superbloom.evaluate.ghosts import ghost_share
from superbloom.evaluate.held_out import HeldOut
from superbloom.evaluate.metrics import DEEPEST, breadth, by_kind, calibration, deciles, mrr, ndcg, recall, share
from superbloom.evaluate.yardsticks import cooccurrence, popularity, repetition
from superbloom.memory import REMEMBERED_SPLITS, can_remember
from superbloom.model import Model, check_vocabulary
from superbloom.predict import Beliefs, Predictor, Remembered
from superbloom.search import TopK


class Ranks(NamedTuple):
    """The result of each row. A rank is 0 for the best answer and DEEPEST beyond the answers."""

    rank: np.ndarray  # (rows,) of the hidden id
    by_sum: np.ndarray  # (rows,) the same by the paper's sum over hashes; equal to rank unless it was asked for
    network: np.ndarray  # (rows,) the same by the network alone; equal to rank without a memory
    memory: np.ndarray  # (rows,) the same by the memory alone; equal to rank without a memory
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
    apart: bool = False,
    with_probabilities: bool = True,
    filter_seen: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Ranks:
    """Rank every hidden id among the whole catalogue, a chunk of rows at a time.

    combine: how scores are made, instead of as the model says.
    apart: also rank by the paper's sum over hashes, by the network alone and by the memory alone.
    with_probabilities=False leaves them 0, for validation.
    filter_seen: leave out the ids of the context; in rows in order of time, all that precede the hidden one. If the
    hidden id is one of them, it counts as missed.
    """
    found: list[tuple[np.ndarray, ...]] = []
    chunk, k = chunk or predictor.chunk, min(DEEPEST, predictor.model.target_bloom.num_ids)
    for number, (ids, places, targets) in enumerate(held_out.parts(chunk)):
        seen = held_out.seen(slice(number * chunk, (number + 1) * chunk)) if filter_seen else None
        options: dict[str, Any] = {"beam": beam, "max_rounds": max_rounds, "exclude": seen}
        beliefs = predictor.beliefs(ids, places)
        top = predictor.search(beliefs, k, combine=combine, **options)
        rank = by_sum = network = memory = _rank_of(targets, top)
        if apart and beliefs.remembered is not None:
            network = _rank_of(targets, predictor.search(Beliefs(beliefs.log_probs), k, **options))
            memory = _memory_ranks(targets, beliefs.remembered, seen)
        if apart and predictor.is_posterior(combine):
            by_sum = _rank_of(targets, predictor.search(beliefs, k, combine="sum", **options))
        hidden, likely = torch.zeros(len(ids)), torch.zeros(top.ids.shape)
        if with_probabilities:
            hidden = predictor.log_probability(beliefs, targets[:, None].to(top.ids.device))[:, 0]
            likely = predictor.log_probability(beliefs, top.ids).exp()
        tokens = beliefs.log_probs.argmax(-1).cpu() == predictor.model.target_bloom.buckets(targets)
        columns = (hidden, top.certified, tokens, top.ids, likely)
        found.append((rank, by_sum, network, memory, *(column.cpu().numpy() for column in columns)))
        progress(len(ids))
    return Ranks(*map(np.concatenate, zip(*found, strict=True)))


def _memory_ranks(targets: Tensor, remembered: Remembered, seen: Tensor | None) -> np.ndarray:
    ids, share = remembered.ids.cpu().numpy(), remembered.share.cpu().numpy()
    excluded = [None] * len(ids) if seen is None else list(seen.numpy())
    rows = zip(targets.tolist(), ids, share, excluded, strict=True)
    return np.array([rank_of(target, own[part > 0], part[part > 0], left_out) for target, own, part, left_out in rows])


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

    Give options as EvaluateOptions or as keywords; keywords win. For text there are only the fast yardsticks, and
    figures["content"] has the recall of hidden elements that are neither punctuation nor function words (content.py).
    progress is called with the number of rows after each chunk. Unless filter_seen is given, names of the context are
    left out where the model leaves them out of its answers, for the yardsticks as well: figures["filter_seen"] says so.

    Names of the corpus that the model does not know are left out of contexts; as hidden elements they count as missed,
    and figures["unknown"] says how many there are. Which elements are hidden does not depend on the model, so models of
    different catalogues can be compared. Certificates, likelihood, calibration, ghosts, coverage and popularity bias
    are those of the hidden elements that it knows.
    """
    asked = make(EvaluateOptions, (vars(options) if options else {}) | given)
    model = predictor.model
    filter_seen = model.leaves_out_context if asked.filter_seen is None else asked.filter_seen
    known = corpus.under(model.vocab, drop_unknown=True)
    check_vocabulary(model, known)
    predictor = _honest(predictor, known, asked.split)
    hidden = HeldOut.of(corpus, asked.split, model.config.seq_len, seed=asked.seed, limit=asked.rows, draws=asked.draws)
    held_out, answerable = _known_to(model, corpus, hidden)
    found = ranks(
        predictor,
        held_out,
        beam=asked.beam,
        max_rounds=asked.max_rounds,
        apart=True,
        filter_seen=filter_seen,
        progress=progress,
    )
    rank, tokens = _with_missed(found.rank, answerable), found.tokens
    figures = {
        "split": asked.split,
        "rows": len(hidden),
        "filter_seen": filter_seen,
        "recall": recall(rank),
        "token_recall_at_1": share(int(tokens.sum()), len(hidden) * tokens.shape[1]),
        "ndcg": ndcg(rank),
        "mrr": mrr(rank),
        **breadth(found.answers, held_out.targets, known.id_counts("train")),
        "certified": float(found.certified.mean()),
        "negative log-likelihood": float(-found.log_probability.mean()),
        "calibration": calibration(found.probability, found.answers == held_out.targets[:, None]),
        "ghosts": ghost_share(known, model.target_bloom, held_out.ids, found.answers),
        "deciles": deciles(rank, corpus.id_counts("train")[hidden.targets]),
    }
    if known is not corpus and (lacking := int((corpus.vocab.numbers_in(model.vocab) < 0).sum())):
        figures["unknown"] = {"names": lacking, "of": corpus.num_ids, "hidden": int((~answerable).sum())}
    if predictor.is_posterior(None):
        figures["by sum"] = recall(_with_missed(found.by_sum, answerable))
    if predictor.memory is not None:
        apart = {"network": found.network, "memory": found.memory}
        figures |= {name: recall(_with_missed(ranked, answerable)) for name, ranked in apart.items()}
        figures["weights"] = dict(predictor.memory.weights)
    yardsticks = _yardsticks(corpus, hidden, model.config.seq_len, asked.split, filter_seen) if asked.yardsticks else {}
    if asked.yardsticks:
        figures["yardsticks"] = {name: recall(ranked) for name, ranked in yardsticks.items()}
    vocab = corpus.target_vocab or corpus.vocab
    if vocab.kinds is not None:
        figures["kinds"] = by_kind(rank, vocab.kinds[hidden.targets])
        content = is_content(vocab.table["name"].combine_chunks(), corpus.id_counts("train"))[hidden.targets]
        if content.any():
            figures["content"] = {
                "hidden": int(content.sum()),
                "recall": recall(rank[content]),
                "yardsticks": {name: recall(ranked[content]) for name, ranked in yardsticks.items()},
            }
    return figures


def _known_to(model: Model, corpus: Corpus, hidden: HeldOut) -> tuple[HeldOut, np.ndarray]:
    """The hidden elements that a model knows, with its ids, and which of all they are, (rows,)."""
    numbers = corpus.vocab.numbers_in(model.vocab)
    targets = numbers if corpus.target_vocab is None else np.arange(len(corpus.target_vocab))
    held_out = hidden.under(numbers, targets)
    answerable = held_out.targets >= 0
    if not answerable.any():
        raise corpus.unknown_names(model.vocab, numbers)
    return held_out.take(np.flatnonzero(answerable)), answerable


def _with_missed(rank: np.ndarray, answerable: np.ndarray) -> np.ndarray:
    """Ranks of the answerable rows as ranks of all rows; the others are missed."""
    every = np.full(len(answerable), DEEPEST)
    every[answerable] = rank
    return every


def _honest(predictor: Predictor, corpus: Corpus, split: str) -> Predictor:
    """A predictor that does not remember the rows it is asked about.

    Validation rows join a memory after training, and the memory may be that of a newer log, which has the hidden
    elements of this one. In both cases it is counted again, from what this corpus allows.
    """
    memory = predictor.memory
    if memory is None or (split != "valid" and memory.corpus == corpus.fingerprint()):
        return predictor
    splits = ("train",) if split == "valid" else REMEMBERED_SPLITS
    return predictor.with_memory(memory.again(corpus, splits))


def _yardsticks(
    corpus: Corpus, held_out: HeldOut, seq_len: int, split: str, filter_seen: bool
) -> dict[str, np.ndarray]:
    """The ranks of answers that only count. Those that count pairs take long for text, and are left out there."""
    found = {"popularity": popularity(corpus, held_out, DEEPEST, filter_seen)}
    if not filter_seen:
        found["repetition"] = repetition(held_out, DEEPEST)
    if not corpus.vocab.is_text:
        similar = similarity(corpus)
        for name, near in (("co-occurrence", False), ("co-occurrence, near", True)):
            found[name] = cooccurrence(similar, held_out, DEEPEST, near, filter_seen)
        if can_remember(corpus):
            found |= strong_yardsticks(corpus, split, held_out, seq_len, filter_seen)
    return found
