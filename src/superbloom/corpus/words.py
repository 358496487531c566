"""Text into words (Sec. 4): UTF-8 bytes in; the words in order, and where lines and sentences begin, out.

BERT defines what a word is: normaliser and pre-tokenizer are those of the tokenizers library. Neither looks across
ASCII spaces or punctuation. So text is cut there into stretches and marks first, and the library reads each distinct
stretch once. All else is looking up numbers in arrays. segmenter.py turns words into ids.

subtle: NFC does look across. It makes "=" and U+0338 one character, ≠. Here they stay a mark and a stretch.
"""

from __future__ import annotations

import os
import string
from collections import defaultdict
from functools import lru_cache
from itertools import islice
from threading import RLock
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from superbloom.errors import InputError

# Classes of bytes: part of a stretch, a space at which BERT splits (it removes other spaces), or a punctuation mark.
STRETCH, SPACE, MARK = 0, 1, 2
CLASS_OF_BYTE = np.zeros(256, dtype=np.uint8)
CLASS_OF_BYTE[list(b" \t\n\r")] = SPACE
CLASS_OF_BYTE[list(string.punctuation.encode())] = MARK

# How text is normalised; a vocabulary of text stores one of these.
WITHOUT_ACCENTS = "lowercase"  # as BERT's uncased models: й is и, and vowel signs of many scripts are gone
WITH_ACCENTS = "lowercase with accents"  # lower case and NFC, so that é is one letter however it is written
CASED = "cased"  # as BERT's cased models
NORMALISATIONS = (WITHOUT_ACCENTS, WITH_ACCENTS, CASED)

# Effects of a word: it closes a quotation or bracket, ends a sentence if a space follows, or ends one in any case.
NEITHER, CLOSES, ENDS_BEFORE_SPACE, ENDS = 0, 1, 2, 3
EFFECTS = {
    **dict.fromkeys("\"')]}’”»›」』）】》〉", CLOSES),
    **dict.fromkeys(".!?", ENDS_BEFORE_SPACE),
    # Chinese and Japanese, Devanagari and Bengali, Arabic and Urdu, Armenian, Ethiopic, Burmese, Khmer
    **dict.fromkeys("。！？｡।॥؟۔։።፧။។", ENDS),
}

MAX_WORD_CHARS = 100  # longer words are cut, since the time to find pieces grows with the cube of the length
PLAIN_WORD = rf"^[A-Za-z0-9]{{1,{MAX_WORD_CHARS}}}$"  # stretches that are one word, whatever their case
MAX_REMEMBERED = 500_000  # stretches, or words; about 300 bytes each
BATCH_CHARS = 2**20  # per call of the library
BATCH_WORDS = BATCH_CHARS // 8
READ_LOCK = RLock()  # readers and segmenters learn words as they read, and servers read in threads
# Held during a fork: no segmenter in the child is half changed, and the child's lock is free.
os.register_at_fork(before=READ_LOCK.acquire, after_in_parent=READ_LOCK.release, after_in_child=READ_LOCK.release)
TEXT_EXTRA_MISSING = "text needs the tokenizers library; pip install 'superbloom[text]'"


class Words(NamedTuple):
    """A text as numbers of its distinct words, and where words are in its bytes."""

    names: list[str]  # the distinct words
    numbers: np.ndarray  # int32 (words,)
    begins: np.ndarray  # bool (words,), where a line or sentence begins
    starts: np.ndarray  # int64 (stretches,), the bytes at which stretches and marks begin
    firsts: np.ndarray  # int64 (stretches + 1,), the first word of each stretch or mark

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the first word that begins at or after each byte."""
        return self.firsts[np.searchsorted(self.starts, places)]


class Reader:
    """Reads bytes as words. It remembers the words of each stretch between spaces and punctuation.

    normalisation: one of NORMALISATIONS.

    >>> words = Reader().read("Café-Bar. Ça va?".encode())
    >>> [words.names[number] for number in words.numbers], np.flatnonzero(words.begins).tolist()
    (['cafe', '-', 'bar', '.', 'ca', 'va', '?'], [0, 4])
    """

    def __init__(self, normalisation: str = WITHOUT_ACCENTS) -> None:
        try:
            from tokenizers import PreTokenizedString, normalizers
            from tokenizers.pre_tokenizers import BertPreTokenizer, FixedLength, Sequence
        except ImportError:
            raise InputError(TEXT_EXTRA_MISSING) from None
        is_bare = normalisation == WITHOUT_ACCENTS
        bert = normalizers.BertNormalizer(lowercase=normalisation != CASED, strip_accents=is_bare)
        composed = [normalizers.NFC()] if normalisation == WITH_ACCENTS else []
        self.normalizer = normalizers.Sequence([bert, *composed])
        self.pre_tokenizer = Sequence([BertPreTokenizer(), FixedLength(length=MAX_WORD_CHARS)])
        self._pre_tokenized = PreTokenizedString
        self.is_punctuation = lru_cache(2**14)(self._is_punctuation)
        self._forget()

    def _forget(self) -> None:
        self.known: dict[bytes, int] = {}
        self.words: defaultdict[str, int] = defaultdict()  # a new word gets the next number
        self.words.default_factory = self.words.__len__
        self.names: list[str] = []
        self.effect_of = np.empty(0, dtype=np.uint8)  # one entry per word
        # The words of stretch i are word_of[first_of[i]:first_of[i + 1]].
        self.word_of = np.empty(0, dtype=np.int32)
        self.first_of = np.zeros(1, dtype=np.int64)
        marks = [bytes([mark]) for mark in string.punctuation.encode()]
        self._learn(pa.array(marks, pa.binary()))
        self.number_of_mark = np.array([self.known.get(bytes([byte]), -1) for byte in range(256)])

    def read(self, data: bytes) -> Words:
        """Return the words of UTF-8 text; raises UnicodeDecodeError for other bytes."""
        if len(self.known) > MAX_REMEMBERED:
            self._forget()
        if not data:
            nothing = np.empty(0, dtype=np.int64)
            return Words([], nothing.astype(np.int32), nothing.astype(bool), nothing, np.zeros(1, np.int64))
        starts, stretches, spaced = _find_stretches(data)
        which = self._look_up(data, starts, stretches)
        counts = np.diff(self.first_of)[which]
        firsts = np.concatenate([[0], np.cumsum(counts)])
        numbers = self.word_of[ranges(self.first_of[which], counts, firsts)]
        follows_space = np.zeros(len(numbers) + 1, dtype=bool)
        follows_space[firsts[:-1][spaced]] = True
        begins = np.zeros(len(numbers) + 1, dtype=bool)
        begins[0] = True
        lines = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
        begins[firsts[np.searchsorted(starts, lines)]] = True
        begins[_after_sentences(self.effect_of[numbers], follows_space)] = True
        used = np.flatnonzero(np.bincount(numbers, minlength=len(self.names)))
        renumbered = np.empty(len(self.names), dtype=np.int32)
        renumbered[used] = np.arange(len(used), dtype=np.int32)
        names = [self.names[number] for number in used.tolist()]
        return Words(names, renumbered[numbers], begins[:-1], starts, firsts)

    def written(self, text: str) -> str:
        """Return the words of a text, joined by spaces.

        >>> Reader().written("Ça va?")
        'ca va ?'
        """
        words = self.read(text.encode())
        return " ".join(words.names[number] for number in words.numbers)

    def _look_up(self, data: bytes, starts: np.ndarray, stretches: pa.Array) -> np.ndarray:
        """Return the number of the stretch or mark at each start; learn the new ones."""
        encoded = stretches.dictionary_encode()
        spelled = encoded.dictionary.to_pylist()
        known = self.known
        new = [stretch for stretch in spelled if stretch not in known]
        if new:
            try:
                self._learn(pa.array(new, pa.binary()))
            except pa.ArrowInvalid:
                data.decode()
                raise
        numbers = np.fromiter(map(known.__getitem__, spelled), dtype=np.int64, count=len(spelled))
        bytes_there = np.frombuffer(data, np.uint8)[starts]
        which = self.number_of_mark[bytes_there]
        which[CLASS_OF_BYTE[bytes_there] == STRETCH] = numbers[encoded.indices.to_numpy()]
        return which

    def _learn(self, stretches: pa.Array) -> None:
        """Let the library normalise and split new stretches; raises ArrowInvalid if one is not UTF-8."""
        spelled = stretches.cast(pa.string())
        is_plain = pc.match_substring_regex(spelled, PLAIN_WORD)
        others = spelled.filter(pc.invert(is_plain)).to_pylist()
        counts = np.ones(len(stretches), dtype=np.int64)
        words, split, other_counts = self._normalise(spelled.filter(is_plain).to_pylist()), *self._split_words(others)
        plain = is_plain.to_numpy(zero_copy_only=False)
        counts[~plain] = other_counts
        firsts = np.concatenate([[0], np.cumsum(counts)])
        numbers = np.empty(firsts[-1], dtype=np.int32)
        is_of_plain = np.repeat(plain, counts)
        numbers[is_of_plain] = list(map(self.words.__getitem__, words))
        numbers[~is_of_plain] = list(map(self.words.__getitem__, split))
        new = list(islice(self.words, len(self.names), None))
        self.names += new
        effects = np.array([EFFECTS.get(word, NEITHER) for word in new], dtype=np.uint8)
        self.effect_of = np.concatenate([self.effect_of, effects])
        for stretch in stretches.to_pylist():
            self.known[stretch] = len(self.known)
        self.word_of = np.concatenate([self.word_of, numbers])
        self.first_of = np.concatenate([self.first_of, self.first_of[-1] + firsts[1:]])

    def _normalise(self, stretches: list[str]) -> list[str]:
        """Return plain stretches as words, one each."""
        words: list[str] = []
        for begin in range(0, len(stretches), BATCH_WORDS):
            joined = "\n".join(stretches[begin : begin + BATCH_WORDS])
            words += self.normalizer.normalize_str(joined).split(" ")
        assert len(words) == len(stretches)
        return words

    def _split_words(self, stretches: list[str]) -> tuple[list[str], np.ndarray]:
        """Return the words of all stretches, and the number of words of each."""
        words: list[str] = []
        counts = np.zeros(len(stretches), dtype=np.int64)
        ends = np.cumsum([len(stretch) + 1 for stretch in stretches], dtype=np.int64)
        begin = 0
        while begin < len(stretches):
            before = int(ends[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, before + BATCH_CHARS)))
            text = self._pre_tokenized("\n".join(stretches[begin:end]))
            text.normalize(self.normalizer.normalize)
            self.pre_tokenizer.pre_tokenize(text)
            splits = text.get_splits("original", "char")
            words += [word for word, _, _ in splits]
            places = np.array([place for _, (place, _), _ in splits], dtype=np.int64) + before
            counts += np.bincount(np.searchsorted(ends, places, "right"), minlength=len(counts))
            begin = end
        return words, counts

    def _is_punctuation(self, word: str) -> bool:
        """Whether BERT splits at this word; if so, it belongs to no bigram."""
        return len(word) == 1 and len(self.pre_tokenizer.pre_tokenize_str(f"a{word}a")) > 1


def _find_stretches(data: bytes) -> tuple[np.ndarray, pa.Array, np.ndarray]:
    """Return where stretches and marks begin, the stretches, and which of both follow a space or begin the text."""
    characters = np.frombuffer(data, np.uint8)
    classes = CLASS_OF_BYTE[characters]
    is_stretch = classes == STRETCH
    padded = np.zeros(len(data) + 2, dtype=bool)
    padded[1:-1] = is_stretch
    starts = np.flatnonzero((classes == MARK) | (is_stretch & ~padded[:-2]))
    begins = starts[is_stretch[starts]]
    ends = np.flatnonzero(is_stretch & ~padded[2:]) + 1
    offsets = np.zeros(len(begins) + 1, dtype=np.int32)
    np.cumsum(ends - begins, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(characters[is_stretch])]
    spaced = (starts == 0) | (classes[starts - 1] == SPACE)
    return starts, pa.Array.from_buffers(pa.binary(), len(begins), buffers), spaced


def _after_sentences(effects: np.ndarray, follows_space: np.ndarray) -> np.ndarray:
    """Return the words that begin a sentence, from the effect of each word.

    Marks right after an end belong to its sentence. A space after an end begins the next sentence at the latest.
    """
    ends = np.flatnonzero(effects >= ENDS_BEFORE_SPACE)
    beyond = len(effects)
    other, after_space = np.flatnonzero(effects == NEITHER), np.flatnonzero(follows_space)
    next_other = np.append(other, beyond)[np.searchsorted(other, ends, "right")]
    next_space = np.append(after_space, beyond)[np.searchsorted(after_space, ends, "right")]
    is_end = (effects[ends] == ENDS) | (next_space <= next_other)
    return np.minimum(next_other, next_space)[is_end]


def ranges(first_of: np.ndarray, counts: np.ndarray, firsts: np.ndarray) -> np.ndarray:
    """Concatenate ranges of integers: range i starts at first_of[i] and begins at firsts[i] in the result.

    counts (n,) are the lengths of the ranges; firsts (n + 1,) are 0 and their running sums.

    >>> ranges(np.array([7, 2]), np.array([2, 1]), np.array([0, 2, 3])).tolist()
    [7, 8, 2]
    """
    return np.repeat(first_of - firsts[:-1], counts) + np.arange(firsts[-1])
