"""What a model reads of a row at a time: some ids in a row (Sec. 3.1), or of a text what BERT reads (Sec. 4).

Of a row with more than n ids, any n that follow one another. Of a document, from where a sentence begins:
[CLS] A [SEP] B [SEP], n in all, where B begins with a sentence, too, and follows A; or, to learn what follows what, is
of another document half of the time. A document that has but one sentence there is [CLS] A [SEP].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from superbloom.corpus.corpus import Corpus
from superbloom.errors import InputError
from superbloom.special import Special

FRAME = 3  # [CLS], [SEP] and [SEP]
DRAWS = {"plain": 1, "text": 2, "strangers": 5}  # random numbers a segment


@dataclass(frozen=True)
class Segments:
    """ids (rows, n), which end in PAD; at (rows, n), where in the corpus each stands, −1 of special ids.

    follows (rows,): 1 if B follows A, 0 if it is of another document, −1 if there is none.
    """

    ids: np.ndarray
    at: np.ndarray
    follows: np.ndarray

    def __getitem__(self, some: slice) -> Segments:
        return Segments(self.ids[some], self.at[some], self.follows[some])


def draws_for(corpus: Corpus, strangers: bool = False) -> int:
    """How many random numbers `cut` takes for a row."""
    return DRAWS["plain" if corpus.sentences is None else "strangers" if strangers else "text"]


def room(corpus: Corpus, seq_len: int) -> int:
    """How many ids of a corpus go into a segment."""
    if corpus.sentences is None:
        return seq_len
    if seq_len <= FRAME:
        raise InputError(f"seq_len={seq_len} leaves no room between [CLS] and [SEP]; {FRAME + 1} or more is allowed")
    return seq_len - FRAME


def lengths(corpus: Corpus, rows: np.ndarray, seq_len: int) -> np.ndarray:
    """How many ids of each row do; a stranger at the end may bring fewer."""
    return np.minimum(corpus.ends[rows] - corpus.offsets[rows], room(corpus, seq_len))


def cut(
    corpus: Corpus, rows: np.ndarray, uniform: np.ndarray, seq_len: int, strangers: np.ndarray | None = None
) -> Segments:
    """A random segment of each row; strangers are the rows that a B which does not follow is taken from.

    >>> corpus = Corpus.from_sequences([["a", "b", "c", "d"], ["e", "f"]])
    >>> found = cut(corpus, np.array([0, 1]), np.array([[0.99], [0.99]]), seq_len=3)
    >>> found.ids.tolist(), found.at.tolist()
    ([[1, 2, 3], [4, 5, -1]], [[1, 2, 3], [4, 5, -1]])
    """
    length = lengths(corpus, rows, seq_len)
    start = _start(corpus, rows, uniform[:, 0], length)
    if corpus.sentences is None:
        column = np.arange(length.max())
        at = np.where(column < length[:, None], start[:, None] + column, -1)
        return Segments(np.where(at >= 0, corpus.ids[at], np.int32(Special.PAD)), at, np.full(len(rows), -1))
    starts, start = corpus.sentence_starts, _sentence(corpus, start, length)
    first = np.searchsorted(starts, start, side="right")
    others = np.searchsorted(starts, start + length) - first  # sentences that begin within the segment
    second = np.minimum(first + (uniform[:, 1] * others).astype(np.int64), len(starts) - 1)
    a = np.where(others > 0, starts[second] - start, length)
    b, begin_b = length - a, start + a
    follows = np.where(b > 0, 1, -1)
    if strangers is not None:
        change = (follows == 1) & (uniform[:, 2] < 0.5)
        stranger = strangers[(uniform[:, 3] * len(strangers)).astype(np.int64)]
        theirs = np.minimum(corpus.ends[stranger] - corpus.offsets[stranger], b)
        begin = _sentence(corpus, _start(corpus, stranger, uniform[:, 4], theirs), theirs)
        b, begin_b = np.where(change, theirs, b), np.where(change, begin, begin_b)
        follows = np.where(change, 0, follows)
    return _framed(corpus, start, a, begin_b, b, follows)


def _start(corpus: Corpus, rows: np.ndarray, uniform: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Where a random run of so many ids of each row begins."""
    begin, end = corpus.offsets[rows], corpus.ends[rows]
    return begin + (uniform * (end - begin - length + 1)).astype(np.int64)


def _sentence(corpus: Corpus, start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Where the sentence begins that each start falls into, or the start itself if so many ids do not reach it."""
    starts = corpus.sentence_starts
    begin = starts[np.searchsorted(starts, start, side="right") - 1]
    return np.where(start - begin < length, begin, start)


def _framed(
    corpus: Corpus, begin_a: np.ndarray, a: np.ndarray, begin_b: np.ndarray, b: np.ndarray, follows: np.ndarray
) -> Segments:
    """[CLS], a ids from begin_a on, [SEP], b ids from begin_b on, [SEP]; the last one only if there are any."""
    begin_a, a, begin_b, b = (part[:, None] for part in (begin_a, a, begin_b, b))
    size = a + 2 + np.where(b > 0, b + 1, 0)
    column = np.arange(size.max())
    at = np.where((column >= 1) & (column <= a), begin_a + column - 1, -1)
    at = np.where((column >= a + 2) & (column < a + 2 + b), begin_b + column - a - 2, at)
    ids = np.where(at >= 0, corpus.ids[at], np.int32(Special.SEP))  # what is no id is one of two [SEP], but for
    ids[:, 0] = Special.CLS
    ids[column >= size] = Special.PAD
    return Segments(ids, at, follows)
