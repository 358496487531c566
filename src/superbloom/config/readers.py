"""The options of the readers: `prepare sequences`, `interactions`, `wikipedia`, `text` and `synthetic`.

Memory is a number of bytes here and everywhere in Python. Only the command line takes GB.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from numbers import Integral
from typing import Any, Literal, TypeVar

from superbloom.config.option import (
    BETWEEN_0_AND_1,
    FINITE,
    NOT_NEGATIVE,
    POSITIVE,
    SEED,
    Allowed,
    faults,
    make,
    option,
    settle,
    whole,
)

T = TypeVar("T")

# The options of InteractionsOptions that say how a log is read, not what is left out of it or held out.
HISTORY_OPTIONS = (
    *("user", "item", "time", "time_format", "rating", "min_rating", "drop_repeats"),
    *("engine", "memory", "format", "encoding"),
)

GB = 10**9
DEFAULT_MEMORY_BYTES = 2 * GB
MIN_MEMORY_BYTES, MAX_MEMORY_BYTES = GB // 4, 100_000 * GB
MAX_LIST_SETS = 1_000_000  # sets of lists that a row of a made-up world may have
MIN_ITEM_COUNT = 5  # events of an item, unless files say what is held out

Split = Literal["last", "time", "user"]
EngineName = Literal["duckdb", "spark"]
LogFormat = Literal["auto", "table", "lines", "sessions", "jsonl"]
OnBadBytes = Literal["strict", "replace"]


def reader_options(kind: type[T], options: T | None, given: Mapping[str, Any]) -> T:
    """These options, or the defaults, with single ones replaced by name; InputError if a name is unknown.

    >>> reader_options(WikipediaOptions, WikipediaOptions(strict=True), {"min_count": 5}).min_count
    5
    """
    return make(kind, (vars(options) if options else {}) | dict(given))


def _held_out_files(what: str, without: str) -> Any:
    return option((), f"A file of {what}.", shown_default=without)


def _settle_files(options: Any) -> None:
    """Make tuples of what was given as held-out files: one path, several, or None."""
    for name in ("valid", "test"):
        files = getattr(options, name)
        files = () if files is None else (files,) if isinstance(files, str | os.PathLike) else files
        object.__setattr__(options, name, tuple(map(os.fspath, files)))


def _memory(help: str, low: int) -> int:
    text = f"{low:,} to {MAX_MEMORY_BYTES:,} bytes ({low / GB:g} to {MAX_MEMORY_BYTES // GB:,} GB)"
    value: int = option(DEFAULT_MEMORY_BYTES, help, Allowed(low, MAX_MEMORY_BYTES, text), gigabytes=True)
    return value


@dataclass(frozen=True, kw_only=True)
class SequencesOptions:
    """Text files with one sequence of names per line."""

    sep: str = option("\t", "What separates names: ' ', ',' …", shown_default="a tab")
    keyed: bool = option(
        False, "The first field names the row (a user, a page) and is no element of it.", flag="--keyed"
    )
    max_names: int | None = option(None, "Keep only the most frequent names.", whole(1))
    min_count: int = option(1, "Leave out names that occur less often.", whole(1))
    valid: tuple[str, ...] = _held_out_files("validation rows", "by the keys of rows")
    test: tuple[str, ...] = _held_out_files("test rows", "by the keys of rows; none with --valid")

    def __post_init__(self) -> None:
        _settle_files(self)
        settle(self, *([] if self.sep else ["sep='': a tab, ' ', ',' or another text is allowed"]))


@dataclass(frozen=True, kw_only=True)
class InteractionsOptions:
    """A log of users and the items they chose (docs/recommendation.md)."""

    user: str = option("user_id", "Column of users; its number, from 0, if there is no header.")
    item: str = option("item_id", "Column of items.")
    time: str | None = option(None, "Column of times.", shown_default="events lie in order")
    time_format: str | None = option(
        None, "How times are written: '%d.%m.%Y %H:%M'.", shown_default="numbers, timestamps or ISO dates"
    )
    rating: str | None = option(None, "Column of ratings or weights, for --min-rating.")
    min_rating: float | None = option(None, "Leave out events with a lower rating.", FINITE)
    min_item_count: int | None = option(
        None,
        "Leave out items with fewer events.",
        whole(1),
        shown_default=f"{MIN_ITEM_COUNT}; 1 with --valid or --test",
    )
    min_user_count: int = option(2, "Leave out users with fewer events left.", whole(1))
    max_names: int | None = option(None, "Keep only the most frequent items.", whole(1))
    split: Split | None = option(
        None,
        "What is held out. last: the end of each row; time: the last 10 % of events; user: some rows.",
        shown_default="last",
    )
    valid: tuple[str, ...] = _held_out_files(
        "validation events, instead of --split", "by --split; the end of training rows with --test"
    )
    test: tuple[str, ...] = _held_out_files("test events, instead of --split", "by --split; none with --valid")
    drop_repeats: bool = option(False, "Keep only the first event of a user with each item.", flag="--drop-repeats")
    engine: EngineName = option("duckdb", "duckdb, or spark for logs beyond one machine.")
    memory: int = _memory("Memory to use: GB on the command line, bytes in Python.", MIN_MEMORY_BYTES)
    format: LogFormat = option(
        "auto",
        "auto, table, jsonl: an object per line, lines: a user and the items in order on each line, or sessions: only "
        "the items.",
    )
    encoding: str = option("utf-8", "Encoding of text: utf-8, latin-1 …")

    def __post_init__(self) -> None:
        for name in ("user", "item", "time", "rating"):
            if isinstance(place := getattr(self, name), Integral):  # the number of a column
                object.__setattr__(self, name, str(place))
        _settle_files(self)
        settle(self, *self._conflicts())

    @property
    def is_split(self) -> bool:
        """Whether files or tables say what is held out, instead of a rule."""
        return bool(self.valid or self.test)

    def with_defaults(self) -> InteractionsOptions:
        """The same options, with the defaults that depend on others filled in."""
        fewest = (1 if self.is_split else MIN_ITEM_COUNT) if self.min_item_count is None else self.min_item_count
        rule: Split | None = None if self.is_split else self.split or "last"
        return replace(self, min_item_count=fewest, split=rule)

    def _conflicts(self) -> Iterator[str]:
        if self.is_split:
            yield from self._conflicts_of_files()
        if self.format == "sessions" and (self.time is not None or self.rating is not None):
            yield "format='sessions' has no times or ratings; leave out --time and --rating"
        if self.split == "time" and self.time is None:
            yield "split='time' needs a column of times; name it: --time timestamp"
        if (self.rating is None) != (self.min_rating is None):
            yield f"rating={self.rating!r}, min_rating={self.min_rating!r}: give both, or neither"
        if self.time_format is not None and self.time is None:
            yield f"time_format={self.time_format!r} needs a column of times; name it: --time date"
        if self.time_format is not None and not _is_time_format(self.time_format):
            yield f"time_format={self.time_format!r}: directives of strptime are allowed, like '%d.%m.%Y %H:%M'"

    def _conflicts_of_files(self) -> Iterator[str]:
        given = " and ".join(f"--{name}" for name in ("valid", "test") if getattr(self, name))
        if self.split is not None:
            yield f"split={self.split!r} and {given}: both say what is held out; give one of them"
        if self.drop_repeats:
            yield f"drop_repeats=True and {given}: drop repeats before you split the log"
        if self.max_names is not None:
            yield f"max_names={self.max_names} and {given}: would leave out what is asked; use --min-item-count"


def _is_time_format(text: str) -> bool:
    """Whether Python can read times by a format.

    >>> _is_time_format("%d/%m/%Y"), _is_time_format("%d/%Q"), _is_time_format("DD/MM/YYYY")
    (True, False, False)
    """
    try:
        datetime.strptime("", text)
    except ValueError as error:
        return "%" in text and "directive" not in str(error) and "stray" not in str(error)
    return False


@dataclass(frozen=True, kw_only=True)
class WikipediaOptions:
    """The links of a MediaWiki dump (Sec. 3)."""

    open_links: bool = option(False, "Keep links to pages that are not in the dump.", flag="--open")
    drop_repeats: bool = option(False, "Keep only the first link of a page to each other page.", flag="--drop-repeats")
    drop_disambiguations: bool = option(
        False, "Leave out disambiguation pages and links to them.", flag="--drop-disambiguations"
    )
    max_names: int | None = option(None, "Keep only the most frequent link targets.", whole(1), flag="--max-entities")
    min_count: int = option(1, "Leave out names that occur less often.", whole(1))
    strict: bool = option(
        False, "Write nothing if a dump is damaged. (default: keep what precedes, exit 3)", flag="--strict"
    )
    workers: int | None = option(None, "Processes to use.", whole(1), shown_default="one per core")
    memory: int = _memory("Memory for all processes: GB on the command line, bytes in Python.", GB)

    def __post_init__(self) -> None:
        settle(self)


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Natural language as word pieces, words and bigrams (Sec. 4)."""

    wordpieces: str | os.PathLike[str] | None = option(
        None, "The vocab.txt of a BERT model.", shown_default="train 30,000 word pieces"
    )
    vocab_size: int = option(
        1_000_000, "Most entries in all: word pieces, then the most frequent words and bigrams.", whole(1)
    )
    min_count: int = option(5, "Add no word or bigram that occurs less often.", whole(1))
    cased: bool = option(
        False, "Keep upper case. Without it, text is lower-cased; --wordpieces also removes accents.", flag="--cased"
    )
    errors: OnBadBytes = option("strict", "Bytes that are not UTF-8: strict refuses them, replace continues.")
    workers: int | None = option(None, "Processes to use.", whole(1), shown_default="one per core")
    memory: int = _memory("Memory for all processes: GB on the command line, bytes in Python.", GB)

    def __post_init__(self) -> None:
        settle(self)


@dataclass(frozen=True, kw_only=True)
class SyntheticOptions:
    """A made-up world of lists, countries and capitals, whose best possible recall is known."""

    countries: int = option(150, "Countries; each has a capital.", whole(2))
    lists: int = option(60, "Lists of countries; each is a name as well.", whole(1))
    list_size: int = option(5, "Countries on each list.", whole(1))
    lists_per_row: int = option(1, "Most lists that a row is about.", whole(1))
    complete: float = option(0.7, "Probability that a row holds a member of its list, or the list.", BETWEEN_0_AND_1)
    follows: float = option(0.8, "Probability that a country brings its capital.", BETWEEN_0_AND_1)
    noise: float = option(0.5, "Other names in a row, on average.", POSITIVE)
    zipf: float = option(0.75, "Exponent of Zipf's law: how much more frequent some lists and names are.", NOT_NEGATIVE)
    longest: int = option(32, "Most names in a row; rows with more are drawn again.", whole(2))
    rows: int = option(100_000, "Rows to draw.", whole(1, 10**9))
    train_rows: int | None = option(
        None,
        "Keep only this number of training rows; rows for validation and test stay.",
        whole(1),
        shown_default="all",
    )
    seed: int = option(0, "Seed of the world and its rows.", SEED)

    def __post_init__(self) -> None:
        settle(self, *self._conflicts())

    def _conflicts(self) -> Iterator[str]:
        if faults(self):
            return
        if self.list_size > self.countries:
            yield f"list_size={self.list_size} with countries={self.countries}: no more than there are is allowed"
        if self.lists_per_row > self.lists:
            yield f"lists_per_row={self.lists_per_row} with lists={self.lists}: no more than there are is allowed"
        sets = sum(math.comb(self.lists, size) for size in range(1, min(self.lists_per_row, self.lists) + 1))
        if sets > MAX_LIST_SETS:
            yield (
                f"lists={self.lists} with lists_per_row={self.lists_per_row} are {sets:,} sets of lists that a row may "
                f"have; up to {MAX_LIST_SETS:,} are allowed, because the best answer weighs each of them"
            )
