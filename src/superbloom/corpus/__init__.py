"""Rows of ids and what they are made of: vocabulary, splits, text as ids, and the segments that a model reads."""

from superbloom.corpus.checks import checked_share
from superbloom.corpus.corpus import Corpus
from superbloom.corpus.numbering import as_text, check_enough_names
from superbloom.corpus.segmenter import UNKNOWN_TOKEN, Kind, Segmenter
from superbloom.corpus.segments import Segments, cut_segments, draws_per_segment, ids_per_segment, segment_lengths
from superbloom.corpus.splits import SPLITS, split_of
from superbloom.corpus.vocab import Vocab
from superbloom.corpus.words import (
    CASED,
    READ_LOCK,
    TEXT_EXTRA_MISSING,
    WITH_ACCENTS,
    WITHOUT_ACCENTS,
    Reader,
    Words,
)

__all__ = [
    "CASED",
    "READ_LOCK",
    "SPLITS",
    "TEXT_EXTRA_MISSING",
    "UNKNOWN_TOKEN",
    "WITHOUT_ACCENTS",
    "WITH_ACCENTS",
    "Corpus",
    "Kind",
    "Reader",
    "Segmenter",
    "Segments",
    "Vocab",
    "Words",
    "as_text",
    "check_enough_names",
    "checked_share",
    "cut_segments",
    "draws_per_segment",
    "ids_per_segment",
    "segment_lengths",
    "split_of",
]
