"""The strongest answers that need no network, as opponents of a model: counting, similar rows, and EASE.

Their options are chosen on validation rows, so that a model cannot win against a badly tuned opponent. Each scores a
Context: q queries  →  sparse scores (q, num_ids). `best_ranks` chooses options and returns the ranks of hidden ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, product

import numpy as np
from scipy import sparse

from superbloom.corpus import Corpus
from superbloom.evaluate.held_out import HeldOut
from superbloom.evaluate.metrics import DEEPEST
from superbloom.memory import REMEMBERED_SPLITS, Context, Events, Pairs, Rows, directed, names_of_rows

Scores = Callable[[Context], sparse.csr_matrix]
CHUNK_ROWS = 256
TUNING_ROWS = 500  # validation elements that decide the options of a yardstick
MAX_NEIGHBOURS = 1000  # counted for each name
MAX_EASE_NAMES = 6000  # EASE inverts a matrix of names by names
EASE_RIDGE = (100.0, 500.0)


def counting(events: Events) -> Iterator[Scores]:
    """Co-occurrence: how much nearness, frequency and direction count, each in several degrees."""
    pairs = Pairs.count(events, MAX_NEIGHBOURS)
    for near, rare, other_side in product((0.0, 0.5, 1.0), (0.0, 0.5, 1.0), (0.3, 1.0)):
        yield partial(_count, pairs, near, rare, other_side)


def _count(pairs: Pairs, near: float, rare: float, other_side: float, context: Context) -> sparse.csr_matrix:
    of, names, weights = directed(context, pairs, other_side)
    # The weight of a pair is already divided by the count of the first name: `rare` of 1 leaves it so.
    scale = context.nearness**near * np.maximum(1, pairs.counts[context.names]) ** (1 - rare)
    return context.matrix(weights * scale[of], context.query[of], names)


def nearest_rows(rows: Rows) -> Iterator[Scores]:
    """Names of the rows that share most with the context, weighted by a power of the similarity."""
    for power in (1, 2, 4):
        yield partial(_row_names, rows, power)


def _row_names(rows: Rows, power: int, context: Context) -> sparse.csr_matrix:
    similar = rows.similar(context.query, context.names, context.distance, context.num_queries)
    query, names, similarity = names_of_rows(context, rows, similar)
    return context.matrix(similarity**power, query, names)


def ease(events: Events) -> Iterator[Scores]:
    """EASE (Steck, 2019): every name from all others by ridge regression, without its own weight."""
    row = np.repeat(np.arange(len(events.row)), np.diff(events.starts))
    ones = np.ones(len(row), np.float32)
    seen = sparse.csr_matrix((ones, (row, events.ids)), shape=(len(events.row), events.num_ids))
    seen.data[:] = 1
    together = (seen.T @ seen).toarray().astype(np.float64)
    for ridge in EASE_RIDGE:
        inverse = np.linalg.inv(together + ridge * np.eye(len(together)))
        weights = -inverse / np.diag(inverse)
        np.fill_diagonal(weights, 0)
        yield partial(_regress, weights)


def _regress(weights: np.ndarray, context: Context) -> sparse.csr_matrix:
    return sparse.csr_matrix(context.present @ weights)


def best_ranks(
    made: Callable[[Events], Iterator[Scores]],
    events: Events,
    tuning: HeldOut | None,
    later: Events,
    held_out: HeldOut,
    filter_seen: bool = False,
) -> np.ndarray:
    """The ranks of hidden ids by the candidate of highest recall@10 on validation rows.

    Each candidate is tried as it is, and without the names of the context: where rows never repeat a name, these are
    never right. With filter_seen, both are the same. The choice is made with the counts of events; the ranks have those
    of later, as a model has.
    """
    best, choice = -1.0, (0, False)
    for number, scores in enumerate(made(events)):
        for is_new in (False,) if filter_seen else (False, True):
            one = partial(_without_context, scores) if is_new else scores
            hits = 0.0 if tuning is None else float((ranks_of(one, tuning, events.num_ids, filter_seen) < 10).mean())
            if hits > best:
                best, choice = hits, (number, is_new)
    number, is_new = choice
    scores = next(islice(made(later), number, None))
    scores = partial(_without_context, scores) if is_new else scores
    return ranks_of(scores, held_out, events.num_ids, filter_seen)


def _without_context(scores: Scores, context: Context) -> sparse.csr_matrix:
    found = scores(context).tocsr()
    rest = (found - found.multiply(context.present)).tocsr()
    rest.eliminate_zeros()
    return rest


def ranks_of(scores: Scores, held_out: HeldOut, num_ids: int, filter_seen: bool) -> np.ndarray:
    """The rank of each hidden id, from 0; DEEPEST if it is not among the best, or has no score."""
    found = []
    for start in range(0, len(held_out), CHUNK_ROWS):
        part = slice(start, start + CHUNK_ROWS)
        matrix = scores(Context.of(held_out.ids[part], held_out.places[part], num_ids)).tocsr()
        seen = held_out.seen(part).numpy() if filter_seen else None
        for i, target in enumerate(held_out.targets[part]):
            own = slice(matrix.indptr[i], matrix.indptr[i + 1])
            found.append(rank_of(target, matrix.indices[own], matrix.data[own], None if seen is None else seen[i]))
    return np.array(found)


def rank_of(target: int, ids: np.ndarray, scores: np.ndarray, seen: np.ndarray | None = None) -> int:
    """The number of ids that score above the target, without those seen. Ties go to the smaller id, as in search/.

    A target without a score, or that was seen, is DEEPEST.

    >>> rank_of(7, np.array([3, 7, 9]), np.array([2, 2, 5]))      # 9 scores higher, 3 ties
    2
    >>> rank_of(7, np.array([3, 7, 9]), np.array([2, 2, 5]), np.array([9]))
    1
    >>> rank_of(7, np.array([3, 7, 9]), np.array([2, 2, 5]), np.array([7])) == DEEPEST
    True
    """
    if seen is not None:
        is_new = ~np.isin(ids, seen)
        ids, scores = ids[is_new], scores[is_new]
    own = scores[ids == target]
    if not len(own):
        return DEEPEST
    ahead = (scores > own) | ((scores == own) & (ids < target))
    return min(int(ahead.sum()), DEEPEST)


def strong_yardsticks(
    corpus: Corpus, split: str, held_out: HeldOut, seq_len: int, filter_seen: bool
) -> dict[str, np.ndarray]:
    """The ranks of each strong yardstick that suits the corpus, counted from the rows that a model may remember."""
    events = Events.of(corpus)
    later = Events.of(corpus, REMEMBERED_SPLITS) if split == "test" else events
    tuning = HeldOut.of(corpus, "valid", seq_len, draws=TUNING_ROWS) if len(corpus.rows("valid")) else None
    made: dict[str, Callable[[Events], Iterator[Scores]]] = {
        "counting": counting,
        "similar rows": lambda counted: nearest_rows(Rows.keep(counted)),
    }
    if corpus.num_ids <= MAX_EASE_NAMES:
        made["EASE"] = ease
    return {name: best_ranks(one, events, tuning, later, held_out, filter_seen) for name, one in made.items()}
