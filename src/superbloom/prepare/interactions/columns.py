"""The columns of a log: where they are, and their values as names, times and parts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from difflib import get_close_matches

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from superbloom.config import InteractionsOptions
from superbloom.errors import InputError

ALLOWED = "give text or whole numbers"
RECBOLE_TYPE = re.compile(r":(token|float)(_seq)?$")
# What an event is for, in the order of a row. The context of a pair is read when its target is asked, and nowhere else.
TRAIN, CONTEXT, VALID, TEST = range(4)
PARTS = {"train": TRAIN, "valid": VALID, "test": TEST}
MAX_EXACT = 2**53  # a float64 holds all whole numbers up to this exactly


@dataclass(frozen=True)
class Columns:
    """The columns to read: their names, or their places in files without a header."""

    user: str
    item: str
    time: str | None
    rating: str | None = None
    time_format: str | None = None
    min_rating: float | None = None

    @classmethod
    def of(cls, options: InteractionsOptions) -> Columns:
        return cls(**{spec.name: getattr(options, spec.name) for spec in fields(cls)})

    def wanted(self) -> dict[str, str]:
        wanted = {"user": self.user, "item": self.item, "time": self.time, "rating": self.rating}
        return {role: name for role, name in wanted.items() if name is not None}


@dataclass
class Seen:
    """What was seen among the times and ratings of a log.

    unreadable: the number of times that cannot be read, with an example. timed: the number of events that have a time.
    unrated, rated_low: the number of events that are left out because of their rating.
    """

    kinds: set[str] = field(default_factory=set)
    fractions: bool = False
    unreadable: int = 0
    timed: int = 0
    example: str = ""
    unrated: int = 0
    rated_low: int = 0


def find_column(name: str, names: Sequence[str], where: str, header: bool = True) -> int:
    """The place of a column among names."""
    for spelling in (name, RECBOLE_TYPE.sub("", name)):
        found = [place for place, other in enumerate(names) if other == spelling]
        if len(found) > 1:
            raise InputError(f"{where} has {len(found)} columns {name!r}; give every column its own name")
        if found:
            return found[0]
    shown = ", ".join(repr(other) for other in names[:20]) + (", …" if len(names) > 20 else "")
    close = get_close_matches(name.lower(), [other.lower() for other in names], 1, 0.0)
    closest = next((f"; closest: {other!r}" for other in names if [other.lower()] == close), "")
    if header:
        raise InputError(f"{where} has no column {name!r}; it has {shown}{closest}")
    raise InputError(
        f"{where} has no column {name!r}; its first line is {shown}{closest}; if it has no header, give numbers: "
        f"--user 0 --item 1 (for lines `user item item …`: --format lines)"
    )


def names_of(column: pa.ChunkedArray, name: str, where: str) -> pa.Array:
    """A column as names: text stays, whole numbers become digits, empty text and NaN become null.

    >>> names_of(pa.chunked_array([[1.0, None, 20.0]]), "item_id", "the table").to_pylist()
    ['1', None, '20']
    """
    column, kind = _plain(column)
    where = f"column {name!r} of {where}"
    if pa.types.is_floating(kind):
        column = pc.if_else(pc.is_nan(column), None, column)
        return pa.array(whole(column.to_pylist(), name), pa.string()) if _inexact(column) else _digits(column)
    if pa.types.is_decimal(kind):
        try:
            return column.cast(pa.decimal128(38, 0)).cast(pa.string())
        except pa.ArrowInvalid:
            raise InputError(f"{where} holds numbers that are not whole; {ALLOWED}") from None
    if pa.types.is_integer(kind) or pa.types.is_null(kind):
        return column.cast(pa.string())
    if not (is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise InputError(f"{where} is {kind!s:.80}; {ALLOWED}")
    try:
        text = column.cast(pa.string())
    except pa.ArrowInvalid:
        raise InputError(f"{where} holds bytes that are not UTF-8 text; {ALLOWED}") from None
    is_empty = pc.equal(text, "")
    return pc.if_else(is_empty, None, text) if pc.any(is_empty).as_py() else text


def _inexact(column: pa.Array) -> bool:
    values = column.drop_null().to_numpy(zero_copy_only=False)
    return bool((np.trunc(values) != values).any() or (np.abs(values) > MAX_EXACT).any())


def _digits(column: pa.Array) -> pa.Array:
    return column.cast(pa.int64()).cast(pa.string())


def whole(values: Iterable[float | None], name: str) -> list[str | None]:
    """Numbers as digits. Refuses numbers that are not whole, or too large to be exact in a float."""
    texts: list[str | None] = []
    for value in values:
        if value is not None and not (float(value).is_integer() and abs(value) <= MAX_EXACT):
            why = "which a float does not hold exactly" if float(value).is_integer() else "which is not whole"
            raise InputError(f"column {name!r} holds {value!r}, {why}; {ALLOWED}")
        texts.append(None if value is None else str(int(value)))
    return texts


def _plain(column: pa.ChunkedArray) -> tuple[pa.Array, pa.DataType]:
    """A column as one array, without a dictionary, and its type."""
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()  # which copies
    array = array.chunk(0) if isinstance(array, pa.ChunkedArray) and array.num_chunks else array
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array, array.type


def is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def is_rated(column: pa.ChunkedArray, columns: Columns, where: str, seen: Seen) -> pa.Array:
    """Whether each event has at least the lowest rating; the others are counted in `seen`."""
    values, kind = _plain(column)
    if is_text(kind):
        values = pc.utf8_trim_whitespace(values)
        values = pc.if_else(pc.equal(values, ""), None, values)
    try:
        numbers = values.cast(pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = " ".join(str(error).split())[:80]
        raise InputError(f"column {columns.rating!r} of {where} holds no ratings ({reason}); give numbers") from None
    there = pc.fill_null(pc.invert(pc.is_nan(numbers)), False)
    enough = pc.fill_null(pc.greater_equal(numbers, columns.min_rating), False)
    seen.unrated += pc.sum(pc.invert(there)).as_py() or 0
    seen.rated_low += pc.sum(pc.and_(there, pc.invert(enough))).as_py() or 0
    return enough


def times_of(
    column: pa.ChunkedArray, counted: pa.Array, columns: Columns, where: str, seen: Seen
) -> tuple[pa.Array, pa.Array]:
    """A column as times rounded down, and the fractions lost. Unreadable times of `counted` events go to `seen`."""
    column, kind = _plain(column)
    name = columns.time
    if pa.types.is_null(kind):
        return column.cast(pa.int64()), column.cast(pa.float64())
    there = pc.is_valid(column)
    if columns.time_format is not None:
        if not (is_text(kind) or pa.types.is_integer(kind)):
            raise InputError(f"column {name!r} of {where} is {kind!s:.80}, which needs no --time-format; leave it out")
        column = pc.utf8_trim_whitespace(column.cast(pa.string()))
        there = pc.fill_null(pc.not_equal(column, ""), False)
        seen.kinds.add("dates")
        values = _formatted(pc.if_else(there, column, None), columns.time_format)
    elif is_text(kind):
        column = column.cast(pa.string())
        there = pc.fill_null(pc.not_equal(pc.utf8_trim_whitespace(column), ""), False)
        values = _parsed(pc.if_else(there, column, None), seen.kinds)
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        seen.kinds.add("dates")
        values = column.cast(pa.timestamp("us", getattr(kind, "tz", None)), safe=False).cast(pa.int64())
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        seen.kinds.add("numbers")
        values = column if pa.types.is_signed_integer(kind) else column.cast(pa.float64())
        if pa.types.is_floating(kind):
            there = pc.fill_null(pc.invert(pc.is_nan(column)), False)
    else:
        raise InputError(f"column {name!r} of {where} is {kind!s:.80}; give numbers, timestamps, dates or ISO text")
    if len(seen.kinds) > 1:
        raise InputError(f"column {name!r} of {where} has both numbers and dates among its times; give one kind")
    time, fraction = _rounded(values)
    counted = pc.and_(there, counted)
    seen.timed += pc.sum(counted).as_py() or 0
    lost = pc.and_(counted, pc.is_null(time))
    if pc.any(lost).as_py():
        seen.unreadable += pc.sum(lost).as_py()
        seen.example = seen.example or str(column.filter(lost)[0].as_py())
    seen.fractions = seen.fractions or bool(pc.any(pc.not_equal(fraction, 0)).as_py())
    return time, fraction


def _rounded(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Numbers rounded down to int64, and the fractions; null for what int64 cannot hold."""
    if not pa.types.is_floating(values.type):
        return values.cast(pa.int64()), pa.array(np.zeros(len(values)))
    numbers = values.cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
    fits = np.abs(numbers) < 2.0**63
    down = np.floor(np.where(fits, numbers, 0))
    missing = ~fits
    return pa.array(down.astype(np.int64), mask=missing), pa.array(np.where(fits, numbers, 0) - down, mask=missing)


def _formatted(texts: pa.Array, time_format: str) -> pa.Array:
    """Text as microseconds since 1970, by a format of strptime; null if it does not fit. Without a zone it is UTC.

    >>> _formatted(pa.array(["02.01.1970", "1970-01-02", None]), "%d.%m.%Y").to_pylist()
    [86400000000, None, None]
    """
    encoded = texts.dictionary_encode()
    times: list[int | None] = []
    for text in encoded.dictionary.to_pylist():
        try:
            times.append(_since_1970(datetime.strptime(text, time_format)))
        except ValueError:
            times.append(None)
    return pa.array(times, pa.int64()).take(encoded.indices)


def _parsed(texts: pa.Array, kinds: set[str]) -> pa.Array:
    """Text as times, int64 or float64: numbers, or ISO dates as microseconds since 1970; null for the rest."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), pa.int64())
    for kind, casts in (
        ("numbers", (pa.int64(), pa.float64())),
        ("dates", (pa.timestamp("us"), pa.timestamp("us", "UTC"))),
    ):
        for cast in casts:
            try:
                values = texts.cast(cast)
            except pa.ArrowInvalid:
                continue
            if kind == "dates" or pc.any(pc.is_finite(values)).as_py():
                kinds.add(kind)
            return values.cast(pa.int64()) if kind == "dates" else values
    return _parsed_one_by_one(texts.to_pylist(), kinds)


def _parsed_one_by_one(texts: list[str | None], kinds: set[str]) -> pa.Array:
    """The same for texts of different kinds."""
    values: list[int | float | None] = []
    for text in texts:
        value: int | float | None = None
        for kind, read in (("numbers", int), ("numbers", float), ("dates", _microseconds)):
            try:
                value = None if text is None else read(text)
            except (ValueError, OverflowError):
                continue
            if value is not None and math.isfinite(value):
                kinds.add(kind)
            break
        values.append(value)
    if all(value is None or (isinstance(value, int) and abs(value) < 2**63) for value in values):
        return pa.array(values, pa.int64())
    return pa.array([None if value is None else float(value) for value in values], pa.float64())


def _microseconds(text: str) -> int:
    """An ISO date as microseconds since 1970. Without a time zone it is UTC.

    >>> _microseconds("1970-01-01T01:00:01.5+01:00"), _microseconds("1970-01-02")
    (1500000, 86400000000)
    """
    return _since_1970(datetime.fromisoformat(text.strip()))


def _since_1970(time: datetime) -> int:
    time = time.replace(tzinfo=UTC) if time.tzinfo is None else time
    since = time - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
