"""How much memory training takes, to refuse a model that cannot fit before training starts."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from superbloom.config import ModelConfig, TrainConfig
from superbloom.errors import InputError
from superbloom.model import Network

CGROUP_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
BYTES_PER_PARAMETER = 16  # weight, gradient, and Adam's two moments
BYTES_PER_COPY = 4  # per parameter: the running mean of the weights is one copy, the best weights another


def num_parameters(config: ModelConfig) -> int:
    """The number of parameters of a model, without allocating them."""
    with torch.device("meta"):
        return Network(config).num_parameters()


def check_memory(config: ModelConfig, training: TrainConfig | None = None) -> None:
    """Raise InputError if weights, gradients, moments and copies do not fit into this machine's memory.

    Only for training on CPUs, where the system would end the process without a message.
    """
    processes = (training and training.devices) or 1
    if torch.accelerator.is_available() or (training is not None and training.strategy == "fsdp"):
        return
    size, available = num_parameters(config), machine_memory()
    copies = 0 if training is None else bool(training.average) + bool(training.patience)
    needed = processes * size * (BYTES_PER_PARAMETER + BYTES_PER_COPY * copies)
    if available is not None and needed > available:
        raise InputError(
            f"{size:,} parameters take {needed / 2**30:.1f} GiB with gradients, moments and copies of training; "
            f"{available / 2**30:.1f} GiB are available: raise --alpha or lower --dim (docs/scale.md)"
        )


def machine_memory() -> int | None:
    """Bytes that this process may use, of the machine or of its container; None if the system does not say."""
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None
    limit = CGROUP_MEMORY_LIMIT.read_text().strip() if CGROUP_MEMORY_LIMIT.is_file() else "max"
    return min(machine, int(limit)) if limit.isdecimal() else machine
