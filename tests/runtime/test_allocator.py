"""Freed memory stays in the process inside the block, and returns to the system after it."""

import resource
import subprocess
import sys

import numpy as np
import pytest

from superbloom.runtime import freed_memory_kept

MEGABYTES = 64
PAGES = MEGABYTES * 2**20 // resource.getpagesize()
ROUNDS = 10


def faults_of_rounds() -> int:
    """Page faults while the same memory is asked for and freed again and again."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(ROUNDS):
        np.ones(MEGABYTES * 2**17)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(sys.platform != "linux", reason="counts the page faults of Linux")
def test_memory_is_used_again_inside_the_block_only():
    code = (
        "from tests.runtime.test_allocator import faults_of_rounds as faults\n"
        "from superbloom.runtime import freed_memory_kept\n"
        "before = faults()\n"
        "with freed_memory_kept():\n    inside = faults()\n"
        "print(before, inside, faults())"
    )
    # NumPy asks for huge pages, which would hide the faults.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_environment())
    before, inside, after = map(int, done.stdout.split())
    assert inside < 3 * PAGES, "the memory of a round was not used again"
    assert min(before, after) > ROUNDS * PAGES / 2, "memory is kept outside the block as well"


def test_errors_leave_the_block():
    with pytest.raises(ValueError, match="stops"), freed_memory_kept():
        raise ValueError("stops")


def _environment() -> dict[str, str]:
    import os

    return os.environ | {"NUMPY_MADVISE_HUGEPAGE": "0"}
