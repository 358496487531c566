"""Make models usable in forked processes: multiprocessing on Linux, gunicorn with preload_app, Spark's workers.

A fork copies memory, but of all threads only the one that forks. torch computes in threads of OpenMP, and after a large
product in the parent the child would wait for threads it does not have, forever. So a child begins with one thread.
Importing this module is enough. Modules that compute with torch do; the command line's start does not.
"""

from __future__ import annotations

import os

import torch

os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))
