"""Number the names of rows: rows of names in, a vocabulary and one id per name out.

Rows are read once. `Numbering` keeps four bytes per occurrence of a name, so rows may come straight from a large file.
Ids are assigned at the end, by falling count. Names that are too rare, or beyond the largest allowed number of names,
get no id.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from operator import index
from typing import Any

import numpy as np

from superbloom.corpus.vocab import Vocab
from superbloom.errors import InputError, check_whole

NO_ID = -1  # of a name that was left out


class Numbering:
    """Provisional numbers of names, in order of appearance.

    >>> numbering = Numbering()
    >>> numbering.add(["Oslo", "Denmark", "Denmark"], row_number=0), numbering.add(["Aarhus"], row_number=1)
    (3, 1)
    >>> vocab, ids = numbering.vocab(min_count=1, max_names=2)
    >>> vocab.names([0, 1]), ids.tolist()
    (['Denmark', 'Aarhus'], [-1, 0, 0, 1])
    """

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.occurrences = array("i")

    def add(self, row: Sequence[str], row_number: int) -> int:
        """Number the names of a row and return their count; row_number is for error messages."""
        if isinstance(row, str | bytes) or not isinstance(row, Iterable):
            raise InputError(f"row {row_number} is {row!r:.80} of type {type(row).__name__}; give a list of names")
        numbers, before = self.numbers, len(self.occurrences)
        for name in row:
            if type(name) is not str:
                name = as_text(name, row_number)
            self.occurrences.append(numbers.setdefault(name, len(numbers)))
        return len(self.occurrences) - before

    @property
    def num_names(self) -> int:
        """The number of distinct names."""
        return len(self.numbers)

    def vocab(
        self, min_count: int, max_names: int | None, counted: np.ndarray | slice = slice(None)
    ) -> tuple[Vocab, np.ndarray]:
        """Return the vocabulary and the id of every occurrence, int32; NO_ID where the name is left out.

        counted: the occurrences that count, as an index. All occurrences get ids.
        """
        occurrences = np.frombuffer(self.occurrences, dtype=np.int32) if self.occurrences else np.empty(0, np.int32)
        check_enough_names(len(self.numbers), len(self.numbers), 1, None, 1)
        vocab, ids = Vocab.from_arrays(
            list(self.numbers), np.bincount(occurrences[counted], minlength=len(self.numbers))
        )
        kept = int((vocab.counts >= min_count).sum())
        kept = kept if max_names is None else min(kept, max_names)
        check_enough_names(kept, len(vocab), min_count, max_names, vocab.counts[0])
        if kept < len(vocab):
            names = vocab.table["name"].chunk(0).slice(0, kept).to_pylist()
            vocab, _ = Vocab.from_arrays(names, vocab.counts[:kept])
        ids = np.where(ids < kept, ids, np.int32(NO_ID))
        return vocab, ids[occurrences]


def check_name_limits(min_count: int, max_names: int | None) -> None:
    """Raise InputError unless both are whole numbers from 1; max_names may be None."""
    check_whole(min_count=min_count, max_names=1 if max_names is None else max_names)


def check_enough_names(kept: int, names: int, min_count: int, max_names: int | None, highest_count: int) -> None:
    """Refuse a vocabulary of fewer than two names: a model learns nothing from it."""
    if names < 2:
        raise InputError(f"the rows hold {names} distinct names; at least 2 are needed")
    if kept < 2:
        raise InputError(
            f"{kept} of {names:,} names are left by min_count={min_count}, max_names={max_names}; "
            f"at least 2 are needed (the most frequent name occurs {highest_count:,} times)"
        )


def as_text(value: Any, row_number: int) -> str:
    """Return a name or key as text. Text and whole numbers are allowed; booleans and all else are not."""
    if isinstance(value, str):
        return str(value)
    try:
        if not isinstance(value, bool):
            return str(index(value))
    except TypeError:
        pass
    raise InputError(f"row {row_number} holds {value!r:.80} of type {type(value).__name__}; give text or whole numbers")


def zip_equal(first: Iterable[Any], second: Iterable[Any], *nouns: str) -> Iterator[tuple[Any, Any]]:
    """Zip two iterables; raise InputError if one is longer, since its rest would silently be lost."""
    missing = object()
    for number, pair in enumerate(zip_longest(first, second, fillvalue=missing)):
        if pair[0] is missing or pair[1] is missing:
            short, long = nouns if pair[0] is missing else reversed(nouns)
            raise InputError(f"{number:,} {short} but more {long} given; give the same number of both")
        yield pair
