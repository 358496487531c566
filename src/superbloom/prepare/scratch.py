"""Temporary files of a reader: a folder that is removed at the end, and arrays that lie in files instead of memory."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from superbloom.storage import remove_dead, temporary_prefix


@contextmanager
def scratch_folder(out: Path | None) -> Iterator[Path]:
    """A temporary folder on the disk of `out`, or without `out`, where the system keeps temporary files."""
    name, parent = ("superbloom", Path(tempfile.gettempdir())) if out is None else (out.name, out.resolve().parent)
    remove_dead(parent, name)
    prefix = temporary_prefix(name)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent)).resolve()
    try:
        yield folder
    finally:
        for _ in range(2):  # a disk may fail once while the folder is removed
            shutil.rmtree(folder, ignore_errors=True)


def mapped(path: Path, kind: type, size: int) -> np.ndarray:
    """An array of `size` numbers, at least 1, in a new file. It stays usable after the file is removed.

    subtle: the disk space is allocated at once. In a sparse file, a write to the map would kill the process if the
    disk is full.
    """
    size = max(1, size)
    with path.open("wb") as file:
        length = size * np.dtype(kind).itemsize
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, length)
        else:
            file.truncate(length)
    return np.memmap(path, kind, "r+", shape=size)


class Growing:
    """Numbers that come in pieces, as one array in a new file. It stays usable after the file is removed."""

    def __init__(self, path: Path, kind: type) -> None:
        self.path, self.kind, self.size = path, kind, 0
        path.write_bytes(b"")

    def add(self, piece: np.ndarray) -> None:
        with self.path.open("ab") as file:
            file.write(np.ascontiguousarray(piece, self.kind).data)
        self.size += len(piece)

    def array(self) -> np.ndarray:
        return np.memmap(self.path, self.kind, "r+", shape=self.size) if self.size else np.zeros(0, self.kind)


def mapped_text(path: Path, pieces: Iterable[pa.Array]) -> pa.LargeStringArray:
    """Text that comes in pieces, without nulls, as one array in two new files."""
    text, ends = Growing(path, np.uint8), Growing(path.with_name(f"{path.name}-ends"), np.int64)
    ends.add(np.zeros(1))
    for piece in pieces:
        if len(piece):
            piece = piece.cast(pa.large_string())
            _, offsets, data = piece.buffers()
            here = np.frombuffer(offsets, np.int64)[piece.offset : piece.offset + len(piece) + 1]
            ends.add(here[1:] - here[0] + text.size)
            text.add(np.frombuffer(data or b"", np.uint8)[here[0] : here[-1]])
    buffers = [None, pa.py_buffer(ends.array()), pa.py_buffer(text.array())]
    return pa.Array.from_buffers(pa.large_string(), ends.size - 1, buffers)
