"""All parts → the vocabulary (Sec. 4): word pieces ∪ the most frequent words and bigrams, up to a size.

DuckDB adds up words and pairs on disk, within a limit of memory. The result depends on the text alone, not on how it
was cut into pieces: counts are exact, and ties are sorted by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from superbloom.config import TextOptions
from superbloom.corpus import CASED, WITH_ACCENTS, WITHOUT_ACCENTS, Kind, Vocab
from superbloom.errors import InputError
from superbloom.prepare.duck import BATCH_ROWS, literal_paths, new_database, numbers_of_names
from superbloom.prepare.text.parts import Part
from superbloom.prepare.text.wordpieces import TRAINED_PIECES, train_word_pieces

MAX_TRAINING_WORDS = 500_000  # distinct ones, the most frequent
PAIRS = pa.schema({"first": pa.int32(), "second": pa.int32(), "count": pa.int32()})


@contextmanager
def counted(folder: Path, parts: Sequence[Part], memory: int, threads: int) -> Iterator[Counts]:
    """Count the words of all parts in a new database."""
    with new_database(folder / "counts.duckdb", memory, threads) as database:
        yield Counts(database, folder, parts)


class Counts:
    """Distinct words, numbered by the rows of a table, and the counts of words and pairs."""

    def __init__(self, database: duckdb.DuckDBPyConnection, folder: Path, parts: Sequence[Part]) -> None:
        self.database, self.folder, self.parts = database, folder, parts
        self.files = literal_paths([folder / f"{part.number:06d}.words.parquet" for part in parts])
        database.execute(
            "CREATE TABLE words AS SELECT name, sum(count)::BIGINT AS count "
            "FROM read_parquet(?, hive_partitioning = false) GROUP BY name",
            [self.files],
        )

    def characters(self, which: str) -> list[str]:
        """The distinct characters that words begin with ("first"), or that follow in them ("later")."""
        part = {"first": "[name[1]]", "later": "string_split(name[2:], '')"}[which]
        found = self.database.sql(f"SELECT DISTINCT unnest({part}) AS c FROM words").fetchall()
        return sorted(character for (character,) in found if character)

    def most_frequent(self, limit: int) -> list[tuple[str, int]]:
        """The most frequent words and their counts."""
        query = "SELECT name, count FROM words ORDER BY count DESC, name LIMIT ?"
        return self.database.execute(query, [limit]).fetchall()

    def choose(self, pieces: Sequence[str], size: int, min_count: int) -> pa.Table:
        """The words and bigrams (name, kind) that, with the word pieces, fill a vocabulary of this size."""
        self.database.register("pieces", pa.table({"name": pa.array(pieces, pa.string())}))
        pairs = pa.RecordBatchReader.from_batches(PAIRS, self._pairs(self._numbers()))
        self.database.register("part_pairs", pairs)
        self.database.execute(
            "CREATE TABLE pairs AS SELECT first, second, sum(count)::BIGINT AS count FROM part_pairs "
            "GROUP BY first, second HAVING sum(count) >= ?",
            [min_count],
        )
        query = f"""
            SELECT name, {Kind.UNIGRAM}::TINYINT AS kind, count FROM words
            WHERE count >= $least AND name NOT IN (SELECT name FROM pieces)
            UNION ALL
            SELECT one.name || ' ' || two.name, {Kind.BIGRAM}::TINYINT, pairs.count FROM pairs
            JOIN words AS one ON one.rowid = pairs.first JOIN words AS two ON two.rowid = pairs.second
            ORDER BY count DESC, name LIMIT $most
        """
        return self.database.sql(query, params={"least": min_count, "most": size - len(pieces)}).to_arrow_table()

    def _pairs(self, numbers_of: Iterable[np.ndarray]) -> Iterator[pa.RecordBatch]:
        """The pairs of each part, as numbers of words in the table."""
        for part, numbers in zip(self.parts, numbers_of, strict=True):
            with np.load(self.folder / f"{part.number:06d}.pairs.npz") as arrays:
                first, second, count = arrays["pairs"]
            for at in range(0, len(count), BATCH_ROWS):
                rows = slice(at, at + BATCH_ROWS)
                columns = [numbers[first[rows]], numbers[second[rows]], count[rows]]
                yield pa.record_batch([pa.array(column) for column in columns], schema=PAIRS)

    def _numbers(self) -> Iterator[np.ndarray]:
        """The numbers in the table of the words of each part."""
        starts = np.cumsum([0, *(part.distinct for part in self.parts)])
        numbers = numbers_of_names(self.database, "words", self.files, starts, self.folder / "numbers")
        return (numbers[start:stop] for start, stop in pairwise(starts))


def build(counts: Counts, pieces: list[str] | None, options: TextOptions) -> Vocab:
    """The vocabulary, with zero counts for now. If no word pieces are given, they are trained."""
    size = options.vocab_size
    if pieces is None:
        words = counts.most_frequent(MAX_TRAINING_WORDS)
        first, later = counts.characters("first"), counts.characters("later")
        pieces = train_word_pieces(words, first, later, min(TRAINED_PIECES, size // 2))
        check_size(size, pieces, "this text")
    chosen = counts.choose(pieces, size, options.min_count)
    names = pa.chunked_array([pa.array(pieces, pa.large_string()), *chosen["name"].cast(pa.large_string()).chunks])
    kinds = np.concatenate([np.full(len(pieces), Kind.WORD_PIECE, np.int8), chosen["kind"].to_numpy()])
    zeros = np.zeros(len(kinds), dtype=np.int64)
    return Vocab.from_arrays(names.combine_chunks(), zeros, kinds, normalisation_of(options))[0]


def normalisation_of(options: TextOptions) -> str:
    """How text is normalised: as BERT does for its word pieces, but with accents for pieces of the text itself."""
    if options.cased:
        return CASED
    return WITH_ACCENTS if options.wordpieces is None else WITHOUT_ACCENTS


def check_size(size: int, pieces: Sequence[str], source: str) -> None:
    """Refuse a vocabulary that is smaller than its word pieces."""
    if size < len(pieces):
        raise InputError(
            f"--vocab-size {size:,} given; {source} alone has {len(pieces):,} word pieces: give a larger size"
        )
