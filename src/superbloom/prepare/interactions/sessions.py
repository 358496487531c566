"""Sessions: the items of a visit in order, without a user. Each becomes a row of its own, whose key is its number.

    lists or lines of items              in held-out files all items but the first are asked, each after those before it
    pairs of items and one more item     only the last item is asked; the others are its context

A training row is made of a pair as of a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from superbloom.corpus import as_text
from superbloom.errors import InputError
from superbloom.prepare.interactions.columns import CONTEXT, TEST, TRAIN, VALID

KEYS = {TRAIN: "session", VALID: "valid", TEST: "test"}  # how the keys of sessions begin


def sessions_table(
    items: Sequence[str], lengths: np.ndarray, are_pairs: bool, part: int, file: int = 0, lines_before: int = 0
) -> pa.Table:
    """The events of sessions of these lengths, as columns user, item and part.

    >>> sessions_table(["a", "b", "c"], np.array([2, 0, 1]), True, TEST).to_pydict()
    {'user': ['test 1', 'test 1', 'test 3'], 'item': ['a', 'b', 'c'], 'part': [1, 3, 3]}
    """
    beginning = f"{KEYS[part]} {f'{file + 1}.' if file else ''}"
    keys = pa.array([f"{beginning}{lines_before + line}" for line in range(1, len(lengths) + 1)], pa.large_string())
    parts = np.full(len(items), part, np.int8)
    if are_pairs and part != TRAIN:
        parts[:] = CONTEXT
        parts[np.cumsum(lengths)[lengths > 0] - 1] = part
    return pa.table(
        {
            "user": keys.take(pa.array(np.repeat(np.arange(len(lengths)), lengths))),
            "item": pa.array(items, pa.large_string()),
            "part": parts,
        }
    )


def sessions_of(rows: Any, part: int) -> pa.Table:
    """The events of sessions that are lists of items, or of pairs of such a list and one more item.

    >>> sessions_of([(["a"], "b"), ([], "b")], TEST)["user"].to_pylist()
    ['test 1', 'test 1', 'test 2']
    """
    if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
        raise InputError(f"{rows!r:.80} given as sessions; give lists of items: [['item a', 'item b'], ['item c']]")
    items: list[str] = []
    lengths: list[int] = []
    kinds: set[bool] = set()
    for number, row in enumerate(rows):
        if isinstance(row, str | bytes) or not isinstance(row, Iterable):
            raise InputError(f"session {number} is {row!r:.80} of type {type(row).__name__}; give a list of items")
        names = list(row)
        is_pair = len(names) == 2 and isinstance(names[0], Iterable) and not isinstance(names[0], str | bytes)
        names = [*names[0], names[1]] if is_pair else names
        items += [as_text(name, number) for name in names]
        lengths.append(len(names))
        kinds.add(is_pair)
        if len(kinds) > 1:
            raise InputError(f"session {number} is {row!r:.80}; give lists of items, or pairs of a list and an item")
    return sessions_table(items, np.array(lengths, np.int64), True in kinds, part)


def are_pairs(lines: Sequence[str], part: int) -> bool:
    """Whether lines are `item item …`, a tab and one more item. In training, two items and a tab are a session.

    >>> are_pairs(["1 2\\t3", "2\\t3", ""], TRAIN), are_pairs(["1\\t2", "2\\t3"], TRAIN), are_pairs(["1 2"], TEST)
    (True, False, False)
    """
    filled = [line for line in lines if line.strip()]
    has_spaces = any(" " in line.partition("\t")[0] for line in filled)
    return (part != TRAIN or has_spaces) and all(line.count("\t") == 1 for line in filled)
