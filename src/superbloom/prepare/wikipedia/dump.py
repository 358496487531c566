"""One file of a dump → the properties of its wiki, and pieces of its text that can be parsed independently."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from superbloom.errors import InputError
from superbloom.prepare.files import open_bytes, utf16_decoder
from superbloom.prepare.wikipedia.parts import Piece
from superbloom.prepare.wikipedia.wikitext import parse_site

# Bytes of the file in a piece, so that a piece has about 30 MB of text.
PIECE_BYTES = {"bzip2": 8 * 2**20, "plain": 32 * 2**20}
STREAM_BYTES = 32 * 2**20  # of text in a piece of a file that can only be read from its beginning
READ_BYTES = 2**20

EXPORT = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*+(?:<\?xml[^<>]*+>\s*+)?"  # an optional byte order mark and XML declaration
    rb"(?:<!--(?>.*?-->)\s*+)*+<mediawiki[\s>]",
    re.DOTALL,
)


class Dump:
    """An open file of a dump. progress receives the number of bytes just read from disk.

    has_ranges: pieces are ranges of the file, which workers read themselves.
    """

    def __init__(self, path: str, number: int, progress: Callable[[int], None]) -> None:
        self.path, self.number, self.progress = path, number, progress
        self.damage: str | None = None
        self.taken = 0
        self.stream = open_bytes(path, self._taken, salvage=True)
        self.packing: str = self.stream.raw.kind  # type: ignore[attr-defined]
        try:
            self._read_head()
        except BaseException:
            self.stream.close()
            raise

    def __enter__(self) -> Dump:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    def _read_head(self) -> None:
        head = b""
        while len(head) < READ_BYTES and (read := self._read()):
            head += read
        self.decoder = utf16_decoder(head, "replace")
        # Only ranges of bzip2 and plain files can be read without all that precedes them.
        self.has_ranges = self.packing in PIECE_BYTES and Path(self.path).is_file() and self.decoder is None
        self.head = self.decode(head)
        if not EXPORT.match(self.head):
            if self.damage and not head:
                raise InputError(self.damage)
            raise InputError(
                f"'{self.path}' is not a MediaWiki XML export: it does not begin with <mediawiki>; "
                "give a file such as enwiki-latest-pages-articles.xml.bz2"
            )
        try:
            self.site = parse_site(self.head.partition(b"</siteinfo>")[0].partition(b"<page>")[0].decode())
        except UnicodeDecodeError as error:
            raise InputError(f"'{self.path}' is not UTF-8 in its <siteinfo>: {error}; fetch the dump again") from error

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces in order. If the file is damaged, they end there, and self.damage describes it."""
        if self.has_ranges:
            size, step = Path(self.path).stat().st_size, PIECE_BYTES[self.packing]
            self.damage = None  # a piece will find it again
            for number, start in enumerate(range(0, size, step)):
                yield Piece(self.path, self.number, number, start, min(start + step, size), self.packing)
            return
        number, data, size, read = 0, [self.head], len(self.head), self.head
        while read:
            read = self._read()
            self.progress(self.taken)
            self.taken = 0
            data.append(self.decode(read, final=not read))
            size += len(data[-1])
            if size >= STREAM_BYTES or (size and not read):
                yield Piece(self.path, self.number, number, 0, 0, self.packing, b"".join(data))
                number, data, size = number + 1, [], 0

    def _read(self) -> bytes:
        """The next bytes; none at the end or at damage."""
        try:
            return b"" if self.damage else self.stream.read1(READ_BYTES)
        except InputError as error:
            self.damage = str(error)
            return b""

    def decode(self, data: bytes, final: bool = False) -> bytes:
        """The bytes of the file as UTF-8."""
        return self.decoder.decode(data, final).encode(errors="replace") if self.decoder else data

    def _taken(self, count: int) -> None:
        self.taken += count
