"""The links in the wikitext of a page, as MediaWiki understands them (Sec. 3.1: "raw" links).

Text is searched as it is in the dump: UTF-8 bytes in which & < > are written &amp; &lt; &gt;. To decode and unescape
all of it would take longer than to find the links, so only link targets are, once per spelling. Arrow works on many
pages at a time, without a Python object per link.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from superbloom.prepare.wikipedia.words import (
    DISAMBIGUATIONS,
    INTERWIKI_CODES,
    INTERWIKI_NAMES,
    NAMESPACES,
    REDIRECT_WORDS,
)

# Why a link names no article.
OTHER_NAMESPACE, OTHER_WIKI, NO_TITLE = -1, -2, -3

# Every repeat below is possessive or stops at the next bracket or tag, so that any file takes linear time.
UNPARSED = (
    b"nowiki", b"pre", b"source", b"syntaxhighlight", b"math", b"chem", b"ce", b"timeline", b"score", b"hiero",
    b"graph", b"templatedata",
)  # fmt: skip
HIDDEN = re.compile(
    rb"&lt;(?:!--|(?i:(" + b"|".join(UNPARSED) + rb"))(?=[\s/>]|&gt;)(?:[^&<>]|&(?!lt;|gt;))*+(?:&gt;|>))"
)
CLOSING = {name: re.compile(rb"&lt;/(?i:" + name + rb")\s*+(?:&gt;|>)") for name in UNPARSED}
COMMENT_END = re.compile(rb"--(?:&gt;|>)")

REDIRECT = re.compile(
    rf"\s*+[#\uff03](?:{'|'.join(map(re.escape, REDIRECT_WORDS))})"
    r"\s*+:?\s*+\[\[([^\[\]|]++)(?:\|[^\[\]]*+)?\]\]",
    re.IGNORECASE,
)
DISAMBIGUATION = re.compile(rf"\{{\{{\s*+(?:{'|'.join(map(re.escape, DISAMBIGUATIONS))})\s*+(?:[|}}]|$)", re.IGNORECASE)

LANGUAGE = re.compile(r'xml:lang="([^"]*+)"')
CASE_SENSITIVE = re.compile(r'<case>case-sensitive</case>|<namespace key="0"[^<>]*case="case-sensitive"')
NAMESPACE = re.compile(r'<namespace key="(-?\d{1,9})"[^<>]*+>([^<]++)</namespace>')

ESCAPE = re.compile(rb"&(?:lt|gt|quot|apos|amp|#\d{1,7}|#x[0-9a-fA-F]{1,6});")
ESCAPES = {b"&lt;": b"<", b"&gt;": b">", b"&quot;": b'"', b"&apos;": b"'", b"&amp;": b"&"}

# Eight in ten links are only words and single spaces, and need none of the rules of link_target.
PLAIN = r"^[A-Za-z0-9](?:[A-Za-z0-9,.'()-]| [A-Za-z0-9,.'()-])*$"
NOT_IN_A_TARGET = re.compile(r"[\x00-\x1f\x7f<>\[\]{}]")
ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]*+);")
DIRECTION_MARKS = re.compile("[\u200e\u200f\u202a-\u202e]")
ILLEGAL = re.compile(r"[\x00-\x1f\x7f<>\[\]{}|\ufffd]|%[0-9a-fA-F]{2}|~~~|^:|^\.{1,2}(?:/|$)|/\.{1,2}(?:/|$)")
MAX_TITLE_BYTES = 255
# The number of spellings of links that are remembered; about 250 bytes each.
MAX_SPELLINGS = 400_000
DOTTED_I = ("tr", "az", "kaa")  # languages in which the capital of i is İ


@dataclass(frozen=True)
class Site:
    """The properties of a wiki that a dump states. namespaces: the number of each name, in lower case."""

    language: str = "en"
    first_letter: bool = True
    namespaces: Mapping[str, int] = field(default_factory=lambda: NAMESPACES)


def parse_site(head: str) -> Site:
    """Read the language, the case rule and the namespaces from the text before the first page."""
    language = LANGUAGE.search(head)
    named = {html.unescape(name).lower(): int(number) for number, name in NAMESPACE.findall(head)}
    return Site(language[1] if language else "en", not CASE_SENSITIVE.search(head), NAMESPACES | named)


class Titles(dict[bytes, str | int]):
    """The title that each spelling of a link target names, or a code if it names no article."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def __missing__(self, target: bytes) -> str | int:
        try:
            found = link_target(from_xml(target), self.site)
        except UnicodeDecodeError:
            found = NO_TITLE
        self[target] = found
        return found

    def look_up(self, targets: pa.Array) -> list[str | int]:
        """The titles of many targets. Spellings are forgotten when there are more than MAX_SPELLINGS."""
        found: list[str | int] = []
        for begin in range(0, len(targets), MAX_SPELLINGS // 4):
            if len(self) > MAX_SPELLINGS:
                self.clear()
            found += map(self.__getitem__, targets[begin : begin + MAX_SPELLINGS // 4].to_pylist())
        return found

    def plain(self, targets: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Which targets need only the rule of the first letter, and their titles."""
        plain = pc.and_(
            pc.match_substring_regex(targets, PLAIN), pc.less_equal(pc.binary_length(targets), MAX_TITLE_BYTES)
        )
        if self.site.language in DOTTED_I:
            plain = pc.and_not(plain, pc.starts_with(targets, "i"))
        titles = targets.filter(plain).cast(pa.string())
        if self.site.first_letter:
            first, rest = pc.utf8_slice_codeunits(titles, 0, 1), pc.utf8_slice_codeunits(titles, 1)
            titles = pc.binary_join_element_wise(pc.ascii_upper(first), rest, "")
        return plain, titles


def find_targets(texts: pa.Array) -> tuple[np.ndarray, pa.DictionaryArray]:
    """The number of links in each wikitext, and the targets of all links in order, as they are written.

    As in MediaWiki, a link is the text between [[ and the next ]], without another [[ in between.

    >>> texts = pa.array([b"[[Image:x.jpg|a [[whale]]]] [[sea|seas]] [[", b"", b"[[Sea#Salt]]"], pa.binary())
    >>> lengths, targets = find_targets(texts)
    >>> lengths.tolist(), targets.to_pylist()
    ([2, 0, 1], [b'whale', b'sea', b'Sea#Salt'])
    """
    pieces = pc.split_pattern(texts, "[[")
    offsets = pieces.offsets.to_numpy()
    halves = pc.split_pattern(pieces.values, "]]", max_splits=1)
    is_link = np.diff(halves.offsets.to_numpy()) == 2
    is_link[offsets[:-1]] = False  # the text before the first [[
    inside = halves.values.take(pa.array(halves.offsets.to_numpy()[:-1][is_link]))
    targets = pc.split_pattern(inside, "|", max_splits=1)
    targets = targets.values.take(targets.offsets[:-1])
    before = np.concatenate([[0], np.cumsum(is_link)])
    return np.diff(before[offsets]), targets.dictionary_encode()


def wikitext(data: bytes, begin: int, end: int) -> bytes:
    """The text of a page without what MediaWiki does not read as wikitext."""
    return strip_unparsed(data[begin:end]) if HIDDEN.search(data, begin, end) else data[begin:end]


def strip_unparsed(text: bytes) -> bytes:
    r"""Remove comments and elements that MediaWiki does not read as wikitext. A tag that is never closed is text.

    >>> strip_unparsed(b"a&lt;!-- b --&gt;c &lt;nowiki&gt;[[d]]&lt;/nowiki&gt; &lt;pre>e &lt;nowiki/>")
    b'ac \x00 &lt;pre>e &lt;nowiki/>'
    """
    kept: list[bytes] = []
    begin = at = 0
    unclosed = set()
    while opening := HIDDEN.search(text, at):
        at = opening.end()
        tag = (opening[1] or b"").lower()
        if not tag:
            closing = COMMENT_END.search(text, at)
            at = closing.end() if closing else len(text)
        elif tag in unclosed or opening[0].endswith((b"/&gt;", b"/>")):
            continue
        elif closing := CLOSING[tag].search(text, at):
            at = closing.end()
        else:
            unclosed.add(tag)
            continue
        # No title holds NUL, so [[a<nowiki>b</nowiki>]] does not become a link. A comment leaves nothing.
        kept += text[begin : opening.start()], b"\0" if tag else b""
        begin = at
    return b"".join(kept) + text[begin:]


def redirect_target(text: bytes) -> str | None:
    """The target of a page whose text is a redirect in any language. Before schema 0.6 it is the only sign of one.

    >>> redirect_target(b"#REDIRECT [[Sea]]"), redirect_target("＃転送 [[海]]".encode()), redirect_target(b"# [[a]]")
    ('Sea', '海', None)
    """
    if not text.lstrip().startswith((b"#", "\uff03".encode())):
        return None
    found = REDIRECT.match(from_xml(text, "replace"))
    return found[1] if found else None


def is_disambiguation(text: bytes) -> bool:
    """Whether a template, in any language, marks a page as a list of the meanings of a name.

    >>> is_disambiguation(b"'''Mercury''' may be: {{Disambig}}"), is_disambiguation(b"[[Mercury]] {{planets}}")
    (True, False)
    """
    return bool(DISAMBIGUATION.search(text.decode(errors="replace").replace("_", " ")))


def link_target(target: str, site: Site) -> str | int:
    """The article that a link target names, spelled as in MediaWiki, or a code if it names none.

    >>> link_target("star_Trek:  Voyager#Cast", Site()), link_target("&eacute;tude%2C", Site())
    ('Star Trek: Voyager', 'Étude,')
    >>> link_target(":Category:Seas", Site()), link_target("wikt:sea", Site()), link_target("#Notes", Site())
    (-1, -2, -3)
    """
    if elsewhere := _elsewhere(target, site):
        return elsewhere
    if NOT_IN_A_TARGET.search(target):
        return NO_TITLE
    if "%" in target:
        target = unquote(target)
    if "&" in target:
        target = ENTITY.sub(lambda match: html.unescape(match[0]), target)
    title = target.partition("#")[0]
    if not title.isascii():
        title = unicodedata.normalize("NFC", DIRECTION_MARKS.sub("", title))
    title = " ".join(title.replace("_", " ").split())
    if ":" in title:
        title = title.removeprefix(":").lstrip()
        if elsewhere := _elsewhere(title, site):
            return elsewhere
    if not title or len(title.encode(errors="replace")) > MAX_TITLE_BYTES or ILLEGAL.search(title):
        return NO_TITLE
    return _capitalise(title, site)


def _elsewhere(title: str, site: Site) -> int:
    """The code for a title whose prefix means that it is no article, or 0."""
    prefix, colon, _ = title.partition(":")
    if colon:
        prefix = prefix.rstrip()
        if prefix in INTERWIKI_CODES:
            return OTHER_WIKI
        prefix = prefix.lower()
        if prefix in site.namespaces:
            return OTHER_NAMESPACE
        if prefix in INTERWIKI_NAMES:
            return OTHER_WIKI
    return 0


def _capitalise(title: str, site: Site) -> str:
    """Capitalise the first letter as MediaWiki does.

    >>> [_capitalise(title, Site()) for title in ("sea", "ñu", "ßen", "მთა")], _capitalise("iş", Site("tr"))
    (['Sea', 'Ñu', 'ßen', 'მთა'], 'İş')
    """
    first = title[0]
    if not site.first_letter or "A" <= first <= "Z":
        return title
    if first == "i" and site.language in DOTTED_I:
        return "İ" + title[1:]
    # Title case, not upper case, because it keeps Georgian letters: titles do not use their capitals.
    capital = first.title()
    return capital + title[1:] if len(capital) == 1 else title


def from_xml(data: bytes, errors: str = "strict") -> str:
    return (ESCAPE.sub(_unescape, data) if b"&" in data else data).decode(errors=errors)


def _unescape(match: re.Match[bytes]) -> bytes:
    return ESCAPES.get(match[0]) or html.unescape(match[0].decode()).encode(errors="replace")
