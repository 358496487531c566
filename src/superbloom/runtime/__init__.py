"""The process that computes: its threads, forks, rank among several processes, and address space."""

from superbloom.runtime.ranks import is_main_process
from superbloom.runtime.threads import available_cores

__all__ = [
    "available_cores",
    "is_main_process",
]
