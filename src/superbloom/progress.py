"""Progress of long steps: a Rich bar on standard error in a terminal, and nothing elsewhere.

Readers take a `Watch`, which shows one step: watch("reading", 1_000_000, True) is a context manager that yields a
function. The reader calls that function with the number of units, here bytes, that were done since the last call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Progress = Callable[[int], None]
Watch = Callable[[str, int | None, bool], AbstractContextManager[Progress]]


@contextmanager
def unwatched(what: str, total: int | None, in_bytes: bool) -> Iterator[Progress]:  # noqa: ARG001
    """Show nothing."""
    yield lambda _: None


@contextmanager
def counting(what: str, total: int | None, in_bytes: bool = False) -> Iterator[Progress]:
    """Show a bar over `total` units; None if their number is unknown."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    done = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = (TextColumn(what), BarColumn(), done, TextColumn("left"), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)
