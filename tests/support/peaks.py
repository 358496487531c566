"""The memory that a command takes at its peak, with all of its processes."""

import bz2
import gzip
import lzma
import re
import resource
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from tests.support.dumps import Done, flaw, zstd

GIB = 2**30


def children(process: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


# Files that are meant to do harm.


def pss(process: int) -> int:
    """The memory of a process; what it shares with others is shared out among them."""
    try:
        return 1024 * int(re.search(r"\nPss: +(\d+)", Path(f"/proc/{process}/smaps_rollup").read_text())[1])
    except (OSError, TypeError):
        return 0


def tree(process: int) -> list[int]:
    return [process, *(below for child in children(process) for below in tree(child))]


def measured(
    folder: Path, *arguments: object, reader: str = "wikipedia", without: str | None = None, most: int = 3 * GIB
) -> tuple[Done, int]:
    """Run the command itself, and see how much memory it takes with all its workers.

    without: a statement that changes a limit first; then the system stops it when it has asked for so much.
    """
    script = ["-m", "superbloom"] if without is None else ["-c", f"{without}; from superbloom import cli; cli.main()"]
    bounded = None if without is None else partial(resource.setrlimit, resource.RLIMIT_AS, (most, most))
    with (folder / ".out").open("w+") as out, (folder / ".err").open("w+") as err:
        command = [sys.executable, *script, "prepare", reader, *map(str, arguments)]
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=err, preexec_fn=bounded)
        peak, end = 0, time.monotonic() + 300
        while process.poll() is None:
            peak = max(peak, sum(map(pss, tree(process.pid))))
            time.sleep(0.02)
            if time.monotonic() > end:
                process.kill()
                raise AssertionError("it hangs")
    return Done(process.returncode, (folder / ".out").read_text(), (folder / ".err").read_text()), peak


def unbounded(done: Done, peak: int, told: str, allowed: int = GIB) -> list[str]:
    """What is wrong with how a file without end was stopped: memory, or not one line that says where."""
    found = [flaw(done)] if flaw(done) else []
    if peak > allowed:
        found.append(f"{peak / GIB:.2f} GiB")
    if not re.search(told, done.err):
        found.append(f"no file and place: {done.err[-200:]}")
    return found


PACK_BYTES = {"bz2": bz2.compress, "gz": gzip.compress, "xz": lzma.compress, "zst": zstd}
