"""DuckDB, as the readers use it: errors as one line, a database on disk, and numbers for distinct names."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from superbloom.errors import InputError
from superbloom.prepare.scratch import mapped
from superbloom.progress import Progress
from superbloom.runtime import available_cores

BATCH_ROWS = 2**20
THREAD_BYTES = 125_000_000  # that DuckDB wants for each thread
REMEDY = "raise --memory, or make room on the disk that holds --out"


@contextmanager
def duckdb_errors(remedy: str = REMEDY) -> Iterator[None]:
    """Turn DuckDB's errors into InputError, and its reaction to Ctrl-C into KeyboardInterrupt."""
    try:
        yield
    except RuntimeError as error:
        if "interrupted" in str(error):
            raise KeyboardInterrupt from None
        raise
    except duckdb.Error as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"DuckDB gave up: {reason}; {remedy}") from None


@contextmanager
def new_database(path: Path, memory: int, threads: int, remedy: str = REMEDY) -> Iterator[duckdb.DuckDBPyConnection]:
    """A new database in a file, limited to `memory` bytes. It spills to the folder of the file."""
    path.unlink(missing_ok=True)
    config: dict[str, Any] = {"memory_limit": f"{memory}B", "threads": threads, "temp_directory": str(path.parent)}
    config["preserve_insertion_order"] = False
    with duckdb_errors(remedy), duckdb.connect(str(path), config=config) as database:
        database.execute("SET enable_progress_bar = false")  # it would go to standard output
        yield database


def threads_for(memory: int) -> int:
    """The number of threads that DuckDB can use within this number of bytes."""
    return max(1, min(available_cores(), memory // THREAD_BYTES))


def literal_paths(paths: Sequence[Path]) -> list[str]:
    """Paths for read_parquet, which would take brackets and stars for a pattern."""
    return [glob.escape(str(path)) for path in paths]


def numbers_of_names(
    database: duckdb.DuckDBPyConnection,
    table: str,
    files: Sequence[str],
    starts: np.ndarray,
    path: Path,
    progress: Progress = lambda _: None,
) -> np.ndarray:
    """The rowid in a table of distinct names for each name in Parquet files: int32, mapped to the file at `path`.

    starts: where the names of each file begin in the result, and its size.
    """
    numbers = mapped(path, np.int32, int(starts[-1]))
    found = database.sql(
        f"SELECT part.file_index, part.file_row_number, {table}.rowid "
        f"FROM read_parquet(?, file_row_number = true, hive_partitioning = false) AS part JOIN {table} USING (name)",
        params=[files],
    )
    for batch in found.to_arrow_reader(BATCH_ROWS):
        part, place, number = (column.to_numpy() for column in batch.columns)
        numbers[starts[part.astype(np.int64)] + place] = number
        progress(len(number))
    return numbers
