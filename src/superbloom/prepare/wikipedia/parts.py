"""A piece of a dump → parts: the pages and links in it, as numbers of names.

A piece is a range of the dump's file, cut anywhere. Its pages are parsed in windows of bounded size. Each window
becomes a part of two files: PART.parquet (names) and PART.npz (pages and links as numbers of these names). At last,
PIECE.done marks the piece as done and keeps its two ends: the end of the page that began before it, and the beginning
of its last page, which it cuts. The ends of neighbours joined are the pages between them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from superbloom.errors import InputError
from superbloom.prepare.wikipedia.bzip2 import unpack_range
from superbloom.prepare.wikipedia.wikitext import (
    NO_TITLE,
    Site,
    Titles,
    find_targets,
    from_xml,
    is_disambiguation,
    link_target,
    redirect_target,
    wikitext,
)

# MediaWiki stores at most 2 MiB per page. Only a page with its whole history can be longer than this.
MAX_PAGE_BYTES = 32 * 2**20
WINDOW_BYTES = 32 * 2**20

# What a page is, if not a redirect to the number of a name.
ARTICLE, NOWHERE, DISAMBIGUATION = -1, -2, -3

TITLE = re.compile(rb"<title>([^<]*+)</title>")
PAGE_NAMESPACE = re.compile(rb"<ns>(-?\d{1,9})</ns>")
PAGE_REDIRECT = re.compile(rb'<redirect(?: title="([^"<>]*+)")?\s*+/?>')
TEXT = re.compile(rb"<text\b([^<>]*+)>")


class Piece(NamedTuple):
    """Bytes start to stop of a file, or data that is already unpacked."""

    path: str
    file: int
    number: int
    start: int
    stop: int
    packing: str
    data: bytes | None = None

    @property
    def name(self) -> str:
        return f"{self.file:03d}-{self.number:06d}"


@dataclass
class Done:
    """The content of PIECE.done: the parts of the piece, its two ends, and what is wrong with it.

    If no page ends in the piece, head is None and tail is all of it.
    """

    parts: list[tuple[str, int]] = field(default_factory=list)  # name and checksum
    size: int = 0  # bytes of text
    head: bytes | None = None
    tail: bytes = b""
    pages: int = 0
    unreadable: list[tuple[int, str]] = field(default_factory=list)
    damage: str | None = None


class Rules(NamedTuple):
    """How a page is read: the wiki, and whether disambiguation pages are dropped."""

    site: Site
    drop_disambiguations: bool = False


class Part(NamedTuple):
    """Pages of the article namespace, and their links, as numbers of names."""

    names: pa.Array
    pages: np.ndarray  # the number of each page's title
    leads_to: np.ndarray  # the number of the name that a redirect leads to, or ARTICLE, NOWHERE, DISAMBIGUATION
    lengths: np.ndarray  # the number of links of each page
    links: np.ndarray
    dropped: np.ndarray  # the number of links that name no article, by -reason (wikitext.py)
    read: int  # the number of pages of all namespaces
    unreadable: list[tuple[int, str]]  # where each page begins that could not be read, and why


class Page(NamedTuple):
    """A page. leads_to: the title that a redirect leads to, or ARTICLE, NOWHERE, DISAMBIGUATION."""

    title: str
    namespace: int
    leads_to: str | int
    text: bytes  # the wikitext of an article, escaped as in the dump


class Parser:
    """Parses pieces, and remembers the titles of spellings of links."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.titles = Titles(rules.site)

    def piece(self, piece: Piece, folder: Path) -> Done:
        """Parse a piece and write its files to the folder; if they are there, only read PIECE.done."""
        file = folder / f"{piece.name}.done"
        if (known := read_done(file)) is not None:
            return known
        done = Done()
        rest = b""
        try:
            for data in chunks(piece):
                rest = rest + data if rest else data
                done.size += len(data)
                begin = 0
                if done.head is None and (found := rest.find(b"</page>")) >= 0:
                    begin = found + len(b"</page>")
                    done.head = rest[:begin]
                if done.head is not None and (found := rest.rfind(b"</page>", begin)) >= 0:
                    end = found + len(b"</page>")
                    part = self.part(rest, begin, end)
                    done.parts.append(write_part(folder, f"{piece.name}-{len(done.parts) + 1:04d}", part))
                    done.pages += part.read
                    offset = done.size - len(rest)
                    done.unreadable += [(offset + at, reason) for at, reason in part.unreadable]
                    begin = end
                rest = rest[begin:]
                check_length(rest, done.size)
        except InputError as error:
            done.damage = str(error)
        done.tail = rest
        write_done(file, done)
        return done

    def part(self, data: bytes, begin: int, end: int) -> Part:
        """Parse the pages in data[begin:end], which ends at the end of a page."""
        pages, unreadable, read = [], [], 0
        for bounds in split_pages(data, begin, end):
            read += 1
            try:
                page = parse_page(data, bounds, self.rules)
            except ValueError as error:
                unreadable.append((bounds.begin, str(error)))
            else:
                if page.namespace == 0:
                    pages.append(page)
        lengths, targets = find_targets(pa.array([page.text for page in pages], pa.binary()))
        spellings = targets.dictionary
        plain, plain_titles = self.titles.plain(spellings)
        others = self.titles.look_up(spellings.filter(pc.invert(plain)))

        # The distinct names of pages, redirect targets and links.
        redirects = [page.leads_to for page in pages if isinstance(page.leads_to, str)]
        texts = [page.title for page in pages] + redirects + [title for title in others if isinstance(title, str)]
        names = pa.concat_arrays([pa.array(texts, pa.string()), plain_titles]).dictionary_encode()
        numbers = names.indices.to_numpy()
        page_numbers, redirect_numbers, other_numbers, plain_numbers = np.split(
            numbers, np.cumsum([len(pages), len(redirects), len(texts) - len(pages) - len(redirects)])
        )
        leads_to = _fill([page.leads_to for page in pages], redirect_numbers)
        number_of = np.empty(len(spellings), dtype=np.int32)
        is_plain = plain.to_numpy(zero_copy_only=False)
        number_of[is_plain] = plain_numbers
        number_of[~is_plain] = _fill(others, other_numbers)
        links = number_of[targets.indices.to_numpy()]
        kept = links >= 0
        row_of = np.repeat(np.arange(len(pages)), lengths)[kept]
        return Part(
            names.dictionary,
            page_numbers,
            leads_to,
            np.bincount(row_of, minlength=len(pages)).astype(np.int32),
            links[kept],
            np.bincount(-links[~kept], minlength=1 - NO_TITLE),
            read,
            unreadable,
        )


class Parsing(NamedTuple):
    """The task of a worker: parse pieces by these rules into this folder."""

    rules: Rules
    folder: Path

    def start(self) -> Callable[[Piece], Done]:
        parser = Parser(self.rules)
        return lambda piece: parser.piece(piece, self.folder)


def _fill(values: list[str | int], numbers: np.ndarray) -> np.ndarray:
    """The values as numbers: codes stay, and each text is replaced by the next of `numbers`."""
    filled = np.fromiter((value if isinstance(value, int) else 0 for value in values), np.int32, len(values))
    filled[filled == 0] = numbers  # codes are negative
    return filled


def chunks(piece: Piece) -> Iterator[bytes]:
    """Yield the unpacked bytes of a piece, at most WINDOW_BYTES at a time."""
    if piece.data is not None:
        yield piece.data
        return
    with Path(piece.path).open("rb") as file:
        if piece.packing == "bzip2":
            yield from unpack_range(file, piece.start, piece.stop, WINDOW_BYTES)
        else:
            file.seek(piece.start)
            yield file.read(piece.stop - piece.start)


def check_length(rest: bytes, done: int) -> None:
    """Refuse a page that does not end. done: the place in the text where `rest` ends."""
    if len(rest) > MAX_PAGE_BYTES:
        raise InputError(
            f"there is no </page> in the {MAX_PAGE_BYTES:,} bytes after byte {done - len(rest):,} of the text; "
            "give a dump of current pages (pages-articles), not of their history"
        )


class Bounds(NamedTuple):
    """The place of a page: where it begins, where its head ends, and the text of its last revision."""

    begin: int
    head: int
    start: int
    stop: int


def split_pages(data: bytes, at: int, limit: int) -> Iterator[Bounds]:
    """Find the pages in data[at:limit], which ends at the end of a page."""
    opening = TEXT.search(data, at, limit)
    while at < limit:
        if opening and opening.start() < at:
            opening = TEXT.search(data, at, limit)
        end = data.find(b"</page>", at, opening.start() if opening else limit)
        if opening is None or end >= 0:  # a page without text
            start = stop = end
        else:
            start, stop = _text(data, opening, limit)
            end = data.find(b"</page>", stop, limit)
            while (revision := data.find(b"<revision>", stop, end)) >= 0:
                later = TEXT.search(data, revision, end)
                start, stop = _text(data, later, end + len(b"</page>")) if later else (end, end)
        begin = max(at, data.find(b"<page>", at, end))
        head = data.find(b"<revision>", begin, start)
        yield Bounds(begin, end if head < 0 else head, start, stop)
        at = end + len(b"</page>")


def _text(data: bytes, opening: re.Match[bytes], end: int) -> tuple[int, int]:
    """Where the text of a revision begins and ends."""
    if opening[1].endswith(b"/"):
        return opening.end(), opening.end()
    start = opening.end()
    stop = data.find(b"<", start, end)  # the text itself has &lt; instead, unless the file was written by hand
    if not data.startswith(b"</text>", stop):
        end = data.find(b"</page>", start, end)
        stop = data.find(b"</text>", start, end)
    return start, stop if stop >= 0 else end


def parse_page(data: bytes, bounds: Bounds, rules: Rules) -> Page:
    """Read one page. Only articles keep their text. ValueError if the page is damaged.

    >>> data = b"<page><title>A</title><revision><text>[[b]] or [[talk:c]]</text></revision></page>"
    >>> [parse_page(data, bounds, Rules(Site())) for bounds in split_pages(data, 0, len(data))]
    [Page(title='A', namespace=0, leads_to=-1, text=b'[[b]] or [[talk:c]]')]
    """
    begin, head, start, stop = bounds
    found = TITLE.search(data, begin, head)
    if not found:
        raise ValueError("it has no <title>")
    site = rules.site
    title = from_xml(found[1]).replace("_", " ").strip()
    if not title:
        raise ValueError("its <title> is empty")
    if stated := PAGE_NAMESPACE.search(data, begin, head):
        namespace = int(stated[1])
    else:
        prefix, colon, _ = title.partition(":")
        namespace = site.namespaces.get(prefix.strip().lower(), 0) if colon else 0
    if namespace != 0:
        return Page(title, namespace, ARTICLE, b"")

    redirect = PAGE_REDIRECT.search(data, begin, head)
    if redirect and redirect[1] is not None:
        return Page(title, 0, _article(from_xml(redirect[1]), site), b"")
    # Before schema 0.6 a redirect was marked without its target, or not at all.
    if data[start : start + 1] in b"#\xef \t\r\n" and (written := redirect_target(data[start:stop])) is not None:
        return Page(title, 0, _article(written, site), b"")
    text = wikitext(data, start, stop)
    if redirect:
        targets = find_targets(pa.array([text], pa.binary()))[1]
        return Page(title, 0, _article(from_xml(targets[0].as_py(), "replace"), site) if len(targets) else NOWHERE, b"")
    if rules.drop_disambiguations and is_disambiguation(text):
        return Page(title, 0, DISAMBIGUATION, b"")
    return Page(title, 0, ARTICLE, text)


def _article(target: str, site: Site) -> str | int:
    title = link_target(target, site)
    return title if isinstance(title, str) else NOWHERE


def write_part(folder: Path, name: str, part: Part) -> tuple[str, int]:
    """Write the two files of a part; return its name and a checksum of both."""
    names, arrays = BytesIO(), BytesIO()
    table = pa.table({"name": part.names})
    pq.write_table(table, names, compression="lz4", use_dictionary=False, write_statistics=False)
    np.savez(
        arrays,
        pages=part.pages,
        leads_to=part.leads_to,
        lengths=part.lengths,
        links=part.links,
        dropped=part.dropped,
        names=np.array(len(part.names)),
    )
    (folder / f"{name}.parquet").write_bytes(names.getbuffer())
    (folder / f"{name}.npz").write_bytes(arrays.getbuffer())
    return name, crc32(arrays.getbuffer(), crc32(names.getbuffer()))


def write_done(file: Path, done: Done) -> None:
    """Write PIECE.done: a checksum, a line of JSON, the two ends."""
    described = asdict(done) | {"head": None if done.head is None else len(done.head), "tail": len(done.tail)}
    content = json.dumps(described).encode() + b"\n" + (done.head or b"") + done.tail
    temporary = file.with_suffix(".new")
    temporary.write_bytes(b"%08x\n" % crc32(content) + content)
    temporary.replace(file)


def read_done(file: Path) -> Done | None:
    """Read PIECE.done; None if it is missing or damaged, or if a part is not as it was written."""
    try:
        checksum, _, content = file.read_bytes().partition(b"\n")
        if checksum != b"%08x" % crc32(content):
            return None
        line, _, ends = content.partition(b"\n")
        found = json.loads(line)
        found["tail"] = ends[found["head"] or 0 :]
        found["head"] = None if found["head"] is None else ends[: found["head"]]
        done = Done(**found | {name: list(map(tuple, found[name])) for name in ("parts", "unreadable")})
        for name, written in done.parts:
            names, arrays = ((file.parent / f"{name}{suffix}").read_bytes() for suffix in (".parquet", ".npz"))
            if crc32(arrays, crc32(names)) != written:
                return None
    except OSError:
        return None
    return done
