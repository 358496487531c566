"""Progress on standard error: a Rich bar in a terminal, one plain line now and then elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)


@contextmanager
def counting(what: str, total: int | None, in_bytes: bool = False) -> Iterator[Callable[[int], None]]:
    """A bar over `total` things; call the yielded function with how many more are done."""
    console = Console(stderr=True)
    done = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = (TextColumn(what), BarColumn(), done, TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)
