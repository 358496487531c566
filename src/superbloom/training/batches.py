"""Training batches (Sec. 3.1): segments (segments.py), a share of each masked. A pure function of (seed, step).

Every example has a number: batch `step` holds examples step·batch_size and on. Example e reads row e of an
endless sequence of epochs, each a seeded permutation of the rows, and uses the e-th block of a counter-based
random stream. So any process can make any slice of any batch, in any order, and all agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from superbloom.corpus import Corpus, Segments, cut, draws_for, lengths, room
from superbloom.errors import InputError
from superbloom.special import Special

MASKED, REPLACED = 0.8, 0.1  # the rest of the chosen elements stay as they are


class Batch(NamedTuple):
    """ids (batch, n) as the model reads them, places (batch, p) of what it predicts, targets (batch, p).

    Rows shorter than n end in PAD; rows with fewer than p masked elements have target PAD there. total is the number
    of targets of the step, those of the other processes included. follows (batch,) is asked of text, if anything: 1 if
    its second part follows the first, 0 if it is of another document, −1 if there is none.
    """

    ids: Tensor
    places: Tensor
    targets: Tensor
    total: int
    follows: Tensor | None = None


class Batches:
    """The stream of training batches of a corpus; rank r of several takes the r-th part of each.

    Without perturb every chosen element is masked, none is replaced or left. With every, all elements are to be
    predicted, each from those before it, and none is masked. With next_sentence, half of the segments of a text end in
    another document.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        seq_len: int,
        batch_size: int,
        mask_share: float,
        seed: int,
        perturb: bool = True,
        every: bool = False,
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
        self.masked, self.every = MASKED if perturb else 1.0, every
        self.batch_size, self.share = batch_size, batch_size // ranks
        self.first = rank * self.share
        self.strangers: np.ndarray | None = None
        if corpus.sentences is not None:  # a long document is read more often than a short one
            size = (corpus.ends - corpus.offsets[:-1])[self.rows]
            self.strangers = self.rows if next_sentence else None
            self.rows = np.repeat(self.rows, -(-size // room(corpus, seq_len)))
        elif next_sentence:
            raise InputError("next_sentence=True, but the rows of this corpus have no sentences; prepare text does")
        # Some draws for the segment, then for each element: whether it is masked, how, and by what.
        self._first_draws = draws_for(corpus, next_sentence)
        self._draws = -(-(self._first_draws + 3 * seq_len) // 4) * 4

    def __getitem__(self, step: int) -> Batch:
        examples = step * self.batch_size + np.arange(self.batch_size)
        rows, ours = self._row(examples), slice(self.first, self.first + self.share)
        uniform = self._uniform(examples[ours][0], self.share)
        if self.strangers is None:
            total = int(self._wanted(lengths(self.corpus, rows, self.seq_len)).sum())
            segments = self._cut(rows[ours], uniform)
        else:  # how long a segment is depends on what it ends with, so that all have to be cut to know the total
            whole = self._cut(rows, self._uniform(examples[0], self.batch_size))
            total = int(self._wanted((whole.at >= 0).sum(axis=1)).sum())
            segments = whole[ours]
        return self._masked(segments, uniform[:, self._first_draws :], total)

    def _cut(self, rows: np.ndarray, uniform: np.ndarray) -> Segments:
        return cut(self.corpus, rows, uniform, self.seq_len, self.strangers)

    def _masked(self, segments: Segments, uniform: np.ndarray, total: int) -> Batch:
        ids, at, n = segments.ids, segments.at, segments.ids.shape[1]
        inside = at >= 0
        follows = None if self.strangers is None else _tensor(segments.follows)
        mask, how, what = np.split(uniform[:, : 3 * self.seq_len], 3, axis=1)
        if self.every:
            targets = np.where(inside, self.corpus.targets[at], np.int32(Special.PAD))
            return Batch(_tensor(ids), torch.arange(n).expand(self.share, n), _tensor(targets), total, follows)
        # Mask the elements with the smallest draws: the share of the segment, but at least one.
        wanted = self._wanted(inside.sum(axis=1))
        ranked = np.argsort(np.where(inside, mask[:, :n], 2.0), axis=1, kind="stable")
        chosen = np.arange(wanted.max()) < wanted[:, None]
        places = np.where(chosen, ranked[:, : wanted.max()], 0)
        targets = np.where(chosen, self.corpus.targets[np.take_along_axis(at, places, 1)], np.int32(Special.PAD))
        how, what = (np.take_along_axis(draw, places, 1) for draw in (how, what))
        replacement = (what * self.corpus.num_ids).astype(np.int32)
        current = np.take_along_axis(ids, places, 1)
        perturbed = np.where(
            how < self.masked, np.int32(Special.MASK), np.where(how < MASKED + REPLACED, replacement, current)
        )
        example, column = np.nonzero(chosen)
        ids[example, places[example, column]] = perturbed[example, column]
        return Batch(_tensor(ids), _tensor(places), _tensor(targets), total, follows)

    def starting_at(self, step: int, stride: int = 1) -> Iterator[Batch]:
        while True:
            yield self[step]
            step += stride

    def _wanted(self, length: np.ndarray) -> np.ndarray:
        """How many elements of a segment to predict."""
        if self.every:
            return length
        return np.maximum(1, np.rint(self.mask_share * length)).astype(np.int64)

    def _uniform(self, first: int, count: int) -> np.ndarray:
        """The random numbers of examples first and on: Philox counts blocks of four."""
        stream = np.random.Philox(key=self.seed, counter=int(first) * self._draws // 4)
        return np.random.Generator(stream).random((count, self._draws))

    def _row(self, examples: np.ndarray) -> np.ndarray:
        epochs, positions = np.divmod(examples, len(self.rows))
        rows = np.empty(len(examples), dtype=np.int64)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            rows[here] = self.rows[_shuffle(self.seed, int(epoch), len(self.rows))[positions[here]]]
        return rows


def _tensor(part: np.ndarray) -> Tensor:
    return torch.from_numpy(part.astype(np.int64))


@lru_cache(maxsize=2)
def _shuffle(seed: int, epoch: int, size: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(size)
