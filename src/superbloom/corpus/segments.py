"""The part of a row that a model reads at a time, at most seq_len = n ids.

A plain row gives any n consecutive ids (Sec. 3.1). A document gives what BERT reads (Sec. 4): [CLS] A [SEP] B [SEP],
where A and B begin with a sentence if possible. B continues A or, for next-sentence training, comes from another
document half of the time. If no second sentence begins within the segment, it is [CLS] A [SEP].

`cut_segments` takes rows (r,) and uniform random numbers (r, draws_per_segment) and returns ids (r, n).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from superbloom.corpus.corpus import Corpus
from superbloom.errors import InputError
from superbloom.special import Special

FRAME_IDS = 3  # [CLS], [SEP] and [SEP]
PLAIN_DRAWS, TEXT_DRAWS, NEXT_SENTENCE_DRAWS = 1, 2, 5  # random numbers per segment


@dataclass(frozen=True)
class Segments:
    """ids (rows, n), padded with PAD at the end; at (rows, n), each id's position in the corpus, −1 for special ids.

    follows (rows,): 1 if B continues A, 0 if B comes from another document, −1 if there is no B.
    """

    ids: np.ndarray
    at: np.ndarray
    follows: np.ndarray

    def __getitem__(self, some: slice) -> Segments:
        return Segments(self.ids[some], self.at[some], self.follows[some])


def draws_per_segment(corpus: Corpus, next_sentence: bool = False) -> int:
    """Return the number of random numbers that `cut_segments` needs per row."""
    return PLAIN_DRAWS if corpus.sentences is None else NEXT_SENTENCE_DRAWS if next_sentence else TEXT_DRAWS


def ids_per_segment(corpus: Corpus, seq_len: int) -> int:
    """Return the largest number of a row's ids in a segment: seq_len, less the special ids of text."""
    if corpus.sentences is None:
        return seq_len
    if seq_len <= FRAME_IDS:
        raise InputError(
            f"seq_len={seq_len} leaves no room between [CLS] and [SEP]; {FRAME_IDS + 1} or more is allowed"
        )
    return seq_len - FRAME_IDS


def segment_lengths(corpus: Corpus, rows: np.ndarray, seq_len: int) -> np.ndarray:
    """Return the number of ids in a segment of each row; a B from another document may make it shorter."""
    return np.minimum(corpus.ends[rows] - corpus.offsets[rows], ids_per_segment(corpus, seq_len))


def cut_segments(
    corpus: Corpus, rows: np.ndarray, uniform: np.ndarray, seq_len: int, other_rows: np.ndarray | None = None
) -> Segments:
    """Cut a random segment from each row.

    uniform: random numbers in [0, 1), (rows, draws_per_segment). other_rows: for next-sentence training, the rows that
    a B which does not continue A comes from.

    >>> corpus = Corpus.from_sequences([["a", "b", "c", "d"], ["e", "f"]])
    >>> found = cut_segments(corpus, np.array([0, 1]), np.array([[0.99], [0.99]]), seq_len=3)
    >>> found.ids.tolist(), found.at.tolist()
    ([[1, 2, 3], [4, 5, -1]], [[1, 2, 3], [4, 5, -1]])
    """
    length = segment_lengths(corpus, rows, seq_len)
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
    if other_rows is not None:
        change = (follows == 1) & (uniform[:, 2] < 0.5)
        other = other_rows[(uniform[:, 3] * len(other_rows)).astype(np.int64)]
        theirs = np.minimum(corpus.ends[other] - corpus.offsets[other], b)
        begin = _sentence(corpus, _start(corpus, other, uniform[:, 4], theirs), theirs)
        b, begin_b = np.where(change, theirs, b), np.where(change, begin, begin_b)
        follows = np.where(change, 0, follows)
    return _framed(corpus, start, a, begin_b, b, follows)


def _start(corpus: Corpus, rows: np.ndarray, uniform: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Return where a random run of `length` ids of each row begins."""
    begin, end = corpus.offsets[rows], corpus.ends[rows]
    return begin + (uniform * (end - begin - length + 1)).astype(np.int64)


def _sentence(corpus: Corpus, start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Return where the sentence around each start begins, or the start itself if `length` ids would not reach it."""
    starts = corpus.sentence_starts
    begin = starts[np.searchsorted(starts, start, side="right") - 1]
    return np.where(start - begin < length, begin, start)


def _framed(
    corpus: Corpus, begin_a: np.ndarray, a: np.ndarray, begin_b: np.ndarray, b: np.ndarray, follows: np.ndarray
) -> Segments:
    """Return [CLS], a ids from begin_a, [SEP], b ids from begin_b, [SEP]; without B and its [SEP] where b is 0."""
    begin_a, a, begin_b, b = (part[:, None] for part in (begin_a, a, begin_b, b))
    size = a + 2 + np.where(b > 0, b + 1, 0)
    column = np.arange(size.max())
    at = np.where((column >= 1) & (column <= a), begin_a + column - 1, -1)
    at = np.where((column >= a + 2) & (column < a + 2 + b), begin_b + column - a - 2, at)
    # Every place without an id is a [SEP], except the [CLS] at the beginning and the padding at the end.
    ids = np.where(at >= 0, corpus.ids[at], np.int32(Special.SEP))
    ids[:, 0] = Special.CLS
    ids[column >= size] = Special.PAD
    return Segments(ids, at, follows)
