"""Lock files: a lock allows one writer per folder; a second writer fails with a clear error.

The operating system frees a lock when the block or the process ends, whatever ends it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from superbloom.errors import InputError

MAX_LOCK_TRIES = 100  # attempts to open a lock file that its holder is removing

_held: dict[Path, IO[str]] = {}  # the locks that this process holds


@contextmanager
def locked(path: Path, busy: str) -> Iterator[None]:
    """Hold a lock file until the block ends; InputError with the message `busy` if another process holds it."""
    with _lock(path, busy) as file:
        _held[path] = file
        try:
            yield
        finally:
            _held.pop(path, None)


def holds(path: Path) -> bool:
    """Whether this process already holds that lock."""
    return path in _held


def _lock(path: Path, busy: str) -> IO[str]:
    for _ in range(MAX_LOCK_TRIES):
        file = _open(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise InputError(busy) from None
        except OSError:  # a file system without locks: two writers cannot be kept apart
            return file
        with suppress(OSError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # subtle: the holder has just removed this file, and another process may hold a new one
    raise InputError(busy)


def _open(path: Path) -> IO[str]:
    """Open a lock file. Links are refused: in a folder from elsewhere they may lead anywhere."""
    try:
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except PermissionError:  # left by a killed process of another user; read access is enough to lock it
        if not path.exists():
            raise
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    return os.fdopen(number)


def close_inherited_locks() -> None:
    """In a forked worker: give up the parent's locks, so that they end with the parent."""
    for file in _held.values():
        file.close()
