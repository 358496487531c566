"""Which of several training processes this one is.

`train --devices N`, torchrun and SLURM run the same command in several processes. The main process alone writes, prints
and evaluates.
"""

from __future__ import annotations

import os

# The variable that holds the rank, and the variable that shows who set it.
RANKS = (("RANK", "TORCHELASTIC_RUN_ID"), ("SLURM_PROCID", "SLURM_NTASKS"), ("LOCAL_RANK", "LOCAL_RANK"))


def main_process() -> bool:
    """Whether this process writes and prints; known before the processes have connected."""
    return not any(int(os.environ.get(rank) or 0) for rank, sign in RANKS if sign in os.environ)
