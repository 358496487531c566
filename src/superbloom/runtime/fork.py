"""Make models usable in forked processes: multiprocessing on Linux, gunicorn with preload_app, Spark's workers.

A fork copies memory, but only the thread that forks. torch computes in threads of OpenMP: after a large product in the
parent, the child would wait forever for threads that it does not have. So a child begins with one thread.
Importing this module is enough. Modules that compute with torch import it; the start of the command line does not.
"""

from __future__ import annotations

import os

import torch

os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))
