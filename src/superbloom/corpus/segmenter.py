"""Words into ids of a vocabulary of text (Sec. 4): a bigram if there is one, else the word, else its word pieces.

`Segmenter.segment` takes a text and returns its ids (k,) and the characters that each id stands for (k, 2).
`Segmenter.entries` takes the words of words.py and returns ids alone, which is all that prepare needs. WordPiece of the
tokenizers library finds the pieces of a word, the longest first. It sees each distinct word once.
"""

from __future__ import annotations

from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from superbloom.corpus.hash_table import ABSENT, HashTable
from superbloom.corpus.words import BATCH_WORDS, MAX_REMEMBERED, MAX_WORD_CHARS, Reader, Words, ranges
from superbloom.errors import InputError

UNKNOWN_TOKEN = "[UNK]"
NOT_HALF = -1  # the number of a word that is in no bigram


class Kind(IntEnum):
    """The kind of an entry in a vocabulary of text: a piece like "##ing" or "play", a whole word, two words."""

    WORD_PIECE = 0
    UNIGRAM = 1
    BIGRAM = 2


class Segmented(NamedTuple):
    """The ids of a text, and the characters that each id stands for."""

    ids: np.ndarray  # int32 (k,)
    spans: np.ndarray  # int64 (k, 2), characters [start, end) of the text
    unknown: list[tuple[int, int]]  # the characters [start, end) of each word without ids


class Entries(NamedTuple):
    """The ids of words. Entries firsts[i] to firsts[i + 1] belong to word i; a bigram belongs to its first word."""

    ids: np.ndarray  # int32 (entries,)
    firsts: np.ndarray  # int64 (words + 1,)
    pairs: np.ndarray  # int64, the words that begin a bigram
    pieces: np.ndarray  # int64 (words,), the number of pieces of the word alone; 0 if pieces do not cover it

    @property
    def unknown(self) -> np.ndarray:
        """The words that no entry covers."""
        left_out = self.pieces == 0
        left_out[self.pairs] = left_out[self.pairs + 1] = False
        return np.flatnonzero(left_out)


class Segmenter:
    """Turns text into ids of a vocabulary of text.

    >>> names, kinds = ["davis", "miles", "miles davis", "play", "##s", "##ed"], np.array([0, 0, 2, 0, 0, 0])
    >>> found = Segmenter(pa.array(names), kinds, "lowercase").segment("Miles Davis plays ☃")
    >>> [names[id_] for id_ in found.ids], found.spans.tolist(), found.unknown
    (['miles davis', 'play', '##s'], [[0, 11], [12, 16], [16, 17]], [(18, 19)])
    """

    def __init__(self, names: pa.Array, kinds: np.ndarray, normalisation: str) -> None:
        """Take the names and kinds of ids 0, 1, …, and how text is normalised."""
        self.reader = Reader(normalisation)
        from tokenizers import Tokenizer
        from tokenizers.models import WordPiece

        ids = np.arange(len(names))
        is_pair = np.equal(kinds, Kind.BIGRAM)
        singles = dict(zip(names.filter(pa.array(~is_pair)).to_pylist(), ids[~is_pair].tolist(), strict=True))
        self.unknown = len(names)
        model = WordPiece(
            singles | {UNKNOWN_TOKEN: self.unknown}, unk_token=UNKNOWN_TOKEN, max_input_chars_per_word=MAX_WORD_CHARS
        )
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
        self.bigrams = HashTable(keys[allowed_pairs], ids[allowed_pairs])

    def segment(self, text: str) -> Segmented:
        """Return the ids of a text and the characters that each of them stands for.

        subtle: if one character becomes several pieces (한 is three), the first piece gets it and the others are empty.
        """
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"the text holds a lone surrogate at {error.start}; give Unicode text") from None
        words = self.reader.read(data)
        entries = self.entries(words)
        piece_spans = self._piece_spans(data, words)
        # Each word's first row in piece_spans, in which a word without pieces has one row.
        first = np.concatenate([[0], np.cumsum(np.maximum(entries.pieces, 1))])
        counts = np.diff(entries.firsts)
        spans = piece_spans[ranges(first[:-1], counts, entries.firsts)]
        spans[entries.firsts[entries.pairs], 1] = piece_spans[first[entries.pairs + 2] - 1, 1]
        reached = np.maximum.accumulate(spans[:, 1]) if len(spans) else spans[:, 1]
        spans[1:, 0] = np.maximum(spans[1:, 0], reached[:-1])
        spans[:, 1] = reached
        unknown = [(int(piece_spans[first[word], 0]), int(piece_spans[first[word], 1])) for word in entries.unknown]
        return Segmented(entries.ids, spans, unknown)

    def _forget(self) -> None:
        self.known: dict[str, int] = {}
        # Known word i has count_of[i] pieces, from piece[first_of[i]] on; half_of[i] is its number in bigrams.
        # subtle: one more piece at the end, so that first_of is a valid index for a last word without pieces.
        self.piece = np.zeros(1, dtype=np.int32)
        self.first_of, self.count_of, self.half_of = (np.empty(0, dtype=np.int64) for _ in range(3))

    def entries(self, words: Words) -> Entries:
        """Return the ids of words."""
        if len(self.known) > MAX_REMEMBERED:
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
        ids = self.piece[ranges(self.first_of[numbers], counts, firsts)]
        ids[firsts[pairs]] = pair_ids
        return Entries(ids, firsts, pairs, alone)

    def _pairs(self, halves: np.ndarray, begins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the words that begin a bigram, chosen greedily from the left, and the ids of these bigrams."""
        places = np.flatnonzero((halves[:-1] >= 0) & (halves[1:] >= 0) & ~begins[1:])
        found = self.bigrams.find(halves[places] * self.halves + halves[places + 1])
        places, found = places[found != ABSENT], found[found != ABSENT]
        # In a run of overlapping bigrams, take every other one, starting with the first.
        rank = np.arange(len(places))
        begins_run = np.diff(places, prepend=-2) > 1
        taken = (rank - np.maximum.accumulate(np.where(begins_run, rank, 0))) % 2 == 0
        return places[taken], found[taken]

    def _learn(self, names: list[str]) -> None:
        """Let the library find the pieces of new words."""
        ids, counts = [self.piece[:-1]], [self.count_of]
        for begin in range(0, len(names), BATCH_WORDS):
            batch = names[begin : begin + BATCH_WORDS]
            encoded = self.pieces.encode(batch, is_pretokenized=True, add_special_tokens=False)
            found, of = np.array(encoded.ids, dtype=np.int32), np.array(encoded.word_ids, dtype=np.int64)
            covered = found != self.unknown
            ids.append(found[covered])
            counts.append(np.bincount(of[covered], minlength=len(batch)))
        self.piece = np.concatenate([*ids, self.piece[-1:]])
        self.count_of = np.concatenate(counts)
        self.first_of = np.cumsum(self.count_of) - self.count_of
        halves = [self.half_number.get(name, NOT_HALF) for name in names]
        self.half_of = np.concatenate([self.half_of, np.array(halves, dtype=np.int64)])
        self.known.update(zip(names, range(len(self.known), len(self.known) + len(names)), strict=True))

    def _piece_spans(self, data: bytes, words: Words) -> np.ndarray:
        """Return the characters [start, end) of every piece, as the library reports them; (pieces, 2)."""
        characters = np.cumsum((np.frombuffer(data, np.uint8) & 0xC0) != 0x80) - 1
        known: dict[bytes, np.ndarray] = {}
        spans = [np.empty((0, 2), dtype=np.int64)]
        for start, end in pairwise([*words.starts.tolist(), len(data)]):
            stretch = data[start:end]
            if stretch not in known:
                known[stretch] = np.array(self.whole.encode(stretch.decode()).offsets, dtype=np.int64).reshape(-1, 2)
            spans.append(known[stretch] + characters[start])
        return np.concatenate(spans)
