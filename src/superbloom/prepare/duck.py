"""What goes wrong inside DuckDB, told as everything else is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import duckdb

from superbloom.errors import InputError


@contextmanager
def duckdb_told() -> Iterator[None]:
    """One line instead of DuckDB's errors, and Ctrl-C as Ctrl-C."""
    try:
        yield
    except RuntimeError as error:
        if "interrupted" in str(error):  # what Ctrl-C is to DuckDB
            raise KeyboardInterrupt from None
        raise
    except duckdb.Error as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"DuckDB gave up: {reason}; raise --memory, or make room where --out lies") from None
