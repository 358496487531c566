"""The files that a user gives, opened whatever they are compressed with.

Plain, gzip, bzip2, xz and zstd files are recognised by their first bytes, never by their name. "-" is standard input.
A missing, damaged or truncated file raises InputError with its name and the place, so that the readers only see whole
bytes and lines.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from superbloom.errors import InputError
from superbloom.progress import Progress

Given = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]  # a path, or several

PACKINGS: dict[str, Callable[[BinaryIO], Any]] = {
    "gzip": lambda file: gzip.GzipFile(fileobj=file),
    "bzip2": lambda file: io.BufferedReader(_Streams(file, bz2.BZ2Decompressor), SALVAGE_BYTES),
    "xz": lambda file: io.BufferedReader(_Streams(file, lzma.LZMADecompressor), SALVAGE_BYTES),
    "zstd": lambda file: pa.CompressedInputStream(file, "zstd"),
}
MAGIC = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x50\x2a\x4d\x18": "zstd",  # a skippable frame, with which pzstd begins
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"PK\x03\x04": "zip",
}
DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException)

# How a file of UTF-16 begins: with a byte order mark, or with "<".
UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be", b"<\0": "utf-16-le", b"\0<": "utf-16-be"}

SALVAGE_BYTES = 2**14

# A longer line means a file without line ends, which would fill the memory unnoticed.
SAMPLE_BYTES = 2**13  # that decide whether a file is text
MAX_CONTROL_SHARE = 0.02  # a file with a larger share of control characters is no text
MAX_LINE_BYTES = 16 * 2**20
# A file that unpacks to more than BOMB_BYTES and more than BOMB_RATIO times its size is a bomb. Smaller ones may be
# honest: a log in order, compressed with zstd, unpacks to 9,000 times its size.
BOMB_BYTES, BOMB_RATIO = 4 * 2**30, 250
# The limit in place of BOMB_BYTES for files that are held in memory, where names take fifty times as much.
HELD_BYTES = 16 * 2**20
MAX_SOURCE_LENGTH = 200  # characters


def paths_of(files: Given) -> list[str]:
    """The given paths as text; a single path is a list of one.

    >>> paths_of("a.txt"), paths_of([Path("a.txt"), "-"])
    (['a.txt'], ['a.txt', '-'])
    """
    return [os.fspath(path) for path in ([files] if isinstance(files, str | os.PathLike) else files)]


def total_bytes(paths: Sequence[str | Path]) -> int | None:
    """The size of all files on disk; None if one of them is a stream."""
    sizes = [Path(path).stat().st_size for path in paths if Path(path).is_file()]
    return sum(sizes) if len(sizes) == len(paths) else None


def source_of(paths: Iterable[str]) -> str:
    """The names of the files, for corpus.json.

    >>> source_of(["data/a.txt", "-"])
    'a.txt, -'
    """
    names = ", ".join(Path(path).name or path for path in paths)
    return names if len(names) <= MAX_SOURCE_LENGTH else names[:MAX_SOURCE_LENGTH] + "…"


def open_bytes(
    path: str | os.PathLike[str],
    progress: Progress | None = None,
    salvage: bool = False,
    held: bool = False,
) -> io.BufferedReader:
    """Open a file for reading its unpacked bytes.

    progress: called with the number of bytes just read from disk, so that the calls add up to the size of the file.
    salvage: return nearly all bytes before damage. held: the caller holds what it reads in memory, so that a bomb is
    recognised earlier.
    """
    name = os.fspath(path)
    *most, last = PACKINGS
    readable = f"{', '.join(most)} or {last}"
    try:
        file = sys.stdin.buffer if name == "-" else Path(name).open("rb")  # noqa: SIM115 (closed by _Stored)
        head = file.read(max(map(len, MAGIC)))
    except OSError as error:
        raise InputError(
            f"'{name}' cannot be read: {error.strerror}; give a file (plain, {readable}), or - for stdin"
        ) from error
    kind = next((kind for magic, kind in MAGIC.items() if head.startswith(magic)), "plain")
    stored = _Stored(file, head, progress)
    if kind == "plain":
        return io.BufferedReader(_Unpacked(stored, stored, name, kind), 2**20)
    if kind not in PACKINGS:
        stored.close()
        raise InputError(f"'{name}' is a {kind} archive; unpack it and give the file inside")
    # The buffer below the unpacking is small, so that the place named in an error is near the damage.
    unpacked = PACKINGS[kind](io.BufferedReader(stored, 2**16))
    return io.BufferedReader(_Unpacked(unpacked, stored, name, kind, salvage, held), 2**20)


def open_lines(path: str | os.PathLike[str], progress: Progress | None = None) -> Iterator[str]:
    """Yield the lines of a UTF-8 file without their line ends (LF or CRLF) and without a byte order mark."""
    with open_bytes(path, progress, held=True) as stream:
        number = 0
        while line := stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise InputError(
                    f"line {number:,} of '{os.fspath(path)}' is longer than {MAX_LINE_BYTES:,} bytes; "
                    "give a text file with one record per line"
                )
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            try:
                text = line.rstrip(b"\r\n").decode()
            except UnicodeDecodeError as error:
                raise InputError(
                    f"line {number:,} of '{os.fspath(path)}' is not UTF-8 (byte 0x{line[error.start]:02x} at "
                    f"position {error.start:,} of the line); {how_to_convert(line + stream.peek())}"
                ) from error
            yield text


def utf16_decoder(head: bytes, errors: str) -> codecs.IncrementalDecoder | None:
    """A decoder for a file that begins with these bytes; None if they are not UTF-16.

    >>> head = "<doc>".encode("utf-16-be")
    >>> utf16_decoder(head, "strict").decode(head), utf16_decoder(b"<doc>", "strict")
    ('<doc>', None)
    """
    encoding = next((encoding for mark, encoding in UTF16.items() if head.startswith(mark)), None)
    return codecs.getincrementaldecoder(encoding)(errors) if encoding else None


def how_to_convert(data: bytes) -> str:
    """What to do about a file that is not UTF-8, from some of its bytes.

    >>> how_to_convert("Malmö".encode("latin-1")), how_to_convert(bytes(range(256)))
    ('convert it first, e.g. iconv -f LATIN1 -t UTF-8', 'this is no text: give a text file')
    """
    some = data[:SAMPLE_BYTES]
    if some.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "convert it first: iconv -f UTF-16 -t UTF-8"
    controls = len(some.translate(None, delete=bytes({*range(256)} - {*range(32)} | {*b"\t\n\r\f"})))
    if b"\0" in some or controls > MAX_CONTROL_SHARE * len(some):
        return "this is no text: give a text file"
    return "convert it first, e.g. iconv -f LATIN1 -t UTF-8"


class _Stored(io.RawIOBase):
    """The bytes of a file on disk: first the head that was already read. Counts what is taken."""

    def __init__(self, file: Any, head: bytes, progress: Progress | None) -> None:
        self.file, self.head, self.progress, self.taken = file, head, progress, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self.head:
            size = min(len(buffer), len(self.head))
            buffer[:size], self.head = self.head[:size], self.head[size:]
        else:
            size = self.file.readinto(buffer)
        self.taken += size
        if self.progress and size:
            self.progress(size)
        return size

    def close(self) -> None:
        if not self.closed and self.file is not sys.stdin.buffer:
            self.file.close()
        super().close()


class _Streams(io.RawIOBase):
    """The bytes of bzip2 or xz streams in a row; zeros may stand between them and at the end.

    BZ2File and LZMAFile stop without an error at anything that does not begin like a stream. They lose what follows.
    """

    def __init__(self, file: BinaryIO, unpacker: Callable[[], Any]) -> None:
        self.file, self.new, self.unpacker = file, unpacker, unpacker()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            stored = b""
            if self.unpacker.eof:
                stored = self.unpacker.unused_data.lstrip(b"\0")
                while not stored:
                    block = self.file.read(SALVAGE_BYTES)
                    if not block:
                        return 0
                    stored = block.lstrip(b"\0")
                self.unpacker = self.new()
            elif self.unpacker.needs_input:
                stored = self.file.read(SALVAGE_BYTES)
                if not stored:
                    raise EOFError("it ends within a stream")
            if data := self.unpacker.decompress(stored, len(buffer)):
                buffer[: len(data)] = data
                return len(data)


class _Unpacked(io.RawIOBase):
    """The bytes inside a packed file; damage becomes an InputError that names the file and the place."""

    def __init__(
        self, stream: Any, stored: _Stored, name: str, kind: str, salvage: bool = False, held: bool = False
    ) -> None:
        self.stream, self.stored, self.name, self.kind, self.salvage = stream, stored, name, kind, salvage
        self.given, self.most = 0, HELD_BYTES if held else BOMB_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            if not self.salvage:
                size: int = self.stream.readinto(buffer)
                self._check_ratio(size)
                return size
            # A read that meets damage loses what it already has, so each read is small.
            data = self.stream.read1(min(len(buffer), SALVAGE_BYTES))
        except DAMAGE as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(
                f"'{self.name}' ({self.kind}) is damaged or cut short near byte {self.stored.taken:,}: "
                f"{reason}; fetch the file again, or compress it again"
            ) from error
        buffer[: len(data)] = data
        return len(data)

    def _check_ratio(self, size: int) -> None:
        self.given += size
        if self.given > max(self.most, BOMB_RATIO * self.stored.taken):
            raise InputError(
                f"'{self.name}' ({self.kind}) unpacks to more than {BOMB_RATIO} times its size by byte "
                f"{self.stored.taken:,}, as no text does; if that is right, unpack it yourself"
            )

    def close(self) -> None:
        if not self.closed:
            self.stream.close()
            self.stored.close()
        super().close()
