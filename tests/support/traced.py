"""strace, where there is one that works: containers often have it, and forbid what it does."""

import shutil
import subprocess
from functools import cache

import pytest

STRACE = shutil.which("strace")
UNTRACED = 77  # exit code where strace may not look at a process
needs_strace = pytest.mark.skipif(STRACE is None, reason="needs strace, which makes system calls fail")


def skip_untraced(code: int) -> None:
    if code == UNTRACED:
        pytest.skip("this system does not let strace look at other processes")


@cache
def untraced(*options: str) -> str | None:
    """Why strace cannot look at a process it starts with these options; None if it can."""
    if STRACE is None:
        return "there is no strace"
    tried = subprocess.run([STRACE, *options, "true"], capture_output=True, text=True, check=False)
    if tried.returncode == 0 and "openat(" in tried.stderr:
        return None
    return f"strace does not work here: {' '.join(tried.stderr.split())[:200] or 'it sees nothing'}"
