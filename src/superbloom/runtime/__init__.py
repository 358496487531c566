"""The process that computes: its threads, forks, rank among several processes, and address space."""

from superbloom.runtime.allocator import freed_memory_kept
from superbloom.runtime.ranks import is_main_process
from superbloom.runtime.threads import available_cores

__all__ = [
    "available_cores",
    "freed_memory_kept",
    "is_main_process",
]
