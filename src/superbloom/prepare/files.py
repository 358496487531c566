"""Open a user's file whatever it is packed with, and say plainly when it cannot be read.

Plain, gzip, bzip2, xz and zstd files are told apart by their first bytes, never by their name; "-" is
standard input. A missing, damaged or cut file raises InputError with the file and the place, so the readers
beside this file only see bytes and lines that are whole. What they hold on disk meanwhile is an array in a file.
"""

import bz2
import codecs
import gzip
import io
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from superbloom.errors import InputError

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

SALVAGE_BYTES = 2**14

# A longer line is a file without line ends, which would fill the memory before anyone notices.
MAX_LINE_BYTES = 16 * 2**20
# A packed file of which so much has come, this many times what was read for it, is a bomb; small ones may be honest:
# a log in order, packed with zstd, is 9,000 times its size.
BOMB_BYTES, BOMB_RATIO = 4 * 2**30, 250
HELD_BYTES = 16 * 2**20  # the same of what is held in memory, where names take fifty times as much


def open_bytes(
    path: str | os.PathLike[str],
    progress: Callable[[int], None] | None = None,
    salvage: bool = False,
    held: bool = False,
) -> io.BufferedReader:
    """Open a file for reading its unpacked bytes; salvage gives nearly all of them that precede damage.

    progress is called with the number of bytes just taken from the file as it lies on disk, so the calls add
    up to the file's size whatever it is packed with.
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
    # A small buffer below the unpacking, so that the place named in an error is near the damage.
    unpacked = PACKINGS[kind](io.BufferedReader(stored, 2**16))
    return io.BufferedReader(_Unpacked(unpacked, stored, name, kind, salvage, held), 2**20)


def open_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield the lines of a UTF-8 file without their line ends (LF or CRLF) and without a byte order mark."""
    with open_bytes(path, held=True) as stream:
        number = 0
        while line := stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise InputError(
                    f"line {number:,} of '{os.fspath(path)}' is longer than {MAX_LINE_BYTES:,} bytes; "
                    "give a text file with one record a line"
                )
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            try:
                text = line.rstrip(b"\r\n").decode()
            except UnicodeDecodeError as error:
                raise InputError(
                    f"line {number:,} of '{os.fspath(path)}' is not UTF-8 (byte 0x{line[error.start]:02x} at "
                    f"position {error.start:,} of the line); convert it first, e.g. iconv -f LATIN1 -t UTF-8"
                ) from error
            yield text


class _Stored(io.RawIOBase):
    """A file as it lies on disk: gives back the head already read, and counts what is taken."""

    def __init__(self, file: Any, head: bytes, progress: Callable[[int], None] | None) -> None:
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
    """The bytes of bzip2 or xz streams one after another; zeros may stand between them and at the end.

    BZ2File and LZMAFile take whatever does not begin as a stream does for the end, and leave out all that follows.
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
            # A read that comes upon damage loses what it already has: so let it have little.
            data = self.stream.read1(min(len(buffer), SALVAGE_BYTES))
        except DAMAGE as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(
                f"'{self.name}' ({self.kind}) is damaged or cut short near byte {self.stored.taken:,}: "
                f"{reason}; fetch the file again, or pack it anew"
            ) from error
        buffer[: len(data)] = data
        return len(data)

    def _check_ratio(self, size: int) -> None:
        self.given += size
        if self.given > max(self.most, BOMB_RATIO * self.stored.taken):
            raise InputError(
                f"'{self.name}' ({self.kind}) unpacks to more than {BOMB_RATIO} times its size by byte "
                f"{self.stored.taken:,}, as no text does; if it is meant to, unpack it yourself"
            )

    def close(self) -> None:
        if not self.closed:
            self.stream.close()
            self.stored.close()
        super().close()


def mapped(path: Path, kind: type, size: int) -> np.ndarray:
    """An array of so many numbers, or 1, in a new file; it stays usable when the file's name is gone.

    subtle: its room is taken at once. Of a file with holes, writing to the map ends the process where the disk is full.
    """
    size = max(1, size)
    with path.open("wb") as file:
        length = size * np.dtype(kind).itemsize
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, length)
        else:
            file.truncate(length)
    return np.memmap(path, kind, "r+", shape=size)
