"""One plain line when the server dies of SIGBUS: somebody cut a memory-mapped file short, or its disk failed.

No Python code runs in a process that such a signal hits, but faulthandler can still write to a pipe. At its other end
waits a small process, this file run as a script: it prints the line, or any other crash as faulthandler wrote it. It
ends with the server, whatever ends that.
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

BUS_ERROR = (
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
    except OSError:  # as many processes as are allowed: it serves without
        yield
        return
    was_enabled = faulthandler.is_enabled()
    with watcher:
        assert watcher.stdin is not None
        faulthandler.enable(watcher.stdin, all_threads=False)  # others run on while their frames would be read
        try:
            yield
        finally:
            faulthandler.disable()
            if was_enabled:
                faulthandler.enable()


def _stderr() -> int | None:
    """Where this process prints its errors; None is the same file as that of the system."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError):
        return None


def _wait(folder: str) -> None:
    """In the small process: wait for the end of the server, and print why if it crashed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the server; its end is what ends this process
    text = sys.stdin.buffer.read().decode(errors="replace")
    if "Bus error" in text.partition("\n")[0]:
        text = BUS_ERROR.format(folder) + "\n"
    sys.stderr.write(text)


if __name__ == "__main__":
    _wait(sys.argv[1])
