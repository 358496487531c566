"""The corpus class that users import: corpus.Corpus, also made from a DataFrame of events."""

from __future__ import annotations

from typing import Any, Self

from superbloom import corpus
from superbloom.config import InteractionsOptions

EAGER = ("pandas", "polars", "pyarrow", "modin", "cudf")  # libraries whose tables can be made from columns


class Corpus(corpus.Corpus):
    """Rows of ids and the vocabulary they come from.

    >>> made = Corpus.from_sequences([["Copenhagen", "Denmark"], ["Denmark", "Oslo", "Denmark"]])
    >>> made.vocab.names(made.row(1)), made.num_ids, len(made)
    (['Denmark', 'Oslo', 'Denmark'], 3, 2)
    """

    @classmethod
    def from_interactions(
        cls,
        events: Any,
        user: str | int = InteractionsOptions.user,
        item: str | int = InteractionsOptions.item,
        **options: Any,
    ) -> Self:
        """One row per user from a table of events: pandas, polars, Arrow and others.

        options: those of `prepare interactions`: time, min_item_count, split and more.
        """
        import narwhals as nw

        from superbloom.prepare.interactions import from_interactions  # Ibis takes a second to import

        found = from_interactions(events, user, item, **options)
        made = cls(found.vocab, found.sequences, info=found.info)
        backend = nw.from_native(events).implementation.value
        made.backend = backend if backend in EAGER else None
        return made
