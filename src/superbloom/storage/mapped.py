"""Which files of a model stay on disk: small files are read into memory, large files are memory-mapped and watched.

A memory map shows what its file holds now. If somebody writes into the file (`cp other/* served/`), the model changes;
if somebody cuts it short, the process ends with SIGBUS. A file that was read into memory cannot do either. Replacing a
folder by rename is always safe: a map keeps the old file until it is closed.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path

MAX_COPIED_BYTES = 256 * 2**20  # larger files are mapped, so that several servers of one folder share their memory

Version = tuple[int, int]  # size in bytes, time of the last write in nanoseconds


class Mapped:
    """The memory-mapped files of one model, kept open so that `changed` notices a write. copy=True maps none.

    >>> mapped = Mapped()
    >>> mapped.takes(Path(__file__)), mapped.changed()          # small enough to be read into memory
    (False, None)
    """

    def __init__(self, copy: bool = False) -> None:
        self._copy = copy
        self._files: dict[str, tuple[int, Version]] = {}  # name: descriptor, version when it was mapped
        weakref.finalize(self, _close, self._files)

    def takes(self, path: Path) -> bool:
        """True: watch this file from now on, and map it. False: read it into memory."""
        descriptor = os.open(path, os.O_RDONLY)
        status = os.fstat(descriptor)
        if self._copy or status.st_size <= MAX_COPIED_BYTES:
            os.close(descriptor)
            return False
        self._files[path.name] = descriptor, version(status)
        return True

    def watch(self, path: Path) -> None:
        """Watch a file that another process may map."""
        self.takes(path)

    def changed(self) -> str | None:
        """The name of a file that was written or cut short since it was mapped, None if there is none."""
        for name, (descriptor, before) in self._files.items():
            if version(os.fstat(descriptor)) != before:
                return name
        return None


def version(status: os.stat_result) -> Version:
    """What changes when a file is written. subtle: not the ctime, which also changes with a rename or a removal."""
    return status.st_size, status.st_mtime_ns


def _close(files: dict[str, tuple[int, Version]]) -> None:
    for descriptor, _ in files.values():
        os.close(descriptor)
