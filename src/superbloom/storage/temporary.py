"""Names of temporary files and folders, and their removal after the process that made them was killed.

    .NAME-MACHINE-PID-RANDOM    beside NAME; MACHINE differs between hosts and containers that share a disk

The next writer of NAME removes those whose process is dead. The process of another machine cannot be asked, so what it
left goes once nothing in it has changed for a week. Names of any other form are never touched.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

MAX_FOREIGN_AGE = 7 * 24 * 3600  # seconds


def temporary_prefix(name: str) -> str:
    """How the temporary files and folders of this process begin; `tempfile` adds eight random characters."""
    return f".{name}-{_machine()}-{os.getpid()}-"


def remove_dead(folder: Path, name: str) -> None:
    """Remove what killed processes left in a folder while they wrote `name`. What cannot be removed stays."""
    form = re.compile(rf"\.{re.escape(name)}-([0-9a-f]{{6}})-(\d{{1,10}})-[a-z0-9_]{{8}}")
    with suppress(OSError):
        for entry in os.scandir(folder):
            found = form.fullmatch(entry.name)
            if found and _is_dead(Path(entry.path), found[1], int(found[2])):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    with suppress(OSError):
                        Path(entry.path).unlink()


def _is_dead(path: Path, machine: str, pid: int) -> bool:
    if machine != _machine():
        parts = [path, *path.rglob("*")] if path.is_dir() and not path.is_symlink() else [path]
        newest = max(part.lstat().st_mtime for part in parts)
        return time.time() - newest > MAX_FOREIGN_AGE
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):  # of another user
        return False
    return False


@cache
def _machine() -> str:
    """Six digits of this host and, in a container, of its process numbers."""
    try:
        processes = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        processes = ""
    return hashlib.sha256(f"{platform.node()} {processes}".encode()).hexdigest()[:6]
