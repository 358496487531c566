"""Held-out elements: which elements of which rows are hidden (Sec. 3.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from superbloom.config.option import SEED, plain
from superbloom.corpus import Corpus, cut_segments, draws_per_segment
from superbloom.errors import InputError
from superbloom.predict import padded
from superbloom.special import Special


@dataclass(frozen=True)
class HeldOut:
    """ids (rows, n): segments with one masked element; places (rows,): its position; targets (rows,): the hidden id.

    before: what was seen, as ids of the vocabulary that is predicted. In rows in order of time, these are all ids of
    the row before the hidden element, otherwise the context. None: the context, which is of that vocabulary.
    row (rows,): the row of the corpus that each hidden element is in; a row may have several.
    """

    ids: np.ndarray
    places: np.ndarray
    targets: np.ndarray
    before: Sequence[np.ndarray] | None = None
    row: np.ndarray | None = None

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
        """Hide one element in each row of a split, in at most `limit` rows.

        draws: the number of hidden elements. Rows repeat if there are fewer, and some are left out if there are more.
        In rows in order of time, the corpus says which elements are hidden. Each is hidden once: limit and draws
        choose evenly spaced ones.
        """
        if not SEED.holds(plain(seed)):
            raise InputError(f"seed={seed} given; {SEED.text} is allowed")
        is_cut = corpus.is_ordered and split in corpus.cuts
        rows, positions = corpus.asked(split) if is_cut else (corpus.rows(split), np.empty(0, np.int64))
        if is_cut:  # rows are sorted by key, so the first ones are no fair sample
            limit = min(part for part in (limit, draws, len(rows)) if part is not None)
            chosen = np.arange(limit) * len(rows) // max(1, limit)
            rows, positions = rows[chosen], positions[chosen]
        rows = rows[:limit]
        if not len(rows):
            raise InputError(
                f"the corpus has no {split} row of two or more ids; give more or longer rows, or ask another split"
            )
        if is_cut:
            return cls._next(corpus, rows, positions, seq_len)
        if draws is not None:
            rows = np.resize(rows, draws)
        first = draws_per_segment(corpus)
        uniform = np.random.Generator(np.random.Philox(key=seed)).random((len(rows), first + 1))
        found = cut_segments(corpus, rows, uniform[:, :first], seq_len)
        number, there = np.arange(len(rows)), found.at >= 0
        chosen = (uniform[:, first] * there.sum(axis=1)).astype(np.int64)
        places = np.argsort(~there, axis=1, kind="stable")[number, chosen]  # among elements that are no special ids
        ids = found.ids.astype(np.int64)
        ids[number, places] = Special.MASK
        before = None if corpus.target_vocab is None else _as_targets(corpus, [row[row >= 0] for row in ids])
        return cls(ids, places, corpus.targets[found.at[number, places]].astype(np.int64), before, rows)

    @classmethod
    def _next(cls, corpus: Corpus, rows: np.ndarray, positions: np.ndarray, seq_len: int) -> HeldOut:
        """Hide the element at a position of each of these rows: the last elements before it, then a mask."""
        places = np.minimum(positions, seq_len - 1)
        hidden = corpus.offsets[rows] + positions
        column = np.arange(places.max() + 1)
        at = np.minimum((hidden - places)[:, None] + column, hidden[:, None])
        ids = np.where(column < places[:, None], corpus.ids[at], int(Special.PAD)).astype(np.int64)
        ids[np.arange(len(rows)), places] = Special.MASK
        before = [corpus.ids[begin:end] for begin, end in zip(corpus.offsets[rows], hidden, strict=True)]
        return cls(ids, places, corpus.targets[hidden].astype(np.int64), _as_targets(corpus, before), rows)

    def under(self, numbers: np.ndarray, target_numbers: np.ndarray) -> HeldOut:
        """The same hidden elements with the ids of another vocabulary: numbers[id], −1 if it lacks the name.

        Names that it lacks are left out of the contexts, as `recommend` does. A hidden one has the target −1.

        >>> held_out = HeldOut(np.array([[2, 0, int(Special.MASK), 1]]), np.array([2]), np.array([1]))
        >>> found = held_out.under(np.array([-1, 7, 5]), np.array([-1, 7, 5]))
        >>> found.ids.tolist() == [[5, Special.MASK, 7, Special.PAD]], found.places.tolist(), found.targets.tolist()
        (True, [1], [7])
        """
        ids = np.where(self.ids >= 0, numbers[self.ids], self.ids)
        is_unknown = (self.ids >= 0) & (ids < 0)
        places = self.places - np.cumsum(is_unknown, axis=1)[np.arange(len(ids)), self.places]
        ids = np.take_along_axis(ids, np.argsort(is_unknown, axis=1, kind="stable"), axis=1)
        ids[np.arange(ids.shape[1]) >= ids.shape[1] - is_unknown.sum(axis=1)[:, None]] = Special.PAD
        before = None if self.before is None else _renumbered(target_numbers, self.before)
        return HeldOut(ids, places, target_numbers[self.targets], before, self.row)

    def take(self, rows: np.ndarray) -> HeldOut:
        """Only these rows."""
        before = None if self.before is None else [self.before[row] for row in rows]
        row = None if self.row is None else self.row[rows]
        return HeldOut(self.ids[rows], self.places[rows], self.targets[rows], before, row)

    def seen(self, part: slice) -> Tensor:
        """What was seen before the hidden elements of some rows: ids (rows, any), padded with −1.

        >>> held_out = HeldOut(np.array([[2, 0, int(Special.MASK), 2]]), np.array([2]), np.array([1]))
        >>> held_out.seen(slice(0, 1)).tolist()
        [[0, 2]]
        """
        known = [row[row >= 0] for row in self.ids[part]] if self.before is None else self.before[part]
        return padded([np.unique(ids) for ids in known], -1)

    def shortened(self, seed: int = 0) -> HeldOut:
        """Every second hidden element again, in a shorter stretch of its context, from one element on.

        Lengths are even on a scale of logarithms, so that short contexts are as frequent as long ones.
        """
        rng = np.random.Generator(np.random.Philox(key=seed))
        short = self.take(np.arange(1, len(self), 2))
        whole = short.ids.copy()
        for row, place in enumerate(short.places.tolist()):
            if last := int(np.flatnonzero(whole[row] != Special.PAD)[-1]):
                size = int(np.exp(rng.random() * np.log(last + 1)))
                begin = int(rng.integers(max(0, place - size), min(place, last - size) + 1))
                short.ids[row] = Special.PAD
                short.ids[row, : size + 1] = whole[row, begin : begin + size + 1]
                short.places[row] = place - begin
        return short

    def __len__(self) -> int:
        return len(self.ids)

    def parts(self, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """ids (q, n), places (q, 1) and targets (q,) of `size` rows at a time, as tensors for a model."""
        for start in range(0, len(self), size):
            part = slice(start, start + size)
            places = self.places[part, None]
            yield torch.from_numpy(self.ids[part]), torch.from_numpy(places), torch.from_numpy(self.targets[part])


def _as_targets(corpus: Corpus, rows: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """Rows of ids as ids of the vocabulary that is predicted, without names that it does not have."""
    if corpus.target_vocab is None:
        return rows
    return _renumbered(corpus.vocab.numbers_in(corpus.target_vocab), rows)


def _renumbered(numbers: np.ndarray, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Rows of ids by other numbers, without those that have none (−1)."""
    return [found[found >= 0] for found in map(numbers.__getitem__, rows)]
