"""What the memory knows about the names that it brings for a context: a row per name, a column per kind of evidence.

pairs            Σ weight of the pairs with the context's names, over their distance, in the direction they lie in
pairs at d       the same sum for the elements at distance d alone, for d = 1, 2, 3–4, 5–8, and beyond
pairs anywhere   the same sum without distance and direction
pairs, frequent  Σ of pairs in which frequent names of the context count more
voters           the number of elements that have the name as a neighbour
rows             Σ of the similarity of similar rows that hold the name, cubed
rows, level      the same, not cubed
row count        how often similar rows hold it
places           the same for names that stand in similar rows where the question stands in the context
repeats          how near the name stands in the context; 0 if it does not
frequency        1 + how often the name occurs
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy import sparse

from superbloom.memory.events import runs, taken
from superbloom.memory.pairs import Pairs
from superbloom.memory.rows import Rows, Similar

OTHER_SIDE = 0.3  # weight of a pair in the direction that the context does not have
MAX_SHIFT = 3  # places beside the matching one that still count, less and less
ROW_POWER, PLACE_POWER = 3, 2  # powers of a row's similarity; a higher one favours close rows
DISTANCES = {
    "pairs at 1": (1, 1),
    "pairs at 2": (2, 2),
    "pairs at 3 or 4": (3, 4),
    "pairs at 5 to 8": (5, 8),
    "pairs beyond": (9, 2**31),
}
PAIR_COLUMNS = ("pairs", *DISTANCES, "pairs anywhere", "pairs, frequent", "voters")
ROW_COLUMNS = ("rows", "rows, level", "row count", "places")


def columns_of(has_pairs: bool, has_rows: bool) -> list[str]:
    """The kinds of evidence in their order."""
    return [*(PAIR_COLUMNS if has_pairs else ()), *(ROW_COLUMNS if has_rows else ()), "repeats", "frequency"]


@dataclass(frozen=True)
class Context:
    """The known elements of queries, one entry each; distance is positive for elements before the place asked for."""

    query: np.ndarray
    names: np.ndarray
    distance: np.ndarray
    num_queries: int
    num_ids: int

    @classmethod
    def of(cls, ids: np.ndarray, places: np.ndarray, num_ids: int) -> Context:
        """From contexts (q, n), special ids below 0, and the place asked for in each (q,).

        >>> Context.of(np.array([[4, -2, 7]]), np.array([1]), 10).distance.tolist()
        [1, -1]
        """
        query, column = np.nonzero(ids >= 0)
        return cls(query, ids[query, column], places[query] - column, len(ids), num_ids)

    @cached_property
    def nearness(self) -> np.ndarray:
        return (1 / np.maximum(1, np.abs(self.distance))).astype(np.float32)

    def matrix(self, values: np.ndarray, query: np.ndarray, names: np.ndarray) -> sparse.csr_matrix:
        """Sums of values by query and name, (num_queries, num_ids)."""
        return sparse.csr_matrix((values, (query, names)), shape=(self.num_queries, self.num_ids))

    @cached_property
    def present(self) -> sparse.csr_matrix:
        """1 for each name of each context."""
        found = self.matrix(np.ones(len(self.query), np.float32), self.query, self.names)
        found.data[:] = 1
        return found


class Votes(NamedTuple):
    """Votes for names, one entry each; the same name may have many."""

    query: np.ndarray
    names: np.ndarray
    columns: dict[str, np.ndarray]  # how much each vote counts, by kind of evidence


@dataclass(frozen=True)
class Evidence:
    """The names that a memory brings, ordered by query and id, and a column (names,) of each kind of evidence."""

    query: np.ndarray
    ids: np.ndarray
    columns: Mapping[str, np.ndarray]
    num_queries: int

    @classmethod
    def of(cls, context: Context, pairs: Pairs | None, rows: Rows | None) -> Evidence:
        """All that is known about a context."""
        votes = [Votes(context.query, context.names, {"repeats": context.nearness})]
        if pairs is not None:
            votes.append(_pair_votes(context, pairs))
        if rows is not None:
            similar = rows.similar(context.query, context.names, context.distance, context.num_queries)
            votes += [_row_votes(context, rows, similar), _place_votes(context, rows, similar)]
        keys = [some.query.astype(np.int64) * context.num_ids + some.names for some in votes]
        found, slots = np.unique(np.concatenate(keys), return_inverse=True)
        columns: dict[str, np.ndarray] = {}
        begin = 0
        for some in votes:
            slot = slots[begin : begin + len(some.names)]
            columns |= {column: np.bincount(slot, values, len(found)) for column, values in some.columns.items()}
            begin += len(some.names)
        query, ids = np.divmod(found, context.num_ids)
        columns["frequency"] = _frequency(ids, pairs, rows)
        return cls(query, ids, columns, context.num_queries)


def _pair_votes(context: Context, pairs: Pairs) -> Votes:
    of, names, weights, after = pairs.of(context.names, context.num_ids)
    aimed = weights * _aim(context, of, after, OTHER_SIDE)
    near, distance = context.nearness[of], np.abs(context.distance[of])
    values = {
        "pairs": aimed * near,
        "pairs anywhere": weights,
        "pairs, frequent": aimed * near * np.maximum(1, pairs.counts[context.names[of]]),
        "voters": np.ones(len(of)),
    }
    values |= {name: aimed * ((distance >= low) & (distance <= high)) for name, (low, high) in DISTANCES.items()}
    return Votes(context.query[of], names, values)


def directed(context: Context, pairs: Pairs, other_side: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The neighbours of the context: the element they belong to, their ids, and weights for the direction they lie in.

    other_side: the weight of a pair in the other direction.
    """
    of, names, weights, after = pairs.of(context.names, context.num_ids)
    return of, names, weights * _aim(context, of, after, other_side)


def _aim(context: Context, of: np.ndarray, after: np.ndarray, other_side: float) -> np.ndarray:
    right = np.where(context.distance[of] > 0, after, 1 - after)  # the share in the direction of the place
    return other_side + (1 - other_side) * right


def _row_votes(context: Context, rows: Rows, similar: Similar) -> Votes:
    query, names, similarity = names_of_rows(context, rows, similar)
    columns = {"rows": similarity**ROW_POWER, "rows, level": similarity, "row count": np.ones(len(names))}
    return Votes(query, names, columns)


def names_of_rows(context: Context, rows: Rows, similar: Similar) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The names of similar rows, one entry each: the query, the name, and the similarity of the row."""
    begins, lengths = rows.starts[similar.row], rows.starts[similar.row + 1] - rows.starts[similar.row]
    names = taken(rows.ids, runs(begins, lengths), context.num_ids)
    return np.repeat(similar.query, lengths), names, np.repeat(similar.similarity, lengths)


def _place_votes(context: Context, rows: Rows, similar: Similar) -> Votes:
    """A name of the context d before the question, seen at position i of a row, points to position i + d there."""
    query, entry, event, row, similarity = similar.matches
    weights = similarity**PLACE_POWER * rows.rarity[context.names[entry]] * context.nearness[entry]
    place, begins, ends = event + context.distance[entry], rows.starts[row], rows.starts[row + 1]
    values, queries, names = [], [], []
    for shift in range(-MAX_SHIFT, MAX_SHIFT + 1):
        at = place + shift
        inside = (at >= begins) & (at < ends)
        values.append(weights[inside] / (1 + abs(shift)))
        queries.append(query[inside])
        names.append(taken(rows.ids, at[inside], context.num_ids))
    return Votes(np.concatenate(queries), np.concatenate(names), {"places": np.concatenate(values)})


def _frequency(ids: np.ndarray, pairs: Pairs | None, rows: Rows | None) -> np.ndarray:
    """Names that were added later have 1."""
    counts = np.zeros(1) if rows is None else np.diff(rows.place_starts)
    counts = counts if pairs is None else pairs.counts
    known = np.minimum(ids, len(counts) - 1)
    return 1.0 + np.where(ids == known, counts[known], 0)
