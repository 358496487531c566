"""Reading Wikipedia dumps: each rule by an example, real dumps against mwparserfromhell, and broken files."""

import bz2
import io
import lzma
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree
from xml.sax.saxutils import escape, quoteattr

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superbloom.errors import InputError
from superbloom.prepare import wikipedia
from superbloom.prepare.files import open_bytes
from superbloom.prepare.wikipedia import (
    Page,
    Site,
    find_links,
    link_target,
    parse_page,
    parse_site,
    prepare_wikipedia,
    read_pages,
    read_wikipedia,
    split_dump,
)

DATA = Path(os.environ.get("SUPERBLOOM_DATA") or Path(__file__).parents[2] / "shared" / "data")

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


@pytest.fixture
def rows(tmp_path: Path) -> Callable[..., dict[str, list[str]]]:
    def read(*pages: str, open: bool = False, keep_repeats: bool = True) -> dict[str, list[str]]:
        path = tmp_path / "dump.xml"
        path.write_bytes(dump(*pages))
        return dict(read_wikipedia(path, open=open, keep_repeats=keep_repeats))

    return read


@pytest.mark.parametrize(
    ("wikitext", "links"),
    [
        ("[[A]] and [[a|b]] and [[A#s]] and [[A|]]", ["A"] * 4),
        ("[[B]], [[A]], [[B]]", ["B", "A", "B"]),
        ("{|\n|-\n| [[A]] || [[B]]\n|}", ["A", "B"]),
        ("[[Image:x.jpg|thumb|a [[Link]] and [[other|one]] here]] [[After]]", ["Link", "Other", "After"]),
        ("<ref>see [[A]]</ref> {{quote|[[B|b]]|by=[[C]]}}", ["A", "B", "C"]),
        ("<gallery>\nFile:x.jpg|by [[A]]\n</gallery>", ["A"]),
        ("[[A|two\nlines]] [[A\nB]]", ["A"]),
        ("[[A|[1]]] [[B|x [y] z]]", ["A", "B"]),
        ("[[A [[B]] [[C", ["B"]),
        ("[[A|b [[C]] d]]", ["C"]),
        ("[[{{PAGENAME}} (data)]] [[A<b>]] [[]] [[|x]]", []),
        ("[[Category:X]] [[:Category:X]] [[category: X]] [[Talk:X]] [[User_talk:X]] [[WP:X]]", []),
        ("[[fr:X]] [[:fr:X]] [[zh-min-nan:X]] [[wikt:x]] [[Wiktionary:x]] [[m:X]] [[http://x.org]]", []),
        ("[[2001: A Space Odyssey]]", ["2001: A Space Odyssey"]),
        ("[[Star Trek: Voyager]] [[C: The Story]]", ["Star Trek: Voyager", "C: The Story"]),
        ("[[#Section]] [[ # ]]", []),
        ("[[:A]] [[: B]]", ["A", "B"]),
        # Wikipedia has no subpages among its articles, so a leading slash is part of the title.
        ("[[/dev/null]] [[TCP/IP]] [[../up]] [[a/../b]] [[.]]", ["/dev/null", "TCP/IP"]),
        ("<!-- [[A]] --> [[B<!-- c -->]] <!-- [[open", ["B"]),
        ("<nowiki>[[A]]</nowiki> <NOWIKI >[[A]]</nowiki > [[B]] [[A<nowiki>b</nowiki>]]", ["B"]),
        ("<nowiki/>[[A]]<nowiki /> [[B]]</nowiki>", ["A", "B"]),
        ("<pre>[[A]] <!-- </pre> [[B]] <nowiki> [[C]]", ["B", "C"]),
        ("<source lang=x>[[A]]</source><syntaxhighlight>[[A]]</syntaxhighlight><math>[[A]]</math>", []),
        ("<prefix>[[A]]</prefix> <code>[[B]]</code>", ["A", "B"]),
    ],
)
def test_links_of_wikitext(wikitext: str, links: list[str]) -> None:
    assert find_links(wikitext, Site()) == links


@pytest.mark.parametrize(
    ("target", "title"),
    [
        ("new_york__City ", "New york City"),
        ("\u200eA\u00a0B\u202e\u3000C", "A B C"),
        ("AT&amp;T", "AT&T"),
        ("AT&T", "AT&T"),
        ("Caf&#233; &#x26; bar", "Café & bar"),
        ("Cafe\u0301", "Café"),
        ("Caf%C3%A9", "Café"),
        ("100%", "100%"),
        ("%FF", None),
        ("%2525", None),
        ("A&#124;B", None),
        ("A&lt;B", None),
        ("A&#35;B", "A"),
        ("A\ufffd", None),
        ("~~~", None),
        ("::A", None),
        ("", None),
        ("é" * 127, "É" + "é" * 126),
        ("é" * 128, None),
        ("a" * 255, "A" + "a" * 254),
        ("a" * 256, None),
        ("ßtraße", "ßtraße"),
        ("ŉa", "ŉa"),
        ("ოთხი", "ოთხი"),
        ("élan", "Élan"),
        ("&#" + "1" * 5_000 + ";", "&"),
    ],
)
def test_titles_are_spelled_as_mediawiki_does(target: str, title: str | None) -> None:
    assert link_target(target, Site()) == title


def test_case_rule_and_language_decide_the_first_letter() -> None:
    assert link_target("iPod_touch", Site(first_letter=False)) == "iPod touch"
    assert link_target("istanbul", Site(language="tr")) == "İstanbul"
    assert not parse_site("<mediawiki><siteinfo><case>case-sensitive</case>").first_letter
    assert not parse_site('<case>first-letter</case><namespace key="0" case="case-sensitive" />').first_letter
    assert parse_site('<case>first-letter</case><namespace key="2" case="case-sensitive">').first_letter


def test_localized_and_english_namespaces_are_known() -> None:
    site = parse_site(GERMAN)
    assert (site.language, site.first_letter) == ("de", True)
    text = "[[Kategorie:A]] [[Category:A]] [[benutzer:A]] [[Datei:A.jpg|x [[B]]]] [[Bild:A.jpg]] [[Thema:A]]"
    assert find_links(text, site) == ["B", "Thema:A"]


@pytest.mark.parametrize(
    ("text", "redirect"),
    [
        ("#REDIRECT [[b]]", "B"),
        ("\n #redirect:[[b#c|d]]{{R from x}}", "B"),
        ("#WEITERLEITUNG [[b]]", "B"),
        ("#перенаправление [[b]]", "B"),
        ("#ПЕРЕНАПРАВЛЕНИЕ: [[b]]", "B"),
        ("#ανακατεύθυνση [[b]]", "B"),
        ("#YÖNLENDİRME [[b]]", "B"),
        ("#重定向[[b]]", "B"),
        ("\uff03転送 [[b]]", "B"),
        ("#REDIRECT [[Category:b]]", ""),
        ("#REDIRECT [[fr:b]]", ""),
        ("# first [[b]]", None),
        ("see #REDIRECT [[b]]", None),
        ("#REDIRECT b [[c]]", None),
    ],
)
def test_redirects_are_recognised_in_the_text(text: str, redirect: str | None) -> None:
    block = page("A", text).encode()
    assert parse_page(block, Site()).redirect == redirect


def test_page_of_each_schema() -> None:
    site = parse_site(GERMAN)
    # 0.3: neither <ns> nor <redirect>; 0.5: an empty <redirect/>; 0.6 on: both, in full.
    assert parse_page(page("Benutzer:X", "[[A]]").encode(), site) == Page("Benutzer:X", 2, None, [])
    assert parse_page(page("image:X", "[[A]]").encode(), site).namespace == 6
    assert parse_page(page("Thema: X", "[[a]]").encode(), site) == Page("Thema: X", 0, None, ["A"])
    marked = b"<page><title>A</title><redirect /><revision><text>#UNKNOWN [[b]]</text></revision>"
    assert parse_page(marked, site) == Page("A", 0, "B", [])
    full = page("R&D", "#X [[c]]", ns=0, redirect="Forschung & Entwicklung").encode()
    assert parse_page(full, site) == Page("R&D", 0, "Forschung & Entwicklung", [])
    assert parse_page(page("X", "[[A]]", ns=2).encode(), site) == Page("X", 2, None, [])


def test_text_is_that_of_the_latest_revision_and_unescaped_once() -> None:
    block = (
        "<page><title>A</title><revision><comment>[[no]]</comment><text>[[old]]</text></revision><revision>"
        '<text bytes="9" sha1="x" xml:space="preserve">[[new]] &lt;!-- [[c]] --&gt; [[AT&amp;amp;T]] '
        "&amp;lt;nowiki>[[D]] [[&#69;]]</text><content><text>[[slot]]</text></content></revision>"
    )
    assert parse_page(block.encode(), Site()).links == ["New", "AT&T", "D", "E"]
    for empty in ('<text bytes="0" />', '<text deleted="deleted"/>', ""):
        assert parse_page(f"<page><title>A</title><revision>{empty}</revision>".encode(), Site()).links == []


def test_redirects_are_followed(rows: Callable[..., dict[str, list[str]]]) -> None:
    pages = [
        page("A", "[[R1]] [[R2]] [[loop 1]] [[self loop]] [[out]] [[gone]] [[none]] [[B#x]] [[to A]] [[A]]"),
        page("B", "[[b]] [[A]] [[R1]] [[A]]"),
        page("R1", "#REDIRECT [[R2]]"),
        page("R2", "#REDIRECT [[B#section]]"),
        page("To A", "#REDIRECT [[A]]"),
        page("Loop 1", "#REDIRECT [[Loop 2]]"),
        page("Loop 2", "#REDIRECT [[Loop 1]]"),
        page("Self loop", "#REDIRECT [[Self loop]]"),
        page("Out", "#REDIRECT [[User:A]]"),
        page("Gone", "#REDIRECT [[Elsewhere]]"),
        page("Talk:A", "[[B]]"),
    ]
    assert rows(*pages) == {"A": ["B", "B", "B"], "B": ["A", "A"]}
    assert rows(*pages, keep_repeats=False) == {"A": ["B"], "B": ["A"]}
    assert rows(*pages, open=True) == {"A": ["B", "B", "Elsewhere", "None", "B"], "B": ["A", "A"]}


def test_long_redirect_chain_takes_linear_time(rows: Callable[..., dict[str, list[str]]]) -> None:
    chain = [page(f"R{number}", f"#REDIRECT [[R{number + 1}]]") for number in range(5_000)]
    assert rows(page("A", "[[R0]] [[R4999]]"), page("R5000", ""), *chain)["A"] == ["R5000", "R5000"]


def test_several_files_are_one_wiki(tmp_path: Path) -> None:
    one, two = tmp_path / "one.xml.bz2", tmp_path / "two.xml"
    one.write_bytes(bz2.compress(dump(page("A", "[[B]] [[R]]"))))
    two.write_bytes(dump(page("B", "[[A]]"), page("R", "#REDIRECT [[B]]"), page("A", "[[repeated]]")))
    notices: list[str] = []
    taken: list[int] = []
    found = list(read_wikipedia([one, two], notice=notices.append, progress=taken.append))
    assert found == [("A", ["B", "B"]), ("B", ["A"])]
    assert notices == ["pages left out because an earlier one has the same title: 1"]
    assert sum(taken) == one.stat().st_size + two.stat().st_size


def test_corpus_has_a_row_for_each_article_with_links(tmp_path: Path) -> None:
    path = tmp_path / "dump.xml"
    path.write_bytes(dump(page("A", "[[B]] [[B]] [[x]]"), page("B", "[[A]]"), page("C", "")))
    corpus = prepare_wikipedia([path])
    assert (corpus.num_ids, corpus.sequences["key"].to_pylist()) == (2, ["A", "B"])
    assert corpus.sequences["ids"].to_pylist() == [[0, 0], [1]]
    assert prepare_wikipedia([path], open_links=True, keep_repeats=False).num_ids == 3
    assert prepare_wikipedia([path], open_links=True, max_names=2).num_ids == 2


def test_cut_dump_keeps_the_pages_before(tmp_path: Path) -> None:
    whole = dump(page("A", "[[B]]"), page("B", "[[A]] é"))
    path = tmp_path / "dump.xml"
    second = whole.index(b"<page>", whole.index(b"</page>"))
    for end in range(second, len(whole)):
        path.write_bytes(whole[:end])
        notices: list[str] = []
        found = dict(read_wikipedia(path, open=True, notice=notices.append))
        if end < whole.rindex(b"</page>") + len(b"</page>"):
            assert found == {"A": ["B"]}
        else:
            assert found == {"A": ["B"], "B": ["A"]}
        complete = b"</mediawiki>" in whole[:end]
        assert len(notices) == (not complete)
    path.write_bytes(whole[: whole.rindex(b"</page>")])
    notices = []
    list(read_wikipedia(path, notice=notices.append))
    assert notices == [
        f"'{path}' ends inside the page at byte {second:,}; the 1 before it are kept",
        "100.0% of the links lead to pages that are not in these files; --open keeps them",
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"title,link\n",
        b"<html><page></page></html>",
        b"<page><title>A</title></page>",
        b"\x00" * 100,
        b'<!DOCTYPE x [<!ENTITY a "b">]><mediawiki>',
        "<mediawiki>".encode("utf-16"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "dump.xml"
    path.write_bytes(data)
    with pytest.raises(InputError, match=f"'{path}' is not a MediaWiki XML export"):
        list(read_wikipedia(path))


def test_prolog_before_mediawiki_is_allowed() -> None:
    head = '\ufeff<?xml version="1.0" encoding="utf-8"?>\n<!-- one --><!-- two -->\n<mediawiki version="0.3">'
    assert [found.title for found in read_pages(io.BytesIO(dump(page("A", ""), head=head)))] == ["A"]


def test_damaged_dumps_are_told_with_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "dump.xml"
    path.write_bytes(lzma.compress(os.urandom(10) + dump(page("A", "")))[:-20])
    with pytest.raises(InputError, match=r"dump.xml' \(xz\) is damaged"):
        list(read_wikipedia(path))

    whole = dump(page("A", ""), page("B", "?"))
    start = whole.index(b"<page>", whole.index(b"</page>"))
    path.write_bytes(whole.replace(b"?", b"\xff"))
    with pytest.raises(InputError, match=f"dump.xml' has a page that cannot be read, at byte {start} .*0xff"):
        list(read_wikipedia(path))
    path.write_bytes(whole.replace(b"<title>B</title>", b""))
    with pytest.raises(InputError, match=f"at byte {start} of the unpacked file: it has no <title>"):
        list(read_wikipedia(path))
    path.write_bytes(dump(page("A", ""), head="<mediawiki><siteinfo>?").replace(b"?", b"\xff"))
    with pytest.raises(InputError, match=r"dump.xml' is not UTF-8 in its <siteinfo>"):
        list(read_wikipedia(path))

    monkeypatch.setattr(wikipedia, "MAX_PAGE_BYTES", 2**20)
    path.write_bytes(dump(page("A", ""), page("B", "x" * 2**21)))
    with pytest.raises(InputError, match=r"no </page> in the 1,048,576 bytes after byte \d+; give a dump"):
        list(read_wikipedia(path))


@pytest.mark.parametrize(
    "text",
    ["[[", "[[a|", "[[a|[b] ", "<!--", "<nowiki>", "<math ", "<pre></math>", "#REDIRECT" + " " * 2**20],
    ids=lambda text: text[:9],
)
def test_odd_text_takes_linear_time(text: str) -> None:
    text *= max(1, 2**19 // len(text))
    begin = time.process_time()
    parse_page(page("A", text).encode(), Site())
    assert time.process_time() - begin < 2  # a quadratic search would take minutes


XML = b"""
    <page> </page> <title>A</title> <revision> <text> </text> <ns>0</ns> <redirect/> [[ ]] | & # : _ %C3
    #REDIRECT &lt;nowiki> &lt;/nowiki> &lt;!--
"""


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from(XML.split()) | st.binary(max_size=6)))
def test_random_dumps_are_read_or_refused(parts: list[bytes]) -> None:
    try:
        found = list(read_pages(io.BytesIO(b"<mediawiki>" + b"".join(parts))))
    except InputError:
        found = []
    for each in found:
        assert all(link_target(link, Site()) == link for link in each.links)


@given(st.binary())
def test_random_bytes_are_no_dump(data: bytes) -> None:
    with pytest.raises(InputError, match="not a MediaWiki XML export"):
        list(read_pages(io.BytesIO(data)))


@given(st.text(max_size=40))
def test_title_of_a_title_is_itself(text: str) -> None:
    title = link_target(text, Site())
    # "%" and "&" are left to the examples: what they decode to may read as a code once more.
    if title and "%" not in text and "&" not in text:
        assert link_target(title, Site()) == title


# Pages, articles and redirects as counted by an independent pass, which also counted the page a dump ends in.
COUNTS = [
    ("ltgwiki-complete-smallwiki.xml.xz", 2_004, 903, 147),
    ("tinywiki.xml", 8, 7, 1),
    ("enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2", 206, 106, 99),
    ("bnwiki-truncated-100k.xml.xz", 723 - 1, 380, 69),
    ("elwiki-truncated-100k.xml.xz", 934 - 1, 525 - 1, 21),
    ("ukwiki-truncated-100k.xml.xz", 533 - 1, 513 - 1, 13),
]


def real(name: str) -> io.BufferedReader:
    path = DATA / "dumps" / name
    if not path.exists():
        pytest.skip(f"needs dumps/{name} in the folder that SUPERBLOOM_DATA names")
    return open_bytes(path)


def real_pages(name: str) -> Iterator[Page]:
    with real(name) as stream:
        yield from read_pages(stream)


@pytest.mark.parametrize(("name", "total", "articles", "redirects"), COUNTS)
def test_real_dumps_have_the_known_counts(name: str, total: int, articles: int, redirects: int) -> None:
    found = list(real_pages(name))
    kinds = [each.redirect is None for each in found if each.namespace == 0]
    assert (len(found), sum(kinds), len(kinds) - sum(kinds)) == (total, articles, redirects)


def xml_pages(name: str) -> Iterator[tuple[str, int, str | None, str]]:
    """Yield (title, namespace, redirect, wikitext) by a real XML parser, up to where a dump is cut."""
    with real(name) as stream, suppress(ElementTree.ParseError):
        for _, element in ElementTree.iterparse(stream):
            if element.tag.endswith("}page"):
                redirect = element.find("{*}redirect")
                yield (
                    element.findtext("{*}title") or "",
                    int(element.findtext("{*}ns") or 0),
                    None if redirect is None else redirect.get("title"),
                    element.findtext("{*}revision/{*}text") or "",
                )


@pytest.mark.parametrize("name", [name for name, *_ in COUNTS])
def test_real_links_are_those_mwparserfromhell_finds(name: str) -> None:
    mwparserfromhell = pytest.importorskip("mwparserfromhell")
    with real(name) as stream:
        site = split_dump(stream, name)[0]
    compared, different = 0, []
    for each, (title, namespace, redirect, text) in zip(real_pages(name), xml_pages(name), strict=False):
        assert (each.title, each.namespace) == (title, namespace)
        if redirect and namespace == 0:
            assert each.redirect == link_target(redirect, site)
        if namespace != 0 or each.redirect is not None or len(text) > 30_000:
            continue
        # It reads nothing inside galleries, whose captions MediaWiki does link.
        text = re.sub(r"(?i)<(/?)(gallery|imagemap)\b", r"<\1div", text)
        nodes = mwparserfromhell.parse(text).filter_wikilinks()
        theirs = [target for node in nodes if (target := link_target(str(node.title), site))]
        compared += 1
        if each.links != theirs:
            different.append(title)
        if compared == 40:
            break
    # It gives up on an unclosed tag or quote, such as [[a|''b]], where MediaWiki does not.
    assert compared > 5
    assert len(different) <= 1, different
