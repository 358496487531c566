"""What separates documents in each form of file: blank lines, titles, <doc>, pages; packed, and in any encoding."""

import bz2
import codecs
import gzip
import io
import lzma
import sys

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superbloom.corpus.corpus import Corpus
from superbloom.errors import InputError
from superbloom.prepare.text import documents, prepare_text
from superbloom.prepare.text.documents import Form, pieces
from tests.support.cases import CASES
from tests.support.real_data import real_data
from tests.support.texts import MINI, SMALL_TEXT, prepared, spelled


def heading_of(line: str) -> tuple[int, str] | None:
    """The level and title of a line that is a heading: the same marks on both sides of a title without them."""
    stripped = line.strip(" \t\r")
    for level in range(6, 0, -1):
        for marks in ("=" * level, " ".join("=" * level)):
            title = stripped.removeprefix(marks).removesuffix(marks).strip(" \t")
            if stripped.startswith(marks) and stripped.endswith(marks) and title.strip("=") == title != "":
                return level, title
    return None


def rows_under_headings(text: str) -> tuple[int, list[tuple[str, str]]]:
    """The number of headings in a text, and the key and text of each document."""
    lines = text.split("\n")
    headings = [heading_of(line) for line in lines]
    first = next((found for line, found in zip(lines, headings, strict=True) if line.strip()), None)
    found: list[tuple[str, str]] = [("", "")]
    for line, heading in zip(lines, headings, strict=True):
        is_title = first is not None and first[0] == 1 and heading is not None and heading[0] == 1
        if is_title or (heading is None and not line.strip() and not (first and first[0] == 1)):
            found.append((heading[1] if heading else "", ""))
        elif heading is None:
            found[-1] = found[-1][0], f"{found[-1][1]}{line}\n"
    filled = [(key, document) for key, document in found if document.strip()]
    return sum(map(bool, headings)), [(key or str(number), text) for number, (key, text) in enumerate(filled, 1)]


HEADINGS = ["= A =", " = Blue cat = ", "== b ==", " = = b = = ", "=c=", "= a = b =", "= = =", "== a =", "=", "a = b"]


MARKED = st.lists(st.sampled_from([*HEADINGS, "\t=== d ===\r", "cat sat", "The cat.", "x", "", " "]), max_size=12)


@settings(max_examples=CASES // 10)
@given(MARKED, st.sampled_from(["= A = ", " = A dog = \n", "== b ==", "cat", ""]), st.integers(4, 60))
def test_headings_are_left_out_and_titles_begin_documents(tmp_path_factory, lines, first, piece_bytes):
    """However the text is cut, its rows are those of a loop over lines."""
    tmp_path = tmp_path_factory.mktemp("headings")
    (tmp_path / "vocab.txt").write_text("\n".join(MINI))
    text = "\n".join([first, *lines, "cat"])
    (tmp_path / "a.txt").write_text(text, newline="")
    count, rows = rows_under_headings(text)
    for size in (2**20, piece_bytes):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(documents, "PIECE_BYTES", size)
            patch.setattr(documents, "HEAD_BYTES", max(size, 12))  # the first line
            options = {"wordpieces": tmp_path / "vocab.txt", "min_count": 1, "workers": 1, "overwrite": True}
            report = prepare_text([tmp_path / "a.txt"], tmp_path / "corpus", **options)
        corpus = Corpus.open(tmp_path / "corpus")
        segment = corpus.vocab.segmenter.segment
        assert report.counts["headings"] == count
        assert corpus.info["counted"]["headings"] == count
        assert corpus.sequences["key"].to_pylist() == [key for key, _ in rows]
        expected = [segment(document).ids.tolist() for _, document in rows]
        assert [corpus.row(number).tolist() for number in range(len(corpus))] == expected


WIKITEXT = """
 = Robert Boulter =

 Robert Boulter is an English film actor .

 = = Career = =


 = = = 2000 – 2005 = = =

 In 2000 Boulter had a role .

 = Du Fu =

 Du Fu was a poet .
"""


def test_articles_of_wikitext_are_documents(tmp_path):
    (tmp_path / "wiki.train.tokens").write_text(WIKITEXT)
    report = prepare_text([tmp_path / "wiki.train.tokens"], tmp_path / "corpus", min_count=1)
    rows = {key: " ".join(row).replace(" ##", "") for key, row in spelled(Corpus.open(tmp_path / "corpus")).items()}
    assert rows == {
        "Robert Boulter": "robert boulter is an english film actor . in 2000 boulter had a role .",
        "Du Fu": "du fu was a poet .",
    }
    assert ("4", "headings left out") in report.table()
    assert not any("pages" in name for _, name in report.table())


DOCS = """<doc id="1" url="http://x?curid=1" title="Miles &amp; &quot;Co&quot;">
Miles

== Early life ==
Miles Davis played.

</doc>
<doc id="2" title="A "quoted" one" url="x">
Bill Evans
</doc>
<doc id="3" title="Empty">
</doc>
no title
"""


@pytest.mark.parametrize("piece_bytes", [2**20, 40, 7])
def test_documents_of_wikiextractor(tmp_path, mini, monkeypatch, piece_bytes):
    monkeypatch.setattr(documents, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(documents, "HEAD_BYTES", max(8, piece_bytes))
    (tmp_path / "wiki_00").write_text(DOCS)
    corpus = prepared(tmp_path, [tmp_path / "wiki_00"], wordpieces=mini, min_count=1, workers=1)
    assert corpus.info["counted"]["headings"] == 1
    rows = spelled(corpus)
    assert list(rows) == ['Miles & "Co"', 'A "quoted" one', "3"]
    assert rows["3"] == ["no title"]
    assert rows['Miles & "Co"'] == ["miles", "miles davis", "played", "."]
    assert corpus.sentences[1].tolist() == [0, 1, 0, 0]


PACKINGS = {
    "plain": lambda data: data,
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: pa.compress(data, "zstd", asbytes=True),
}


def test_folders_packed_files_and_stdin_are_the_same_text(tmp_path, mini, monkeypatch):
    expected = None
    for number, (name, pack) in enumerate(PACKINGS.items()):
        folder = tmp_path / f"in-{name}" / "deep=1"
        folder.mkdir(parents=True)
        (folder / f"b.{name}").write_bytes(pack(b"\xef\xbb\xbf" + SMALL_TEXT.encode()))
        (folder / "a.txt").write_text("First file.")
        (folder / ".hidden").write_bytes(b"\xff")
        corpus = prepared(tmp_path, [tmp_path / f"in-{name}"], wordpieces=mini, workers=1)
        expected = expected or spelled(corpus)
        assert spelled(corpus) == expected, number
    assert len(expected) == 4
    data = b"First file.\n\n" + SMALL_TEXT.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert spelled(prepared(tmp_path, ["-"], wordpieces=mini, workers=1)) == expected


PAGES = """<mediawiki xml:lang="en"><siteinfo><namespaces><namespace key="6">File</namespace>
<namespace key="14">Category</namespace></namespaces></siteinfo>
<page><ns>0</ns><revision><text>A page of no name</text></revision></page>
<page><title> </title><ns>0</ns><revision><text>Another</text></revision></page>
<page><title>Jazz</title><ns>0</ns><revision><text>'''Jazz''' is [[music|a kind]] of {{lang|en}} music.
== Heard ==
[[File:x.jpg|thumb|A caption]] &lt;!-- hidden --&gt;&lt;ref&gt;a note&lt;/ref&gt;
{|
| a cell
|}

Second &amp;amp; last. [[Category:Music]]</text></revision></page>
<page><title>Jass</title><ns>0</ns><redirect title="Jazz" /><revision><text>#REDIRECT [[Jazz]]</text></revision></page>
<page><title>Talk:Jazz</title><ns>1</ns><revision><text>chatter</text></revision></page>
<page><title>Blues</title><ns>0</ns><revision><text>The blues</text></revision></page>
"""


@pytest.mark.parametrize("piece_bytes", [2**20, 300])
def test_articles_of_a_dump(tmp_path, mini, monkeypatch, piece_bytes):
    monkeypatch.setattr(documents, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(documents, "HEAD_BYTES", 300)
    (tmp_path / "dump.xml").write_text(PAGES + "<page><title>Cut")
    notices = []
    options = {"min_count": 1, "workers": 1, "notice": notices.append}
    report = prepare_text([tmp_path / "dump.xml"], tmp_path / "corpus", **options)
    corpus = Corpus.open(tmp_path / "corpus")
    assert (report.counts["pages without a title"], report.counts["headings"]) == (2, 1)
    assert ("2", "pages left out: they have no title") in report.table()
    assert notices == [
        f"'{tmp_path / 'dump.xml'}' ends within a page, which is left out: it is cut short; what precedes is kept"
    ]
    rows = {key: " ".join(row).replace(" ##", "") for key, row in spelled(corpus).items()}
    assert rows.keys() == {"Jazz", "Blues"}
    assert rows["Blues"] == "the blues"
    assert rows["Jazz"].startswith("jazz is a kind of")
    assert "second" in rows["Jazz"]
    for gone in (
        "caption",
        "hidden",
        "note",
        "cell",
        "' '",
        "category",
        "file",
        "redirect",
        "chatter",
        "heard",
        "no name",
        "another",
    ):
        assert gone not in str(rows)


@pytest.mark.parametrize(("end", "told"), [("</mediawiki>", False), ("", True)])
def test_a_dump_cut_between_pages_is_told(tmp_path, mini, end, told):
    (tmp_path / "dump.xml").write_text(PAGES + end)
    notices = []
    prepare_text([tmp_path / "dump.xml"], tmp_path / "corpus", min_count=1, workers=1, notice=notices.append)
    assert ["ends without </mediawiki>: it is cut short" in notice for notice in notices] == [True] * told


def test_a_text_of_one_line_is_one_document(tmp_path, mini, monkeypatch):
    """As text8 is."""
    monkeypatch.setattr(documents, "PIECE_BYTES", 64)
    monkeypatch.setattr(documents, "HEAD_BYTES", 64)
    monkeypatch.setattr(documents, "MAX_LINE_BYTES", 200)
    (tmp_path / "a.txt").write_bytes(b"the jazz " * 300)
    (words,) = spelled(prepared(tmp_path, [tmp_path / "a.txt"], wordpieces=mini, workers=1)).values()
    assert " ".join(words).split() == ["the", "jazz"] * 300


UTF16 = st.sampled_from(["utf-16", "utf-16-le", "utf-16-be"])


@given(st.text("ab \n<doc>/é中𝔘", max_size=80), UTF16, st.integers(2, 30), st.booleans())
def test_pieces_of_a_file_in_utf16_are_its_text(tmp_path_factory, text, encoding, piece_bytes, is_dump):
    text = f"<mediawiki>{text}</page>" if is_dump else text
    mark = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}.get(encoding, b"")
    path = tmp_path_factory.mktemp("utf16") / "a.txt"
    path.write_bytes(mark + text.encode(encoding))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "PIECE_BYTES", piece_bytes)
        patch.setattr(documents, "HEAD_BYTES", 60 if is_dump else piece_bytes)
        found = list(pieces([str(path)], lambda _: None, lambda _: None))
    assert b"".join(piece.data for piece in found) == text.encode()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le"])
@pytest.mark.parametrize("content", ["PAGES", "DOCS"])
def test_utf16_gives_the_same_corpus(tmp_path, mini, content, encoding):
    """A text that begins with "<" needs no byte order mark."""
    text = f"{PAGES}</mediawiki>" if content == "PAGES" else DOCS
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.txt").write_bytes(text.encode(encoding))
    one = prepared(tmp_path, [tmp_path / "a.txt"], wordpieces=mini)
    two = prepared(tmp_path, [tmp_path / "b.txt"], wordpieces=mini)
    assert two.fingerprint() == one.fingerprint()
    assert spelled(two) == spelled(one)


def test_damaged_utf16_is_refused_or_replaced(tmp_path, mini, monkeypatch):
    monkeypatch.setattr(documents, "PIECE_BYTES", 16)
    monkeypatch.setattr(documents, "HEAD_BYTES", 16)
    (tmp_path / "a.txt").write_bytes("the jazz\nthe jazz\n".encode("utf-16") + b"\x00\xd8a\x00")
    refusal = "'.*a.txt', after line [0-9], is not UTF-16: illegal .*; convert it to UTF-8, or continue"
    with pytest.raises(InputError, match=refusal):
        prepare_text([tmp_path / "a.txt"], tmp_path / "corpus", wordpieces=mini)
    assert not (tmp_path / "corpus").exists()
    corpus = prepared(tmp_path, [tmp_path / "a.txt"], wordpieces=mini, errors="replace", min_count=9)
    assert spelled(corpus) == {"1": ["the", "jazz", "the", "jazz", "a"]}


@given(st.text("ab \n\r<doc></", max_size=80), st.integers(1, 30))
def test_pieces_put_together_are_the_file(tmp_path_factory, text, piece_bytes):
    path = tmp_path_factory.mktemp("pieces") / "a.txt"
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "PIECE_BYTES", piece_bytes)
        patch.setattr(documents, "HEAD_BYTES", piece_bytes)
        found = list(pieces([str(path)], lambda _: None, lambda _: None))
    assert b"".join(piece.data for piece in found) == text.encode()
    assert [piece.number for piece in found] == list(range(len(found)))
    lines = 1
    for piece in found:
        assert piece.line == lines
        assert piece.form in (Form.LINES, Form.DOCS)
        lines += piece.data.count(b"\n")
    assert all(piece.data.endswith(b"\n") for piece in found[:-1] if piece.form is Form.LINES)


def test_real_articles_of_a_real_dump(tmp_path):
    dump = real_data("dumps", "tinywiki.xml")
    report = prepare_text([dump], tmp_path / "corpus", min_count=2)
    assert report.counts["documents"] == 7
    assert report.counts["left out"] == 0
    assert "{{" not in "".join(Corpus.open(tmp_path / "corpus").vocab.names(range(report.counts["unigrams"])))
