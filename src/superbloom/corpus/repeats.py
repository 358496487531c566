"""How often rows repeat a name: the share of targets that stand elsewhere in their own segment.

    ids (n,), begins (rows,) and ends (rows,) of the rows in them  →  a share from 0 to 1

In a log, the context of an element is what precedes it in its row. In other rows, it is what may stand in one segment
with it. A model whose rows rarely repeat a name leaves names of the context out of its answers (model/model.py).
"""

from __future__ import annotations

import numpy as np

from superbloom.config import ModelConfig

REACH = ModelConfig.seq_len  # elements of a segment, whatever the model has: the share is one of the rows
MAX_ELEMENTS = 2**20  # looked at together; rows stay whole


def share_of_repeats(ids: np.ndarray, begins: np.ndarray, ends: np.ndarray, is_ordered: bool) -> float:
    """The share of the elements with a context that stand in it. Each row has at least one element.

    >>> ids, begins, ends = np.array([7, 8, 7, 9, 7, 8]), np.array([0, 4]), np.array([4, 6])
    >>> share_of_repeats(ids, begins, ends, is_ordered=False)        # two of six: the first and the third
    0.3333333333333333
    >>> share_of_repeats(ids, begins, ends, is_ordered=True)         # one of four: the third; two rows begin
    0.25
    """
    lengths = ends - begins
    parts = np.flatnonzero(np.diff(np.cumsum(lengths) // MAX_ELEMENTS, prepend=0))
    found = 0
    for part in np.split(np.arange(len(lengths)), parts):
        row = np.repeat(np.arange(len(part)), lengths[part])
        before = np.cumsum(lengths[part]) - lengths[part]  # elements of the rows before each row
        at = np.arange(len(row)) + np.repeat(begins[part] - before, lengths[part])
        found += repeated(row << 32 | ids[at], is_ordered)
    total = int(lengths.sum()) - (len(lengths) if is_ordered else 0)  # the first event of a log has no context
    return found / max(1, total)


def repeated(keys: np.ndarray, is_ordered: bool) -> int:
    """How many elements stand in their own context. keys: (elements,) int64, different for each row and id.

    >>> keys = np.array([7, 8, 7, 107])         # three elements of a row, and one of another
    >>> repeated(keys, is_ordered=True), repeated(keys, is_ordered=False)
    (1, 2)
    """
    if is_ordered:  # all but the first of equal keys
        ordered = np.sort(keys)
        return int((ordered[1:] == ordered[:-1]).sum())
    order = np.argsort(keys, kind="stable")  # equal keys stay in their order
    near = (np.diff(keys[order]) == 0) & (np.diff(order) < REACH)
    return int((np.append(near, False) | np.append(False, near)).sum())
