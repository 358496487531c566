"""Writing whole or not at all, and reading without a mixture of old and new.

A file or folder is written under a temporary name, forced to disk, and renamed. A reader of a folder that is replaced
meanwhile reads again.
"""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

from superbloom.errors import InputError
from superbloom.storage.temporary import remove_dead, temporary_prefix

_T = TypeVar("_T")


def write_atomically(path: Path, data: bytes) -> None:
    """Write one file, whole or not at all."""
    with written_atomically(path) as file:
        file.write(data)


@contextmanager
def written_atomically(path: Path) -> Iterator[BinaryIO]:
    """A file to write: temporary name in the same folder; at the end fsync, rename, fsync of the folder."""
    remove_dead(path.parent, path.name)
    handle, temporary = tempfile.mkstemp(prefix=temporary_prefix(path.name), dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, 0o644)  # tempfile lets only the owner read
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    fsync(path.parent)


def swap(new: Path, path: Path) -> None:
    """Put the folder `new` at `path`. What was there is then at `new`. Readers see the old folder or the new one."""
    if not path.exists():
        new.rename(path)
    elif not _exchanged(new, path):
        # Only where names cannot be exchanged: for a moment there is no folder at `path`.
        retired = new.with_name(f"{new.name}-old")
        path.rename(retired)
        try:
            new.rename(path)
        except BaseException:
            retired.rename(path)
            raise
        retired.rename(new)
    fsync(path.parent)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two names in one step; False where the system or the file system cannot. Python has no call for it."""
    at_fdcwd, rename_exchange = -100, 2
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    if renameat2(at_fdcwd, os.fsencode(one), at_fdcwd, os.fsencode(other), rename_exchange) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(other))


def fsync(path: Path) -> None:
    """Force a file, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_consistently(folder: str | Path, read: Callable[[], _T]) -> _T:
    """The result of `read`, which reads `folder`. Reads again if the folder was replaced meanwhile.

    So all files that `read` opens belong to the old folder, or all to the new one.
    """
    while True:
        try:
            # subtle: held open, so that no newer folder can get the same inode number
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return read()  # there is no folder; `read` reports it
        try:
            result = read()
            if _is_at(handle, folder):
                return result
        except (InputError, OSError):
            if _is_at(handle, folder):
                raise
        finally:
            os.close(handle)


def _is_at(handle: int, path: str | Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), Path(path).stat())
    except FileNotFoundError:
        return False
