"""Text into entries of a vocabulary (Sec. 4): bytes → words → ids, each step on arrays.

    Reader      UTF-8 bytes → the numbers of their words in order, and where lines and sentences begin
    Segmenter   words → ids: a bigram where there is one, else the word, else its word pieces, the longest first

What a word is, is BERT's: normaliser, pre-tokenizer and WordPiece are those of the tokenizers library. It sees each
distinct word once: none of them looks across ASCII spaces or punctuation, so text is cut there first; all else is
looking up numbers.
"""

from __future__ import annotations

import os
import re
import secrets
import string
from collections import defaultdict
from enum import IntEnum
from functools import lru_cache
from itertools import islice, pairwise
from threading import RLock
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from superbloom.errors import InputError

# Of each byte: part of a stretch, one of the spaces BERT splits at (others it takes out), or a punctuation mark.
STRETCH, SPACE, MARK = 0, 1, 2
CLASSES = np.zeros(256, dtype=np.uint8)
CLASSES[list(b" \t\n\r")] = SPACE
CLASSES[list(string.punctuation.encode())] = MARK

# Of a stretch or mark: closes a quotation or bracket, ends a sentence (what closes may follow), or neither.
NEITHER, CLOSES, ENDS = 0, 1, 2
CLOSING = re.escape("\"')]}’”»›」』）】》〉")
SENTENCE_END = re.compile(rf"[.!?。！？][{CLOSING}]*$")
CLOSING_ONLY = re.compile(rf"[{CLOSING}]+")

MAX_WORD = 100  # characters; longer words are cut, since finding pieces takes time by the cube of the length
PLAIN = rf"^[A-Za-z0-9]{{1,{MAX_WORD}}}$"  # stretches that are one word, whatever their case
MAX_KNOWN = 500_000  # stretches remembered; about 300 bytes each
BATCH = 2**20  # characters, or words, given to the library at once
UNKNOWN = "[UNK]"
EMPTY = -1
READING = RLock()  # a segmenter learns words as it reads, and servers read in threads
# Held during a fork: no segmenter that the child gets is half changed, and the child's lock is free.
os.register_at_fork(before=READING.acquire, after_in_parent=READING.release, after_in_child=READING.release)
MISSING = "text needs the tokenizers library; pip install 'superbloom[text]'"

NORMALISATIONS = ("lowercase", "cased")


class Kind(IntEnum):
    """What an entry of a vocabulary of text is: "##ing" or "play", a whole word, two words with one space."""

    WORD_PIECE = 0
    UNIGRAM = 1
    BIGRAM = 2


class Words(NamedTuple):
    """A text as numbers of its distinct words, and how words lie in its bytes."""

    names: list[str]  # the distinct words
    numbers: np.ndarray  # int32 (words,)
    begins: np.ndarray  # bool (words,), where a line or sentence begins
    starts: np.ndarray  # int64 (stretches,), bytes at which stretches and marks begin
    firsts: np.ndarray  # int64 (stretches + 1,), the first word of each

    def at(self, places: np.ndarray) -> np.ndarray:
        """The first word that begins at or after each byte."""
        return self.firsts[np.searchsorted(self.starts, places)]


class Reader:
    """Reads bytes as words, remembering what each stretch between spaces and punctuation became.

    >>> words = Reader().read("Café-Bar. Ça va?".encode())
    >>> [words.names[number] for number in words.numbers], np.flatnonzero(words.begins).tolist()
    (['cafe', '-', 'bar', '.', 'ca', 'va', '?'], [0, 4])
    """

    def __init__(self, lowercase: bool = True) -> None:
        try:
            from tokenizers import PreTokenizedString
            from tokenizers.normalizers import BertNormalizer
            from tokenizers.pre_tokenizers import BertPreTokenizer, FixedLength, Sequence
        except ImportError:
            raise InputError(MISSING) from None
        self.normalizer = BertNormalizer(lowercase=lowercase)
        self.pre_tokenizer = Sequence([BertPreTokenizer(), FixedLength(length=MAX_WORD)])
        self._pre_tokenized = PreTokenizedString
        self.is_punctuation = lru_cache(2**14)(self._is_punctuation)
        self._forget()

    def _forget(self) -> None:
        self.known: dict[bytes, int] = {}
        self.words: defaultdict[str, int] = defaultdict()  # a new word gets the next number
        self.words.default_factory = self.words.__len__
        self.names: list[str] = []
        # Of each known stretch: the numbers of its words, one stretch after another, and what it does to a sentence.
        self.word_of = np.empty(0, dtype=np.int32)
        self.first_of = np.zeros(1, dtype=np.int64)
        self.effect_of = np.empty(0, dtype=np.uint8)
        marks = [bytes([mark]) for mark in string.punctuation.encode()]
        self._learn(pa.array(marks, pa.binary()))
        self.number_of_mark = np.array([self.known.get(bytes([byte]), -1) for byte in range(256)])

    def read(self, data: bytes) -> Words:
        """The words of UTF-8 text; UnicodeDecodeError if it is not."""
        if len(self.known) > MAX_KNOWN:
            self._forget()
        if not data:
            nothing = np.empty(0, dtype=np.int64)
            return Words([], nothing.astype(np.int32), nothing.astype(bool), nothing, np.zeros(1, np.int64))
        starts, stretches, spaced = _split(data)
        which = self._look_up(data, starts, stretches)
        begins = np.zeros(len(starts) + 1, dtype=bool)
        begins[0] = True
        lines = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
        begins[np.searchsorted(starts, lines)] = True
        begins[_after_sentences(self.effect_of[which], spaced)] = True
        counts = np.diff(self.first_of)[which]
        firsts = np.concatenate([[0], np.cumsum(counts)])
        numbers = self.word_of[_places(self.first_of[which], counts, firsts)]
        begins_word = np.zeros(len(numbers) + 1, dtype=bool)
        begins_word[firsts[begins]] = True
        used = np.flatnonzero(np.bincount(numbers, minlength=len(self.names)))
        renumbered = np.empty(len(self.names), dtype=np.int32)
        renumbered[used] = np.arange(len(used), dtype=np.int32)
        names = [self.names[number] for number in used.tolist()]
        return Words(names, renumbered[numbers], begins_word[:-1], starts, firsts)

    def written(self, text: str) -> str:
        """The words of a text with a space between them.

        >>> Reader().written("Ça va?")
        'ca va ?'
        """
        words = self.read(text.encode())
        return " ".join(words.names[number] for number in words.numbers)

    def _look_up(self, data: bytes, starts: np.ndarray, stretches: pa.Array) -> np.ndarray:
        """The known stretch or mark at each start; new ones are learnt."""
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
        which[CLASSES[bytes_there] == STRETCH] = numbers[encoded.indices.to_numpy()]
        return which

    def _learn(self, stretches: pa.Array) -> None:
        """Let the library normalise and split new stretches, each once; ArrowInvalid if one is not UTF-8."""
        spelled = stretches.cast(pa.string())
        is_plain = pc.match_substring_regex(spelled, PLAIN)
        others = spelled.filter(pc.invert(is_plain)).to_pylist()
        counts = np.ones(len(stretches), dtype=np.int64)
        words, split, other_counts = self._plain(spelled.filter(is_plain).to_pylist()), *self._split(others)
        plain = is_plain.to_numpy(zero_copy_only=False)
        counts[~plain] = other_counts
        firsts = np.concatenate([[0], np.cumsum(counts)])
        numbers = np.empty(firsts[-1], dtype=np.int32)
        is_of_plain = np.repeat(plain, counts)
        numbers[is_of_plain] = list(map(self.words.__getitem__, words))
        numbers[~is_of_plain] = list(map(self.words.__getitem__, split))
        self.names += islice(self.words, len(self.names), None)
        effects = np.zeros(len(stretches), dtype=np.uint8)
        effects[~plain] = [_effect(stretch) for stretch in others]
        for stretch in stretches.to_pylist():
            self.known[stretch] = len(self.known)
        self.word_of = np.concatenate([self.word_of, numbers])
        self.first_of = np.concatenate([self.first_of, self.first_of[-1] + firsts[1:]])
        self.effect_of = np.concatenate([self.effect_of, effects])

    def _plain(self, stretches: list[str]) -> list[str]:
        """Each of these is one word: so many come back."""
        words: list[str] = []
        for begin in range(0, len(stretches), BATCH // 8):
            joined = "\n".join(stretches[begin : begin + BATCH // 8])
            words += self.normalizer.normalize_str(joined).split(" ")
        assert len(words) == len(stretches)
        return words

    def _split(self, stretches: list[str]) -> tuple[list[str], np.ndarray]:
        """The words of all of these, and how many each has."""
        words: list[str] = []
        counts = np.zeros(len(stretches), dtype=np.int64)
        ends = np.cumsum([len(stretch) + 1 for stretch in stretches], dtype=np.int64)
        begin = 0
        while begin < len(stretches):
            before = int(ends[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, before + BATCH)))
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
        """Whether BERT splits at this word: then it belongs to no bigram."""
        return len(word) == 1 and len(self.pre_tokenizer.pre_tokenize_str(f"a{word}a")) > 1


class Segmented(NamedTuple):
    """ids int32 (k,), the characters [start, end) of the text each stands for, int64 (k, 2), and words without ids."""

    ids: np.ndarray
    spans: np.ndarray
    unknown: list[tuple[int, int]]


class Entries(NamedTuple):
    """What became of words: ids, and for each word the first of its entries, how many it has, and its pieces."""

    ids: np.ndarray  # int32 (entries,)
    firsts: np.ndarray  # int64 (words + 1,)
    pairs: np.ndarray  # int64, the words that begin a bigram
    pieces: np.ndarray  # int64 (words,), how many the word alone has; 0 if word pieces do not cover it

    @property
    def unknown(self) -> np.ndarray:
        """The words that are in no entry."""
        left_out = self.pieces == 0
        left_out[self.pairs] = left_out[self.pairs + 1] = False
        return np.flatnonzero(left_out)


class Segmenter:
    """Turns text into ids of a vocabulary of text.

    >>> names, kinds = ["davis", "miles", "miles davis", "play", "##s", "##ed"], np.array([0, 0, 2, 0, 0, 0])
    >>> found = Segmenter(pa.array(names), kinds, lowercase=True).segment("Miles Davis plays ☃")
    >>> [names[id_] for id_ in found.ids], found.spans.tolist(), found.unknown
    (['miles davis', 'play', '##s'], [[0, 11], [12, 16], [16, 17]], [(18, 19)])
    """

    def __init__(self, names: pa.Array, kinds: np.ndarray, lowercase: bool) -> None:
        """names and kinds are those of ids 0, 1, …"""
        self.reader = Reader(lowercase)
        from tokenizers import Tokenizer
        from tokenizers.models import WordPiece

        ids = np.arange(len(names))
        is_pair = np.equal(kinds, Kind.BIGRAM)
        singles = dict(zip(names.filter(pa.array(~is_pair)).to_pylist(), ids[~is_pair].tolist(), strict=True))
        self.unknown = len(names)
        model = WordPiece(singles | {UNKNOWN: self.unknown}, unk_token=UNKNOWN, max_input_chars_per_word=MAX_WORD)
        self.pieces = Tokenizer(model)
        self.whole = Tokenizer(model)
        self.whole.normalizer, self.whole.pre_tokenizer = self.reader.normalizer, self.reader.pre_tokenizer
        self._read_bigrams(names.filter(pa.array(is_pair)), ids[is_pair])
        self._forget()

    def _read_bigrams(self, names: pa.Array, ids: np.ndarray) -> None:
        halves = pc.split_pattern(names, " ").flatten().dictionary_encode()
        words = halves.dictionary.to_pylist()
        self.half_number = {word: number for number, word in enumerate(words) if not self.reader.is_punctuation(word)}
        allowed = np.array([word in self.half_number for word in words], dtype=bool)
        numbers = halves.indices.to_numpy().astype(np.int64).reshape(-1, 2)
        allowed_pairs = allowed[numbers].all(axis=1)
        self.halves = max(1, len(words))
        keys = numbers[:, 0] * self.halves + numbers[:, 1]
        self.bigrams = Table(keys[allowed_pairs], ids[allowed_pairs])

    def segment(self, text: str) -> Segmented:
        """The ids of a text and the characters each of them stands for.

        subtle: where one character becomes several pieces (한 is three), the first has it and the others are empty.
        """
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"the text holds a lone surrogate at {error.start}; give Unicode text") from None
        words = self.reader.read(data)
        entries = self.entries(words)
        piece_spans = self._piece_spans(data, words)
        # The first piece of each word in that list, in which a word that is not covered has one.
        first = np.concatenate([[0], np.cumsum(np.maximum(entries.pieces, 1))])
        counts = np.diff(entries.firsts)
        spans = piece_spans[_places(first[:-1], counts, entries.firsts)]
        spans[entries.firsts[entries.pairs], 1] = piece_spans[first[entries.pairs + 2] - 1, 1]
        reached = np.maximum.accumulate(spans[:, 1]) if len(spans) else spans[:, 1]
        spans[1:, 0] = np.maximum(spans[1:, 0], reached[:-1])
        spans[:, 1] = reached
        unknown = [(int(piece_spans[first[word], 0]), int(piece_spans[first[word], 1])) for word in entries.unknown]
        return Segmented(entries.ids, spans, unknown)

    def _forget(self) -> None:
        self.known: dict[str, int] = {}
        # Of known words: their pieces, one word after another, the first of each and how many; as a half of bigrams.
        # After all pieces comes one more, so that the first piece of a word without pieces is one of them.
        self.piece = np.zeros(1, dtype=np.int32)
        self.first_of, self.count_of, self.half_of = (np.empty(0, dtype=np.int64) for _ in range(3))

    def entries(self, words: Words) -> Entries:
        """The ids of words."""
        if len(self.known) > MAX_KNOWN:
            self._forget()
        if new := [name for name in words.names if name not in self.known]:
            self._learn(new)
        known = np.fromiter(map(self.known.__getitem__, words.names), dtype=np.int64, count=len(words.names))
        numbers = known[words.numbers]
        pairs, pair_ids = self._pairs(self.half_of[numbers], words.begins)
        alone = self.count_of[numbers]
        counts = alone.copy()
        counts[pairs] = 1
        counts[pairs + 1] = 0
        firsts = np.concatenate([[0], np.cumsum(counts)])
        ids = self.piece[_places(self.first_of[numbers], counts, firsts)]
        ids[firsts[pairs]] = pair_ids
        return Entries(ids, firsts, pairs, alone)

    def _pairs(self, halves: np.ndarray, begins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The words that begin a bigram, taken greedily from the left, and its id."""
        places = np.flatnonzero((halves[:-1] >= 0) & (halves[1:] >= 0) & ~begins[1:])
        found = self.bigrams.find(halves[places] * self.halves + halves[places + 1])
        places, found = places[found != EMPTY], found[found != EMPTY]
        # Of bigrams that overlap in a row, every other one from the first.
        rank = np.arange(len(places))
        begins_run = np.diff(places, prepend=-2) > 1
        taken = (rank - np.maximum.accumulate(np.where(begins_run, rank, 0))) % 2 == 0
        return places[taken], found[taken]

    def _learn(self, names: list[str]) -> None:
        """Let the library find the pieces of new words, each once."""
        ids, counts = [self.piece[:-1]], [self.count_of]
        for begin in range(0, len(names), BATCH // 8):
            batch = names[begin : begin + BATCH // 8]
            encoded = self.pieces.encode(batch, is_pretokenized=True, add_special_tokens=False)
            found, of = np.array(encoded.ids, dtype=np.int32), np.array(encoded.word_ids, dtype=np.int64)
            covered = found != self.unknown
            ids.append(found[covered])
            counts.append(np.bincount(of[covered], minlength=len(batch)))
        self.piece = np.concatenate([*ids, self.piece[-1:]])
        self.count_of = np.concatenate(counts)
        self.first_of = np.cumsum(self.count_of) - self.count_of
        halves = [self.half_number.get(name, -1) for name in names]
        self.half_of = np.concatenate([self.half_of, np.array(halves, dtype=np.int64)])
        self.known.update(zip(names, range(len(self.known), len(self.known) + len(names)), strict=True))

    def _piece_spans(self, data: bytes, words: Words) -> np.ndarray:
        """The characters of every piece, as the library tells them; (pieces, 2)."""
        characters = np.cumsum((np.frombuffer(data, np.uint8) & 0xC0) != 0x80) - 1
        known: dict[bytes, np.ndarray] = {}
        spans = [np.empty((0, 2), dtype=np.int64)]
        for start, end in pairwise([*words.starts.tolist(), len(data)]):
            stretch = data[start:end]
            if stretch not in known:
                known[stretch] = np.array(self.whole.encode(stretch.decode()).offsets, dtype=np.int64).reshape(-1, 2)
            spans.append(known[stretch] + characters[start])
        return np.concatenate(spans)


class Table:
    """Distinct non-negative numbers → ids: a hash table on arrays, where a taken place leads to the next one.

    >>> Table(np.array([7, 2**40]), np.array([1, 0])).find(np.array([2**40, 8, 7])).tolist()
    [0, -1, 1]
    """

    def __init__(self, keys: np.ndarray, ids: np.ndarray) -> None:
        # Drawn anew, so that nobody can choose keys for which every place is taken.
        self.factor = np.uint64(secrets.randbits(64) | 1)
        bits = max(3, (2 * len(keys)).bit_length())
        self.shift, self.mask = np.uint64(64 - bits), 2**bits - 1
        self.keys = np.full(2**bits, EMPTY, dtype=np.int64)
        self.ids = np.full(2**bits, EMPTY, dtype=np.int32)
        places = self._places(keys)
        while len(keys):
            free = self.keys[places] == EMPTY
            self.keys[places[free]] = keys[free]  # of several for one place the last gets it
            settled = self.keys[places] == keys
            self.ids[places[settled]] = ids[settled]
            keys, ids, places = keys[~settled], ids[~settled], (places[~settled] + 1) & self.mask

    def find(self, keys: np.ndarray) -> np.ndarray:
        """The id of each, −1 where there is none; int32."""
        found = np.full(len(keys), EMPTY, dtype=np.int32)
        places, asked = self._places(keys), np.arange(len(keys))
        while len(asked):
            there = self.keys[places]
            hit = there == keys
            found[asked[hit]] = self.ids[places[hit]]
            on = ~hit & (there != EMPTY)
            keys, asked, places = keys[on], asked[on], (places[on] + 1) & self.mask
        return found

    def _places(self, keys: np.ndarray) -> np.ndarray:
        # Twice: one product with a factor near a simple fraction would put neighbouring keys side by side.
        product = keys.astype(np.uint64) * self.factor
        product ^= product >> np.uint64(32)
        return ((product * self.factor) >> self.shift).astype(np.int64)


def _split(data: bytes) -> tuple[np.ndarray, pa.Array, np.ndarray]:
    """Where stretches and marks begin, the stretches, and whether a space or nothing stands before each of both."""
    characters = np.frombuffer(data, np.uint8)
    classes = CLASSES[characters]
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


def _after_sentences(effects: np.ndarray, spaced: np.ndarray) -> np.ndarray:
    """The stretches before which a sentence has ended: after an end and what closes, a space."""
    ends = np.flatnonzero(effects == ENDS)
    other, after_space = np.flatnonzero(effects != CLOSES), np.flatnonzero(spaced)
    beyond = len(effects)
    next_other = np.append(other, beyond)[np.searchsorted(other, ends, "right")]
    next_space = np.append(after_space, beyond)[np.searchsorted(after_space, ends, "right")]
    return next_space[next_other >= next_space]


def _effect(stretch: str) -> int:
    return ENDS if SENTENCE_END.search(stretch) else CLOSES if CLOSING_ONLY.fullmatch(stretch) else NEITHER


def _places(first_of: np.ndarray, counts: np.ndarray, firsts: np.ndarray) -> np.ndarray:
    """first, first + 1, … for each, so many as its count; firsts is where each begins in the result.

    >>> _places(np.array([7, 2]), np.array([2, 1]), np.array([0, 2, 3])).tolist()
    [7, 8, 2]
    """
    return np.repeat(first_of - firsts[:-1], counts) + np.arange(firsts[-1])
