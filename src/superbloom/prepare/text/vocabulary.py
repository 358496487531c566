"""All parts → the vocabulary (Sec. 4): word pieces ∪ the most frequent words and bigrams, up to a size.

Words and pairs are added up in DuckDB, on disk, within a limit of memory. What comes out depends on the text alone,
not on how it was cut: counts are exact, and equal counts go by name.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from superbloom.corpus import Kind, Vocab
from superbloom.errors import InputError
from superbloom.prepare.duck import duckdb_told
from superbloom.prepare.files import mapped
from superbloom.prepare.text.parts import Part
from superbloom.prepare.text.wordpieces import PIECES, train_word_pieces

TRAINED_ON = 500_000  # distinct words, the most frequent ones
BATCH_ROWS = 2**20
PAIRS = pa.schema({"first": pa.int32(), "second": pa.int32(), "count": pa.int32()})


@contextmanager
def counted(folder: Path, parts: Sequence[Part], memory: int, threads: int) -> Iterator[Counts]:
    """The words of all parts, counted in a database of its own."""
    config: dict[str, Any] = {"memory_limit": f"{memory}B", "threads": threads, "temp_directory": str(folder)}
    config["preserve_insertion_order"] = False
    with duckdb_told(), duckdb.connect(str(folder / "counts.duckdb"), config=config) as database:
        database.execute("SET enable_progress_bar = false")
        yield Counts(database, folder, parts)


class Counts:
    """Distinct words, numbered by the rows of a table, and how often they and pairs of them occur."""

    def __init__(self, database: duckdb.DuckDBPyConnection, folder: Path, parts: Sequence[Part]) -> None:
        self.database, self.folder, self.parts = database, folder, parts
        self.files = [glob.escape(str(folder / f"{part.number:06d}.words.parquet")) for part in parts]
        database.execute(
            "CREATE TABLE words AS SELECT name, sum(count)::BIGINT AS count "
            "FROM read_parquet(?, hive_partitioning = false) GROUP BY name",
            [self.files],
        )

    def characters(self, which: str) -> list[str]:
        """The distinct characters words begin with, or those that stand later in them."""
        part = {"first": "[name[1]]", "later": "string_split(name[2:], '')"}[which]
        found = self.database.sql(f"SELECT DISTINCT unnest({part}) AS c FROM words").fetchall()
        return sorted(character for (character,) in found if character)

    def most_frequent(self, limit: int) -> list[tuple[str, int]]:
        """Words and their counts."""
        query = "SELECT name, count FROM words ORDER BY count DESC, name LIMIT ?"
        return self.database.execute(query, [limit]).fetchall()

    def choose(self, pieces: Sequence[str], size: int, min_count: int) -> pa.Table:
        """The words and bigrams (name, kind) that fill a vocabulary up to this size, beside its word pieces."""
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
        """The pairs of each part, by the numbers of words in the table."""
        for part, numbers in zip(self.parts, numbers_of, strict=True):
            with np.load(self.folder / f"{part.number:06d}.pairs.npz") as arrays:
                first, second, count = arrays["pairs"]
            for at in range(0, len(count), BATCH_ROWS):
                rows = slice(at, at + BATCH_ROWS)
                columns = [numbers[first[rows]], numbers[second[rows]], count[rows]]
                yield pa.record_batch([pa.array(column) for column in columns], schema=PAIRS)

    def _numbers(self) -> Iterator[np.ndarray]:
        """For each part, the numbers of its words in the table."""
        starts = np.cumsum([0, *(part.distinct for part in self.parts)])
        numbers = mapped(self.folder / "numbers", np.int32, int(starts[-1]))
        found = self.database.sql(
            "SELECT part.file_index, part.file_row_number, words.rowid "
            "FROM read_parquet(?, file_row_number = true, hive_partitioning = false) AS part JOIN words USING (name)",
            params=[self.files],
        )
        for batch in found.to_arrow_reader(BATCH_ROWS):
            part, place, number = (column.to_numpy() for column in batch.columns)
            numbers[starts[part.astype(np.int64)] + place] = number
        return (numbers[start:stop] for start, stop in pairwise(starts))


def build(counts: Counts, pieces: list[str] | None, size: int, min_count: int, normalisation: str) -> Vocab:
    """The vocabulary, its entries not counted yet; word pieces that are not given are trained."""
    if pieces is None:
        words = counts.most_frequent(TRAINED_ON)
        first, later = counts.characters("first"), counts.characters("later")
        pieces = train_word_pieces(words, first, later, min(PIECES, size // 2))
        check_size(size, pieces, "the text's characters")
    chosen = counts.choose(pieces, size, min_count)
    names = pa.chunked_array([pa.array(pieces, pa.large_string()), *chosen["name"].cast(pa.large_string()).chunks])
    kinds = np.concatenate([np.full(len(pieces), Kind.WORD_PIECE, np.int8), chosen["kind"].to_numpy()])
    zeros = np.zeros(len(kinds), dtype=np.int64)
    return Vocab.from_arrays(names.combine_chunks(), zeros, kinds, normalisation)[0]


def check_size(size: int, pieces: Sequence[str], source: str) -> None:
    """Refuse a vocabulary that is smaller than its word pieces."""
    if size < len(pieces):
        raise InputError(
            f"--vocab-size {size:,} given; the word pieces of {source} alone are {len(pieces):,}: raise it to more"
        )
