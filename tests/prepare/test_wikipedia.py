"""Reading Wikipedia dumps: each rule by an example, and broken files."""

import bz2
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from superbloom.corpus.corpus import Corpus
from superbloom.errors import InputError
from superbloom.prepare import wikipedia
from superbloom.prepare.wikipedia import parts, prepare_wikipedia, resume
from superbloom.prepare.wikipedia.merge import follow_redirects
from superbloom.prepare.wikipedia.parts import ARTICLE, NOWHERE, Parser, Rules
from superbloom.prepare.wikipedia.report import DROPPED
from superbloom.prepare.wikipedia.wikitext import Site, Titles, link_target, parse_site
from tests.support.wikitext import GERMAN, dump, find_links, page, read_page, read_pages, read_rows


@pytest.fixture
def rows(tmp_path: Path) -> Callable[..., dict[str, list[str]]]:
    def read(*pages: str, **options: object) -> dict[str, list[str]]:
        path = tmp_path / "dump.xml"
        path.write_bytes(dump(*pages))
        return read_rows(path, **options)[0]

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
        # MediaWiki cuts at each [[ from the left: what follows here begins with a bracket, as no title does.
        ("[[[A]]] [[B]]", ["B"]),
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
    found = link_target(target, Site())
    assert (found if isinstance(found, str) else None) == title


@given(st.from_regex(r"[A-Za-z0-9,.'()\- _:#]{1,40}", fullmatch=True) | st.text(max_size=20) | st.just("a" * 256))
@example("i")
@example("Foo ")
def test_plain_targets_are_what_the_rules_make_of_them(target: str) -> None:
    for site in (Site(), Site("tr"), Site(first_letter=False)):
        plain, titles = Titles(site).plain(pa.array([target.encode(errors="replace")], pa.binary()))
        assert titles.to_pylist() == ([link_target(target, site)] if plain[0].as_py() else [])


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
        ("#REDIRECT [[Category:b]]", NOWHERE),
        ("#REDIRECT [[fr:b]]", NOWHERE),
        ("# first [[b]]", ARTICLE),
        ("see #REDIRECT [[b]]", ARTICLE),
        ("#REDIRECT b [[c]]", ARTICLE),
        ("", ARTICLE),
    ],
)
def test_redirects_are_recognised_in_the_text(text: str, redirect: str | int) -> None:
    assert read_page(page("A", text), Site()).leads_to == redirect


def test_page_of_each_schema() -> None:
    site = parse_site(GERMAN)
    # 0.3: neither <ns> nor <redirect>; 0.5: an empty <redirect/>; 0.6 on: both, in full.
    assert read_page(page("Benutzer:X", "[[A]]"), site) == ("Benutzer:X", 2, ARTICLE, [])
    assert read_page(page("image:X", "[[A]]"), site).namespace == 6
    assert read_page(page("Thema: X", "[[a]]"), site) == ("Thema: X", 0, ARTICLE, ["A"])
    marked = "<page><title>A</title><redirect /><revision><text>#UNKNOWN [[b]]</text></revision></page>"
    assert read_page(marked, site) == ("A", 0, "B", [])
    assert read_page(marked.replace("[[b]]", ""), site) == ("A", 0, NOWHERE, [])
    full = page("R&D", "#X [[c]]", ns=0, redirect="Forschung & Entwicklung")
    assert read_page(full, site) == ("R&D", 0, "Forschung & Entwicklung", [])
    assert read_page(page("X", "[[A]]", ns=2), site) == ("X", 2, ARTICLE, [])


def test_text_is_that_of_the_latest_revision_and_unescaped_once() -> None:
    block = (
        "<page><title>A</title><revision><comment>[[no]]</comment><text>[[old]]</text></revision><revision>"
        '<text bytes="9" sha1="x" xml:space="preserve">[[new]] &lt;!-- [[c]] --&gt; [[AT&amp;amp;T]] '
        "&amp;lt;nowiki>[[D]] [[&#69;]]</text></revision></page>"
    )
    assert read_page(block, Site()).links == ["New", "AT&T", "D", "E"]
    for empty in ('<text bytes="0" />', '<text deleted="deleted"/>', ""):
        emptied = f"<page><title>A</title><revision>{empty}</revision></page>"
        both = list(read_pages((emptied + page("B", "[[C]]")).encode(), Site()))
        assert [(found.title, found.links) for found in both] == [("A", []), ("B", ["C"])]
        later = block.replace("</page>", f"<revision>{empty}</revision></page>")
        assert read_page(later, Site()).links == []


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
    assert rows(*pages, drop_repeats=True) == {"A": ["B"], "B": ["A"]}
    assert rows(*pages, open_links=True) == {"A": ["B", "B", "Elsewhere", "None", "B"], "B": ["A", "A"]}


def test_long_redirect_chain_is_followed_to_its_end(rows: Callable[..., dict[str, list[str]]]) -> None:
    chain = [page(f"R{number}", f"#REDIRECT [[R{number + 1}]]") for number in range(5_000)]
    found = rows(page("A", "[[R0]] [[R4999]]"), page("R5000", "[[A]]"), *chain)
    assert found == {"A": ["R5000", "R5000"], "R5000": ["A"]}


@given(st.lists(st.integers(-3, 15), min_size=16, max_size=16), st.booleans())
def test_redirects_are_followed_as_by_hand(leads_to: list[int], open: bool) -> None:
    def follow(number: int) -> int:
        for _ in range(17):
            if number < 0 or leads_to[number] == number or (open and leads_to[number] == -1):
                return number
            number = leads_to[number]
        return -2

    assert follow_redirects(np.array(leads_to, dtype=np.int32), open).tolist() == list(map(follow, range(16)))


def test_disambiguation_pages_are_left_out_when_asked(rows: Callable[..., dict[str, list[str]]]) -> None:
    pages = [
        page("A", "[[M]] [[B]] {{main|disambig}}"),
        page("M", "M may be [[A]] or [[B]].\n{{Disambig|geo}}"),
        page("B", "[[A]] [[N]] <!-- {{disambig}} -->"),
        page("N", "[[A]], [[B]] {{ Begriffsklärung }}"),
    ]
    assert rows(*pages)["A"] == ["M", "B"]
    assert rows(*pages, drop_disambiguations=True) == {"A": ["B"], "B": ["A"]}


def test_several_files_are_one_wiki(tmp_path: Path) -> None:
    one, two = tmp_path / "one.xml.bz2", tmp_path / "two.xml"
    one.write_bytes(bz2.compress(dump(page("A", "[[B]] [[R]]"))))
    two.write_bytes(dump(page("B", "[[A]]"), page("R", "#REDIRECT [[B]]"), page("A", "[[repeated]]")))
    notices: list[str] = []
    taken: dict[str, list[int]] = {}
    watched: list[tuple[str, int | None, bool]] = []

    @contextmanager
    def watch(what: str, total: int | None, in_bytes: bool) -> Iterator[Callable[[int], None]]:
        watched.append((what, total, in_bytes))
        yield taken.setdefault(what, []).append

    found, report = read_rows(one, two, notice=notices.append, watch=watch)
    assert found == {"A": ["B", "B"], "B": ["A"]}
    assert (report.counts["repeated titles"], report.counts["of repeated titles"], notices) == (1, 1, [])
    assert watched[0] == ("reading", one.stat().st_size + two.stat().st_size, True)
    assert [what for what, *_ in watched] == ["reading", "merging names", "numbering names", "following links"]
    assert {what: sum(done) for what, done in taken.items()} == {what: total or 0 for what, total, _ in watched}


def test_report_accounts_for_every_link(tmp_path: Path) -> None:
    path = tmp_path / "dump.xml"
    text = "[[B]] [[B]] [[x]] [[fr:x]] [[Talk:x]] [[#s]] [[A]] [[loop]] [[B|b]]"
    path.write_bytes(dump(page("A", text), page("B", "[[A]] [[C]]"), page("C", ""), page("Loop", "#REDIRECT [[Loop]]")))
    found, report = read_rows(path, drop_repeats=True, max_names=2)
    assert found == {"A": ["B"], "B": ["A"]}
    counts = report.counts
    assert counts["links"] == 11
    assert counts["links"] == counts["kept"] + sum(counts.get(name, 0) for name in DROPPED)
    assert [counts[name] for name in ("pages", "articles", "redirects", "entities", "rows")] == [4, 3, 1, 2, 2]
    assert counts["to entities left out"] == 1
    assert (report.top_100, report.top_tenth) == (1.0, 0.5)
    assert Corpus.open(tmp_path / "corpus").info["counted"] == counts
    assert read_rows(path, open_links=True)[1].counts["entities"] == 4


def test_cut_dump_keeps_the_pages_before(tmp_path: Path) -> None:
    whole = dump(page("A", "[[B]] [[C]]"), page("B", "[[A]] é"))
    path = tmp_path / "dump.xml"
    second = whole.index(b"<page>", whole.index(b"</page>"))
    for end in {
        *range(second, len(whole), 5),
        *(second + found.end() for found in re.finditer(rb">", whole[second:-9])),
    }:
        path.write_bytes(whole[:end])
        found, report = read_rows(path, open_links=True)
        if end < whole.rindex(b"</page>") + len(b"</page>"):
            assert found == {"A": ["B", "C"]}
        else:
            assert found == {"A": ["B", "C"], "B": ["A"]}
        assert len(report.damage) == (b"</mediawiki>" not in whole[:end])
    path.write_bytes(whole[: whole.rindex(b"</page>")])
    reason = f"'{path}' breaks off in the page 'B' at byte {second:,} of the text: it ends there, without </mediawiki>"
    assert read_rows(path, open_links=True)[1].damage == [f"{reason}; the 1 pages before it are kept"]
    with pytest.raises(InputError, match="without --strict"):
        prepare_wikipedia([path], tmp_path / "strict", strict=True)
    assert not (tmp_path / "strict").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"title,link\n",
        b"<html><page></page></html>",
        b"<page><title>A</title></page>",
        b"\x00" * 100,
        b'<!DOCTYPE x [<!ENTITY a "b">]><mediawiki>',
        "<html>".encode("utf-16"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "dump.xml"
    path.write_bytes(data)
    with pytest.raises(InputError, match=f"'{path}' is not a MediaWiki XML export"):
        prepare_wikipedia([path], tmp_path / "corpus")


@pytest.mark.parametrize(
    ("out", "beside"), [("wiki[1]", "wiki1"), ("w*", "wiki"), ("name=en/wiki", ""), ("part=3/wiki", "")]
)
def test_a_folder_whose_name_is_a_pattern_has_its_own_parts(tmp_path: Path, out: str, beside: str) -> None:
    """Files of another run, which the pattern would match, are not read, and no column comes of a folder's name."""
    path = tmp_path / "dump.xml"
    path.write_bytes(dump(*(page(f"A{n}", f"[[A{n + 1}]] [[A{n // 2}]]") for n in range(20))))
    if beside:
        (tmp_path / f"{beside}.parts").mkdir()
        for part in ("000-000000-0000", "000-000000-0001"):
            names = pa.table({"name": [f"B{n}" for n in range(60)]})
            pq.write_table(names, tmp_path / f"{beside}.parts" / f"{part}.parquet")
    for folder in (out, "plain"):
        prepare_wikipedia([path], tmp_path / folder)
    assert Corpus.open(tmp_path / out).fingerprint() == Corpus.open(tmp_path / "plain").fingerprint()


@pytest.mark.parametrize("is_long", [False, True])
def test_a_refused_run_leaves_nothing_behind_unless_it_read_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_long: bool
) -> None:
    path, notices = tmp_path / "dump.xml", list[str]()
    path.write_bytes(dump(page("A", "[[B]]"), page("B", "[[A]]")))
    monkeypatch.setattr(wikipedia, "KEEP_SECONDS", -1 if is_long else 60)
    with pytest.raises(InputError, match="0 of 2 names are left by min_count=9"):
        prepare_wikipedia([path], tmp_path / "corpus", min_count=9, notice=notices.append)
    assert (tmp_path / "corpus.parts").exists() == is_long
    assert len(notices) == is_long
    prepare_wikipedia([path], tmp_path / "corpus", notice=notices.append)
    assert [line.startswith("resuming from ") for line in notices[1:]] == [True] * is_long
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["corpus", "dump.xml"]


def test_parts_of_another_parser_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, folder, notices = tmp_path / "dump.xml", tmp_path / "corpus.parts", list[str]()
    path.write_bytes(dump(page("A", "[[B]]")))
    resume.start_or_resume(folder, [str(path)], False, notices.append)
    (folder / "000-000000.done").touch()
    resume.start_or_resume(folder, [str(path)], False, notices.append)
    assert notices == [f"resuming from {folder}: 1 pieces are done"]
    monkeypatch.setattr(resume, "PARSER_FILES", resume.PARSER_FILES[1:])  # as if other code had made them
    resume.start_or_resume(folder, [str(path)], False, notices.append)
    assert [entry.name for entry in folder.iterdir()] == [resume.TICKET]
    assert len(notices) == 1


def test_a_corpus_from_before_the_killed_run_is_not_replaced(tmp_path: Path) -> None:
    path, out = tmp_path / "dump.xml", tmp_path / "corpus"
    path.write_bytes(dump(page("A", "[[B]]"), page("B", "[[A]]")))
    prepare_wikipedia([path], out)
    before = (out / "corpus.json").stat().st_mtime_ns
    resume.start_or_resume(
        tmp_path / "corpus.parts", [str(path)], False, lambda _: None
    )  # with --overwrite, then killed
    with pytest.raises(InputError, match="already holds a corpus; --overwrite"):
        prepare_wikipedia([path], out)
    assert (out / "corpus.json").stat().st_mtime_ns == before
    os.utime(out / "corpus.json")  # now it is the corpus of the killed run, which had its parts left to remove
    prepare_wikipedia([path], out)
    assert not (tmp_path / "corpus.parts").exists()


def test_every_file_of_the_parser_counts() -> None:
    """A file that is renamed would silently drop out of the checksum."""
    for name in resume.PARSER_FILES:
        assert Path(resume.__file__).with_name(name).is_file()


def test_prolog_before_mediawiki_is_allowed(tmp_path: Path) -> None:
    head = '\ufeff<?xml version="1.0" encoding="utf-8"?>\n<!-- one --><!-- two -->\n<mediawiki version="0.3">'
    path = tmp_path / "dump.xml"
    path.write_bytes(dump(page("A", "[[B]]"), page("B", "[[A]]"), head=head))
    assert list(read_rows(path)[0]) == ["A", "B"]


def test_damaged_pages_are_told_with_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "dump.xml"
    whole = dump(page("A", "[[C]]"), page("B", "?"), page("C", "[[A]] [[?]]"))
    start = whole.index(b"<page>", whole.index(b"</page>"))
    path.write_bytes(whole.replace(b"?", b"\xff").replace(b"<title>B", b"<title>\xff"))
    found, report = read_rows(path)
    assert found == {"A": ["C"], "C": ["A"]}
    assert re.fullmatch(rf"'.*dump.xml': the page at byte {start} of the text is left out: .*0xff.*", report.damage[0])
    path.write_bytes(whole.replace(b"<title>B</title>", b""))
    assert read_rows(path)[1].damage[0].endswith(f"the page at byte {start} of the text is left out: it has no <title>")
    path.write_bytes(dump(page("A", ""), head="<mediawiki><siteinfo>?").replace(b"?", b"\xff"))
    with pytest.raises(InputError, match=r"dump.xml' is not UTF-8 in its <siteinfo>"):
        read_rows(path)

    monkeypatch.setattr(parts, "MAX_PAGE_BYTES", 2**20)
    path.write_bytes(dump(page("A", "[[B]]"), page("B", "[[A]]")) + b"x" * 2**21)
    (damage,) = read_rows(path)[1].damage
    assert "there is no </page> in the 1,048,576 bytes" in damage


@pytest.mark.parametrize(
    "text",
    ["[[", "[[a|", "[[a|[b] ", "<!--", "<nowiki>", "<math ", "<pre></math>", "#REDIRECT" + " " * 2**20],
    ids=lambda text: text[:9],
)
def test_odd_text_takes_linear_time(text: str) -> None:
    text *= max(1, 2**19 // len(text))
    begin = time.process_time()
    data = page("A", text).encode()
    Parser(Rules(Site(), drop_disambiguations=True)).part(data, 0, data.rindex(b"</page>") + len(b"</page>"))
    assert time.process_time() - begin < 2  # a quadratic search would take minutes


XML = b"""
    <page> </page> <title>A</title> <revision> <text> </text> <ns>0</ns> <redirect/> [[ ]] | & # : _ %C3
    #REDIRECT &lt;nowiki> &lt;/nowiki> &lt;!--
"""


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from(XML.split()) | st.binary(max_size=6)))
def test_random_pages_are_read_or_refused(pieces: list[bytes]) -> None:
    data = b"".join(pieces) + b"</page>"
    part = Parser(Rules(Site(), drop_disambiguations=True)).part(data, 0, len(data))
    assert 1 <= part.read <= data.count(b"</page>")
    assert part.lengths.sum() == len(part.links)
    names = part.names.to_pylist()
    assert all(link_target(names[link], Site()) == names[link] for link in part.links)


@given(st.text(max_size=40))
def test_title_of_a_title_is_itself(text: str) -> None:
    title = link_target(text, Site())
    # "%" and "&" are left to the examples: what they decode to may read as a code once more.
    if isinstance(title, str) and "%" not in text and "&" not in text:
        assert link_target(title, Site()) == title
