"""Rows of ids, their vocabulary, text and segments."""

from superbloom.corpus.corpus import SPLITS, Corpus, check_cuts, check_enough, split_of
from superbloom.corpus.segments import Segments, cut, draws_for, lengths, room
from superbloom.corpus.text import MISSING, READING, UNKNOWN, Kind, Reader, Segmenter, Words
from superbloom.corpus.vocab import Vocab

__all__ = [
    "MISSING",
    "READING",
    "SPLITS",
    "UNKNOWN",
    "Corpus",
    "Kind",
    "Reader",
    "Segmenter",
    "Segments",
    "Vocab",
    "Words",
    "check_cuts",
    "check_enough",
    "cut",
    "draws_for",
    "lengths",
    "room",
    "split_of",
]
