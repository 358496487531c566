"""Refuse libraries that `ulimit -v` leaves no room for.

With too few addresses, libraries written in C do not raise errors: they abort, crash or wait forever. So the command
line compares the limit with what a library needs before it is loaded. Without a limit, nothing is done.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from typing import Any

from superbloom.errors import InputError

GB = 10**9
# Addresses of a process that has loaded a library and works with it, on two cores. numpy: prepare sequences fails at
# 0.35. torch: predict fails at 0.89. lightning: train fails at 1.54. duckdb: its own memory (--memory 2) and the rest.
NEEDED_BYTES = {"numpy": GB // 2, "torch": GB, "lightning": 2 * GB, "duckdb": 3 * GB}


def limit() -> int | None:
    """Bytes of addresses that this process may have; None if there is no limit."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if allowed == resource.RLIM_INFINITY else allowed


def check_imports() -> None:
    """From now on, importing a library that has no room raises InputError."""
    allowed = limit()
    if allowed is not None:
        sys.meta_path.insert(0, _Room(allowed))


class _Room(MetaPathFinder):
    """Finds no module: Python asks it first, and it objects or lets the next one look."""

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> None:  # noqa: ARG002
        needed = NEEDED_BYTES.get(name, 0)
        if self.allowed < needed:
            raise InputError(
                f"ulimit -v allows {self.allowed / GB:.2f} GB of addresses; {name} needs {needed / GB:.1f} GB or more: "
                "raise the limit, or lift it with ulimit -v unlimited"
            )
