"""Text files into a corpus: counts equal a plain loop however the input is cut, and bad input is one clear line."""

import json
import os
import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superbloom.cli import main
from superbloom.corpus import Kind
from superbloom.corpus.corpus import Corpus
from superbloom.corpus.vocab import Vocab
from superbloom.errors import InputError
from superbloom.prepare.text import documents, prepare_text
from superbloom.prepare.text.wordpieces import read_word_pieces, train_word_pieces
from tests.support import launch
from tests.support.cases import CASES
from tests.support.texts import MINI, SMALL_TEXT, begins_of, is_punctuation, prepared, spelled, words_of


def test_a_small_text_by_hand(tmp_path, mini):
    (tmp_path / "a.txt").write_text(SMALL_TEXT)
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
    (tmp_path / "a.txt").write_text(
        "\n\n".join(f"{SMALL_TEXT} number {number} of {number % 7}" for number in range(100))
    )
    one = prepared(tmp_path, [tmp_path / "a.txt"], wordpieces=mini, workers=1)
    two = prepared(tmp_path, [tmp_path / "a.txt"], wordpieces=mini, workers=2, memory=4 * 2**30)
    assert two.fingerprint() == one.fingerprint()
    assert two.vocab.table.equals(one.vocab.table)


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
    (tmp_path / "a.txt").write_text(SMALL_TEXT)
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
        (b"x\n== \xff ==\n", {}, "line 2 of '.*a.txt' is not UTF-8"),
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


def test_the_command(tmp_path, mini, monkeypatch, capsys):
    (tmp_path / "a.txt").write_text(SMALL_TEXT)
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


@pytest.mark.system
def test_the_command_as_a_process_takes_stdin_and_prints_one_document(tmp_path, mini):
    command = ["superbloom", "prepare", "text", "-", "--out", "corpus", "--json"]
    command += ["--wordpieces", mini.name, "--errors", "replace", "--workers", "2"]
    given = SMALL_TEXT.encode() + b"\n\ncaf\xe9\n"
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
