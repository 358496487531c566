"""How a model is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from superbloom.config.model import ModelConfig
from superbloom.config.option import is_number, is_seed, option
from superbloom.errors import InputError


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a model is trained; the defaults suit small models on a few cores (docs/log.md)."""

    steps: int | None = option(None, "train this many steps in all")
    minutes: float | None = option(None, "train this many minutes in all")
    batch_size: int = option(128, "segments per step, over all processes")
    learning_rate: float = option(2e-3, "highest learning rate")
    warmup: int = option(200, "steps until the highest learning rate; it falls with 1/sqrt(step) after")
    weight_decay: float = option(0.0, "decoupled weight decay")
    clip: float = option(1.0, "largest norm of the gradient")
    average: float = option(0.998, "share of the past in the running mean of the weights that is the model; 0: none")
    patience: int = option(
        20, "stop after so many validations without a better one; 0: take the last weights, not the best"
    )
    mask_share: float = option(0.3, "share of a segment that is masked")
    warm_start: bool = option(True, "begin with embeddings from counted co-occurrence; without, with noise")
    seed: int = option(0, "seed of weights, batches and dropout")
    precision: Literal["fp32", "bf16"] = option("fp32", "arithmetic of the layers")
    loss: Literal["full", "sampled"] = option("full", "softmax over all tokens, or a sample of them (unhashed only)")
    samples: int = option(8192, "negatives of the sampled softmax")
    proposal: Literal["log-uniform", "empirical"] = option("log-uniform", "how those negatives are drawn")
    logits_mb: int = option(128, "megabytes of logits held at a time")
    valid_every: int = option(250, "steps between validations")
    valid_rows: int = option(1000, "hidden elements of a validation")
    save_every: int = option(500, "steps between checkpoints")
    devices: int | None = option(None, "processes on this machine, one a device (default: 1, or as torchrun says)")
    strategy: Literal["ddp", "fsdp"] = option("ddp", "what several processes hold: the whole model, or a share each")
    workers: int = option(0, "processes beside each that make batches ahead; 0 makes them in turn")

    def __post_init__(self) -> None:
        faults = []
        if (self.steps is None) == (self.minutes is None):
            faults.append(f"steps={self.steps}, minutes={self.minutes}: give one of them")
        at_least_one = ("batch_size", "warmup", "samples", "logits_mb", "valid_every", "valid_rows", "save_every")
        for name in (*at_least_one, *(name for name in ("steps", "devices") if getattr(self, name) is not None)):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                faults.append(f"{name}={getattr(self, name)}: 1 or more is allowed")
        for name in ("learning_rate", "clip", *(("minutes",) if self.minutes is not None else ())):
            if not is_number(getattr(self, name)) or not 0 < getattr(self, name) < math.inf:
                faults.append(f"{name}={getattr(self, name)}: more than 0 is allowed")
        if self.minutes is not None and self.minutes > 1e6:
            faults.append(f"minutes={self.minutes}: up to a million is allowed")
        if not is_number(self.weight_decay) or not 0 <= self.weight_decay < math.inf:
            faults.append(f"weight_decay={self.weight_decay}: from 0 is allowed")
        if not is_number(self.average) or not 0 <= self.average < 1:
            faults.append(f"average={self.average}: from 0 to below 1 is allowed")
        if type(self.warm_start) is not bool:
            faults.append(f"warm_start={self.warm_start!r}: True or False is allowed")
        if type(self.patience) is not int or self.patience < 0:
            faults.append(f"patience={self.patience}: 0 or more is allowed")
        if type(self.workers) is not int or not 0 <= self.workers <= 256:
            faults.append(f"workers={self.workers}: 0 to 256 is allowed")
        if not is_seed(self.seed):
            faults.append(f"seed={self.seed}: 0 to 2^63 − 1 is allowed")
        if not is_number(self.mask_share) or not 0 < self.mask_share < 1:
            faults.append(f"mask_share={self.mask_share}: between 0 and 1 is allowed")
        choices = (
            ("precision", ("fp32", "bf16")),
            ("loss", ("full", "sampled")),
            ("proposal", ("log-uniform", "empirical")),
            ("strategy", ("ddp", "fsdp")),
        )
        for name, allowed in choices:
            if getattr(self, name) not in allowed:
                faults.append(f"{name}={getattr(self, name)!r}: {' or '.join(map(repr, allowed))} is allowed")
        if faults:
            raise InputError("; ".join(faults))

    def check_with(self, model: ModelConfig) -> None:
        """Raise InputError if this training does not suit a model."""
        if self.loss == "sampled" and model.num_hashes > 1:
            raise InputError(
                f"loss='sampled' with num_hashes={model.num_hashes}: sampling is the unhashed baseline's; "
                "use loss='full' or num_hashes=1, alpha=1"
            )
