"""Evidence for answers from remembered rows: how often each stood near names of the context, and which rows are alike.

    names (n,), answers (k,)  →  rows in which they stand near one another (k, n), the smallest distances (k, n)
    one context               →  the most similar rows: number, similarity, names they share, answers they hold

Counting reads all remembered rows, which takes milliseconds per million ids. So only explanations do it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from superbloom.memory.events import runs, taken
from superbloom.memory.evidence import Context
from superbloom.memory.pairs import WINDOW_IDS
from superbloom.memory.rows import LENGTH_OFFSET, Rows

MAX_SCAN_IDS = 1_000_000  # read at a time: bounds memory


class Together(NamedTuple):
    """Per answer and name (k, n): the rows in which both stand at most WINDOW_IDS apart, and the smallest distance."""

    rows: np.ndarray
    nearest: np.ndarray  # 0 if there is no such row


class Alike(NamedTuple):
    """A row that is similar to a context."""

    row: int
    similarity: float  # 1: as similar as the context itself would be, were it a row
    shared: np.ndarray  # names of the context that it holds, in the order of the context
    held: np.ndarray  # those of the answers that it holds


def together(rows: Rows, names: np.ndarray, answers: np.ndarray, num_ids: int) -> Together:
    """Count different names (n,) and different answers (k,) in all rows.

    >>> from superbloom.corpus import Corpus
    >>> from superbloom.memory.events import Events
    >>> corpus = Corpus.from_sequences([["a", "b"], ["a", "c", "b", "a"]])
    >>> a, b = map(corpus.vocab.id, "ab")
    >>> found = together(Rows.keep(Events.of(corpus)), np.array([a]), np.array([b]), 3)
    >>> found.rows.tolist(), found.nearest.tolist()
    ([[2]], [[1]])
    """
    shape, number = (len(answers), len(names)), np.full((2, num_ids), -1, np.int32)
    number[0, names], number[1, answers] = np.arange(len(names)), np.arange(len(answers))
    nearest, num_rows = np.full(shape, WINDOW_IDS + 1).ravel(), len(rows.starts)  # at most one row per piece
    found = [np.zeros(0, np.int64)]  # (answer · names + name) · rows + row, each once
    for first in range(0, len(rows.ids), MAX_SCAN_IDS):
        begin = max(0, first - WINDOW_IDS)
        ids = taken(rows.ids, slice(begin, first + MAX_SCAN_IDS + WINDOW_IDS), num_ids)
        own = number[0, ids]
        at = first - begin + np.flatnonzero(own[first - begin :][:MAX_SCAN_IDS] >= 0)
        if not len(at):
            continue
        answer, pairs = number[1, ids], []
        for distance in range(1, WINDOW_IDS + 1):
            for other in (at - distance, at + distance):
                near = (other >= 0) & (other < len(ids))
                near[near] = answer[other[near]] >= 0
                row = rows.row_at(begin + at[near])
                is_same = row == rows.row_at(begin + other[near])
                pair = answer[other[near][is_same]] * np.int64(len(names)) + own[at[near][is_same]]
                nearest[pair] = np.minimum(nearest[pair], distance)
                pairs.append(pair * num_rows + row[is_same])
        found.append(np.unique(np.concatenate(pairs)))
    counts = np.bincount(np.unique(np.concatenate(found)) // num_rows, minlength=len(nearest))
    return Together(counts.reshape(shape), np.where(counts > 0, nearest, 0).reshape(shape))


def most_similar(rows: Rows, context: Context, answers: np.ndarray) -> list[Alike]:
    """The rows that are most similar to one context, best first. A row of several pieces is as similar as its best."""
    similar = rows.similar(context.query, context.names, context.distance, 1)
    rarity = rows.rarity[np.minimum(context.names, len(rows.rarity) - 1)]
    # A name that was added later is in no row, so it is rarer than all others.
    rarity = np.where(context.names < len(rows.rarity), rarity, rows.rarity.max())
    gain = (rarity / np.sqrt(np.maximum(1, np.abs(context.distance)))).sum()
    whole = gain / np.sqrt(len(context.names) + LENGTH_OFFSET)
    found: dict[int, Alike] = {}
    for at in np.lexsort((similar.row, -similar.similarity)).tolist():
        piece = similar.row[at : at + 1]
        row = int(rows.row_at(rows.starts[piece])[0])
        if row not in found:
            ids = taken(rows.ids, runs(rows.starts[piece], np.diff(rows.starts[piece[0] :][:2])), context.num_ids)
            shared = [name for name in dict.fromkeys(context.names.tolist()) if name in ids]
            similarity = min(1.0, float(similar.similarity[at] / whole))
            found[row] = Alike(row, similarity, np.array(shared, np.int64), answers[np.isin(answers, ids)])
    return list(found.values())
