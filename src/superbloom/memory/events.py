"""The remembered rows as flat arrays: pieces of at most MAX_PIECE_IDS ids, and where each name occurs in them.

A long history is cut into pieces, so that a similar row is a similar stretch of it and reading one is cheap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from superbloom.corpus import SPLITS, Corpus
from superbloom.errors import InputError

MAX_PIECE_IDS = 64
MIN_FRESHNESS = 1e-6  # nothing is forgotten altogether
REMEMBERED_SPLITS = ("train", "valid")  # what a finished model remembers; test rows never join


@dataclass(frozen=True)
class Events:
    """All ids of the remembered rows, row after row."""

    ids: np.ndarray  # (events,) int32
    row: np.ndarray  # (rows,) the row of the corpus
    starts: np.ndarray  # (rows + 1,) where each row begins in ids
    num_ids: int
    freshness: np.ndarray | None = None  # (events,) float32, how much each event counts; None: all count alike

    @classmethod
    def of(cls, corpus: Corpus, splits: Sequence[str] = ("train",)) -> Events:
        """The rows of these splits. A row in the order of time ends where the first split that is left out begins.

        >>> Events.of(Corpus.from_sequences([["a", "b"], ["a", "c"]])).ids.tolist()
        [0, 1, 0, 2]
        """
        ends = corpus.ends
        if corpus.is_ordered and "valid" in splits:
            ends = np.maximum(ends, corpus.offsets[:-1] + corpus.cuts["test"])
        is_kept = np.isin(corpus.splits, [SPLITS[split] for split in splits])
        lengths = np.where(is_kept, ends - corpus.offsets[:-1], 0)
        rows = np.flatnonzero(lengths > 0)
        begins, lengths = corpus.offsets[rows], lengths[rows]
        change = np.zeros(len(corpus.ids) + 1, np.int8)  # a byte for each event; numbers of events would take eight
        change[begins] += 1
        change[begins + lengths] -= 1
        ids = corpus.ids[np.cumsum(change[:-1], dtype=np.int8, out=change[:-1]).view(bool)]
        return cls(ids, rows, np.concatenate([[0], np.cumsum(lengths)]), corpus.num_ids)

    def sample(self, most: int) -> Events:
        """Evenly spaced rows with about this number of ids."""
        if len(self.ids) <= most:
            return self
        count = max(1, len(self.row) * most // len(self.ids))
        chosen = np.arange(count) * len(self.row) // count
        lengths = np.diff(self.starts)[chosen]
        ids = self.ids[runs(self.starts[chosen], lengths)]
        return Events(ids, self.row[chosen], np.concatenate([[0], np.cumsum(lengths)]), self.num_ids)

    def pieces(self) -> Events:
        """The same ids with long rows cut into pieces of equal size."""
        lengths = np.diff(self.starts)
        counts = -(-lengths // MAX_PIECE_IDS)
        number = runs(np.zeros(len(counts), np.int64), counts)  # 0, 1, … within each row
        of_row = np.repeat(np.arange(len(counts)), counts)
        begins = self.starts[of_row] + number * lengths[of_row] // counts[of_row]
        return Events(self.ids, self.row[of_row], np.append(begins, self.starts[-1]), self.num_ids)

    def counts(self) -> np.ndarray:
        """How often each name occurs, (num_ids,)."""
        return np.bincount(self.ids, minlength=self.num_ids)

    def fading(self, half_life: float) -> Events:
        """The same events; one that `half_life` others follow in its row counts half, one that twice as many follow a
        quarter, and so on."""
        ends = np.repeat(self.starts[1:], np.diff(self.starts))
        return replace(self, freshness=freshness(ends - 1 - np.arange(len(self.ids)), half_life))

    def row_of(self) -> np.ndarray:
        """The number of the row that each event lies in, (events,)."""
        return np.repeat(np.arange(len(self.row), dtype=np.int32), np.diff(self.starts))


def freshness(age: np.ndarray, half_life: float) -> np.ndarray:
    """How much events of an age count, float32: half for each half-life, at least MIN_FRESHNESS.

    >>> freshness(np.array([0, 5, 10]), 5).tolist()
    [1.0, 0.5, 0.25]
    """
    return np.maximum(0.5 ** (age / half_life), MIN_FRESHNESS).astype(np.float32)


def are_lists(starts: np.ndarray, size: int, most: int) -> bool:
    """Whether starts are those of at most `most` lists, one after the other, in an array of this size."""
    if not 1 < len(starts) <= most + 1:
        return False
    return bool(starts[0] == 0 and starts[-1] == size and (starts[1:] >= starts[:-1]).all())


def entries_of(starts: np.ndarray, names: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The entries of the lists of names (any,): which name each belongs to, and where it lies.

    Names that were added later have no list.

    >>> [part.tolist() for part in entries_of(np.array([0, 2, 3]), np.array([1, 0, 7]))]
    [[0, 1, 1], [2, 0, 1]]
    """
    known = np.minimum(names, len(starts) - 2)
    lengths = np.where(names == known, starts[known + 1] - starts[known], 0)
    return np.repeat(np.arange(len(names)), lengths), runs(starts[known], lengths)


def taken(values: np.ndarray, at: np.ndarray | slice, below: int) -> np.ndarray:
    """Entries of an array that may come from a damaged file: InputError unless they lie between 0 and `below`."""
    found = values[at]
    if len(found) and not 0 <= found.min() <= found.max() < below:  # False for NaN as well
        raise InputError(f"the memory of the model holds {found.min()} to {found.max()}; below {below:,} is expected")
    return found


def runs(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The numbers start, start + 1, …, length of them, one run after the other.

    >>> runs(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    shift = np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
    return np.arange(len(shift)) + shift
