"""What is held out of the rows of a log for validation and test: by a rule, or as the user's own files say.

With files, a row has its training events first, then those of --valid, then those of --test. Every held-out element
is asked that another one precedes. The context of a pair (columns.py) is in no split: nothing is learnt from it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
import pyarrow as pa

from superbloom.config import InteractionsOptions
from superbloom.config.readers import Split
from superbloom.corpus import SPLITS, Corpus, split_of
from superbloom.prepare.interactions.columns import CONTEXT, TEST, VALID
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


def own_cuts(parts: np.ndarray, keys: pa.Array, offsets: np.ndarray, options: InteractionsOptions) -> Cuts:
    """Cut rows as files say. parts: what each event is for (columns.py), ascending within each row.

    Without --valid, validation asks the last element of each row of three or more training elements, as --split last
    does. Sessions are held out whole, by their keys, as --split user does.
    """
    begins = offsets[:-1]
    valid_from, test_from = (np.add.reduceat(parts < part, begins, dtype=np.int32) for part in (VALID, TEST))
    has_context = np.logical_or.reduceat(parts == CONTEXT, begins)
    split = np.where(has_context, np.maximum.reduceat(parts, begins) - CONTEXT, SPLITS["train"])
    if not options.valid and options.format == "sessions":
        is_valid = (split == SPLITS["train"]) & (valid_from >= 2) & (split_of(keys.to_pylist()) == SPLITS["valid"])
        valid_from = np.where(is_valid, 1, valid_from)
        split = np.where(is_valid, SPLITS["valid"], split)
    elif not options.valid:
        valid_from = valid_from - ((split == SPLITS["train"]) & (valid_from >= 3))
    return Cuts(split.astype(np.int8), valid_from.astype(np.int32), test_from)


def own_rule(options: InteractionsOptions) -> str:
    """How files hold out elements, in words."""
    without = "the last training element of each row of 3 or more"
    if options.format == "sessions":
        without = "sessions whose key's md5 says validation"
    valid = "the events given for validation" if options.valid else without
    return f"validation: {valid}; test: {'the events given for the test' if options.test else 'nothing'}"


def held_out_counts(corpus: Corpus) -> dict[str, dict[str, int]]:
    """Per split: how many elements are asked, of how many names that no training row has, and how many are not asked.

    Not asked are elements that nothing precedes in their row.
    """
    trained = corpus.id_counts("train")
    found = {}
    for name in corpus.cuts:
        rows, positions = corpus.asked(name)
        begin = corpus.cuts[name]
        end = corpus.cuts["test"] if name == "valid" else np.diff(corpus.offsets)
        ids = corpus.ids[corpus.offsets[rows] + positions]
        counts = {
            "asked": len(rows),
            "asked that are in no training row": int((trained[ids] == 0).sum()),
            "not asked: nothing precedes them": int(((begin == 0) & (end > 0)).sum()),
        }
        found[name] = {what: count for what, count in counts.items() if count or what == "asked"}
    return found
