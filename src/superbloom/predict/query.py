"""A query in ids: a context with the places to predict, the ids that may be returned, and the options.

reader.py makes queries from names or text. predictor.py answers many of them together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from superbloom.config import QueryOptions
from superbloom.search import is_posterior
from superbloom.special import Special


@dataclass(frozen=True)
class Query:
    """One query. Its options are checked, and its names are ids."""

    ids: tuple[int, ...]  # the context, special ids included
    options: QueryOptions
    exclude: tuple[int, ...] = ()
    allow: tuple[int, ...] | None = None
    unread: tuple[str, ...] = ()  # words of a text that no entry of the vocabulary spells

    @property
    def k(self) -> int:
        return self.options.k

    @property
    def places(self) -> list[int]:
        """Positions of the masks."""
        return [place for place, id_ in enumerate(self.ids) if id_ == Special.MASK]

    @property
    def elements(self) -> list[int]:
        """Positions of the known ids."""
        return [place for place, id_ in enumerate(self.ids) if id_ >= 0]

    @property
    def frame(self) -> int:
        """Number of special ids before the context, and after it: text stands between [CLS] and [SEP]."""
        return int(self.ids[0] == Special.CLS)

    @property
    def given(self) -> tuple[int, ...]:
        """The context without that frame."""
        return self.ids[self.frame : len(self.ids) - self.frame]

    @property
    def contexts(self) -> list[tuple[int, ...]]:
        """What the network reads: the context and, to explain an answer, the context without each of its elements."""
        hidden = self.elements if self.options.explain else []
        return [self.ids, *((*self.ids[:place], int(Special.MASK), *self.ids[place + 1 :]) for place in hidden)]

    @property
    def rows(self) -> int:
        """Number of distributions that the query takes."""
        return len(self.places) * (1 + len(self.elements) * self.options.explain)

    @property
    def group(self) -> tuple[Any, ...] | None:
        """Queries of equal groups are searched together; a query without a group is searched alone."""
        options = self.options
        alone = self.allow is not None or not (options.combine is None or is_posterior(options.combine))
        return None if alone else (options.k, options.beam, options.max_rounds, options.combine)


def parts(queries: Sequence[Query], rows: int) -> Iterator[Sequence[Query]]:
    """Consecutive queries that take up to `rows` distributions together; at least one query each."""
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
