"""Pairs: for each name the names that stand near it in training rows, the strongest ones.

The weight of a pair is Σ 1/distance over its occurrences at most WINDOW_IDS apart, divided by how often the first name
occurs. `after` says how much of that weight comes from occurrences in which the second name follows the first.

Sums are whole numbers: 1/distance is counted as UNITS/distance. So they do not depend on the order of events, and every
engine that counts them gives the same pairs (sql.py). With a half-life, older occurrences weigh less (Events.fading).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import sparse

from superbloom.memory.events import Events, are_lists, entries_of, taken

WINDOW_IDS = 10  # the largest distance between two names of a pair
UNITS = math.lcm(*range(1, WINDOW_IDS + 1))  # 2520: all of UNITS/distance are whole
MAX_CHUNK_EVENTS = 2**18  # counted at a time: bounds memory, and the sums of one direction to 31 bits
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
        counts, found, first = events.counts(), [], 0
        for counted in _chunks(events, counts):
            lengths, ids, sums = _strongest(counted, neighbours)
            names = np.repeat(np.arange(first, first + len(lengths)), lengths)
            found.append((lengths, ids, *stored(sums.real, sums.imag, counts[names])))
            first += len(lengths)
        lengths, ids, weights, after = (np.concatenate(column) for column in zip(*found, strict=True))
        return cls.of_lists(lengths, ids, weights, after, counts)

    @classmethod
    def of_lists(
        cls, lengths: np.ndarray, ids: np.ndarray, weights: np.ndarray, after: np.ndarray, counts: np.ndarray
    ) -> Pairs:
        """The pairs with this number of neighbours for each name, whose count may be of any size."""
        starts = np.concatenate([[0], np.cumsum(lengths)])
        return cls(starts, ids, weights, after, counts.clip(max=2**31 - 1).astype(np.int32))

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
    sums: np.ndarray  # in UNITS, the part in which the second name follows as the imaginary part


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
        entries.append((more.first[at] - first, more.second[at], more.sums[at]))
        rows, columns, values = (np.concatenate(part) for part in zip(*entries, strict=True))
        summed = sparse.csr_matrix((values, (rows, columns)), shape=(last - first, num_ids))
        lengths, ids, sums = _strongest(summed, neighbours)
        found.append((lengths, ids, *stored(sums.real, sums.imag, counts[np.repeat(names, lengths)])))
        first = last
    lengths, ids, weights, after = (np.concatenate(column) for column in zip(*found, strict=True))
    return Pairs.of_lists(lengths, ids, weights, after, counts)


def _sums(pairs: Pairs, names: np.ndarray, num_ids: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The neighbours of consecutive names: position in names, neighbour, and sums, as near as float16 holds them."""
    of, ids, weights, after = pairs.of(names, num_ids)
    counts = pairs.counts[np.minimum(names, len(pairs.counts) - 1)]  # a name beyond them has no neighbours
    whole = np.rint(UNITS * weights.astype(np.float64) * counts[of])
    return of, ids, whole * (1 + 1j * after)


def stored(whole: np.ndarray, after: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights and shares that follow, as they are stored, from sums in UNITS and the counts of the first names.

    >>> [part.tolist() for part in stored(np.array([2520]), np.array([1260]), np.array([2]))]
    [[0.5], [128]]
    """
    return (whole / (UNITS * counts)).astype(np.float16), np.rint(AFTER_SCALE * after / whole).astype(np.uint8)


def _chunks(events: Events, counts: np.ndarray) -> Iterator[sparse.csr_matrix]:
    """The sums of all pairs of consecutive names, (names, num_ids).

    Sums are complex: the real part is the whole sum, the imaginary part what follows. Both are exact up to 2^53.
    """
    order = np.argsort(events.ids, kind="stable")
    bounds = np.concatenate([[0], np.cumsum(counts)])
    row_of, first = events.row_of(), 0
    while first < events.num_ids:
        last = max(first + 1, int(np.searchsorted(bounds, bounds[first] + MAX_CHUNK_EVENTS, side="right")) - 1)
        counted = sparse.csr_matrix((last - first, events.num_ids), dtype=np.complex128)
        for begin in range(bounds[first], bounds[last], MAX_CHUNK_EVENTS):  # one name may occur more often than that
            at = order[begin : min(begin + MAX_CHUNK_EVENTS, bounds[last])]
            counted = counted + _counted(events, row_of, at, first, last)
        yield counted
        first = last


def _counted(events: Events, row_of: np.ndarray, at: np.ndarray, first: int, last: int) -> sparse.csr_matrix:
    """The pairs of some occurrences of the names from `first` to before `last`."""
    own = events.ids[at] - first
    rows, columns, values = [], [], []
    for distance in range(1, WINDOW_IDS + 1):
        for sign, unit in ((1, 1), (-1, 2**32)):  # what precedes is summed in the upper half of an int64
            other = at + sign * distance
            inside = (other >= 0) & (other < len(row_of))
            inside[inside] = row_of[other[inside]] == row_of[at[inside]]
            rows.append(own[inside])
            columns.append(events.ids[other[inside]])
            if events.freshness is None:
                values.append(np.full(len(columns[-1]), unit * (UNITS // distance)))
            else:  # no whole numbers; a pair is as old as its later name
                fresh = events.freshness[np.maximum(at, other)[inside]]
                values.append(UNITS / distance * fresh * (1 + 1j if sign > 0 else 1))
    entries = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
    counted = sparse.csr_matrix(entries, shape=(last - first, events.num_ids))
    if events.freshness is None:
        before, after = counted.data >> 32, counted.data & (2**32 - 1)
        counted.data = before + after + 1j * after
    return counted


def _strongest(counted: sparse.csr_matrix, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The strongest neighbours of each row: their numbers, then ids and sums."""
    row = np.repeat(np.arange(counted.shape[0]), np.diff(counted.indptr))
    whole = np.rint(counted.data.real).astype(np.int64)
    # One stable sort by row, then by falling sum; of equal sums the smaller id stays first.
    order = np.argsort(row * (whole.max(initial=0) + 1) - whole, kind="stable")
    kept = order[np.arange(len(order)) - counted.indptr[row] < most]
    lengths = np.minimum(np.diff(counted.indptr), most)
    return lengths, counted.indices[kept].astype(np.int32), counted.data[kept]
