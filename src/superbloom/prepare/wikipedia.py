"""Read the links of a Wikipedia dump: MediaWiki XML exports, schemas 0.3 to 0.11, of any language (Sec. 3.1).

In: one or more pages-articles files, packed or plain. Out: (article title, titles it links to in page order),
with redirects followed. The links are the "raw" ones of the paper: those written in the page's own wikitext.

The dump is cut at </page> and searched with regular expressions, never parsed as XML: that is several times
faster, and no entity is expanded or fetched. Memory holds one page, the names, and four bytes a link.
"""

import html
import os
import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple
from urllib.parse import unquote

from superbloom.corpus import Corpus
from superbloom.errors import InputError
from superbloom.prepare.files import open_bytes
from superbloom.prepare.wikipedia_words import INTERWIKI_CODES, INTERWIKI_NAMES, NAMESPACES, REDIRECT_WORDS

CHUNK_BYTES = 2**20
# MediaWiki stores at most 2 MiB a page; only a page with its whole history can be longer than this.
MAX_PAGE_BYTES = 32 * 2**20

# Every repeat below is possessive or stops at the next bracket or tag, so that no file, however odd, takes
# more than linear time.
REDIRECT = re.compile(
    rf"\s*+[#\uff03](?:{'|'.join(map(re.escape, REDIRECT_WORDS))})"
    r"\s*+:?\s*+\[\[([^\[\]|]++)(?:\|[^\[\]]*+)?\]\]",
    re.IGNORECASE,
)
EXPORT = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*+(?:<\?xml[^<>]*+>\s*+)?"  # a byte order mark and an XML declaration, perhaps
    rb"(?:<!--(?>.*?-->)\s*+)*+<mediawiki[\s>]",
    re.DOTALL,
)
LANGUAGE = re.compile(r'xml:lang="([^"]*+)"')
CASE_SENSITIVE = re.compile(r'<case>case-sensitive</case>|<namespace key="0"[^<>]*case="case-sensitive"')
NAMESPACE = re.compile(r'<namespace key="(-?\d{1,9})"[^<>]*+>([^<]++)</namespace>')

TITLE = re.compile(rb"<title>([^<]*+)</title>")
PAGE_NAMESPACE = re.compile(rb"<ns>(-?\d{1,9})</ns>")
PAGE_REDIRECT = re.compile(rb'<redirect(?: title="([^"<>]*+)")?\s*+/?>')
TEXT = re.compile(rb"<text\b([^<>]*+)>")
ESCAPE = re.compile(rb"&(?:lt|gt|quot|apos|amp|#\d{1,7}|#x[0-9a-fA-F]{1,6});")
ESCAPES = {b"&lt;": b"<", b"&gt;": b">", b"&quot;": b'"', b"&apos;": b"'", b"&amp;": b"&"}

LINK = re.compile(
    r"\[\[([^\[\]{}|<>\x00-\x1f\x7f]++)"  # the target
    r"(?:\|[^\[\]]*+(?:(?:\[(?!\[)|\](?!\]))[^\[\]]*+)*+)?+"  # the words shown, perhaps with single brackets
    r"\]\]"
)
UNPARSED = (
    "nowiki", "pre", "source", "syntaxhighlight", "math", "chem", "ce", "timeline", "score", "hiero", "graph",
    "templatedata",
)  # fmt: skip
HIDDEN = re.compile(rf"<!--|<({'|'.join(UNPARSED)})(?=[\s/>])[^<>]*+>", re.IGNORECASE)
CLOSING = {name: re.compile(rf"</{name}\s*>", re.IGNORECASE) for name in UNPARSED}

# Eight links in ten are nothing but words and single spaces, and need none of the rules below.
PLAIN = re.compile(r"(?=[A-Za-z0-9])(?:[A-Za-z0-9,.'()-]++ ?)++(?<! )")
ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]*+);")
DIRECTION_MARKS = re.compile("[\u200e\u200f\u202a-\u202e]")
ILLEGAL = re.compile(r"[\x00-\x1f\x7f<>\[\]{}|\ufffd]|%[0-9a-fA-F]{2}|~~~|^:|^\.{1,2}(?:/|$)|/\.{1,2}(?:/|$)")
MAX_TITLE_BYTES = 255

MISSING = -1  # a name some page links to, without a page of its own in the dump
NOWHERE = -2  # a redirect that ends outside the articles, or in a loop


@dataclass(frozen=True)
class Site:
    """What a dump says of its wiki; namespaces maps a name in lower case to its number."""

    language: str = "en"
    first_letter: bool = True
    namespaces: Mapping[str, int] = field(default_factory=lambda: NAMESPACES)


class Page(NamedTuple):
    """A page; redirect is None where it is none, and "" where it leads to something that is no article."""

    title: str
    namespace: int
    redirect: str | None
    links: list[str]


def read_wikipedia(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    open: bool = False,
    keep_repeats: bool = True,
    notice: Callable[[str], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[str, list[str]]]:
    """Yield (article, the articles it links to in page order), redirects followed.

    open keeps links to pages that the files do not contain, as a slice of a dump needs. keep_repeats=False
    keeps the first link of a page to each target. notice receives a line about anything left out. progress
    receives the number of bytes just taken from the files as they lie on disk.
    """
    table = LinkTable()
    for path in [paths] if isinstance(paths, str | os.PathLike) else paths:
        with open_bytes(path, progress) as stream:
            for page in read_pages(stream, os.fspath(path), notice):
                table.add(page)
    if table.repeated and notice:
        notice(f"pages left out because an earlier one has the same title: {table.repeated:,}")
    if notice and not open and table.links and (lost := table.missing()) > 0.5:
        notice(f"{lost:.1%} of the links lead to pages that are not in these files; --open keeps them")
    yield from table.rows(open, keep_repeats)


def prepare_wikipedia(
    paths: Iterable[str | os.PathLike[str]],
    *,
    open_links: bool = False,
    keep_repeats: bool = True,
    min_count: int = 1,
    max_names: int | None = None,
    notice: Callable[[str], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Corpus:
    """Return the corpus of such files: a row for each article, keyed by its title."""
    paths = list(paths)
    rows = read_wikipedia(paths, open=open_links, keep_repeats=keep_repeats, notice=notice, progress=progress)
    source = ", ".join(Path(path).name for path in paths)
    return Corpus.from_keyed(rows, min_count=min_count, max_names=max_names, source=source)


class LinkTable:
    """The links between names, as numbers; redirects are followed once all pages are known."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        # By number: itself for an article, the next name for a redirect, or MISSING or NOWHERE.
        self.leads_to = array("i")
        self.articles = array("i")
        self.links = array("i")
        self.ends = array("q")
        self.repeated = 0

    def add(self, page: Page) -> None:
        """Take in a page of the article namespace; others are ignored."""
        if page.namespace != 0:
            return
        number, *targets = self._number([page.title, *([page.redirect] if page.redirect else page.links)])
        if self.leads_to[number] != MISSING:
            self.repeated += 1
        elif page.redirect is not None:
            self.leads_to[number] = targets[0] if targets and targets[0] != number else NOWHERE
        else:
            self.leads_to[number] = number
            self.articles.append(number)
            self.links.extend(targets)
            self.ends.append(len(self.links))

    def missing(self) -> float:
        """The share of links that end at no page of the files."""
        ends_at = follow_redirects(self.leads_to, False)
        return sum(ends_at[link] < 0 for link in self.links) / len(self.links)

    def rows(self, open: bool, keep_repeats: bool) -> Iterator[tuple[str, list[str]]]:
        """Yield each article with the names its links end at, without links to itself (Sec. 3.1: "other")."""
        ends_at = follow_redirects(self.leads_to, open)
        names = list(self.numbers)
        start = 0
        for number, end in zip(self.articles, self.ends, strict=True):
            found = (ends_at[link] for link in self.links[start:end])
            targets: Iterable[int] = [target for target in found if target >= 0 and target != number]
            if not keep_repeats:
                targets = dict.fromkeys(targets)
            yield names[number], [names[target] for target in targets]
            start = end

    def _number(self, names: list[str]) -> list[int]:
        numbers = self.numbers
        found = [numbers.setdefault(name, len(numbers)) for name in names]
        self.leads_to.extend([MISSING] * (len(numbers) - len(self.leads_to)))
        return found


def follow_redirects(leads_to: "array[int]", open: bool) -> "array[int]":
    """Return, for each name, the name its redirects end at, or NOWHERE; open allows an end without a page.

    >>> follow_redirects(array("i", [0, 2, 0, 4, 3, 6, MISSING]), open=False).tolist()
    [0, 0, 0, -2, -2, -2, -2]
    >>> follow_redirects(array("i", [0, 2, 0, 4, 3, 6, MISSING]), open=True).tolist()
    [0, 0, 0, -2, -2, 6, 6]
    """
    ends_at = array("i", leads_to)
    for number, target in enumerate(leads_to):
        if target == MISSING:
            ends_at[number] = number if open else NOWHERE
    for start in range(len(ends_at)):
        number, path = start, []
        while 0 <= (target := ends_at[number]) != number:
            path.append(number)
            ends_at[number] = NOWHERE  # subtle: a loop comes back to this mark and so ends nowhere
            number = target
        for passed in path:
            ends_at[passed] = target
    return ends_at


def read_pages(
    stream: BinaryIO,
    name: str = "dump",
    notice: Callable[[str], None] | None = None,
) -> Iterator[Page]:
    """Yield every page of an export; name is how messages call it."""
    site, blocks = split_dump(stream, name, notice)
    for offset, block in blocks:
        try:
            page = parse_page(block, site)
        except ValueError as error:
            raise InputError(
                f"'{name}' has a page that cannot be read, at byte {offset:,} of the unpacked file: {error}; "
                "fetch the dump again"
            ) from error
        yield page


def split_dump(
    stream: BinaryIO, name: str, notice: Callable[[str], None] | None = None
) -> tuple[Site, Iterator[tuple[int, bytes]]]:
    """Read the head of an export and return its Site and its pages, each as (byte offset, bytes)."""
    head = stream.read(CHUNK_BYTES)
    if not EXPORT.match(head):
        raise InputError(
            f"'{name}' is not a MediaWiki XML export: it does not begin with <mediawiki>; "
            "give a file such as enwiki-latest-pages-articles.xml.bz2"
        )
    try:
        site = parse_site(head.partition(b"</siteinfo>")[0].partition(b"<page>")[0].decode())
    except UnicodeDecodeError as error:
        raise InputError(f"'{name}' is not UTF-8 in its <siteinfo>: {error}; fetch the dump again") from error
    return site, _split_pages(stream, head, name, notice)


def _split_pages(
    stream: BinaryIO, chunk: bytes, name: str, notice: Callable[[str], None] | None
) -> Iterator[tuple[int, bytes]]:
    rest, offset, count = b"", 0, 0
    while chunk:
        *blocks, rest = (rest + chunk).split(b"</page>")
        for block in blocks:
            begin = max(0, block.find(b"<page>"))
            yield offset + begin, block[begin:]
            offset += len(block) + len(b"</page>")
            count += 1
        if len(rest) > MAX_PAGE_BYTES:
            raise InputError(
                f"'{name}' has no </page> in the {MAX_PAGE_BYTES:,} bytes after byte {offset:,}; "
                "give a dump of current pages (pages-articles), not of their history"
            )
        chunk = stream.read(CHUNK_BYTES)
    if notice and (begin := rest.find(b"<page>")) >= 0:
        notice(f"'{name}' ends inside the page at byte {offset + begin:,}; the {count:,} before it are kept")
    elif notice and b"</mediawiki>" not in rest:
        notice(f"'{name}' ends without </mediawiki>, so pages may be missing; {count:,} are kept")


def parse_site(head: str) -> Site:
    """Read the language, the case rule and the namespaces from what precedes the first page."""
    language = LANGUAGE.search(head)
    named = {html.unescape(name).lower(): int(number) for number, name in NAMESPACE.findall(head)}
    return Site(language[1] if language else "en", not CASE_SENSITIVE.search(head), NAMESPACES | named)


def parse_page(block: bytes, site: Site) -> Page:
    """Read one <page>; links are found only where it is an article. Raises ValueError where it is damaged.

    >>> parse_page(b"<page><title>A</title><revision><text>[[b]] or [[talk:c]]</text></revision>", Site())
    Page(title='A', namespace=0, redirect=None, links=['B'])
    """
    latest = block.rfind(b"<revision>")
    head = block if latest < 0 else block[: block.find(b"<revision>")]
    found = TITLE.search(head)
    if not found:
        raise ValueError("it has no <title>")
    title = _from_xml(found[1]).replace("_", " ").strip()
    if stated := PAGE_NAMESPACE.search(head):
        namespace = int(stated[1])
    else:
        prefix, colon, _ = title.partition(":")
        namespace = site.namespaces.get(prefix.strip().lower(), 0) if colon else 0
    if namespace != 0:
        return Page(title, namespace, None, [])

    redirect = PAGE_REDIRECT.search(head)
    if redirect and redirect[1] is not None:
        return Page(title, 0, link_target(_from_xml(redirect[1]), site) or "", [])
    text = _latest_text(block, latest)
    # Before schema 0.6 a redirect was marked without its target, or not at all.
    if written := REDIRECT.match(text):
        return Page(title, 0, link_target(written[1], site) or "", [])
    links = find_links(text, site)
    if redirect:
        return Page(title, 0, links[0] if links else "", [])
    return Page(title, 0, None, links)


def _latest_text(block: bytes, revision: int) -> str:
    opening = TEXT.search(block, max(0, revision))
    if not opening or opening[1].endswith(b"/"):
        return ""
    end = block.find(b"</text>", opening.end())
    return _from_xml(block[opening.end() : end if end >= 0 else len(block)])


def _from_xml(data: bytes) -> str:
    return ESCAPE.sub(_unescape, data).decode()


def _unescape(match: re.Match[bytes]) -> bytes:
    return ESCAPES.get(match[0]) or html.unescape(match[0].decode()).encode()


def find_links(wikitext: str, site: Site) -> list[str]:
    """Return the articles that a page's wikitext links to, in order, repeats kept.

    >>> find_links("[[Image:x.jpg|a [[whale]]]] [[sea|seas]] <!-- [[no]] --> [[fr:Mer]] [[Sea#Salt]]", Site())
    ['Whale', 'Sea', 'Sea']
    """
    if "<" in wikitext:
        wikitext = strip_unparsed(wikitext)
    return [title for target in LINK.findall(wikitext) if (title := link_target(target, site))]


def strip_unparsed(wikitext: str) -> str:
    r"""Take out comments and what MediaWiki does not read as wikitext; a tag never closed is only text.

    >>> strip_unparsed("a<!-- b -->c <nowiki>[[d]]</nowiki> <pre>e <nowiki/>")
    'ac \x00 <pre>e <nowiki/>'
    """
    kept: list[str] = []
    begin = at = 0
    unclosed = set()
    while opening := HIDDEN.search(wikitext, at):
        at = opening.end()
        tag = (opening[1] or "").lower()
        if not tag:
            end = wikitext.find("-->", at) + len("-->")
            at = end if end >= len("-->") else len(wikitext)
        elif tag in unclosed or opening[0].endswith("/>"):
            continue
        elif closing := CLOSING[tag].search(wikitext, at):
            at = closing.end()
        else:
            unclosed.add(tag)
            continue
        # NUL is in no title, so [[a<nowiki>b</nowiki>]] stays no link; a comment leaves nothing behind.
        kept += wikitext[begin : opening.start()], "\0" if tag else ""
        begin = at
    return "".join(kept) + wikitext[begin:]


def link_target(target: str, site: Site) -> str | None:
    """Return the article that a link's target names, spelled as MediaWiki does, or None if it names none.

    >>> link_target("star_Trek:  Voyager#Cast", Site()), link_target("&eacute;tude%2C", Site())
    ('Star Trek: Voyager', 'Étude,')
    >>> link_target(":Category:Seas", Site()), link_target("#Notes", Site()), link_target("wikt:sea", Site())
    (None, None, None)
    """
    if PLAIN.fullmatch(target) and len(target) <= MAX_TITLE_BYTES:
        return _capitalise(target, site.language) if site.first_letter else target
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
        prefix = title.partition(":")[0].rstrip()
        lower = prefix.lower()
        if lower in site.namespaces or lower in INTERWIKI_NAMES or prefix in INTERWIKI_CODES:
            return None
    if not title or len(title.encode()) > MAX_TITLE_BYTES or ILLEGAL.search(title):
        return None
    return _capitalise(title, site.language) if site.first_letter else title


def _capitalise(title: str, language: str) -> str:
    """Upper-case the first letter as MediaWiki does.

    >>> [_capitalise(title, "en") for title in ("sea", "ñu", "ßen", "მთა")], _capitalise("iş", "tr")
    (['Sea', 'Ñu', 'ßen', 'მთა'], 'İş')
    """
    first = title[0]
    if first == "i" and language in ("tr", "az", "kaa"):
        return "İ" + title[1:]
    # Title case, not upper case: it leaves the Georgian letters, which have capitals no title uses.
    capital = first.title()
    return capital + title[1:] if len(capital) == 1 else title
