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
        *,
        valid: Any = None,
        test: Any = None,
        **options: Any,
    ) -> Self:
        """Make one row per user from a table of events: pandas, polars, Arrow and others.

        valid, test: tables of the events to hold out, instead of `split`. Each is asked after all that precede it in
        the row of its user: first the training events, then those of valid, then those of test. options: those of
        `prepare interactions`, such as time, min_item_count and split.
        """
        import narwhals as nw

        from superbloom.prepare.interactions import from_interactions  # Ibis takes a second to import

        found = from_interactions(events, user, item, valid=valid, test=test, **options)
        made = cls(found.vocab, found.sequences, info=found.info)
        backend = nw.from_native(events).implementation.value
        made.backend = backend if backend in EAGER_BACKENDS else None
        return made

    @classmethod
    def from_sessions(cls, sessions: Any, *, valid: Any = None, test: Any = None, **options: Any) -> Self:
        """Make one row per session, a list of items in the order of time, without a user.

        valid, test: sessions to hold out, instead of `split`: all items but the first are asked, each after those
        before it. Or pairs of a list and an item: the item is asked after the list. options: those of
        `prepare interactions`, such as min_item_count and split.

        >>> made = Corpus.from_sessions([["a", "b"], ["b", "a", "b"]], test=[(["a"], "b")])
        >>> made.vocab.names(made.row(2)), made.num_asked("test")
        (['a', 'b'], 1)
        """
        from superbloom.prepare.interactions import from_sessions

        found = from_sessions(sessions, valid=valid, test=test, **options)
        return cls(found.vocab, found.sequences, info=found.info)
