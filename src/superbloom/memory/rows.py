"""Rows: the training rows themselves, and for each name some of the places where it occurs.

A row is similar to a context if it holds its names, rare and near ones above all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from scipy import sparse

from superbloom.memory.events import Events, are_lists, entries_of, freshness, runs, taken
from superbloom.memory.keys import key_at, packed

MAX_ROW_EVENTS = 20_000_000  # ids of rows that are kept: beyond, evenly spaced rows
PLACES_PER_NAME = 400  # occurrences of a name that are looked at, evenly spaced
SIMILAR_ROWS = 200  # a context is compared with these in detail
MIN_RARITY = 0.05  # a name that every row holds still makes a row a little similar
LENGTH_OFFSET = 5.0  # longer rows hold more of any context; similarity is divided by the root of length + this


class Matches(NamedTuple):
    """Occurrences of context names in similar rows, one entry each."""

    query: np.ndarray
    entry: np.ndarray  # which element of the context
    event: np.ndarray  # where it occurs
    row: np.ndarray
    similarity: np.ndarray  # the row's


class Similar(NamedTuple):
    """The most similar rows of each query, one entry each, and the occurrences that make them similar."""

    query: np.ndarray
    row: np.ndarray
    similarity: np.ndarray
    matches: Matches


@dataclass(frozen=True)
class Rows:
    """Piece r holds ids[starts[r] : starts[r + 1]]; name c occurs at places[place_starts[c] : place_starts[c + 1]].

    Piece r is a part of row row[r], whose key is key_text[key_starts[row[r]] : key_starts[row[r] + 1]]. The pieces of a
    row follow one another.
    """

    starts: np.ndarray  # (rows + 1,) int64
    ids: np.ndarray  # (events,) int32
    place_starts: np.ndarray  # (num_ids + 1,) int64
    places: np.ndarray  # (any,) int32, positions in ids, ascending
    rarity: np.ndarray  # (num_ids,) float32, log(pieces / occurrences of the name) + MIN_RARITY
    row: np.ndarray | None = None  # (pieces,) int32, ascending from 0; None in older folders
    key_starts: np.ndarray | None = None  # (rows + 1,) int64; None if no keys are kept
    key_text: np.ndarray | None = None  # (bytes,) uint8, UTF-8
    freshness: np.ndarray | None = None  # (pieces,) float32, how much each piece counts; not stored, see fading

    @classmethod
    def keep(
        cls,
        events: Events,
        places_per_name: int = PLACES_PER_NAME,
        most: int = MAX_ROW_EVENTS,
        keys: pa.Array | None = None,
    ) -> Rows:
        """Keep the rows, cut into pieces, and evenly spaced occurrences of each name.

        keys: those of all rows of the corpus. Rows that are not kept lose theirs.
        """
        kept_rows = events.sample(most)
        pieces = kept_rows.pieces()
        is_first = np.diff(pieces.row, prepend=pieces.row[:1]) != 0
        counts = np.bincount(pieces.ids, minlength=pieces.num_ids)
        bounds = np.concatenate([[0], np.cumsum(counts)])
        kept = np.minimum(counts, places_per_name)
        number = runs(np.zeros(len(kept), np.int64), kept)
        chosen = np.repeat(bounds[:-1], kept) + number * np.repeat(counts, kept) // np.repeat(kept, kept)
        places = np.argsort(pieces.ids, kind="stable")[chosen].astype(np.int32)
        total = len(pieces.row)
        rarity = np.log((1 + total) / (1 + np.minimum(counts, total))) + MIN_RARITY
        starts = np.concatenate([[0], np.cumsum(kept)])
        key_parts = (keys is not None and packed(keys.take(pa.array(kept_rows.row)))) or (None, None)
        row = np.cumsum(is_first, dtype=np.int32)
        return cls(pieces.starts, pieces.ids, starts, places, rarity.astype(np.float32), row, *key_parts)

    def is_sound(self, num_ids: int) -> bool:
        """Whether all lists lie in the file, for at most num_ids names."""
        is_whole = are_lists(self.starts, len(self.ids), len(self.ids)) and self._has_sound_keys()
        known = len(self.place_starts) - 1
        if not bool((self.rarity > 0).all() and (self.rarity < np.inf).all()):
            return False
        return is_whole and are_lists(self.place_starts, len(self.places), num_ids) and len(self.rarity) == known

    def _has_sound_keys(self) -> bool:
        if self.row is None:
            return self.key_starts is None
        is_whole = len(self.row) == len(self.starts) - 1 and self.row[0] == 0
        if not is_whole or not bool(np.isin(np.diff(self.row), (0, 1)).all()):
            return False
        if self.key_starts is None or self.key_text is None:
            return True
        num_rows = int(self.row[-1]) + 1
        return len(self.key_starts) == num_rows + 1 and are_lists(self.key_starts, len(self.key_text), num_rows)

    def row_at(self, event: np.ndarray) -> np.ndarray:
        """The number of the row that each event lies in; that of its piece in older folders."""
        piece = np.searchsorted(self.starts, event, side="right") - 1
        return piece if self.row is None else self.row[piece].astype(np.int64)

    def fading(self, half_life: float) -> Rows:
        """The same rows; a piece that `half_life` events follow in its row is half as similar to any context."""
        assert self.row is not None
        last = np.flatnonzero(np.diff(self.row, append=-1))  # the last piece of each row
        age = self.starts[last + 1][self.row] - self.starts[1:]
        return replace(self, freshness=freshness(age, half_life))

    def key(self, row: int) -> str | None:
        """The key of a row, if keys are kept."""
        if self.key_starts is None or self.key_text is None:
            return None
        return key_at(self.key_starts, self.key_text, row)

    def similar(self, query: np.ndarray, names: np.ndarray, distance: np.ndarray, num_queries: int) -> Similar:
        """The rows that share most with each query.

        The context is one entry per name (any,): its query, ascending, its id, and its distance to the place asked for.
        """
        entry, at = entries_of(self.place_starts, names)
        event = taken(self.places, at, len(self.ids)).astype(np.int64)
        row = np.searchsorted(self.starts, event, side="right") - 1
        gain = self.rarity[names[entry]] / np.sqrt(np.maximum(1, np.abs(distance[entry])))
        shape = (num_queries, len(self.starts) - 1)
        total = sparse.csr_matrix((gain, (query[entry], row)), shape=shape)
        total.data /= np.sqrt(self.starts[total.indices + 1] - self.starts[total.indices] + LENGTH_OFFSET)
        if self.freshness is not None:
            total.data *= self.freshness[total.indices]
        best = _largest(total, SIMILAR_ROWS)
        of, which = np.repeat(np.arange(num_queries), np.diff(best.indptr)), best.indices.astype(np.int64)
        # Look the similarity of each match up in the kept entries of its query.
        keys, wanted = of * shape[1] + which, query[entry] * shape[1] + row
        order = np.argsort(keys)
        at = np.minimum(np.searchsorted(keys[order], wanted), max(0, len(keys) - 1))
        is_kept = keys[order][at] == wanted if len(keys) else np.zeros(len(wanted), bool)
        similarity = best.data[order][at[is_kept]]
        matches = Matches(query[entry][is_kept], entry[is_kept], event[is_kept], row[is_kept], similarity)
        return Similar(of, which, best.data, matches)


def _largest(matrix: sparse.csr_matrix, most: int) -> sparse.csr_matrix:
    """The same matrix with at most the `most` largest entries of each row."""
    kept = np.ones(matrix.nnz, bool)
    for begin, end in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True):
        if end - begin > most:
            kept[begin + np.argpartition(-matrix.data[begin:end], most)[most:]] = False
    counts = np.add.reduceat(np.append(kept, False), matrix.indptr[:-1]) * (np.diff(matrix.indptr) > 0)
    starts = np.concatenate([[0], np.cumsum(counts)])
    return sparse.csr_matrix((matrix.data[kept], matrix.indices[kept], starts), shape=matrix.shape)
