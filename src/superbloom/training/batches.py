"""Training batches (Sec. 3.1): segments of rows (corpus/segments.py) with a share of each masked.

A batch is a pure function of (seed, step). Every example has a number: batch `step` holds the batch_size examples from
number step · batch_size. Example e reads row e of an endless sequence of epochs; each epoch is a seeded permutation of
the rows. Example e uses block e of a counter-based random stream. So any process can make any slice of any batch, in
any order, and all processes agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from superbloom.config import ModelConfig, TrainConfig
from superbloom.corpus import Corpus, Segments, cut_segments, draws_per_segment, ids_per_segment, segment_lengths
from superbloom.errors import InputError
from superbloom.model.masks import SCHEMES
from superbloom.special import Special

REPLACED_SHARE = 0.1  # of the chosen elements, as in BERT; those neither masked nor replaced stay as they are


class Batch(NamedTuple):
    """ids (batch, n) as the model reads them, places (batch, p) of what it predicts, targets (batch, p).

    Rows shorter than n end in PAD. A row with fewer than p masked elements has target PAD in the remaining places.
    total is the number of targets of the step, including those of the other processes. follows (batch,) belongs to
    next-sentence training: 1 if the second part follows the first, 0 if it comes from another document, −1 if there is
    no second part. It is None without next-sentence training.
    """

    ids: Tensor
    places: Tensor
    targets: Tensor
    total: int
    follows: Tensor | None = None


class Batches:
    """The stream of training batches of a corpus. Rank r of several processes takes part r of each batch.

    mask_as is the option of ModelConfig and decides what happens to the chosen elements:
    element: they are masked, replaced or kept in the shares of BERT. question: all of them are masked. next: every
    element is a target, predicted from those before it, and none is masked.
    With next_sentence, half of the text segments end with a part of another document.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        seq_len: int,
        batch_size: int,
        mask_share: float,
        seed: int,
        mask_as: str = "element",
        next_sentence: bool = False,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.rows = corpus.rows("train")
        if not len(self.rows):
            raise InputError(
                f"none of the corpus's {len(corpus):,} rows is a training row of two or more ids; "
                "give more or longer rows"
            )
        if batch_size % ranks:
            raise InputError(f"batch_size={batch_size} does not divide among {ranks} processes; choose a multiple")
        self.corpus, self.seq_len, self.mask_share, self.seed = corpus, seq_len, mask_share, seed
        scheme = SCHEMES[mask_as]
        self.predicts_all, self.masked_share = scheme.is_ordered, scheme.masked_share
        self.batch_size, self.share = batch_size, batch_size // ranks
        self.first = rank * self.share
        self.other_rows: np.ndarray | None = None
        if corpus.sentences is not None:  # a long document is read more often than a short one
            size = (corpus.ends - corpus.offsets[:-1])[self.rows]
            self.other_rows = self.rows if next_sentence else None
            self.rows = np.repeat(self.rows, -(-size // ids_per_segment(corpus, seq_len)))
        elif next_sentence:
            raise InputError(
                "next_sentence=True, but the rows of this corpus have no sentences; use a corpus of `prepare text`"
            )
        # The first draws place the segment. Then each element has three: whether it is masked, how, and by which id.
        self._first_draws = draws_per_segment(corpus, next_sentence)
        self._draws = -(-(self._first_draws + 3 * seq_len) // 4) * 4

    @classmethod
    def of(cls, corpus: Corpus, model: ModelConfig, training: TrainConfig, rank: int = 0, ranks: int = 1) -> Batches:
        """The batches that a model is trained with."""
        return cls(
            corpus,
            seq_len=model.seq_len,
            batch_size=training.batch_size,
            mask_share=training.mask_share,
            seed=training.seed,
            mask_as=model.mask_as,
            next_sentence=model.next_sentence,
            rank=rank,
            ranks=ranks,
        )

    def __getitem__(self, step: int) -> Batch:
        examples = step * self.batch_size + np.arange(self.batch_size)
        rows, ours = self._row(examples), slice(self.first, self.first + self.share)
        uniform = self._uniform(examples[ours][0], self.share)
        if self.other_rows is None:
            total = int(self._wanted(segment_lengths(self.corpus, rows, self.seq_len)).sum())
            segments = self._cut(rows[ours], uniform)
        else:  # a segment's length depends on its second part: the total needs the segments of all processes
            whole = self._cut(rows, self._uniform(examples[0], self.batch_size))
            total = int(self._wanted((whole.at >= 0).sum(axis=1)).sum())
            segments = whole[ours]
        return self._masked(segments, uniform[:, self._first_draws :], total)

    def _cut(self, rows: np.ndarray, uniform: np.ndarray) -> Segments:
        return cut_segments(self.corpus, rows, uniform, self.seq_len, self.other_rows)

    def _masked(self, segments: Segments, uniform: np.ndarray, total: int) -> Batch:
        ids, at, n = segments.ids, segments.at, segments.ids.shape[1]
        inside = at >= 0
        follows = None if self.other_rows is None else _tensor(segments.follows)
        mask, how, what = np.split(uniform[:, : 3 * self.seq_len], 3, axis=1)
        if self.predicts_all:
            targets = np.where(inside, self.corpus.targets[at], np.int32(Special.PAD))
            return Batch(_tensor(ids), torch.arange(n).expand(self.share, n), _tensor(targets), total, follows)
        # Choose the elements with the smallest draws: mask_share of the segment, at least one.
        wanted = self._wanted(inside.sum(axis=1))
        ranked = np.argsort(np.where(inside, mask[:, :n], 2.0), axis=1, kind="stable")
        chosen = np.arange(wanted.max()) < wanted[:, None]
        places = np.where(chosen, ranked[:, : wanted.max()], 0)
        targets = np.where(chosen, self.corpus.targets[np.take_along_axis(at, places, 1)], np.int32(Special.PAD))
        how, what = (np.take_along_axis(draw, places, 1) for draw in (how, what))
        replacement = (what * self.corpus.num_ids).astype(np.int32)
        current = np.take_along_axis(ids, places, 1)
        kept_or_replaced = np.where(how < self.masked_share + REPLACED_SHARE, replacement, current)
        perturbed = np.where(how < self.masked_share, np.int32(Special.MASK), kept_or_replaced)
        example, column = np.nonzero(chosen)
        ids[example, places[example, column]] = perturbed[example, column]
        return Batch(_tensor(ids), _tensor(places), _tensor(targets), total, follows)

    def starting_at(self, step: int, stride: int = 1) -> Iterator[Batch]:
        """Batches step, step + stride, … without end."""
        while True:
            yield self[step]
            step += stride

    def _wanted(self, length: np.ndarray) -> np.ndarray:
        """The number of elements to predict, for segments of these lengths."""
        if self.predicts_all:
            return length
        return np.maximum(1, np.rint(self.mask_share * length)).astype(np.int64)

    def _uniform(self, first: int, count: int) -> np.ndarray:
        """Random numbers (count, draws) of the examples from `first` on. Philox counts blocks of four."""
        stream = np.random.Philox(key=self.seed, counter=int(first) * self._draws // 4)
        return np.random.Generator(stream).random((count, self._draws))

    def _row(self, examples: np.ndarray) -> np.ndarray:
        epochs, positions = np.divmod(examples, len(self.rows))
        rows = np.empty(len(examples), dtype=np.int64)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            rows[here] = self.rows[_shuffle(self.seed, int(epoch), len(self.rows))[positions[here]]]
        return rows


class BatchStream(IterableDataset[Batch]):
    """Batches from a step on, for a DataLoader. Worker w of W makes every W-th batch, and the loader alternates."""

    def __init__(self, batches: Batches, step: int) -> None:
        self.batches, self.step = batches, step

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        first, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return self.batches.starting_at(self.step + first, stride)


def _tensor(part: np.ndarray) -> Tensor:
    return torch.from_numpy(part.astype(np.int64))


@lru_cache(maxsize=2)
def _shuffle(seed: int, epoch: int, size: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(size)
