"""Text becomes the ids that the tokenizers library and a plain loop give; damaged files of text are refused."""

import secrets
import sys
import unicodedata
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from superbloom.corpus import Corpus, Kind, Reader, Vocab, segmenter
from superbloom.corpus import words as words_module
from superbloom.corpus.hash_table import HashTable
from superbloom.corpus.words import NORMALISATIONS, WITH_ACCENTS
from superbloom.errors import InputError
from superbloom.storage.arrow import write_arrow
from tests.support.cases import CASES
from tests.support.texts import begins_of, is_punctuation, pieces_of, words_of

# Words that are often adjacent, so that bigrams occur, and every kind of character that BERT's rules mention.
PIECES = st.sampled_from(
    [
        *("a", "b", "ab", "B", "é", "E\u0301", "ǅ", "İ", "ß", "ΣΑΣ", "각", "한", "中", "国", "ﬁ", "x" * 130, "各" * 3),
        *(
            " ",
            " ",
            " ",
            " ",
            "  ",
            "\n",
            "\n\n",
            "\t",
            "\r\n",
            "\r",
            "\x0b",
            "\x0c",
            "\x85",
            "\xa0",
            "\u2028",
            "\u3000",
        ),
        *(
            ".",
            ",",
            "!",
            "?",
            "。",
            "？",
            "।",
            "؟",
            "。」",
            "！？",
            "'",
            '"',
            "”",
            "」",
            ")",
            "-",
            "—",
            "#",
            "##",
            "##a",
            "$",
            "^",
            "…",
            "\u037e",
            "≠",
        ),
        *("\x00", "\x07", "\x7f", "\u200b", "\u200d", "\ufffd", "\u0301", "\u0327", "\ufe0f", "😀", "🏽", "\U0010ffff"),
        "[MASK]",
    ]
)
TEXTS = st.lists(st.one_of(PIECES, st.text(st.characters(exclude_categories=["Cs"]), max_size=4)), max_size=40).map(
    "".join
)


def plain_segmentation(text: str, names: dict[str, Kind], normalisation: str) -> tuple[list[str], list[str]]:
    """The names of a text's entries, and the words that have none."""
    words = words_of(text, normalisation)
    begins = begins_of(text, words)
    singles = {name for name, kind in names.items() if kind != Kind.BIGRAM}
    entries, unknown, at = [], [], 0
    while at < len(words):
        word = words[at][0]
        pair = f"{word} {words[at + 1][0]}" if at + 1 < len(words) and not begins[at + 1] else ""
        if names.get(pair) == Kind.BIGRAM and not any(map(is_punctuation, pair.split(" "))):
            entries.append(pair)
            at += 2
            continue
        pieces = pieces_of(word, singles)
        entries += pieces
        unknown += [] if pieces else [word]
        at += 1
    return entries, unknown


def vocabulary(names: dict[str, Kind], normalisation: str = "lowercase") -> Vocab:
    kinds = np.array(list(names.values()), dtype=np.int8)
    counts = np.zeros(len(names), dtype=np.int64)
    return Vocab.from_arrays(list(names), counts, kinds, normalisation)[0]


@settings(max_examples=CASES // 5)
@given(TEXTS, st.sampled_from(NORMALISATIONS), st.data())
def test_segments_are_those_of_the_library_and_a_plain_loop(text, normalisation, data):
    assume(normalisation != WITH_ACCENTS or "\u0338" not in text)  # NFC would join it to the "=" before it
    words = [word for word, _, _ in words_of(text, normalisation)] or ["none"]
    word = st.sampled_from([*words, "other"])
    names = {"a": Kind.WORD_PIECE, "##a": Kind.WORD_PIECE, "##b": Kind.WORD_PIECE, "x" * 9: Kind.WORD_PIECE}
    names |= {"##x": Kind.WORD_PIECE, "ᄀ": Kind.WORD_PIECE, "##ᅡ": Kind.WORD_PIECE, "##ᆨ": Kind.WORD_PIECE}
    names |= dict.fromkeys(data.draw(st.lists(word, max_size=8)), Kind.UNIGRAM)
    pairs = data.draw(st.lists(st.tuples(word, word), max_size=12)) + list(pairwise(words))[::3]
    names |= {" ".join(pair): Kind.BIGRAM for pair in pairs}
    vocab = vocabulary(names, normalisation)
    found = vocab.segmenter.segment(text)
    entries, unknown = plain_segmentation(text, names, normalisation)
    assert vocab.names(found.ids) == entries
    assert len(found.unknown) == len(unknown)
    spans = found.spans
    assert spans.shape == (len(entries), 2)
    assert (spans[:, 0] <= spans[:, 1]).all()
    assert (spans[1:, 0] >= spans[:-1, 1]).all()
    assert not len(spans) or (spans[0, 0] >= 0 and spans[-1, 1] <= len(text))
    assert all(start < end for start, end in found.unknown)
    kept = "".join(character for character in text if unicodedata.category(character)[0] != "C")
    if normalisation == WITH_ACCENTS and not unicodedata.is_normalized("NFC", kept):
        return  # a span ends before the accents that NFC joins to its last letter
    # The characters of an entry read as the entry, unless one character became several pieces.
    for name, (start, end) in zip(entries, spans.tolist(), strict=True):
        if "각" not in text and "한" not in text and not any(0xAC00 <= ord(c) <= 0xD7A3 for c in text):
            assert " ".join(w for w, _, _ in words_of(text[start:end], normalisation)).startswith(
                name.removeprefix("##")[:90]
            )
    for (start, end), expected in zip(found.unknown, unknown, strict=True):
        assert any(expected.startswith(w[:1]) for w, _, _ in words_of(text[start:end], normalisation))


@settings(max_examples=CASES // 10)
@given(st.lists(TEXTS, max_size=5))
def test_a_reader_that_has_read_other_texts_gives_the_same_words(texts):
    reader = Reader()
    for text in texts:
        found, fresh = reader.read(text.encode()), Reader().read(text.encode())
        expected = words_of(text, "lowercase")
        for words in (found, fresh):
            assert [words.names[number] for number in words.numbers] == [word for word, _, _ in expected]
            assert words.begins.tolist() == begins_of(text, expected)
            assert len(set(words.names)) == len(words.names) == len(set(words.numbers.tolist()))


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("我是学生。你好！「真的吗？」他说", ["我 是 学 生 。", "你 好 ！", "「 真 的 吗 ？ 」", "他 说"]),
        ('他说："你好。"我走了', ['他 说 ： " 你 好 。 "', "我 走 了"]),
        ("আমি যাই।তুমি এসো। সে", ["আমি যাই ।", "তুমি এসো ।", "সে"]),
        ("کیا؟ہاں۔ اچھا", ["کیا ؟", "ہاں ۔", "اچھا"]),
        ('Is 3.5 a lot?! "No." He left', ["Is 3 . 5 a lot ? !", '" No . "', "He left"]),
        ("什么？!你", ["什 么 ？ !", "你"]),
    ],
)
def test_sentences_end_at_the_marks_of_each_script(text, sentences):
    words = Reader("cased").read(text.encode())
    names = [words.names[number] for number in words.numbers]
    places = [*np.flatnonzero(words.begins).tolist(), len(names)]
    assert [" ".join(names[begin:end]) for begin, end in pairwise(places)] == sentences


def test_memory_of_what_was_read_is_bounded(monkeypatch):
    monkeypatch.setattr(words_module, "MAX_REMEMBERED", 100)
    reader = Reader()
    for begin in range(0, 1000, 50):
        found = reader.read(" ".join(f"w{number}" for number in range(begin, begin + 50)).encode())
        assert found.names == [f"w{number}" for number in range(begin, begin + 50)]
        assert len(reader.known) < 200


def test_small_batches_give_the_same_ids(monkeypatch):
    text = "Ünïcode 中国人 plain words élan " * 20 + " ".join(f"w{number} é{number}" for number in range(300))
    names = {f"w{number}": Kind.UNIGRAM for number in range(300)} | {"中 国": Kind.BIGRAM, "plain": Kind.WORD_PIECE}
    whole = vocabulary(names).segmenter.segment(text)
    monkeypatch.setattr(words_module, "BATCH_CHARS", 64)
    for module in (words_module, segmenter):
        monkeypatch.setattr(module, "BATCH_WORDS", 8)
    cut = vocabulary(names).segmenter.segment(text)
    assert cut.ids.tolist() == whole.ids.tolist()
    assert cut.unknown == whole.unknown


@given(st.lists(st.integers(0, 2**62), unique=True, max_size=60), st.lists(st.integers(0, 2**62), max_size=20))
def test_the_table_finds_what_is_in_it(keys, others):
    table = HashTable(np.array(keys, dtype=np.int64), np.arange(len(keys)))
    expected = {key: number for number, key in enumerate(keys)}
    found = table.find(np.array(keys + others, dtype=np.int64))
    assert found.tolist() == [expected.get(key, -1) for key in keys + others]


def test_a_table_whose_keys_all_begin_at_one_slot():
    clash = HashTable(np.arange(0), np.arange(0))
    clash._slots = lambda keys: np.zeros(len(keys), dtype=np.int64)  # type: ignore[method-assign]
    clash.__init__(np.arange(5) * 3, np.arange(5))  # type: ignore[misc]
    assert clash.find(np.array([12, 3, 4, 0])).tolist() == [4, 1, -1, 0]


def test_longest_match_bigram_over_word_over_pieces():
    names = dict.fromkeys(["new", "york", "times", "play", "##ing", "##in", "##g", "playin", "'", "s"], Kind.WORD_PIECE)
    names |= {"yorkers": Kind.UNIGRAM, "new york": Kind.BIGRAM, "york times": Kind.BIGRAM, "times new": Kind.BIGRAM}
    vocab = vocabulary(names)
    segment = vocab.segmenter.segment

    def named(text):
        return vocab.names(segment(text).ids)

    assert named("New York Times NEW yorkers") == ["new york", "times new", "yorkers"]
    assert named("New York's playing") == ["new york", "'", "s", "playin", "##g"]
    assert named("New\nYork. New, York") == ["new", "york", "new", "york"]
    assert named("") == []
    found = segment("Zürich, New  York!")
    assert (found.unknown, found.spans.tolist()) == ([(0, 6), (6, 7), (17, 18)], [[8, 17]])


@pytest.mark.parametrize(
    ("word", "lowercase", "with_accents", "cased"),
    [
        ("Zürich", "zurich", "zürich", "Zürich"),
        ("Zu\u0308rich", "zurich", "zürich", "Zu\u0308rich"),
        ("Йод", "иод", "йод", "Йод"),
        ("Їжак", "іжак", "їжак", "Їжак"),
        ("ফুল", "ফল", "ফুল", "ফুল"),  # flower; without the vowel sign: fruit
        ("กิน", "กน", "กิน", "กิน"),
    ],
)
def test_each_normalisation_keeps_what_it_says(word, lowercase, with_accents, cased):
    for normalisation, expected in zip(NORMALISATIONS, (lowercase, with_accents, cased), strict=True):
        vocab = vocabulary({expected: Kind.UNIGRAM}, normalisation)
        assert vocab.names(vocab.segmenter.segment(word).ids) == [expected]


@given(TEXTS)
def test_accents_are_kept_in_both_ways_to_write_them(text):
    """Composed or not, and read again: the same words."""
    assume("\u0338" not in unicodedata.normalize("NFD", text))
    reader = Reader(WITH_ACCENTS)
    words = reader.written(text)
    assert reader.written(unicodedata.normalize("NFD", text)) == reader.written(unicodedata.normalize("NFC", text))
    assert reader.written(words) == words


def test_a_catalogue_of_other_names_has_no_segmenter():
    with pytest.raises(InputError, match="this catalogue cannot read text; only one made by `prepare text` can"):
        _ = Vocab.from_counts({"Oslo": 1}).segmenter
    with pytest.raises(InputError, match="lone surrogate at 1"):
        vocabulary({"a": Kind.UNIGRAM}).segmenter.segment("a\ud800")


def test_without_the_library_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InputError, match=r"pip install 'superbloom\[text\]'"):
        _ = vocabulary({"a": Kind.UNIGRAM}).segmenter


def test_bytes_that_are_not_utf8_are_refused_with_their_place():
    with pytest.raises(UnicodeDecodeError) as raised:
        Reader().read(b"caf\xe9 ol\xe9")
    assert raised.value.start == 3


def test_a_vocabulary_of_text_survives_its_file(tmp_path):
    names = {"the": Kind.WORD_PIECE, "##s": Kind.WORD_PIECE, "davis": Kind.UNIGRAM, "miles davis": Kind.BIGRAM}
    vocabulary(names, "cased").write(tmp_path / "vocab.arrow")
    vocab = Vocab.open(tmp_path / "vocab.arrow")
    assert vocab.kinds.dtype == np.int8
    assert dict(zip(vocab.names(range(4)), vocab.kinds, strict=True)) == names
    assert vocab.normalisation == "cased"
    longer, new = vocab.extended(["ella", "ella fitzgerald", "the"])
    assert new == ["ella", "ella fitzgerald"]
    assert longer.kinds[-2:].tolist() == [Kind.UNIGRAM, Kind.BIGRAM]
    assert longer.normalisation == "cased"
    longer.write(tmp_path / "longer.arrow")
    longer = Vocab.open(tmp_path / "longer.arrow")
    assert longer.names(longer.segmenter.segment("ella fitzgerald miles davis").ids) == [
        "ella fitzgerald",
        "miles davis",
    ]
    for name in ("new york city", " york", "york ", " ", "", "don't"):
        with pytest.raises(InputError, match=f"{name!r} given; a name in text is one or two words, and this one reads"):
            vocab.extended([name])
    with pytest.raises(InputError, match="'Ella' given; .* and this one reads as 'ella'"):
        vocabulary(names).extended(["Ella"])


@pytest.mark.parametrize(
    ("kinds", "normalisation", "message"),
    [
        ([0, 1, 3], b"cased", "kinds from 0 to 3; 0 to 2 are allowed"),
        ([0, -1, 2], b"cased", "kinds from -1 to 2; 0 to 2 are allowed"),
        ([0, 1, 2], b"upper", "superbloom.text is 'upper'; .* 'lowercase', 'lowercase with accents' or 'cased'"),
        ([0, 1, 2], b"\xff\xfe", "superbloom.text is "),
        ([0, 1, 2], None, "superbloom.text is None"),
        (None, b"cased", "no column 'kind'; text needs kinds"),
        ([0, 2, 2], b"cased", "'b' is no BIGRAM; a BIGRAM is two words with one space, other kinds have no space"),
        ([0, 1, 1], b"cased", "'a b' is no UNIGRAM"),
    ],
)
def test_damaged_vocabularies_of_text_are_refused_by_name(tmp_path, kinds, normalisation, message):
    table = pa.table({"name": pa.array(["a", "b", "a b"], pa.large_string()), "count": [3, 2, 1]})
    if kinds is not None:
        table = table.append_column("kind", pa.array(kinds, pa.int8()))
    table = table.replace_schema_metadata(None if normalisation is None else {b"superbloom.text": normalisation})
    write_arrow(table, tmp_path / "vocab.arrow")
    with pytest.raises(InputError, match=f"vocab.arrow: {message}"):
        Vocab.open(tmp_path / "vocab.arrow")


@pytest.mark.parametrize("name", ["a  b", " a", "b ", "a b c", ""])
def test_bigrams_have_exactly_one_space(tmp_path, name):
    table = pa.table({"name": pa.array([name], pa.large_string()), "count": [1], "kind": pa.array([2], pa.int8())})
    write_arrow(table.replace_schema_metadata({b"superbloom.text": b"cased"}), tmp_path / "vocab.arrow")
    with pytest.raises(InputError, match="is no BIGRAM"):
        Vocab.open(tmp_path / "vocab.arrow")


def text_corpus(sentences: list[list[int]]) -> Corpus:
    """Two rows of three and two ids, with these sentences."""
    vocab = vocabulary({"a": Kind.UNIGRAM, "b": Kind.UNIGRAM})
    lists = pa.large_list(pa.int32())
    columns = {
        "key": pa.array(["one", "two"], pa.large_string()),
        "ids": pa.array([[0, 1, 0], [1, 0]], lists),
        "split": pa.array([0, 1], pa.int8()),
        "sentences": pa.array(sentences, lists),
    }
    return Corpus(vocab, pa.table(columns))


def test_sentences_of_a_corpus_survive_its_folder(tmp_path):
    corpus = text_corpus([[0, 2], [0]])
    corpus.save(tmp_path / "corpus")
    again = Corpus.open(tmp_path / "corpus")
    assert [part.tolist() for part in again.sentences] == [[0, 2, 3], [0, 2, 0]]
    assert again.sentence_starts.tolist() == [0, 2, 3]
    assert again.fingerprint() == corpus.fingerprint() != text_corpus([[0, 1], [0]]).fingerprint()
    other = vocabulary({"0": Kind.UNIGRAM, "a": Kind.UNIGRAM, "b": Kind.UNIGRAM})
    assert again.under(other).sentences[1].tolist() == [0, 2, 0]
    assert again.under(other).row(0).tolist() == [1, 2, 1]
    assert Corpus.from_sequences([["a", "b"]]).sentences is None


@pytest.mark.parametrize(
    "sentences",
    [[[0, 3], [0]], [[0, 2], [1]], [[0, 2, 1], [0]], [[0, 0], [0]], [[], [0]], [[0], [0, -1]], [[0, 2**31 - 1], [0]]],
)
def test_sentences_that_do_not_fit_their_rows_are_refused(tmp_path, sentences):
    text_corpus(sentences).save(tmp_path / "corpus")
    with pytest.raises(InputError, match="sequences.arrow: the sentences of a row must begin at 0, at rising places"):
        Corpus.open(tmp_path / "corpus")


def longest_run(table: HashTable) -> int:
    """The largest number of consecutive slots that are taken; the first slot follows the last."""
    free = np.flatnonzero(table.keys < 0)
    return int(np.diff(free, append=free[0] + len(table.keys)).max()) - 1


def test_bigrams_chosen_to_collide_are_found_as_fast_as_others():
    """These keys all fall into one 128th of a table that multiplies by the golden ratio, which took 15,000 rounds."""
    keys = np.arange(2000**2)
    keys = keys[(keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(57) == 0]
    for number in range(20):
        table = HashTable(keys, np.arange(len(keys)))
        assert longest_run(table) < 1000
        if not number:
            assert (table.find(keys) == np.arange(len(keys))).all()


class MultipliedOnce(HashTable):
    def _slots(self, keys):
        return ((keys.astype(np.uint64) * self.factor) >> self.shift).astype(np.int64)


@pytest.mark.parametrize(("above", "below"), [(1, 2), (1, 3), (2, 5)])
def test_bigrams_are_found_fast_by_a_factor_near_a_fraction(monkeypatch, above, below):
    """A single product with such a factor puts the keys into a few long runs, one per value of the fraction."""
    monkeypatch.setattr(secrets, "randbits", lambda bits: 2**bits * above // below + 2**44)
    keys = np.arange(4000)
    assert longest_run(MultipliedOnce(keys, keys)) >= 4000 // below
    table = HashTable(keys, keys)
    assert longest_run(table) < 100
    assert (table.find(keys) == keys).all()
