"""A CSV or Parquet file, written while the answers come: whole or not at all, and never held in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from superbloom.errors import InputError
from superbloom.storage import already_there, written_atomically

FORMULA = r"\A[=+\-@\t\r\n\x00]"  # how a cell begins that a spreadsheet may run
Write = Callable[[pa.RecordBatch], None]


def check_table(out: Path, overwrite: bool) -> None:
    """Raise InputError if no table can be written there."""
    if out.suffix not in (".csv", ".parquet"):
        raise InputError(f"--out {out} given; a file that ends in .csv or .parquet is allowed")
    if out.is_dir() or not out.parent.is_dir():
        raise InputError(f"--out {out} is a folder, or lies in none; choose a file in a folder that is there")
    if out.exists() and not overwrite:
        raise already_there(out, "exists")


@contextmanager
def new_table(out: Path, schema: pa.Schema, safe_csv: bool) -> Iterator[Write]:
    """A function that adds rows to a new file. The file is there when the block ends without an error."""
    with written_atomically(out) as file:
        kind = pyarrow.csv.CSVWriter if out.suffix == ".csv" else pq.ParquetWriter
        with kind(file, schema) as writer:
            yield lambda batch: writer.write_batch(without_formulas(batch) if safe_csv else batch)


def without_formulas(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with an apostrophe before text that a spreadsheet would run as a formula (CSV injection).

    >>> without_formulas(pa.record_batch({"item": ["=1+1", "a=b"], "score": [-1.0, 2.0]})).to_pydict()
    {'item': ["'=1+1", 'a=b'], 'score': [-1.0, 2.0]}
    """
    marked = [
        pc.replace_substring_regex(column, FORMULA, r"'\0") if pa.types.is_string(column.type) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(marked, schema=batch.schema)
