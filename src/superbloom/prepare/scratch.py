"""Temporary files of a reader: a folder that is removed at the end, and arrays that lie in files instead of memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from superbloom.storage import remove_dead, temporary_prefix


@contextmanager
def scratch_folder(out: Path | None) -> Iterator[Path]:
    """A temporary folder on the disk of `out`, or without `out`, where the system keeps temporary files."""
    name, parent = ("superbloom", Path(tempfile.gettempdir())) if out is None else (out.name, out.resolve().parent)
    remove_dead(parent, name)
    prefix = temporary_prefix(name)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder).resolve()


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
