"""How much memory training takes, so that what cannot work is refused before it is begun."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from superbloom.config import ModelConfig, TrainConfig
from superbloom.errors import InputError
from superbloom.model import Network

CGROUP = Path("/sys/fs/cgroup/memory.max")
PER_PARAMETER = 16  # bytes: weight, gradient, and Adam's two moments
COPY = 4  # and for the running mean of the weights, and for the best ones so far


def num_parameters(config: ModelConfig) -> int:
    """The size of a model that need not fit anywhere."""
    with torch.device("meta"):
        return Network(config).num_parameters()


def check_memory(config: ModelConfig, training: TrainConfig | None = None) -> None:
    """Raise InputError if not even weights, gradients and moments fit; on a CPU the system would end the process."""
    copies = (training and training.devices) or 1
    if torch.accelerator.is_available() or (training is not None and training.strategy == "fsdp"):
        return
    size, there = num_parameters(config), machine_memory()
    more = 0 if training is None else COPY * (bool(training.average) + bool(training.patience))
    needed = copies * size * (PER_PARAMETER + more)
    if there is not None and needed > there:
        raise InputError(
            f"{size:,} parameters take {needed / 2**30:.1f} GiB with gradients, moments and copies of training; "
            f"{there / 2**30:.1f} GiB are there: raise --alpha or lower --dim (docs/scale.md)"
        )


def machine_memory() -> int | None:
    """Bytes this process may use: the machine's, or its container's; None if it cannot be told."""
    try:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None
    limit = CGROUP.read_text().strip() if CGROUP.is_file() else "max"
    return min(there, int(limit)) if limit.isdecimal() else there
