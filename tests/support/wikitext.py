"""Pages and dumps of wikitext, and how the reader's parts are called on them."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

import pyarrow as pa

from superbloom.corpus.corpus import Corpus
from superbloom.prepare.wikipedia import WikipediaReport, prepare_wikipedia
from superbloom.prepare.wikipedia.parts import Rules, parse_page, split_pages
from superbloom.prepare.wikipedia.wikitext import Site, Titles, find_targets, strip_unparsed

GERMAN = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10" xml:lang="de">
  <siteinfo>
    <case>first-letter</case>
    <namespaces>
      <namespace key="0" case="first-letter" />
      <namespace key="2" case="first-letter">Benutzer</namespace>
      <namespace key="4" case="first-letter">Wikipedia</namespace>
      <namespace key="14" case="first-letter">Kategorie</namespace>
    </namespaces>
  </siteinfo>
"""


def page(title: str, text: str, ns: int | None = None, redirect: str | None = None) -> str:
    head = f"<title>{escape(title)}</title>"
    head += "" if ns is None else f"<ns>{ns}</ns>"
    head += "" if redirect is None else f"<redirect title={quoteattr(redirect)} />"
    return f"  <page>\n{head}<revision><text bytes='1'>{escape(text)}</text></revision>\n  </page>\n"


def dump(*pages: str, head: str = "<mediawiki>\n") -> bytes:
    return (head + "".join(pages) + "</mediawiki>\n").encode()


def find_links(wikitext: str, site: Site) -> list[str]:
    """The articles that a wikitext links to."""
    return articles(strip_unparsed(escape(wikitext).encode()), site)


def articles(text: bytes, site: Site) -> list[str]:
    titles = Titles(site)
    found = [titles[target] for target in find_targets(pa.array([text], pa.binary()))[1].to_pylist()]
    return [title for title in found if isinstance(title, str)]


class Page(NamedTuple):
    title: str
    namespace: int
    leads_to: str | int
    links: list[str]


def read_pages(data: bytes, site: Site) -> Iterator[Page]:
    for bounds in split_pages(data, 0, data.rfind(b"</page>") + len(b"</page>")):
        title, namespace, leads_to, text = parse_page(data, bounds, Rules(site))
        yield Page(title, namespace, leads_to, articles(text, site))


def read_page(block: str, site: Site) -> Page:
    (found,) = read_pages(block.encode(), site)
    return found


def read_rows(*paths: Path, **options: object) -> tuple[dict[str, list[str]], WikipediaReport]:
    out = paths[0].with_name("corpus")
    report = prepare_wikipedia(paths, out, overwrite=True, **options)
    corpus = Corpus.open(out)
    keys = corpus.sequences["key"].to_pylist()
    return {key: corpus.vocab.names(corpus.row(row)) for row, key in enumerate(keys)}, report
