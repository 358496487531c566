"""Refuse to import a library if `ulimit -v` leaves too little address space for it.

With too little address space, libraries written in C raise no errors: they abort, crash or wait forever. So the command
line compares the limit with what a library needs before Python loads it. Without a limit, nothing happens.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from typing import Any

from superbloom.errors import InputError

GB = 10**9
# Address space of a process that works with a library, on two cores. numpy: prepare sequences fails at 0.35 GB. torch:
# predict fails at 0.89 GB. lightning: train fails at 1.54 GB. duckdb: its own memory (--memory 2) and the rest.
NEEDED_BYTES = {"numpy": GB // 2, "torch": GB, "lightning": 2 * GB, "duckdb": 3 * GB}


def address_limit() -> int | None:
    """Return the bytes of address space that this process may use; None if there is no limit."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if allowed == resource.RLIM_INFINITY else allowed


def check_imports() -> None:
    """Make later imports raise InputError if the library needs more address space than the limit."""
    allowed = address_limit()
    if allowed is not None:
        sys.meta_path.insert(0, _AddressCheck(allowed))


class _AddressCheck(MetaPathFinder):
    """Finds no module. Python asks it first; it raises, or leaves the search to the next finder."""

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> None:  # noqa: ARG002
        needed = NEEDED_BYTES.get(name, 0)
        if self.allowed < needed:
            raise InputError(
                f"ulimit -v allows {self.allowed / GB:.2f} GB of address space; "
                f"{name} needs {needed / GB:.1f} GB or more: raise the limit, or lift it with ulimit -v unlimited"
            )
