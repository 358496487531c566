"""The names of users and items as numbers, so that events are ordered by numbers instead of text.

    Coder     names in batches  →  codes (int64), in the order in which names come
    sort      codes             →  Names: all names by their UTF-8 bytes, and the number of each code

A coder keeps a limited number of bytes of names in memory. When there are more, it writes them to a file and begins a
new part, in which a name may have a second code. DuckDB sorts the names of all parts, on disk if they do not fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from superbloom.prepare.duck import new_database, threads_for
from superbloom.prepare.scratch import mapped, mapped_text

SCHEMA = pa.schema([("name", pa.string()), ("code", pa.int64())])
BATCH_NAMES = 2**16


class Names(NamedTuple):
    """Distinct names in the order of their UTF-8 bytes, and the place of the name of each code in it, int32."""

    by_number: pa.LargeStringArray
    numbers: np.ndarray


class Coder:
    """Gives names codes. At most about `max_bytes` of names are in memory.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     coder = Coder(Path(folder) / "user", max_bytes=10**6)
    ...     codes = coder.codes(pa.chunked_array([["b", "a"], [None, "b", "c"]]))
    ...     by_number, numbers = coder.sort(memory=10**9)
    >>> codes.to_pylist(), by_number.to_pylist(), numbers.tolist()
    ([0, 1, None, 0, 2], ['a', 'b', 'c'], [1, 0, 2])
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path, self.max_bytes = path, max_bytes
        self._start = 0  # the first code of this part
        self._known = pa.array([], pa.string())  # the names of this part
        self._file = pa.ipc.new_stream(path, SCHEMA)

    def codes(self, names: pa.ChunkedArray) -> pa.ChunkedArray:
        """The code of each name."""
        # The names of this part come first, so that each keeps its place in the dictionary.
        encoded = pa.chunked_array([self._known, *names.chunks], pa.string()).dictionary_encode()
        new = encoded[len(self._known) :].chunks
        start = pa.scalar(self._start, pa.int64())
        codes = pa.chunked_array([pc.add(chunk.indices.cast(pa.int64()), start) for chunk in new], pa.int64())
        if new:
            self._known = new[0].dictionary
        if self._known.nbytes > self.max_bytes:
            self._end_part()
        return codes

    def _end_part(self) -> None:
        codes = pa.array(np.arange(self._start, self._start + len(self._known)))
        self._file.write_table(pa.table([self._known, codes], SCHEMA), BATCH_NAMES)
        self._start += len(self._known)
        self._known = self._known[:0]

    def sort(self, memory: int) -> Names:
        """All names and the number of each code, in files. DuckDB takes about `memory` bytes."""
        self._end_part()
        self._file.close()
        numbers = mapped(self.path.with_suffix(".numbers"), np.int32, self._start)
        database = new_database(self.path.with_suffix(".duckdb"), memory, threads_for(memory))
        with database as duckdb, pa.OSFile(str(self.path)) as source:
            names = duckdb.from_arrow(pa.ipc.open_stream(source)).order("name")
            distinct = _numbered(names.to_arrow_reader(BATCH_NAMES), numbers)
            return Names(mapped_text(self.path.with_suffix(".text"), distinct), numbers)


def _numbered(batches: pa.RecordBatchReader, numbers: np.ndarray) -> Iterator[pa.Array]:
    """Yield the distinct names of sorted ones, and write the number of each code."""
    last, count = pa.scalar(None, pa.string()), 0
    for names, codes in (batch.columns for batch in batches):
        before = pa.concat_arrays([pa.array([last], pa.string()), names[:-1]])
        is_new = pc.fill_null(pc.not_equal(names, before), True)
        places = count - 1 + np.cumsum(is_new.to_numpy(zero_copy_only=False))
        numbers[codes.to_numpy()] = places
        last, count = names[-1], int(places[-1]) + 1
        yield names.filter(is_new)
