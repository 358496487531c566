"""Text files as tables: CSV, TSV, `a::b::c`, RecBole's .inter, `user item [time]`, `user item item …` and JSON lines.

The first lines decide what separates the fields, whether they are quoted, and whether there is a header. The text is
then read in batches, as columns named user, item and time.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from superbloom.errors import InputError
from superbloom.prepare.interactions.columns import ALLOWED, RECBOLE_TYPE, TRAIN, Columns, find_column, whole
from superbloom.prepare.interactions.sessions import are_pairs, sessions_table
from superbloom.prepare.report import Notice

HEAD_BYTES = 2**18  # that decide the layout of a text file
BLOCK_BYTES = 2**23
SEPARATORS = ("\t", ",", ";", "::", " ")
# pyarrow splits only at single bytes, so other separators are replaced by this one, which no text holds.
UNIT = b"\x1f"
END = "\x1fend"
MAX_KEY_LINES = 100  # lines of JSON that are read to find the columns: their keys
NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class File:
    """A file of the log. partition: columns in the names of its folders, as in day=2020-01-01/part-0.parquet.

    part: what its events are for (columns.py). number: its place among the files of that part.
    """

    path: Path
    name: str
    partition: dict[str, str]
    part: int = TRAIN
    number: int = 0


def with_partition(found: dict[str, Any], size: int, columns: Columns, file: File) -> pa.Table:
    """A batch with the columns that are only in the names of folders."""
    for role, name in columns.wanted().items():
        if role not in found:
            value = file.partition[name]
            found[role] = pa.array([None if value == NO_PARTITION else value], pa.string()).take(pa.array([0] * size))
    return pa.table(found)


def read_text(
    file: File, stream: io.BufferedReader, columns: Columns, format_: str, encoding: str, notice: Notice
) -> Iterator[pa.Table]:
    """The columns of a text, not converted and named user, item, time, rating, in batches."""
    head = stream.read(HEAD_BYTES)
    cut = len(head) == HEAD_BYTES
    text = _decoded(head, encoding, cut, file)
    if "\0" in text:
        raise InputError(
            f"'{file.name}' is not text; CSV, TSV, lines and Parquet are allowed, but not compressed Parquet files "
            "(for UTF-16 give --encoding utf-16)"
        )
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    lines = lines[:-1] if cut and len(lines) > 1 else lines
    if not any(line.strip() for line in lines):
        return
    is_json = format_ == "jsonl" or (format_ == "auto" and _is_json(lines))
    is_sessions = format_ == "sessions"
    layout = None if is_json or is_sessions else layout_of(lines, columns, format_, file)
    if layout is None and not is_json and not is_sessions:
        notice(
            f"'{file.name}' is read as lines `user item item …`: is the first field of each line a user? If it is an "
            "item, use --format sessions"
        )
    if is_sessions and not any(len(line.split()) > 1 for line in lines):
        raise InputError(
            f"no line of '{file.name}' holds a space or a tab, so each would be a session of one item; separate items "
            "by spaces"
        )
    has_pairs = is_sessions and are_pairs(lines, file.part)
    if has_pairs:
        notice(
            f"'{file.name}' is read as lines of items, a tab and one more item"
            + ("; each is a session" if file.part == TRAIN else ": only the one after the tab is asked")
        )
    source = _utf8(head, stream, encoding, file, layout.end if layout else b"")
    try:
        if is_json:
            yield from _read_json(source, _json_keys(lines, columns, file), columns, file)
        elif is_sessions:
            yield from _read_sessions(source, lines, has_pairs, file)
        elif layout is None:
            yield from _read_lines(source, "\t" if any("\t" in line for line in lines) else None, file)
        else:
            yield from _read_table(source, layout, columns, file)
    except _EndlessLineError:
        taken: int = stream.raw.stored.taken  # type: ignore[attr-defined]
        raise InputError(
            f"'{file.name}' has a line or a quoted field longer than {BLOCK_BYTES:,} bytes near byte {taken:,}; fix it"
        ) from None


class _EndlessLineError(Exception):
    """A line that would fill the memory."""


@dataclass(frozen=True)
class Layout:
    """The layout of a text table: its separator, the lines before the first event, and the place of each column."""

    separator: str
    quoted: bool
    width: int
    skip: int
    places: dict[str, int]

    @property
    def end(self) -> bytes:
        """A row to put after a quoted text. A quotation mark that is never closed would swallow it, which shows."""
        return f"\n{self.separator.join([END] * self.width)}\n".encode() if self.quoted else b""


def layout_of(lines: list[str], columns: Columns, format_: str, file: File) -> Layout | None:
    """The layout of a table by its first lines; None for `user item item …` lines."""
    wanted = columns.wanted()
    if format_ == "lines" or (format_ == "auto" and _is_ragged(lines, wanted)):
        if columns.time is not None:
            raise InputError(f"'{file.name}' has lines `user item item …`, without times; leave out --time")
        if columns.rating is not None:
            raise InputError(f"'{file.name}' has lines `user item item …`, without ratings; leave out --rating")
        return None
    first = next(number for number, line in enumerate(lines) if line.strip())
    separator = _separator(lines, wanted)
    if separator is None:
        raise InputError(
            f"'{file.name}' is not a table: its first line is {lines[first]!r:.80}, and neither tab , ; :: nor space "
            "splits all lines into the same number of fields; for `user item item …` lines give --format lines, for "
            "lines of items --format sessions"
        )
    quoted = _is_quoted(lines, separator)
    fields = [RECBOLE_TYPE.sub("", name.strip()) for name in _fields(lines[first], separator, quoted)]
    names = [*fields, *file.partition]
    header = bool(_header_names(wanted) & set(fields))
    places = {
        role: int(name)
        if name.isdecimal() and int(name) < len(fields)
        else find_column(name, names, f"'{file.name}'", header)
        for role, name in wanted.items()
    }
    return Layout(separator, quoted, len(fields), first + header, places)


def _separator(lines: list[str], wanted: dict[str, str]) -> str | None:
    """The separator that makes the first line a header, or splits all lines into the same number of fields."""
    filled = [line for line in lines if line.strip()][:1000]
    for separator in SEPARATORS:
        fields = _fields(filled[0], separator, _is_quoted(filled, separator))
        if len(fields) > 1 and _header_names(wanted) & {RECBOLE_TYPE.sub("", field.strip()) for field in fields}:
            return separator
    for separator in SEPARATORS:
        quoted = _is_quoted(filled, separator)
        widths = {len(_fields(line, separator, quoted)) for line in filled}
        if len(widths) == 1 and widths != {1}:
            return separator
    return None


def _header_names(wanted: dict[str, str]) -> set[str]:
    """The names that a header would hold. Numbers are places of columns, and mean that there is no header."""
    return {RECBOLE_TYPE.sub("", name) for name in wanted.values() if not name.isdecimal()}


def _is_ragged(lines: list[str], wanted: dict[str, str]) -> bool:
    """Whether lines are `user item item …`: they differ in length, and only spaces and tabs separate fields."""
    return _separator(lines, wanted) is None and not any("," in line or ";" in line or "::" in line for line in lines)


def _fields(line: str, separator: str, quoted: bool) -> list[str]:
    if separator == " ":
        return line.split()
    if not quoted:
        return line.split(separator)
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:  # the field is too long
        return [line]


def _is_quoted(lines: list[str], separator: str) -> bool:
    """Whether quotation marks enclose fields: always with , and ;, and with tabs if they do for one field."""
    if separator in ",;":
        return True
    fields = (field for line in lines for field in line.split(separator)) if separator == "\t" else iter(())
    return any(len(field) > 1 and field[0] == field[-1] == '"' for field in fields)


def _read_table(source: io.BufferedReader, layout: Layout, columns: Columns, file: File) -> Iterator[pa.Table]:
    delimiter = layout.separator
    stream: Any = source
    if delimiter in ("::", " "):
        stream, delimiter = _Chunks(_one_byte_separators(source, delimiter)), UNIT.decode()
    names = [str(place) for place in range(layout.width)]
    stored = {role: names[place] for role, place in layout.places.items() if place < layout.width}
    chosen = list(dict.fromkeys(stored.values()))
    try:
        reader = pyarrow.csv.open_csv(
            stream,
            pyarrow.csv.ReadOptions(
                column_names=names, skip_rows=layout.skip, block_size=BLOCK_BYTES, use_threads=False
            ),
            pyarrow.csv.ParseOptions(
                delimiter=delimiter,
                quote_char='"' if layout.quoted else False,
                newlines_in_values=layout.quoted,
            ),
            pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(chosen, pa.string()), include_columns=chosen, strings_can_be_null=False
            ),
        )
        for batch in _without_end(reader, layout, file) if layout.quoted else reader:
            yield with_partition({role: batch[name] for role, name in stored.items()}, len(batch), columns, file)
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            return
        if "straddl" in str(error):
            raise _EndlessLineError from None
        raise _bad_text(file, str(error)) from None


def _without_end(batches: Iterator[pa.RecordBatch], layout: Layout, file: File) -> Iterator[pa.RecordBatch]:
    """The batches without the last row, which has to be Layout.end."""
    rows, held = layout.skip, None
    for batch in batches:
        if held is not None:
            yield held
            rows += len(held)
        held = batch
    if held is None or any(column[-1].as_py() != END for column in held.columns):
        raise InputError(
            f"row {rows + len(held or ()):,} of '{file.name}' opens a quotation mark that is never closed; "
            "close it, or double it if it is part of the text"
        )
    yield held[:-1]


def _bad_text(file: File, reason: str) -> InputError:
    if "UTF8" in reason:
        return InputError(f"'{file.name}' is not UTF-8; name its encoding: --encoding latin-1")
    if found := re.search(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+): (.*)", reason, re.DOTALL):
        row, expected, got, text = found.groups()
        where = f"row {int(row):,}" if row else "a row"
        return InputError(
            f"{where} of '{file.name}' has {got} fields where {expected} are expected: {text!r:.80}; fix or remove it"
        )
    return InputError(f"'{file.name}' cannot be read as a table ({' '.join(reason.split())[:200]}); fix it")


def _one_byte_separators(source: io.BufferedReader, separator: str) -> Iterator[bytes]:
    """The stream with each ::, or each run of spaces and tabs, replaced by UNIT."""
    for block in _whole_lines(source):
        if separator == "::":
            yield block.replace(b"::", UNIT)
        else:
            block = re.sub(rb"^[ \t]+|[ \t]+(?=\r?$)", b"", block, flags=re.MULTILINE)
            yield re.sub(rb"[ \t]+", UNIT, block)


def _whole_lines(source: io.BufferedReader) -> Iterator[bytes]:
    """The stream in blocks that end at the ends of lines."""
    rest = b""
    while block := source.read(BLOCK_BYTES):
        head, end, tail = block.rpartition(b"\n")
        if end:
            yield rest + head + end
            rest = tail
        else:
            rest += block
        if len(rest) > BLOCK_BYTES:
            raise _EndlessLineError
    if rest:
        yield rest


def _read_lines(source: io.BufferedReader, separator: str | None, file: File) -> Iterator[pa.Table]:
    """`user item item …` lines, the items in order."""
    for block in _whole_lines(source):
        try:
            text = block.decode()
        except UnicodeDecodeError:
            raise _bad_text(file, "UTF8") from None
        users: list[str] = []
        items: list[str] = []
        lengths: list[int] = []
        for line in text.split("\n"):
            user, *rest = line.removesuffix("\r").split(separator) or [""]
            if separator:
                rest = [item for item in rest if item]
            users.append(user)
            items += rest
            lengths.append(len(rest))
        row_of = np.repeat(np.arange(len(lengths)), lengths)
        yield pa.table(
            {
                "user": pa.array(users, pa.large_string()).take(pa.array(row_of)),
                "item": pa.array(items, pa.large_string()),
            }
        )


def _read_sessions(source: io.BufferedReader, lines: list[str], has_pairs: bool, file: File) -> Iterator[pa.Table]:
    """`item item …` lines, or `item item …`, a tab and the item that is asked. Each line is a user of its own."""
    separator = "\t" if any("\t" in line for line in lines) and not has_pairs else None
    number = 0
    for block in _whole_lines(source):
        try:
            text = block.decode()
        except UnicodeDecodeError:
            raise _bad_text(file, "UTF8") from None
        found = text.removesuffix("\n").split("\n")
        items: list[str] = []
        lengths = np.empty(len(found), np.int64)
        for place, line in enumerate(found):
            names = [name for name in line.removesuffix("\r").split(separator) if name]
            if has_pairs and line.strip() and (line.count("\t") != 1 or len(line.partition("\t")[2].split()) != 1):
                raise InputError(
                    f"line {number + place + 1:,} of '{file.name}' is {line!r:.80}; the lines before it are items, a "
                    "tab and the item that is asked: write all lines so"
                )
            items += names
            lengths[place] = len(names)
        yield sessions_table(items, lengths, has_pairs, file.part, file.number, number)
        number += len(found)


def _is_json(lines: list[str]) -> bool:
    """Whether the first line is a JSON object; an array of objects also counts, and is refused later."""
    first = next(line for line in lines if line.strip()).strip()
    return first.startswith("{") or first.replace(" ", "").startswith(("[{", "[\n")) or first == "["


def _json_keys(lines: list[str], columns: Columns, file: File) -> dict[str, str]:
    """The key of each column that is not in the names of folders, by the first lines."""
    known: dict[str, None] = {}
    filled = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    for number, line in islice(filled, MAX_KEY_LINES):
        known |= dict.fromkeys(_json_object(line, number, file))
    names = [*known, *file.partition]
    found = {role: names[find_column(name, names, f"'{file.name}'")] for role, name in columns.wanted().items()}
    return {role: name for role, name in found.items() if name in known}


def _read_json(source: io.BufferedReader, keys: dict[str, str], columns: Columns, file: File) -> Iterator[pa.Table]:
    """JSON lines: an object per line."""
    number = 0
    for block in _whole_lines(source):
        try:
            lines = block.decode().split("\n")
        except UnicodeDecodeError:
            raise _bad_text(file, "UTF8") from None
        values: dict[str, list[str | None]] = {role: [] for role in keys}
        for line in lines[:-1] if block.endswith(b"\n") else lines:
            number += 1
            if line.strip():
                found = _json_object(line, number, file)
                for role, key in keys.items():
                    values[role].append(_json_text(found.get(key), key, number, role in ("time", "rating"), file))
        size = len(next(iter(values.values())))
        yield with_partition({role: pa.array(some, pa.string()) for role, some in values.items()}, size, columns, file)


def _json_object(line: str, number: int, file: File) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if type(found) is not dict:
        hint = "; jq -c '.[]' makes lines of an array" if line.lstrip().startswith("[") else ""
        raise InputError(f"line {number:,} of '{file.name}' is {line!r:.80}; give a JSON object on each line{hint}")
    return found


def _json_text(value: Any, key: str, number: int, is_number: bool, file: File) -> str | None:
    """A value as text. As names, 1, "1" and 1.0 are the same."""
    if value is None or type(value) is str:
        return value if value is None or not any("\ud800" <= c <= "\udfff" for c in value) else None
    if type(value) is int or (type(value) is float and is_number):
        return str(value)
    if type(value) is float:
        return whole([value], key)[0]
    raise InputError(f"line {number:,} of '{file.name}': {key!r} is {json.dumps(value):.80}; {ALLOWED}")


def _decoded(head: bytes, encoding: str, cut: bool, file: File) -> str:
    """The beginning of a text. Bytes that are not UTF-8 are an error only later, in a column that is read."""
    utf8 = codecs.lookup(encoding).name == "utf-8"
    try:
        text = codecs.getincrementaldecoder(encoding)("replace" if utf8 else "strict").decode(head, final=not cut)
    except UnicodeDecodeError as error:
        raise _not_in(encoding, file, error) from None
    return text.removeprefix("\ufeff")


def _not_in(encoding: str, file: File, error: UnicodeDecodeError) -> InputError:
    return InputError(f"'{file.name}' is not {encoding}: {error.reason}; try --encoding latin-1")


def _utf8(head: bytes, stream: io.BufferedReader, encoding: str, file: File, end: bytes) -> io.BufferedReader:
    """The whole text in any encoding as a stream of UTF-8 bytes, without a byte order mark, and then `end`."""

    def blocks() -> Iterator[bytes]:
        yield head
        while block := stream.read(BLOCK_BYTES):
            yield block

    def recoded() -> Iterator[bytes]:
        decoder = codecs.getincrementaldecoder(encoding)()
        try:
            for block in blocks():
                yield decoder.decode(block).encode()
            yield decoder.decode(b"", final=True).encode()
        except UnicodeDecodeError as error:
            raise _not_in(encoding, file, error) from None

    plain = codecs.lookup(encoding).name == "utf-8"
    whole = chain(_without_mark(blocks() if plain else recoded()), [end])
    return io.BufferedReader(_Chunks(whole), BLOCK_BYTES)


def _without_mark(blocks: Iterator[bytes]) -> Iterator[bytes]:
    yield next(blocks, b"").removeprefix(codecs.BOM_UTF8)
    yield from blocks


class _Chunks(io.RawIOBase):
    """An iterator of bytes as a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self.chunks, self.rest = chunks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.rest:
            chunk = next(self.chunks, None)
            if chunk is None:
                return 0
            self.rest = memoryview(chunk)
        size = min(len(buffer), len(self.rest))
        buffer[:size], self.rest = self.rest[:size], self.rest[size:]
        return size
