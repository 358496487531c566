"""What is held out of the rows of a log for validation and test."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
import pyarrow as pa

from superbloom.config.readers import Split
from superbloom.corpus import SPLITS, split_of
from superbloom.prepare.scratch import mapped

# As corpus.json describes them.
SPLIT_RULES: dict[Split, str] = {
    "last": "the last element of each row of 3 or more is for the test, the one before it for validation",
    "time": "the last 10 % of all events are for the test, the last 5 % of those before them for validation, by time",
    "user": "of users whose key's md5 says test or validation, the last element; all elements of the others train",
}
assert set(SPLIT_RULES) == set(get_args(Split))


class Cuts(NamedTuple):
    """The split of each row, and the positions in it where the elements for validation and for the test begin."""

    split: np.ndarray
    valid_from: np.ndarray
    test_from: np.ndarray


def cut_rows(rule: Split, keys: pa.Array, offsets: np.ndarray, times: np.ndarray | None, folder: Path) -> Cuts:
    """Cut rows by a rule. times: those of all events, for the rule "time"; a copy of them goes to the folder."""
    lengths = np.diff(offsets)
    split = np.zeros(len(lengths), np.int8)
    if rule == "last":
        is_long = lengths >= 3
        return Cuts(split, lengths - 2 * is_long, lengths - is_long)
    if rule == "user":
        split = split_of(keys.to_pylist())
        return Cuts(split, lengths - (split != SPLITS["train"]), lengths - (split == SPLITS["test"]))
    assert times is not None
    total = len(times)
    ranks = [total * 855 // 1000, total * 9 // 10]  # 5 % of the first 90 %, and 10 %
    by_time = mapped(folder / "by-time", times.dtype.type, total)
    by_time[:] = times
    by_time.partition(ranks)
    valid_from, test_from = (np.add.reduceat(times < by_time[rank], offsets[:-1], dtype=np.int32) for rank in ranks)
    return Cuts(split, valid_from, test_from)
