"""Keep freed memory in the process for a while, instead of returning it to the system at once.

A training step frees and asks for the same hundreds of megabytes again. The GNU C library returns large blocks to the
system, which then has to clear every page anew: a tenth of a step. Other C libraries are left as they are.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Parameters of mallopt (malloc.h), what they are while memory is kept, and what they are by default.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT = {M_TRIM_THRESHOLD: 2**31 - 1, M_MMAP_THRESHOLD: 2**30}
DEFAULTS = {M_TRIM_THRESHOLD: 128 * 1024, M_MMAP_THRESHOLD: 128 * 1024}


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Inside the block, freed memory stays in the process; afterwards all that is free is returned."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not hasattr(library, "mallopt") or not hasattr(library, "malloc_trim"):  # not the GNU C library
        yield
        return
    assert library is not None
    for parameter, value in KEPT.items():
        library.mallopt(parameter, value)
    try:
        yield
    finally:
        for parameter, value in DEFAULTS.items():
            library.mallopt(parameter, value)
        library.malloc_trim(0)
