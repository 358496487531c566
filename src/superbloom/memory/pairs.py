"""Pairs: for each name the names that stand near it in training rows, the strongest ones.

The weight of a pair is Σ 1/distance over its occurrences at most WINDOW_IDS apart, divided by how often the first name
occurs. `after` says how much of that weight comes from occurrences in which the second name follows the first.
With a half-life, older occurrences weigh less (Events.fading).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import sparse

from superbloom.memory.events import Events, are_lists, entries_of, taken

WINDOW_IDS = 10  # the largest distance between two names of a pair
MAX_CHUNK_EVENTS = 1_000_000  # counted at a time: bounds memory
AFTER_SCALE = 255  # one byte holds a share
SHRINKAGE = 10  # occurrences added to every count, so that names seen once or twice are not the most similar ones


@dataclass(frozen=True)
class Pairs:
    """The neighbours of name c are ids[starts[c] : starts[c + 1]], the strongest first."""

    starts: np.ndarray  # (num_ids + 1,) int64
    ids: np.ndarray  # (pairs,) int32
    weights: np.ndarray  # (pairs,) float16
    after: np.ndarray  # (pairs,) uint8, the share of the weight that follows, times AFTER_SCALE
    counts: np.ndarray  # (num_ids,) int32, how often each name occurs in the rows that were counted

    @classmethod
    def count(cls, events: Events, neighbours: int) -> Pairs:
        """Count the pairs of all rows, names in order, a chunk of occurrences at a time."""
        found = [_strongest(counted, neighbours) for counted in _chunks(events)]
        lengths, ids, weights, after = (np.concatenate(column) for column in zip(*found, strict=True))
        counts = np.bincount(events.ids, minlength=events.num_ids).clip(max=2**31 - 1).astype(np.int32)
        return cls(np.concatenate([[0], np.cumsum(lengths)]), ids, weights, after, counts)

    def is_sound(self, num_ids: int) -> bool:
        """Whether the lists of neighbours lie in the file, for at most num_ids names."""
        sizes = {len(self.ids), len(self.weights), len(self.after)}
        is_whole = len(sizes) == 1 and len(self.counts) == len(self.starts) - 1
        return is_whole and are_lists(self.starts, len(self.ids), num_ids)

    def of(self, names: np.ndarray, num_ids: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The neighbours of names (any,): the position in names, the neighbour, its weight and the share that follows.

        Names that were added later have none.
        """
        of, at = entries_of(self.starts, names)
        weights = taken(self.weights, at, WINDOW_IDS * WINDOW_IDS).astype(np.float32)
        return of, taken(self.ids, at, num_ids), weights, self.after[at] / np.float32(AFTER_SCALE)

    def similar(self, names: np.ndarray, num_ids: int) -> tuple[np.ndarray, np.ndarray]:
        """The neighbours of different names (any,), the most similar first, and their similarity, summed over names.

        The similarity of two names is a cosine: Σ 1/distance over their pairs, divided by the roots of both counts.
        """
        of, near, weights, _ = self.of(names, num_ids)
        own, other = (np.maximum(self.counts[ids], 1).astype(np.float64) for ids in (names[of], near))
        cosines = weights * own / np.sqrt((own + SHRINKAGE) * (other + SHRINKAGE))
        is_other = ~np.isin(near, names)
        ids, at = np.unique(near[is_other], return_inverse=True)
        scores = np.bincount(at, cosines[is_other], len(ids))
        order = np.lexsort((ids, -scores))  # equal scores: the smaller id, a more frequent name
        return ids[order], scores[order]


class Counted(NamedTuple):
    """Pairs in any order, one entry each; entries of one pair are summed."""

    first: np.ndarray
    second: np.ndarray
    weights: np.ndarray  # Σ 1/distance, not divided by how often the first name occurs
    following: np.ndarray  # the part of it in which the second name follows


def added(old: Pairs, new: Pairs, more: Counted, neighbours: int) -> Pairs:
    """The pairs of both and of `more`: the strongest neighbours of each name. new: counted for all names."""
    num_ids = len(new.counts)
    counts = new.counts.astype(np.int64)
    counts[: len(old.counts)] += old.counts
    sizes = np.diff(new.starts)
    sizes[: len(old.counts)] += np.diff(old.starts)
    bounds, order, found, first = np.concatenate([[0], np.cumsum(sizes)]), np.argsort(more.first), [], 0
    while first < num_ids:
        last = max(first + 1, int(np.searchsorted(bounds, bounds[first] + MAX_CHUNK_EVENTS, side="right")) - 1)
        names = np.arange(first, last)
        entries = [_sums(one, names, num_ids) for one in (old, new)]
        at = order[slice(*np.searchsorted(more.first[order], (first, last)))]
        entries.append((more.first[at] - first, more.second[at], more.weights[at] + 1j * more.following[at]))
        rows, columns, values = (np.concatenate(part) for part in zip(*entries, strict=True))
        summed = sparse.csr_matrix((values, (rows, columns)), shape=(last - first, num_ids))
        summed.data /= np.repeat(np.maximum(1, counts[first:last]), np.diff(summed.indptr))
        found.append(_strongest(summed, neighbours))
        first = last
    lengths, ids, weights, after = (np.concatenate(column) for column in zip(*found, strict=True))
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return Pairs(starts, ids, weights, after, counts.clip(max=2**31 - 1).astype(np.int32))


def _sums(pairs: Pairs, names: np.ndarray, num_ids: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The neighbours of consecutive names: position in names, neighbour, and the complex weight before the division."""
    of, ids, weights, after = pairs.of(names, num_ids)
    counts = pairs.counts[np.minimum(names, len(pairs.counts) - 1)]  # a name beyond them has no neighbours
    return of, ids, weights * counts[of] * (1 + 1j * after)


def _chunks(events: Events) -> Iterator[sparse.csr_matrix]:
    """The weights of all pairs of consecutive names, (names, num_ids).

    Weights are complex: the real part is the whole weight, the imaginary part what follows. So one sum makes both.
    """
    order = np.argsort(events.ids, kind="stable")
    bounds = np.concatenate([[0], np.cumsum(np.bincount(events.ids, minlength=events.num_ids))])
    row_of, first = events.row_of(), 0
    while first < events.num_ids:
        last = max(first + 1, int(np.searchsorted(bounds, bounds[first] + MAX_CHUNK_EVENTS, side="right")) - 1)
        counted = sparse.csr_matrix((last - first, events.num_ids), dtype=np.complex64)
        for begin in range(bounds[first], bounds[last], MAX_CHUNK_EVENTS):  # one name may occur more often than that
            at = order[begin : min(begin + MAX_CHUNK_EVENTS, bounds[last])]
            counted = counted + _counted(events, row_of, at, first, last)
        counts = np.diff(bounds[first : last + 1])
        counted.data /= np.repeat(np.maximum(1, counts), np.diff(counted.indptr)).astype(np.float32)
        yield counted
        first = last


def _counted(events: Events, row_of: np.ndarray, at: np.ndarray, first: int, last: int) -> sparse.csr_matrix:
    """The pairs of some occurrences of the names from `first` to before `last`."""
    own = events.ids[at] - first
    rows, columns, values = [], [], []
    for distance in range(1, WINDOW_IDS + 1):
        for sign, weight in ((1, 1 + 1j), (-1, 1)):
            other = at + sign * distance
            inside = (other >= 0) & (other < len(row_of))
            inside[inside] = row_of[other[inside]] == row_of[at[inside]]
            rows.append(own[inside])
            columns.append(events.ids[other[inside]])
            values.append(np.full(len(columns[-1]), weight / distance, np.complex64))
            if events.freshness is not None:  # a pair is as old as its later name
                values[-1] *= events.freshness[np.maximum(at, other)[inside]]
    entries = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
    return sparse.csr_matrix(entries, shape=(last - first, events.num_ids))


def _strongest(counted: sparse.csr_matrix, most: int) -> tuple[np.ndarray, ...]:
    """The strongest neighbours of each row: their numbers, then ids, weights and shares that follow."""
    row = np.repeat(np.arange(counted.shape[0]), np.diff(counted.indptr))
    # One stable sort by row, then by falling weight; of equal weights the smaller id stays first.
    order = np.argsort(row - counted.data.real / (1 + 2 * counted.data.real.max(initial=0)), kind="stable")
    kept = order[np.arange(len(order)) - counted.indptr[row] < most]
    weights = counted.data[kept]
    after = np.rint(AFTER_SCALE * weights.imag / weights.real).astype(np.uint8)
    lengths = np.minimum(np.diff(counted.indptr), most)
    return lengths, counted.indices[kept].astype(np.int32), weights.real.astype(np.float16), after
