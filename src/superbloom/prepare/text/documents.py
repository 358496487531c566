"""Files of text → pieces that can be read independently. A piece ends at the end of a line or a page.

A file is plain text with blank lines between documents, or documents under headings "= Title =" as in WikiText, or
documents between <doc …> and </doc> as wikiextractor writes them, or a MediaWiki dump. Its first line decides. A
document larger than a piece continues in the next one. Headings of wikitext are left out everywhere.
"""

from __future__ import annotations

import codecs
import html
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from superbloom.config.readers import OnBadBytes
from superbloom.corpus import TEXT_EXTRA_MISSING
from superbloom.errors import InputError
from superbloom.prepare.files import MAX_LINE_BYTES, open_bytes, utf16_decoder
from superbloom.prepare.wikipedia.dump import EXPORT
from superbloom.prepare.wikipedia.parts import ARTICLE, Rules, check_length, parse_page, split_pages
from superbloom.prepare.wikipedia.wikitext import Site, from_xml, parse_site

PIECE_BYTES = 16 * 2**20
HEAD_BYTES = 2**20  # that decide the form of a file
# Lines of markup, searched in data with a line end put before it. WikiText has "= = History = =" for "== History ==".
HEADING = re.compile(
    rb"\n[ \t]*(?P<level>=(?:[ \t]*=){0,5})[ \t]*(?P<title>[^=\s](?:[^\n]*[^=\s])?)[ \t]*(?P=level)[ \t\r]*(?=\n|\Z)"
)
TAG_OR_HEADING = re.compile(rb"\n(?:<doc\b|</doc>)[^\n]*|" + HEADING.pattern)
TITLE_LEVEL = b"="
QUOTES = re.compile("''+")
NOT_TEXT = ("ref", "table", "gallery")
DOC_TITLE = re.compile(rb'\btitle="(.*?)"(?=\s+\w+=|\s*>\s*$)')


class Form(Enum):
    """What separates the documents of a file."""

    LINES = "blank lines"
    TITLES = "= Title ="
    DOCS = "<doc> and </doc>"
    PAGES = "<page> and </page> of a MediaWiki dump"


class Piece(NamedTuple):
    """Whole lines or pages of a file. continues: its first words may belong to the document before."""

    number: int
    path: str
    line: int
    form: Form
    continues: bool
    site: Site | None = None
    data: bytes | None = None


class LeftOut(NamedTuple):
    """The numbers of headings and of pages without a title that are left out."""

    headings: int = 0
    untitled: int = 0


class Starts(NamedTuple):
    """Text, the bytes in it at which documents begin, their titles, and what was left out."""

    text: bytes
    places: list[int]
    titles: Sequence[str | None]
    left_out: LeftOut


def expand(paths: Iterable[str]) -> list[str]:
    """The given files, and the files of given folders in the order of their names."""
    found: list[str] = []
    for path in paths:
        if Path(path).is_dir():
            inside = sorted(file for file in Path(path).rglob("*") if file.is_file() and not file.name.startswith("."))
            if not inside:
                raise InputError(f"the folder '{path}' holds no file; give text files or a folder of them")
            found += map(str, inside)
        elif path == "-" or Path(path).exists():
            found.append(path)
        else:
            raise InputError(f"'{path}' does not exist; give text files, folders of them, or - for stdin")
    return found


def pieces(
    paths: Iterable[str], progress: Callable[[int], None], notice: Callable[[str], None], errors: OnBadBytes = "strict"
) -> Iterator[Piece]:
    """The pieces of all files in order, as UTF-8. progress receives the number of bytes read from disk.

    errors: what to do about bytes that are not UTF-16, in a file that begins as such.
    """
    number = 0
    for path in paths:
        with open_bytes(path, progress) as stream:
            read = stream.read(HEAD_BYTES)
            decoder, line, continues = utf16_decoder(read, errors), 1, False
            rest = _as_utf8(read, decoder, path, line).removeprefix(codecs.BOM_UTF8)
            form, site = _form(rest)
            while True:
                read = stream.read(max(PIECE_BYTES - len(rest), PIECE_BYTES // 4, 1))
                rest += _as_utf8(read, decoder, path, line)
                is_last = not read and form is not Form.PAGES
                cut, next_continues = (len(rest), False) if is_last else _cut(rest, form)
                if cut:
                    yield Piece(number, path, line, form, continues, site, rest[:cut])
                    number, line, continues = number + 1, line + rest.count(b"\n", 0, cut), next_continues
                rest = rest[cut:]
                if not read:
                    break
                _check_size(rest, form, path, line)
            if form is Form.PAGES and b"</mediawiki>" not in rest:
                within = "within a page, which is left out" if b"<page>" in rest else "without </mediawiki>"
                notice(f"'{path}' ends {within}: it is cut short; what precedes is kept")


def _as_utf8(read: bytes, decoder: codecs.IncrementalDecoder | None, path: str, line: int) -> bytes:
    """The next bytes of a file as UTF-8; none at its end."""
    if decoder is None:
        return read
    try:
        return decoder.decode(read, final=not read).encode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"'{path}', after line {line:,}, is not UTF-16: {error.reason}; convert it to UTF-8, or continue with "
            "--errors replace"
        ) from None


def _form(head: bytes) -> tuple[Form, Site | None]:
    if EXPORT.match(head):
        site_info = head.partition(b"</siteinfo>")[0].partition(b"<page>")[0]
        return Form.PAGES, parse_site(site_info.decode(errors="replace"))
    head = head.lstrip()
    first = HEADING.match(b"\n" + head)
    if first and first["level"] == TITLE_LEVEL:
        return Form.TITLES, None
    return (Form.DOCS if head.startswith(b"<doc ") else Form.LINES), None


def _cut(data: bytes, form: Form) -> tuple[int, bool]:
    """Where to cut data, and whether the document before the cut may continue after it.

    >>> _cut(b"one\\n\\ntwo\\nt", Form.LINES), _cut(b"one\\ntwo\\nt", Form.LINES), _cut(b"one", Form.LINES)
    ((5, False), (8, True), (0, False))
    """
    if form is Form.PAGES:
        end = data.rfind(b"</page>")
        return (end + len(b"</page>"), False) if end >= 0 else (0, False)
    if form is Form.TITLES:
        end = 0
    elif form is Form.DOCS:
        end = data.rfind(b"\n<doc ") + 1
    else:
        end = max((data.rfind(gap) + len(gap) for gap in (b"\n\n", b"\n\r\n") if gap in data), default=0)
    if not end and len(data) > MAX_LINE_BYTES and b"\n" not in data:  # a text such as text8 is one line
        return data.rfind(b" ") + 1, True
    return (end, False) if end else (data.rfind(b"\n") + 1, b"\n" in data)


def _check_size(rest: bytes, form: Form, path: str, line: int) -> None:
    if form is Form.PAGES:
        try:
            check_length(rest, len(rest))
        except InputError as error:
            raise InputError(f"'{path}' at line {line:,}: {error}") from None
    elif len(rest) > MAX_LINE_BYTES:
        raise InputError(f"line {line:,} of '{path}' has {MAX_LINE_BYTES:,} bytes without a space; give text")


def starts(piece: Piece) -> Starts:
    """The text of a piece, and where its documents begin; for plain text, see `blank_lines`.

    >>> starts(Piece(0, "", 1, Form.TITLES, False, data=b" = Oslo = \\n A city . \\n = = History = = \\n Old .")).titles
    ['Oslo']
    """
    assert piece.data is not None
    if piece.form is Form.PAGES:
        return _articles(piece.data, piece.site or Site())
    data = b"\n" + piece.data
    texts: list[bytes] = []
    places, titles = [], []
    headings = at = size = 0
    for line in (TAG_OR_HEADING if piece.form is Form.DOCS else HEADING).finditer(data):
        texts.append(data[at : line.start()])
        size += len(texts[-1])
        at = line.end()
        is_heading = line["level"] is not None
        headings += is_heading
        title = line["title"].decode() if is_heading else _doc_title(line[0])
        if not is_heading or (piece.form is Form.TITLES and line["level"] == TITLE_LEVEL):
            places.append(size - 1)  # without the line end that was put before
            titles.append(title)
    text = b"".join([*texts, data[at:]])[1:]
    return Starts(text, places, titles, LeftOut(headings))


def _doc_title(tag: bytes) -> str | None:
    title = DOC_TITLE.search(tag) if tag.startswith(b"\n<doc") else None
    return html.unescape(title[1].decode()) if title else None


def _articles(data: bytes, site: Site) -> Starts:
    """The articles among some pages as text without markup, which mwparserfromhell removes."""
    try:
        import mwparserfromhell
        from mwparserfromhell.nodes import Heading
    except ImportError:
        raise InputError(TEXT_EXTRA_MISSING.replace("the tokenizers library", "mwparserfromhell")) from None
    texts, places, titles = [], [], []
    at = headings = untitled = 0
    for bounds in split_pages(data, 0, len(data)):
        try:
            page = parse_page(data, bounds, Rules(site))
        except ValueError:
            untitled += 1
            continue
        if page.namespace != 0 or page.leads_to != ARTICLE:
            continue
        code = mwparserfromhell.parse(from_xml(page.text, "replace").replace("\0", ""), skip_style_tags=True)
        headings += sum(isinstance(node, Heading) for node in code.nodes)
        nodes = [node for node in code.nodes if _is_text(node, site)]
        # Bold and italics are runs of apostrophes. The library removes only those that are closed.
        text = QUOTES.sub("", code.__class__(nodes).strip_code()).encode(errors="replace") + b"\n"
        texts.append(text)
        places.append(at)
        titles.append(page.title)
        at += len(text)
    return Starts(b"".join(texts), places, titles, LeftOut(headings, untitled))


def _is_text(node: Any, site: Site) -> bool:
    """Whether a node is text of an article. Headings, files with captions, categories and notes are not."""
    from mwparserfromhell.nodes import Heading, Tag, Wikilink

    if isinstance(node, Wikilink):
        prefix, colon, _ = str(node.title).partition(":")
        return not (colon and site.namespaces.get(prefix.strip().lower()))
    if isinstance(node, Tag):
        return str(node.tag).strip().lower() not in NOT_TEXT
    return not isinstance(node, Heading)


def blank_lines(data: bytes, stretches: np.ndarray) -> np.ndarray:
    """The number of the stretch after each blank line, where stretches of text begin at these bytes."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    before = np.searchsorted(stretches, ends)
    return before[np.diff(before, prepend=0) == 0]
