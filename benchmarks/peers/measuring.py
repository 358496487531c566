"""What the steps of all libraries are measured with: memory, a random log's items, options, and how results are told.

Needs numpy alone, so that it runs in every environment.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import resource
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SECONDS = 0.02  # between two looks at the memory
WARM_UP = 2  # steps that are not counted


class Memory(threading.Thread):
    """Watches the resident memory, in MB, from start() on."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = self.peak = self.highest = 0.0

    def start(self) -> None:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what making the log has freed must not hide what the model takes
        self.before = self.peak = resident()
        self.highest = highest()
        super().start()

    def run(self) -> None:
        while True:
            self.peak = max(self.peak, resident())
            time.sleep(SECONDS)

    def growth(self) -> float:
        """Looks can miss the peak; the system does not, but its peak counts only if it came after the start."""
        peak = highest()
        return (peak if peak > self.highest else self.peak) - self.before


def resident() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024 / 1e6


def highest() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def limit_memory(gigabytes: float | None) -> None:
    """Beyond it allocations fail; without a figure it is what the machine has free."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 1024
    limit = int(gigabytes * 1e9) if gigabytes else free
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def random_items(num_items: int, length: int, users: int) -> np.ndarray:
    """Items of so many users, (users, length); of more users if it takes them to have every item once."""
    rng = np.random.default_rng(0)
    users = max(users, -(-num_items // length))
    items = np.concatenate([rng.permutation(num_items) for _ in range(-(-users * length // num_items))])
    return items[: users * length].reshape(users, length)


def main(description: str, measure: Callable[[argparse.Namespace], dict[str, Any]]) -> None:
    """Measure as the options say; one JSON line, or one line that says what did not fit."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--items", type=int, default=100_000)
    options.add_argument("--dim", type=int, default=128)
    options.add_argument("--layers", type=int, default=2)
    options.add_argument("--heads", type=int, default=4)
    options.add_argument("--length", type=int, default=32)
    options.add_argument("--batch", type=int, default=128)
    options.add_argument("--mask", type=float, default=0.15)
    options.add_argument("--steps", type=int, default=10, help=f"more than {WARM_UP}, which are not counted")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--memory", type=float, help="GB it may take; what is free, if not given")
    options.add_argument("--json", action="store_true", help="only the JSON line, nothing for people on stderr")
    given = options.parse_args()
    if given.steps <= WARM_UP:
        options.error(f"--steps must be more than {WARM_UP}")
    figures = within_memory(given.memory, f"{given.items:,} items", lambda: measure(given))
    if not given.json:
        text = "{library}, {items:,} items: {seconds_per_step:.3f} s a step, {growth_mb:,.0f} MB above the log"
        print(text.format(**figures), file=sys.stderr)
    print(json.dumps(figures))


def within_memory(gigabytes: float | None, what: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is measured within so much memory; what does not fit ends in one line."""
    warnings.simplefilter("ignore")
    limit_memory(gigabytes)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return measure()
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        sys.exit(f"error: out of memory with {what}: {str(error).splitlines()[0] if str(error) else 'no room'}")
