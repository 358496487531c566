"""Find out which of several training processes this one is.

`train --devices N`, torchrun and SLURM run the same command in several processes. Only the main process writes, prints
and evaluates.
"""

from __future__ import annotations

import os

# The variable that holds the rank, and the variable that shows which launcher set it.
RANK_VARIABLES = (("RANK", "TORCHELASTIC_RUN_ID"), ("SLURM_PROCID", "SLURM_NTASKS"), ("LOCAL_RANK", "LOCAL_RANK"))


def is_main_process() -> bool:
    """Whether this process writes and prints. It needs no connection between the processes."""
    return not any(int(os.environ.get(rank) or 0) for rank, sign in RANK_VARIABLES if sign in os.environ)
