"""Text files into a corpus: counts equal a plain loop however the input is cut, and bad input is one clear line."""

import bz2
import codecs
import gzip
import io
import json
import lzma
import os
import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superbloom.cli import main
from superbloom.corpus import Kind
from superbloom.corpus.corpus import Corpus
from superbloom.corpus.vocab import Vocab
from superbloom.errors import InputError
from superbloom.prepare.text import documents, prepare_text
from superbloom.prepare.text.documents import Form, pieces
from superbloom.prepare.text.wordpieces import read_word_pieces, train_word_pieces
from tests.support import launch
from tests.support.cases import CASES
from tests.support.real_data import real_data
from tests.support.texts import begins_of, is_punctuation, words_of

LETTERS = "abcdefghijklmnopqrstuvwxyz"
MINI = ["[PAD]", "[MASK]", "[unused1]", *LETTERS, *(f"##{letter}" for letter in LETTERS), *".,'", "the", "jazz"]
TEXT = """Miles Davis played jazz. The jazz was cool.

Bill Evans played with Miles Davis, and Miles Davis played with Bill Evans.
☃ The end.

Émile played the piano
"""


@pytest.fixture
def mini(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(MINI) + "\n")
    return path


def spelled(corpus: Corpus) -> dict[str, list[str]]:
    keys = corpus.sequences["key"].to_pylist()
    return {key: corpus.vocab.names(corpus.row(number)) for number, key in enumerate(keys)}


def prepared(tmp_path, files, **options) -> Corpus:
    prepare_text(files, tmp_path / "corpus", overwrite=True, **options)
    return Corpus.open(tmp_path / "corpus")


def test_a_small_text_by_hand(tmp_path, mini):
    (tmp_path / "a.txt").write_text(TEXT)
    notices = []
    report = prepare_text(
        [tmp_path / "a.txt"], tmp_path / "corpus", wordpieces=mini, min_count=2, notice=notices.append
    )
    corpus = Corpus.open(tmp_path / "corpus")
    vocab = corpus.vocab
    kinds = dict(zip(vocab.names(range(len(vocab))), vocab.kinds, strict=True))
    assert {name for name, kind in kinds.items() if kind == Kind.WORD_PIECE} == set(MINI[3:])
    assert {name for name, kind in kinds.items() if kind == Kind.UNIGRAM} == {
        *("played", "miles", "davis", "with", "bill", "evans")
    }
    assert {name for name, kind in kinds.items() if kind == Kind.BIGRAM} == {
        *("miles davis", "bill evans", "davis played", "played with")
    }
    rows = spelled(corpus)
    assert rows["1"][:3] == ["miles davis", "played", "jazz"]
    assert rows["2"][:7] == ["bill evans", "played with", "miles davis", ",", "a", "##n", "##d"]
    assert rows["3"] == ["e", "##m", "##i", "##l", "##e", "played", "the", "p", "##i", "##a", "##n", "##o"]
    offsets, begins = corpus.sentences
    starts = {key: begins[a:b].tolist() for key, a, b in zip(rows, offsets, offsets[1:], strict=False)}
    assert starts["1"] == [0, 4]
    assert [rows["2"][place] for place in starts["2"]] == ["bill evans", "the"]  # the snowman is not covered
    assert starts["3"] == [0]
    assert report.counts["left out"] == 1
    assert notices == ["1 of 33 words are not covered by the word pieces, e.g. '☃'; left out"]
    assert vocab.counts.tolist() == np.bincount(corpus.ids, minlength=len(vocab)).tolist()
    order = sorted(zip(-vocab.counts, vocab.names(range(len(vocab))), strict=True))
    assert [name for _, name in order] == vocab.names(range(len(vocab)))
    assert vocab.segmenter.segment("Miles Davis").ids.tolist() == [vocab.id("miles davis")]
    assert not list(tmp_path.glob(".corpus*"))


def plain_vocabulary(texts: list[str], size: int, min_count: int) -> set[str]:
    """The words and bigrams that a plain count adds to the pieces of MINI."""
    counts: Counter[str] = Counter()
    for text in texts:
        words = words_of(text, "lowercase")
        begins = begins_of(text, words)
        for at, (word, _, _) in enumerate(words):
            counts[word] += 1
            after = words[at + 1][0] if at + 1 < len(words) and not begins[at + 1] else "."
            if not is_punctuation(word) and not is_punctuation(after):
                counts[f"{word} {after}"] += 1
    pieces = set(MINI[3:])
    added = [name for name, count in counts.items() if count >= min_count and name not in pieces]
    return set(sorted(added, key=lambda name: (-counts[name], name))[: size - len(pieces)])


LINES = st.lists(st.sampled_from(["a", "cat", "The", "cat sat", "é", "x.", "end!”", ",", "☃", "中国"]), max_size=8)


@settings(max_examples=CASES // 100)
@given(st.lists(LINES.map(" ".join), min_size=1, max_size=12), st.integers(0, 6), st.integers(1, 3), st.integers(4, 60))
def test_counts_and_rows_do_not_depend_on_how_text_is_cut(tmp_path_factory, lines, room, min_count, piece_bytes):
    tmp_path = tmp_path_factory.mktemp("cut")
    (tmp_path / "vocab.txt").write_text("\n".join(MINI))
    text = "\n".join([*lines, "cat"])
    (tmp_path / "a.txt").write_text(text)
    options = {"wordpieces": tmp_path / "vocab.txt", "vocab_size": len(MINI) - 3 + room, "min_count": min_count}
    whole = prepared(tmp_path, [tmp_path / "a.txt"], workers=1, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "PIECE_BYTES", piece_bytes)
        patch.setattr(documents, "HEAD_BYTES", piece_bytes)
        cut = prepared(tmp_path, [tmp_path / "a.txt"], workers=1, **options)
    assert cut.fingerprint() == whole.fingerprint()
    assert cut.vocab.table.equals(whole.vocab.table)
    assert spelled(cut) == spelled(whole)
    added = {
        name for name, kind in zip(whole.vocab.names(range(whole.num_ids)), whole.vocab.kinds, strict=True) if kind
    }
    texts = re.split(r"\n(?:[ \t]*\n)+", text)
    assert added == plain_vocabulary(texts, len(MINI) - 3 + room, min_count)
    documents_with_words = [found for part in texts if (found := whole.vocab.segmenter.segment(part).ids.tolist())]
    assert [whole.row(number).tolist() for number in range(len(whole))] == documents_with_words


def test_processes_give_the_same_as_one(tmp_path, mini, monkeypatch):
    monkeypatch.setattr(documents, "PIECE_BYTES", 2000)
    (tmp_path / "a.txt").write_text("\n\n".join(f"{TEXT} number {number} of {number % 7}" for number in range(100)))
    one = prepared(tmp_path, [tmp_path / "a.txt"], wordpieces=mini, workers=1)
    two = prepared(tmp_path, [tmp_path / "a.txt"], wordpieces=mini, workers=2, memory=4 * 2**30)
    assert two.fingerprint() == one.fingerprint()
    assert two.vocab.table.equals(one.vocab.table)


DOCS = """<doc id="1" url="http://x?curid=1" title="Miles &amp; &quot;Co&quot;">
Miles

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
        (folder / f"b.{name}").write_bytes(pack(b"\xef\xbb\xbf" + TEXT.encode()))
        (folder / "a.txt").write_text("First file.")
        (folder / ".hidden").write_bytes(b"\xff")
        corpus = prepared(tmp_path, [tmp_path / f"in-{name}"], wordpieces=mini, workers=1)
        expected = expected or spelled(corpus)
        assert spelled(corpus) == expected, number
    assert len(expected) == 4
    data = b"First file.\n\n" + TEXT.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert spelled(prepared(tmp_path, ["-"], wordpieces=mini, workers=1)) == expected


PAGES = """<mediawiki xml:lang="en"><siteinfo><namespaces><namespace key="6">File</namespace>
<namespace key="14">Category</namespace></namespaces></siteinfo>
<page><title>Jazz</title><ns>0</ns><revision><text>'''Jazz''' is [[music|a kind]] of {{lang|en}} music.
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
    prepare_text([tmp_path / "dump.xml"], tmp_path / "corpus", min_count=1, workers=1, notice=notices.append)
    corpus = Corpus.open(tmp_path / "corpus")
    assert notices == [
        f"'{tmp_path / 'dump.xml'}' ends within a page, which is left out: it is cut short; what precedes is kept"
    ]
    rows = {key: " ".join(row).replace(" ##", "") for key, row in spelled(corpus).items()}
    assert rows.keys() == {"Jazz", "Blues"}
    assert rows["Blues"] == "the blues"
    assert rows["Jazz"].startswith("jazz is a kind of")
    assert "second" in rows["Jazz"]
    for gone in ("caption", "hidden", "note", "cell", "' '", "category", "file", "redirect", "chatter"):
        assert gone not in str(rows)


@pytest.mark.parametrize(("end", "told"), [("</mediawiki>", False), ("", True)])
def test_a_dump_cut_between_pages_is_told(tmp_path, mini, end, told):
    (tmp_path / "dump.xml").write_text(PAGES + end)
    notices = []
    prepare_text([tmp_path / "dump.xml"], tmp_path / "corpus", min_count=1, workers=1, notice=notices.append)
    assert ["ends without </mediawiki>: it is cut short" in notice for notice in notices] == [True] * told


def test_trained_pieces_cover_the_text_and_are_the_same_each_time(tmp_path):
    text = "the singer sings the songs of singers; ☃ 中国 naïve İstanbul 한국 𝔘\n\n" * 20
    (tmp_path / "a.txt").write_text(text)
    report = prepare_text([tmp_path / "a.txt"], tmp_path / "corpus", vocab_size=200)
    assert report.counts["left out"] == 0
    corpus = Corpus.open(tmp_path / "corpus")
    assert corpus.vocab.segmenter.segment(text).unknown == []
    assert prepare_text([tmp_path / "a.txt"], tmp_path / "again", vocab_size=200) == report
    assert Corpus.open(tmp_path / "again").vocab.table.equals(corpus.vocab.table)
    words = [(f"w{number % 90}x{number}", 1 + number % 5) for number in range(400)]
    characters = sorted("wx0123456789")
    first = train_word_pieces(words, ["w"], characters, 300)
    assert first == train_word_pieces(list(reversed(words)), ["w"], list(reversed(characters)), 300)
    assert len(first) <= 300
    assert {"w", "##x", "##9"} <= set(first)


@pytest.mark.parametrize(
    ("options", "normalisation", "name"),
    [
        ({}, "lowercase with accents", "йод"),
        ({"cased": True}, "cased", "Йод"),
        ({"wordpieces": "vocab.txt"}, "lowercase", "иод"),
        ({"wordpieces": "vocab.txt", "cased": True}, "cased", "Йод"),
    ],
)
def test_accents_are_kept_unless_word_pieces_are_given(tmp_path, monkeypatch, mini, options, normalisation, name):
    """The stored vocabulary reads text as it was prepared."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("the Йод\n" * 9)
    vocab = prepared(tmp_path, [tmp_path / "a.txt"], **options).vocab
    assert vocab.normalisation == normalisation
    assert vocab.names(vocab.segmenter.segment("the Йод").ids) == [f"the {name}"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; give a vocab.txt"),
        (b"[MASK]\nthe\na\nthe\n", "lists 'the' twice, on lines 2 and 4; remove one"),
        (b"the\na\n", r"has no \[MASK\] among its 2 entries"),
        (b"[MASK]\ncaf\xe9\n", "line 2 of '.*' is not UTF-8 \\(byte 0xe9\\)"),
        (b"[MASK]\n\nthe\n", "line 2 of '.*' is ''; a word piece is not empty and has no space"),
        (b"[MASK]\nnew york\n", "line 2 of '.*' is 'new york'; a word piece is not empty"),
        (b"[MASK]\n[CLS]\n", "has only reserved entries in brackets"),
    ],
)
def test_bad_vocabulary_files_are_refused(tmp_path, content, message):
    (tmp_path / "vocab.txt").write_bytes(content)
    (tmp_path / "a.txt").write_text(TEXT)
    with pytest.raises(InputError, match=message):
        prepare_text([tmp_path / "a.txt"], tmp_path / "corpus", wordpieces=tmp_path / "vocab.txt")
    assert not (tmp_path / "corpus").exists()


def test_reserved_entries_are_no_names(tmp_path):
    (tmp_path / "vocab.txt").write_bytes("[PAD]\r\n[unused7]\r\n[MASK]\r\n[\r\n]\r\nthe\r\na\u2028b\r\n".encode())
    assert read_word_pieces(tmp_path / "vocab.txt") == ["[", "]", "the", "a\u2028b"]


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (
            b"one\ntwo caf\xe9 x",
            {},
            r"line 2 of '.*a.txt' is not UTF-8 \(byte 0xe9 at position 7 of the line\).*--errors rep",
        ),
        (b'<doc title="\xff">\nx\n</doc>', {}, "line 1 of '.*a.txt' is not UTF-8"),
        (b"  \n\n \x00", {}, "no word was found in .*a.txt; give files of text"),
        (b"", {}, "no word was found in"),
        ("☃ ☃".encode(), {}, "the word pieces cover none of the 2 words"),
        (b"x", {"vocab_size": 20}, "--vocab-size 20 given; '.*vocab.txt' alone has 57 word pieces: give a larger"),
        (b"x", {"vocab_size": 0}, "vocab_size=0: 1 or more is allowed"),
        (b"x", {"min_count": 0}, "min_count=0: 1 or more is allowed"),
        (b"x", {"errors": "ignore"}, "errors='ignore': 'strict' or 'replace' is allowed"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path, mini, data, options, message):
    (tmp_path / "a.txt").write_bytes(data)
    with pytest.raises(InputError, match=message):
        prepare_text([tmp_path / "a.txt"], tmp_path / "corpus", wordpieces=mini, **options)
    assert {entry.name for entry in tmp_path.iterdir()} == {"a.txt", "vocab.txt"}


def test_missing_files_and_empty_folders_are_refused(tmp_path, mini):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="'.*nowhere' does not exist; give text files, folders of them, or -"):
        prepare_text([tmp_path / "nowhere"], tmp_path / "corpus")
    with pytest.raises(InputError, match="the folder '.*empty' holds no file"):
        prepare_text([tmp_path / "empty"], tmp_path / "corpus")
    with pytest.raises(InputError, match="nowhere.txt' cannot be read: No such file"):
        prepare_text([mini], tmp_path / "corpus", wordpieces=tmp_path / "nowhere.txt")


def test_a_bad_byte_is_placed_in_its_file_however_it_is_cut(tmp_path, mini, monkeypatch):
    monkeypatch.setattr(documents, "PIECE_BYTES", 16)
    (tmp_path / "a.txt").write_bytes(b"one line\n" * 50 + b"caf\xe9\n")
    with pytest.raises(InputError, match=r"line 51 of .* \(byte 0xe9 at position 3 of the line\)"):
        prepare_text([tmp_path / "a.txt"], tmp_path / "corpus", wordpieces=mini, workers=2, memory=4 * 2**30)


def test_replaced_bytes_are_left_out(tmp_path, mini):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9 the jazz")
    corpus = prepared(tmp_path, [tmp_path / "a.txt"], wordpieces=mini, errors="replace")
    assert spelled(corpus)["1"] == ["c", "##a", "##f", "the", "jazz"]


def test_a_word_without_end_is_refused(tmp_path, mini, monkeypatch):
    monkeypatch.setattr(documents, "PIECE_BYTES", 64)
    monkeypatch.setattr(documents, "HEAD_BYTES", 64)
    monkeypatch.setattr(documents, "MAX_LINE_BYTES", 200)
    (tmp_path / "a.txt").write_bytes(b"short\n" + b"x" * 1000)
    with pytest.raises(InputError, match="line 2 of '.*a.txt' has 200 bytes without a space; give text"):
        prepare_text([tmp_path / "a.txt"], tmp_path / "corpus", wordpieces=mini)


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


def test_the_command(tmp_path, mini, monkeypatch, capsys):
    (tmp_path / "a.txt").write_text(TEXT)
    command = ["superbloom", "prepare", "text", str(tmp_path / "a.txt"), "--out", str(tmp_path / "corpus")]
    command += ["--wordpieces", str(mini), "--min-count", "2", "--vocab-size", "66"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as done:
        main()
    told = capsys.readouterr()
    assert done.value.code == 0
    rows = dict(reversed(line.split("  ", 1)) for line in map(str.strip, told.out.splitlines()) if "  " in line)
    assert rows["documents"] == "3"
    assert (rows["word pieces"], rows["unigrams"], rows["bigrams"]) == ("57", "5", "4")
    assert f"train {tmp_path / 'corpus'} --out {tmp_path / 'corpus'}-model --preset text" in told.out
    assert "1 of 33 words are not covered" in told.err
    monkeypatch.setattr(sys, "argv", [*command, "--json", "--cased", "--overwrite"])
    with pytest.raises(SystemExit):
        main()
    assert json.loads(capsys.readouterr().out)["counts"]["documents"] == 3
    assert Vocab.open(tmp_path / "corpus" / "vocab.arrow").normalisation == "cased"
    monkeypatch.setattr(sys, "argv", [*command, "--errors", "skip"])
    with pytest.raises(SystemExit) as done:
        main()
    assert done.value.code == 2
    assert capsys.readouterr().err == "error: errors='skip': 'strict' or 'replace' is allowed\n"


def test_real_articles_of_a_real_dump(tmp_path):
    dump = real_data("dumps", "tinywiki.xml")
    report = prepare_text([dump], tmp_path / "corpus", min_count=2)
    assert report.counts["documents"] == 7
    assert report.counts["left out"] == 0
    assert "{{" not in "".join(Corpus.open(tmp_path / "corpus").vocab.names(range(report.counts["unigrams"])))


@pytest.mark.system
def test_the_command_as_a_process_takes_stdin_and_prints_one_document(tmp_path, mini):
    command = ["superbloom", "prepare", "text", "-", "--out", "corpus", "--json"]
    command += ["--wordpieces", mini.name, "--errors", "replace", "--workers", "2"]
    given = TEXT.encode() + b"\n\ncaf\xe9\n"
    with launch.shell_path() as path:
        options = {"cwd": tmp_path, "env": os.environ | {"PATH": path}, "input": given, "capture_output": True}
        done, strict = (
            subprocess.run(words, **options, timeout=120) for words in (command, [*command[:-4], "--overwrite"])
        )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["corpus"], told["counts"]["documents"]) == ("corpus", 4)
    assert Corpus.open(tmp_path / "corpus").info["source"] == "-"
    assert strict.returncode == 2
    assert b"error: line 9 of '-' is not UTF-8 (byte 0xe9 at position 3 of the line)" in strict.stderr
    assert strict.stdout == b""
    assert {entry.name for entry in tmp_path.iterdir()} == {"vocab.txt", "corpus"}
