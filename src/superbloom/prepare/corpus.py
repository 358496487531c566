"""superbloom.Corpus, the class that users import: corpus.Corpus with a constructor for tables of events.

It is not in corpus/, because that constructor needs prepare/interactions/, which comes later in the order of packages.
"""

from __future__ import annotations

from typing import Any, Self

from superbloom import corpus
from superbloom.config import InteractionsOptions

EAGER_BACKENDS = ("pandas", "polars", "pyarrow", "modin", "cudf")  # libraries whose tables can be built from columns


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
        """Make one row per user from a table of events: pandas, polars, Arrow and others.

        options: those of `prepare interactions`, such as time, min_item_count and split.
        """
        import narwhals as nw

        from superbloom.prepare.interactions import from_interactions  # Ibis takes a second to import

        found = from_interactions(events, user, item, **options)
        made = cls(found.vocab, found.sequences, info=found.info)
        backend = nw.from_native(events).implementation.value
        made.backend = backend if backend in EAGER_BACKENDS else None
        return made
