"""A query in ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from superbloom.search import Combine, is_sum
from superbloom.special import Special


@dataclass(frozen=True)
class Query:
    """What is asked of a model, in ids and checked: a context with the places to predict, and which ids may answer."""

    ids: tuple[int, ...]  # special ids among them
    k: int
    beam: int | None = None
    max_rounds: int | None = None
    combine: str | Sequence[float] | Combine = "sum"
    exclude: tuple[int, ...] = ()
    allow: tuple[int, ...] | None = None
    min_score: float | None = None
    explain: bool = False
    unread: tuple[str, ...] = ()  # words of a text that no entry spells

    @property
    def places(self) -> list[int]:
        return [place for place, id_ in enumerate(self.ids) if id_ == Special.MASK]

    @property
    def elements(self) -> list[int]:
        """Places of what is known."""
        return [place for place, id_ in enumerate(self.ids) if id_ >= 0]

    @property
    def frame(self) -> int:
        """How many special ids stand before what was given, and behind it: of a text [CLS] and [SEP]."""
        return int(self.ids[0] == Special.CLS)

    @property
    def given(self) -> tuple[int, ...]:
        return self.ids[self.frame : len(self.ids) - self.frame]

    @property
    def contexts(self) -> list[tuple[int, ...]]:
        """What the network has to read: the context, and to explain, the same without each of its elements."""
        without = [(*self.ids[:p], int(Special.MASK), *self.ids[p + 1 :]) for p in self.elements if self.explain]
        return [self.ids, *without]

    @property
    def rows(self) -> int:
        """How many distributions this takes."""
        return len(self.places) * (1 + len(self.elements) * self.explain)

    @property
    def searched_with(self) -> tuple[Any, ...] | None:
        """Queries with equal ones may be searched together; None may not."""
        alone = self.allow is not None or not is_sum(self.combine)
        return None if alone else (self.k, self.beam, self.max_rounds)


def parts(queries: Sequence[Query], rows: int) -> Iterator[Sequence[Query]]:
    """Queries in turn, as many at a time as take up to so many rows; at least one."""
    start, taken = 0, 0
    for number, query in enumerate(queries):
        if taken and taken + query.rows > rows:
            yield queries[start:number]
            start, taken = number, 0
        taken += query.rows
    if taken:
        yield queries[start:]


def padded(rows: Sequence[Any], fill: int) -> Tensor:
    """Rows of ids as one matrix, filled up.

    >>> padded([(1, 2), (3,)], -1).tolist()
    [[1, 2], [3, -1]]
    """
    return pad_sequence([torch.as_tensor(row, dtype=torch.long) for row in rows], True, fill)
