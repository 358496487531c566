"""What the memory says about a context: sparse distributions over names, one per part.

pairs           neighbours of the context's names, near elements first
pairs squared   the same, surer of the strongest neighbours
rows            names of similar rows that the context lacks
places          names that stand in similar rows where the question stands in the context, times pairs
repeats         names of the context, near elements first
row repeats     names of the context that similar rows repeat
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from superbloom.memory.events import runs, taken
from superbloom.memory.pairs import Pairs
from superbloom.memory.rows import Rows, Similar

OTHER_SIDE = 0.3  # weight of a pair in the direction that the context does not have
MAX_SHIFT = 3  # places beside the matching one that still count, less and less
ROW_POWER, PLACE_POWER = 3, 2  # powers of a row's similarity; a higher one favours close rows


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


def distributions(context: Context, pairs: Pairs | None, rows: Rows | None) -> dict[str, sparse.csr_matrix]:
    """The parts, (num_queries, num_ids) each. A row sums to one, or is empty if the part has nothing to say."""
    found: dict[str, sparse.csr_matrix] = {}
    near = None
    if pairs is not None:
        near = neighbours(context, pairs)
        found |= {"pairs": _normalised(near), "pairs squared": _normalised(near.power(2))}
    if rows is not None:
        similar = rows.similar(context.query, context.names, context.distance, context.num_queries)
        known = names_of_rows(context, rows, similar._replace(similarity=similar.similarity**ROW_POWER))
        inside = known.multiply(context.present).tocsr()
        aligned = _names_at_places(context, rows, similar)
        aligned = without(aligned, context.present)
        found["rows"] = _normalised(without(known, context.present))
        found["places"] = _normalised(aligned if near is None else aligned.multiply(near).tocsr())
        found["row repeats"] = _normalised(inside)
    found["repeats"] = _normalised(context.matrix(context.nearness, context.query, context.names))
    return found


def neighbours(context: Context, pairs: Pairs) -> sparse.csr_matrix:
    """How strongly names are neighbours of the context: weights of pairs over distances, (num_queries, num_ids)."""
    of, names, weights = directed(context, pairs, OTHER_SIDE)
    return context.matrix(weights * context.nearness[of], context.query[of], names)


def directed(context: Context, pairs: Pairs, other_side: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The neighbours of the context: the element they belong to, their ids, and weights for the direction they lie in.

    other_side: the weight of a pair in the other direction.
    """
    of, names, weights, after = pairs.of(context.names, context.num_ids)
    right = np.where(context.distance[of] > 0, after, 1 - after)  # the share in the direction of the place
    return of, names, weights * (other_side + (1 - other_side) * right)


def names_of_rows(context: Context, rows: Rows, similar: Similar) -> sparse.csr_matrix:
    """The names of similar rows, each weighted by the similarity of its row, (num_queries, num_ids)."""
    begins, lengths = rows.starts[similar.row], rows.starts[similar.row + 1] - rows.starts[similar.row]
    names = taken(rows.ids, runs(begins, lengths), context.num_ids)
    weights = np.repeat(similar.similarity, lengths).astype(np.float32)
    return context.matrix(weights, np.repeat(similar.query, lengths), names)


def _names_at_places(context: Context, rows: Rows, similar: Similar) -> sparse.csr_matrix:
    """A name of the context d before the question, seen at position i of a row, points to position i + d there."""
    query, entry, event, row, similarity = similar.matches
    weights = similarity**PLACE_POWER * rows.rarity[context.names[entry]] * context.nearness[entry]
    place, begins, ends = event + context.distance[entry], rows.starts[row], rows.starts[row + 1]
    values, queries, names = [], [], []
    for shift in range(-MAX_SHIFT, MAX_SHIFT + 1):
        at = place + shift
        inside = (at >= begins) & (at < ends)
        values.append((weights[inside] / (1 + abs(shift))).astype(np.float32))
        queries.append(query[inside])
        names.append(taken(rows.ids, at[inside], context.num_ids))
    return context.matrix(np.concatenate(values), np.concatenate(queries), np.concatenate(names))


def without(matrix: sparse.csr_matrix, other: sparse.csr_matrix) -> sparse.csr_matrix:
    """The entries of a matrix where another one, of zeros and ones, has none."""
    rest = (matrix - matrix.multiply(other)).tocsr()
    rest.eliminate_zeros()
    return rest


def _normalised(matrix: sparse.csr_matrix) -> sparse.csr_matrix:
    """Rows that sum to one, or are empty."""
    matrix = matrix.astype(np.float64)
    totals = np.asarray(matrix.sum(axis=1)).ravel()
    matrix.data /= np.repeat(np.where(totals > 0, totals, 1), np.diff(matrix.indptr))
    matrix.eliminate_zeros()
    return matrix
