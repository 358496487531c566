"""Add a newer corpus to a memory: its rows join the remembered ones, and its pairs are added to theirs.

Nothing is counted twice. A row whose key is remembered and that begins with the remembered row has grown: only what is
new in it is counted, and the longer row takes the place of the shorter one. So a newer log may hold only what is new,
or everything again. Beyond the limit of rows, the oldest are forgotten; pairs stay counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from superbloom.corpus import Corpus
from superbloom.errors import InputError
from superbloom.memory.events import Events, runs, taken
from superbloom.memory.keys import as_array, shortened
from superbloom.memory.memory import Memory, can_remember, count_pairs
from superbloom.memory.pairs import UNITS, WINDOW_IDS, Counted, added
from superbloom.memory.rows import MAX_ROW_EVENTS, Rows

FINGERPRINT_DIGITS = 64
SPARE = 4  # what is added is counted with this many times the neighbours that are kept, since small sums add up
REPLACE = "--replace, in Python replace=True"


class Added(NamedTuple):
    """The larger memory, the number of rows that the corpus has, and how many of them were remembered already."""

    memory: Memory
    rows: int
    known: int


def is_remembered(memory: Memory, fingerprint: str) -> bool:
    """Whether a corpus with this fingerprint was counted."""
    counted = memory.corpus
    return fingerprint in (counted[at : at + FINGERPRINT_DIGITS] for at in range(0, len(counted), FINGERPRINT_DIGITS))


def add(memory: Memory, corpus: Corpus, splits: Sequence[str], fingerprint: str, **counting: Any) -> Added | None:
    """Add the rows of these splits. None if the corpus cannot be remembered, or has no such rows.

    fingerprint: that of the corpus as it was prepared, before its ids became those of the model. counting: where pairs
    are counted, as remember takes it.
    """
    if not can_remember(corpus):
        return None
    if memory.half_life is not None:
        raise InputError(
            f"this memory has a half-life of {memory.half_life:g} events, so new events make older ones count less; "
            f"give the whole newer log, to be counted again: {REPLACE}"
        )
    if is_remembered(memory, fingerprint) or is_remembered(memory, corpus.fingerprint()):
        raise InputError(
            "this corpus is remembered already, so nothing is changed; give a corpus with newer rows, or replace the "
            f"memory by it: {REPLACE}"
        )
    events = Events.of(corpus, splits)
    if not len(events.row):
        return None
    keys = shortened(corpus.sequences["key"].chunk(0).take(pa.array(events.row)))
    kept = None if memory.rows is None else _Kept.of(memory.rows, events.num_ids)
    begins, superseded = _known_beginnings(events, keys, kept)
    is_known = begins == np.diff(events.starts)
    if is_known.all():
        raise InputError(
            f"all {len(is_known):,} rows of this corpus are remembered already, so nothing is changed; give a corpus "
            f"with newer rows, or replace the memory by it: {REPLACE}"
        )
    pairs, rows = memory.pairs, None
    if pairs is not None:
        counted = count_pairs(_without_beginnings(events, begins), SPARE * memory.neighbours, **counting)
        pairs = added(pairs, counted, _across(events, begins), memory.neighbours)
    if kept is not None:
        rows = _joined(kept, superseded, events, keys, ~is_known)
    larger = replace(memory, pairs=pairs, rows=rows, corpus=memory.corpus + fingerprint)
    return Added(larger, len(is_known), int((begins > 0).sum()))


class _Kept(NamedTuple):
    """The remembered rows, whole, and their keys if there are any."""

    events: Events
    keys: pa.Array | None

    @classmethod
    def of(cls, rows: Rows, num_ids: int) -> _Kept:
        number = np.arange(len(rows.starts) - 1) if rows.row is None else rows.row
        first = np.flatnonzero(np.diff(number, prepend=-1))
        starts = np.append(rows.starts[first], rows.starts[-1])
        keys = None
        if rows.key_starts is not None and rows.key_text is not None:
            keys = as_array(rows.key_starts, rows.key_text)
        ids = taken(rows.ids, slice(None), num_ids)
        return cls(Events(ids, np.arange(len(first)), starts, num_ids), keys)


def _known_beginnings(events: Events, keys: pa.Array, kept: _Kept | None) -> tuple[np.ndarray, np.ndarray]:
    """How many ids at the beginning of each row are remembered, (rows,); and which remembered rows they are, (any,)."""
    begins = np.zeros(len(events.row), np.int64)
    if kept is None or kept.keys is None:
        return begins, np.zeros(0, np.int64)
    table = _Unmatched(kept, np.flatnonzero(pc.is_in(kept.keys, value_set=keys).to_numpy(zero_copy_only=False)))
    rows = np.flatnonzero(pc.is_in(keys, value_set=kept.keys).to_numpy(zero_copy_only=False))
    named = list(zip(rows.tolist(), keys.take(pa.array(rows)).to_pylist(), strict=True))
    contents = [events.ids[events.starts[row] : events.starts[row + 1]].tobytes() for row in rows]
    size_of_id = events.ids.itemsize
    # Equal rows first: where several rows have one key, none is taken for the beginning of another.
    for (row, key), content in zip(named, contents, strict=True):
        if table.take(key, content) is not None:
            begins[row] = len(content) // size_of_id
    superseded: list[int] = []
    for (row, key), content in zip(named, contents, strict=True):
        at, matched = begins[row] * size_of_id, []
        while at < len(content) and (match := table.take_beginning(key, content[at:])) is not None:
            size, other = match
            at += size
            matched.append(other)
        begins[row] = at // size_of_id
        superseded += matched if at < len(content) else []  # a row without anything new is not added
    return begins, np.array(superseded, np.int64)


class _Unmatched:
    """Remembered rows by key and content. Each is taken once."""

    def __init__(self, kept: _Kept, numbers: np.ndarray) -> None:
        assert kept.keys is not None
        self._rows: dict[tuple[str, bytes], list[int]] = {}
        self._sizes: dict[str, set[int]] = {}
        starts = kept.events.starts
        for number, key in zip(numbers.tolist(), kept.keys.take(pa.array(numbers)).to_pylist(), strict=True):
            content = kept.events.ids[starts[number] : starts[number + 1]].tobytes()
            self._rows.setdefault((key, content), []).append(number)
            self._sizes.setdefault(key, set()).add(len(content))

    def take(self, key: str, content: bytes) -> int | None:
        """The number of a row of this key with exactly these ids."""
        found = self._rows.get((key, content))
        return found.pop() if found else None

    def take_beginning(self, key: str, content: bytes) -> tuple[int, int] | None:
        """The longest row of this key that the ids begin with: its size in bytes, and its number."""
        for size in sorted(self._sizes[key], reverse=True):
            if size <= len(content) and (number := self.take(key, content[:size])) is not None:
                return size, number
        return None


def _without_beginnings(events: Events, begins: np.ndarray) -> Events:
    lengths = np.diff(events.starts) - begins
    ids = events.ids[runs(events.starts[:-1] + begins, lengths)]
    return Events(ids, events.row, np.concatenate([[0], np.cumsum(lengths)]), events.num_ids)


def _across(events: Events, begins: np.ndarray) -> Counted:
    """Pairs of a remembered id and a new one in rows that have grown."""
    has_grown = begins > 0
    begin, end = events.starts[:-1][has_grown], events.starts[1:][has_grown]
    border = begin + begins[has_grown]
    firsts, seconds, sums = [], [], []
    for back in range(1, WINDOW_IDS + 1):
        for ahead in range(WINDOW_IDS + 1 - back):
            inside = (border - back >= begin) & (border + ahead < end)
            old, new = events.ids[border[inside] - back], events.ids[border[inside] + ahead]
            firsts += [old, new]
            seconds += [new, old]
            sums.append(UNITS // (back + ahead) * np.repeat([1 + 1j, 1], len(old)))
    return Counted(*(np.concatenate(part) for part in (firsts, seconds, sums)))


def _joined(kept: _Kept, superseded: np.ndarray, events: Events, keys: pa.Array, is_new: np.ndarray) -> Rows:
    """The remembered rows, without those that have grown, and then the new ones; at most MAX_ROW_EVENTS ids."""
    sources = (kept.events, np.setdiff1d(kept.events.row, superseded)), (events, np.flatnonzero(is_new))
    lengths = [np.diff(source.starts)[chosen] for source, chosen in sources]
    parts = [
        source.ids[runs(source.starts[chosen], length)]
        for (source, chosen), length in zip(sources, lengths, strict=True)
    ]
    starts = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    first = int(np.searchsorted(starts, starts[-1] - MAX_ROW_EVENTS))  # rows before it are the oldest: forgotten
    first = min(first, len(starts) - 2)
    ids = np.concatenate(parts)[starts[first] :]
    joined = Events(ids, np.arange(len(starts) - 1 - first), starts[first:] - starts[first], events.num_ids)
    names = None
    if kept.keys is not None:
        names = pa.concat_arrays([kept.keys.take(pa.array(sources[0][1])), keys.take(pa.array(sources[1][1]))])[first:]
    return Rows.keep(joined, most=len(ids), keys=names)
