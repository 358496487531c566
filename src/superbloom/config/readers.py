"""What readers take from files: options of `prepare sequences`, `interactions`, `wikipedia` and `text`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, get_args

from superbloom.config.option import option, whole
from superbloom.errors import InputError, check_whole

GB = 10**9
DEFAULT_MEMORY_BYTES = 2 * GB
MIN_MEMORY_BYTES, MAX_MEMORY_BYTES = GB // 4, 100_000 * GB

Split = Literal["last", "time", "user"]
EngineName = Literal["duckdb", "spark"]
LogFormat = Literal["auto", "table", "lines"]
OnBadBytes = Literal["strict", "replace"]


def _memory(help: str, low: int) -> int:
    value: int = option(DEFAULT_MEMORY_BYTES, help, whole(low), gigabytes=True)
    return value


def check_memory(memory: int) -> None:
    """Raise InputError unless a number of bytes is enough to work with."""
    if type(memory) is not int or not MIN_MEMORY_BYTES <= memory <= MAX_MEMORY_BYTES:
        raise InputError(
            f"memory={memory!r:.80} bytes given; {MIN_MEMORY_BYTES:,} to {MAX_MEMORY_BYTES:,} are allowed: "
            "0.25 to 100,000 GB"
        )


def check_names(min_count: int, max_names: int | None) -> None:
    """Raise InputError unless a lowest count and a highest number of names are whole numbers."""
    check_whole(min_count=min_count, max_names=1 if max_names is None else max_names)


@dataclass(frozen=True, kw_only=True)
class SequencesOptions:
    """Text files with one sequence of names per line."""

    sep: str = option("\t", "What separates names: ' ', ',' …", shown_default="a tab")
    keyed: bool = option(
        False, "The first field names the row (a user, a page) and is no element of it.", flag="--keyed"
    )
    max_names: int | None = option(None, "Keep only the most frequent names.")
    min_count: int = option(1, "Leave out names that occur less often.")

    def __post_init__(self) -> None:
        check_names(self.min_count, self.max_names)
        if not self.sep:
            raise InputError("an empty --sep given; a tab, ' ', ',' or another text is allowed")


@dataclass(frozen=True, kw_only=True)
class InteractionsOptions:
    """A log of users and the items they chose (docs/interactions.md)."""

    user: str = option("user_id", "Column of users; its number, from 0, if there is no header.")
    item: str = option("item_id", "Column of items.")
    time: str | None = option(None, "Column of times.", shown_default="events lie in order")
    min_item_count: int = option(5, "Leave out items with fewer events.")
    min_user_count: int = option(2, "Leave out users with fewer events left.")
    max_names: int | None = option(None, "Keep only the most frequent items.")
    split: Split = option(
        "last", "What is held out. last: the end of each row; time: the last 10 % of events; user: some rows."
    )
    drop_repeats: bool = option(False, "Keep only the first event of a user with each item.", flag="--drop-repeats")
    engine: EngineName = option("duckdb", "duckdb, or spark for logs beyond one machine.")
    memory: int = _memory("Memory to use, in GB.", 0)
    format: LogFormat = option("auto", "auto, table, or lines: a user and the items in order on each line.")
    encoding: str = option("utf-8", "Encoding of text: utf-8, latin-1 …")

    def __post_init__(self) -> None:
        check_whole(min_item_count=self.min_item_count, min_user_count=self.min_user_count)
        check_whole(max_names=1 if self.max_names is None else self.max_names)
        for name, kind in (("split", Split), ("engine", EngineName)):
            if (value := getattr(self, name)) not in get_args(kind):
                raise InputError(f"{name} {value!r} given; {', '.join(get_args(kind))} are allowed")
        if self.split == "time" and self.time is None:
            raise InputError("split 'time' given without a column of times; name it: --time timestamp")
        check_memory(self.memory)


@dataclass(frozen=True, kw_only=True)
class WikipediaOptions:
    """The links of a MediaWiki dump (Sec. 3)."""

    open_links: bool = option(False, "Keep links to pages that are not in the dump.", flag="--open")
    drop_repeats: bool = option(False, "Keep only the first link of a page to each other page.", flag="--drop-repeats")
    drop_disambiguations: bool = option(
        False, "Leave out disambiguation pages and links to them.", flag="--drop-disambiguations"
    )
    max_names: int | None = option(None, "Keep only the most frequent link targets.", flag="--max-entities")
    min_count: int = option(1, "Leave out names that occur less often.")
    strict: bool = option(
        False, "Write nothing if a dump is damaged. (default: keep what precedes, exit 3)", flag="--strict"
    )
    workers: int | None = option(None, "Processes to use.", whole(1), shown_default="one per core")
    memory: int = _memory("Memory for all processes, in GB.", GB)

    def __post_init__(self) -> None:
        check_names(self.min_count, self.max_names)
        check_memory(self.memory)


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
    cased: bool = option(False, "Keep upper case and accents.", flag="--cased")
    errors: OnBadBytes = option("strict", "Bytes that are not UTF-8: strict refuses them, replace continues.")
    workers: int | None = option(None, "Processes to use.", whole(1), shown_default="one per core")
    memory: int = _memory("Memory for all processes, in GB.", GB)

    def __post_init__(self) -> None:
        check_whole(vocab_size=self.vocab_size, min_count=self.min_count)
        if self.errors not in get_args(OnBadBytes):
            allowed = " and ".join(map(repr, get_args(OnBadBytes)))
            raise InputError(f"errors={self.errors!r} given; {allowed} are allowed")
        check_memory(self.memory)
