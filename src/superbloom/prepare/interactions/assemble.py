"""Sorted events → the corpus: ids by falling count, ties by name, and a row per user.

Memory holds the names, the length of each row and four bytes per event, which are mapped to a file.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from superbloom.config import InteractionsOptions
from superbloom.corpus import Corpus, Vocab
from superbloom.errors import InputError
from superbloom.prepare.interactions.events import Events
from superbloom.prepare.interactions.split import SPLIT_RULES, cut_rows, held_out_counts, own_cuts, own_rule
from superbloom.prepare.report import Report
from superbloom.progress import Watch

CHUNK_EVENTS = 2**22
# Options that say nothing about the corpus.
HOW_IT_IS_READ = ("engine", "memory", "format", "encoding", "valid", "test")


@dataclass
class InteractionsReport(Report):
    """dropped: the number of events left out, by reason. held_out: what is asked, per split, if files say it."""

    dropped: dict[str, int] = field(default_factory=dict)
    held_out: dict[str, dict[str, int]] = field(default_factory=dict)

    train_options: ClassVar[str] = "--preset sequence "

    def table(self) -> list[tuple[str, str]]:
        left_out = [(f"{count:,}", f"events {reason}: left out") for reason, count in self.dropped.items()]
        asked = [
            (f"{count:,}", f"{split} elements {what}")
            for split, counts in self.held_out.items()
            for what, count in counts.items()
        ]
        return left_out + super().table() + asked

    def document(self) -> dict[str, Any]:
        found = {"dropped": self.dropped, "held out": self.held_out}
        return super().document() | {name: counts for name, counts in found.items() if counts}


def assemble(events: Events, options: InteractionsOptions, source: str, watch: Watch) -> Corpus:
    """The corpus of sorted events. It stays usable after its temporary files are removed."""
    with watch("numbering items", None, False):
        if not len(events.users):
            raise InputError(
                f"no user has {options.min_user_count} events left; lower --min-user-count or --min-item-count"
            )
        offsets = np.concatenate([[0], np.cumsum(events.lengths)])
        ids, keys = events.ids, events.users
        assert len(ids) == offsets[-1]
        vocab = _number(ids, events.items)
        rule = options.split
        if rule:
            cuts = cut_rows(rule, keys, offsets, events.times, events.folder)
        else:
            assert events.parts is not None
            cuts = own_cuts(events.parts, keys, offsets, options)
    values = pa.Array.from_buffers(pa.int32(), len(ids), [None, pa.py_buffer(ids)])  # without a copy
    sequences = pa.table(
        {
            "key": keys,
            "ids": pa.LargeListArray.from_arrays(pa.array(offsets), values),
            "split": cuts.split,
            "valid_from": pa.array(cuts.valid_from, pa.int32()),
            "test_from": pa.array(cuts.test_from, pa.int32()),
        }
    )
    info = {
        "source": source,
        "options": {name: value for name, value in asdict(options).items() if name not in HOW_IT_IS_READ},
        "dropped": _dropped(events, options, len(ids)),
        "split": SPLIT_RULES[rule] if rule else own_rule(options),
    }
    if rule:
        return Corpus(vocab, sequences, info=info)
    corpus = Corpus(vocab, sequences, info=info | {"asks": "every"})
    corpus.info["held out"] = held_out_counts(corpus)
    return corpus


def _number(ids: np.ndarray, items: pa.LargeStringArray) -> Vocab:
    """The vocabulary by falling count. ids are numbers by name at first, and are changed in place."""
    counts = np.zeros(len(items), np.int64)
    for start in range(0, len(ids), CHUNK_EVENTS):
        counts += np.bincount(ids[start : start + CHUNK_EVENTS], minlength=len(items))
    ranked = np.argsort(-counts, kind="stable")  # stable: equal counts stay in the order of names
    ranked = ranked[: np.count_nonzero(counts)]
    if len(ranked) < 2:
        raise InputError(f"{len(ranked)} items are left by min_user_count; at least 2 are needed: lower it")
    new = np.empty(len(items), np.int32)
    new[ranked] = np.arange(len(ranked), dtype=np.int32)
    for start in range(0, len(ids), CHUNK_EVENTS):
        ids[start : start + CHUNK_EVENTS] = new[ids[start : start + CHUNK_EVENTS]]
    return Vocab.from_ranked(items.take(pa.array(ranked)), counts[ranked])


def _dropped(events: Events, options: InteractionsOptions, kept: int) -> dict[str, int]:
    """The number of events left out, by reason, in the order of the steps."""
    counts, unreadable = events.counts, events.seen.unreadable
    complete = counts["events"] - counts["user"] - counts["item"] - counts["at"]
    dropped = {
        "without a rating": events.seen.unrated,
        f"rated below {options.min_rating or 0:g}": events.seen.rated_low,
        "without a user": counts["user"],
        "without an item": counts["item"],
        "without a time": counts["at"] - unreadable,
        "with a time that cannot be read": unreadable,
        "repeated": complete - counts["counted"],
        f"of items with fewer than {options.min_item_count} events": counts["counted"] - counts["frequent"],
        "of items beyond the most frequent": counts["frequent"] - counts["kept"],
        f"of users with fewer than {options.min_user_count} events": counts["kept"] - kept,
    }
    return {reason: count for reason, count in dropped.items() if count}
