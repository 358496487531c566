"""Print one plain line when the server dies of SIGBUS: a memory-mapped file was cut short, or its disk failed.

After such a signal a process runs no Python code, but faulthandler can still write to a pipe. A small process, this
file run as a script, reads the other end. It prints the line, or any other crash as faulthandler wrote it, and ends
when the server ends for any reason.
"""

from __future__ import annotations

import faulthandler
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BUS_ERROR_MESSAGE = (
    "error: the server ended with SIGBUS: a memory-mapped file in {} was cut short, or its disk failed; "
    "copy the model again and start the server, with --copy if files may change in place"
)


@contextmanager
def reported_crashes(folder: Path) -> Iterator[None]:
    """Report a crash of this process, which serves a folder, on its standard error."""
    command = [sys.executable, "-I", "-S", __file__, str(folder)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": _stderr()}
    try:
        watcher = subprocess.Popen(command, **pipes, start_new_session=True)
    except OSError:  # no more processes are allowed; the server runs without the watcher
        yield
        return
    was_enabled = faulthandler.is_enabled()
    with watcher:
        assert watcher.stdin is not None
        faulthandler.enable(watcher.stdin, all_threads=False)  # other threads would run on while it reads their frames
        try:
            yield
        finally:
            faulthandler.disable()
            if was_enabled:
                faulthandler.enable()


def _stderr() -> int | None:
    """Where this process prints its errors; None for the standard error of the system."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError):
        return None


def _wait(folder: str) -> None:
    """In the small process: wait until the server ends, and print why if it crashed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the server handles them; this process ends after it
    text = sys.stdin.buffer.read().decode(errors="replace")
    if "Bus error" in text.partition("\n")[0]:
        text = BUS_ERROR_MESSAGE.format(folder) + "\n"
    sys.stderr.write(text)


if __name__ == "__main__":
    _wait(sys.argv[1])
