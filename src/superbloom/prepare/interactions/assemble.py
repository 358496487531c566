"""Sorted events → the corpus: ids by falling count, ties by name, and a row per user.

Memory holds the names, the length of each row and four bytes per event, which are mapped to a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from superbloom.config import InteractionsOptions
from superbloom.corpus import Corpus, Vocab
from superbloom.errors import InputError
from superbloom.prepare.interactions.events import Events
from superbloom.prepare.interactions.split import SPLIT_RULES, cut_rows, held_out_counts, own_cuts, own_rule
from superbloom.prepare.report import Report
from superbloom.prepare.scratch import mapped
from superbloom.progress import Watch

CHUNK_EVENTS = 2**22
BATCH_EVENTS = 2**18
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
        users = events.table("users")
        if not len(users):
            raise InputError(
                f"no user has {options.min_user_count} events left; lower --min-user-count or --min-item-count"
            )
        offsets = np.concatenate([[0], np.cumsum(users["count"].to_numpy(), dtype=np.int64)])
        ids, times, parts = _read_events(events, int(offsets[-1]), options)
        vocab = _number(ids, events.table("items"))
        keys = _one_chunk(users["user"].cast(pa.large_string()))
        rule = options.split
        if rule:
            cuts = cut_rows(rule, keys, offsets, times, events.folder)
        else:
            assert parts is not None
            cuts = own_cuts(parts, keys, offsets, options)
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


def _read_events(
    events: Events, total: int, options: InteractionsOptions
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """The item number of each event, its time for split="time", and what it is for if files say it, in mapped files."""
    ids = mapped(events.folder / "ids", np.int32, total)
    times = parts = None
    if options.split == "time":
        times = mapped(events.folder / "times", np.float64 if events.seen.fractions else np.int64, total)
    if options.is_split:
        parts = mapped(events.folder / "parts", np.int8, total)
    more = ["at"] if times is not None else ["part"] if parts is not None else []
    filled = 0
    for batch in _batches(events.parts("sorted"), ["number", *more]):
        here = slice(filled, filled := filled + len(batch))
        ids[here] = batch["number"].to_numpy()
        if times is not None:
            times[here] = _time_numbers(batch["at"])
        if parts is not None:
            parts[here] = batch["part"].to_numpy()
    assert filled == total
    return ids, times, parts


def _batches(parts: Sequence[Path], columns: list[str]) -> Iterator[pa.RecordBatch]:
    for part in parts:
        with pq.ParquetFile(part, pre_buffer=False) as file:
            yield from file.iter_batches(BATCH_EVENTS, columns=columns, use_threads=False)


def _time_numbers(times: pa.Array) -> np.ndarray:
    times = times.cast(pa.timestamp("us")) if pa.types.is_date(times.type) else times
    return (times.cast(pa.int64()) if pa.types.is_timestamp(times.type) else times).to_numpy()


def _number(ids: np.ndarray, items: pa.Table) -> Vocab:
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
    names = _one_chunk(items["item"].cast(pa.large_string())).take(pa.array(ranked))
    return Vocab.from_ranked(names, counts[ranked])


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


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
