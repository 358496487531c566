"""Words and sentences of a text by plain loops, as an oracle; a small text, and what is prepared from it."""

import unicodedata
from pathlib import Path
from typing import Any

from tokenizers import PreTokenizedString
from tokenizers.normalizers import NFC, BertNormalizer, Sequence
from tokenizers.pre_tokenizers import BertPreTokenizer

from superbloom.corpus import Corpus
from superbloom.corpus.words import MAX_WORD_CHARS
from superbloom.prepare.text import prepare_text

LETTERS = "abcdefghijklmnopqrstuvwxyz"
MINI = ["[PAD]", "[MASK]", "[unused1]", *LETTERS, *(f"##{letter}" for letter in LETTERS), *".,'", "the", "jazz"]
SMALL_TEXT = """Miles Davis played jazz. The jazz was cool.

Bill Evans played with Miles Davis, and Miles Davis played with Bill Evans.
☃ The end.

Émile played the piano
"""
CLOSING = "\"')]}’”»›」』）】》〉"
ENDS_BEFORE_SPACE = ".!?"
ENDS = "。！？｡।॥۔؟։።፧။។"
NORMALIZERS = {
    "lowercase": BertNormalizer(lowercase=True),
    "lowercase with accents": Sequence([BertNormalizer(lowercase=True, strip_accents=False), NFC()]),
    "cased": BertNormalizer(lowercase=False),
}
SPACES = " \t\n\r"


def words_of(text: str, normalisation: str) -> list[tuple[str, int, int]]:
    """Each word of a text with its first and last character, by the library over the whole of it."""
    whole = PreTokenizedString(text)
    whole.normalize(NORMALIZERS[normalisation].normalize)
    BertPreTokenizer().pre_tokenize(whole)
    found = []
    for word, (start, end), _ in whole.get_splits("original", "char"):
        found += [(word[at : at + MAX_WORD_CHARS], start, end) for at in range(0, len(word), MAX_WORD_CHARS)]
    return found


def begins_of(text: str, words: list[tuple[str, int, int]]) -> list[bool]:
    """Whether a line or a sentence begins at each word."""
    found = []
    ended, last = "", 0  # "surely" or "before a space", if marks that end a sentence stand right before the word
    for word, start, end in words:
        between, last = text[last:start], end
        is_spaced = any(space in between for space in SPACES)
        is_mark = word in (*CLOSING, *ENDS_BEFORE_SPACE, *ENDS)
        goes_on = not ended or not (is_spaced or (ended == "surely" and not is_mark))
        found.append(not found or "\n" in between or not goes_on)
        if is_spaced or not is_mark:
            ended = ""
        if word in (*ENDS,):
            ended = "surely"
        elif word in (*ENDS_BEFORE_SPACE,):
            ended = ended or "before a space"
    return found


def is_punctuation(word: str) -> bool:
    return len(word) == 1 and (word in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~" or unicodedata.category(word)[0] == "P")


def pieces_of(word: str, names: set[str]) -> list[str]:
    """The longest pieces first, or none if they do not cover the word."""
    found: list[str] = []
    at = 0
    while at < len(word):
        prefix = "##" if at else ""
        end = next((end for end in range(len(word), at, -1) if prefix + word[at:end] in names), None)
        if end is None:
            return []
        found.append(prefix + word[at:end])
        at = end
    return found


def spelled(corpus: Corpus) -> dict[str, list[str]]:
    keys = corpus.sequences["key"].to_pylist()
    return {key: corpus.vocab.names(corpus.row(number)) for number, key in enumerate(keys)}


def prepared(tmp_path: Path, files: list[Path], **options: Any) -> Corpus:
    prepare_text(files, tmp_path / "corpus", overwrite=True, **options)
    return Corpus.open(tmp_path / "corpus")
