"""Set the number of threads and how they wait, before torch is loaded. What the user has set stays.

GNU OpenMP's threads spin while they wait for each other. If another process is busy, they spin on cores that the work
itself needs, and training takes at least three times as long. Threads that spin for a few microseconds and then sleep
are as fast on an idle machine and lose little on a busy one (docs/reliability.md, check 22).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# Rounds of spinning; GNU OpenMP's own default is 300,000. With 0, a search for 64 queries takes 1.2 times as long on an
# idle machine. With 10,000, it takes 2.3 times as long as with 1,000 if another process is busy.
SPIN_COUNT = 1000
CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def set_defaults() -> None:
    """Set environment variables, which processes started by this one inherit."""
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": str(SPIN_COUNT)}
    if available_cores() < _allowed_cores():  # OpenMP does not look at quotas
        os.environ.setdefault("OMP_NUM_THREADS", str(available_cores()))


def available_cores() -> int:
    """Return the number of cores this process may use: those it may run on, at most its container's quota."""
    quotas = [math.ceil(quota) for quota in _quotas(CGROUPS, OWN_CGROUPS)]
    return max(1, min(_allowed_cores(), *quotas)) if quotas else _allowed_cores()


def _allowed_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _quotas(root: Path, own: Path) -> Iterator[float]:
    """Yield the quotas of this process's control groups and their parents, in cores; for both versions of cgroups."""
    with suppress(OSError, ValueError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            base = root / "cpu" if controllers else root
            folder = base / path.lstrip("/")
            # subtle: inside a container the path may be the host's, which is not here; the group is then the root
            for place in (folder, *folder.parents):
                with suppress(OSError, ValueError, ZeroDivisionError):
                    yield _quota(place, is_version_1=bool(controllers))
                if place == base:
                    break


def _quota(group: Path, is_version_1: bool) -> float:
    """Return the quota of a group in cores; raises ValueError if there is no limit."""
    if is_version_1:
        quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
    else:
        quota, period = (group / "cpu.max").read_text().split()
    cores = float(quota) / float(period)  # "max" is no number and raises ValueError
    if cores <= 0:  # −1 means no limit
        raise ValueError(f"no limit: {quota!r}")
    return cores
