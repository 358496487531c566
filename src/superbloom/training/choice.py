"""Chooses alpha, m and d for a catalogue, a time and a memory (docs/sizes.md). `train` and `plan` choose the same.

What you give stays as it is. Without hashing, a step teaches the network most, because no names share a bucket. With a
larger alpha, there are more steps in the same time. So alpha is the smallest of a few values that leaves enough steps.
A wider network needs more steps. If training does not fit into memory, alpha is raised, and then d is lowered.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from superbloom.config import ModelConfig, TrainConfig, with_proportions
from superbloom.config.training import DEFAULT_MINUTES
from superbloom.corpus import Corpus, segment_lengths
from superbloom.errors import InputError
from superbloom.hashing import check_sizes, max_alpha
from superbloom.runtime import available_cores
from superbloom.training.costs import operations, serve_memory, train_memory
from superbloom.training.limits import machine_memory, num_parameters
from superbloom.training.units import shown_bytes

ALPHAS = (1, 4, 10, 20, 50)  # 2 would leave as many tokens as names, since hashed models have two hashes
MIN_BUCKETS = 10_000  # per hash; with fewer, too many frequent names share buckets
DIM = ModelConfig.dim  # lowered only if memory asks for it
WIDER_DIMS, NARROWER_DIMS = (768, 512, 384, 256, 192), (96, 64, 48, 32)
ENOUGH_STEPS = 600  # for a network of the width DIM; a wider one needs more, in proportion to the square of its width
USEFUL_STEPS = 200  # after which a network is worth asking
CHOSEN = ("alpha", "num_hashes", "dim", "heads", "ffn_dim")
# Floating-point operations per second of training: of each core of the machines that were measured, and of an
# accelerator. They are fixed, so that a command chooses the same each time and all processes of a run agree.
CORE_RATE, ACCELERATOR_RATE = 25e9, 5e12


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model, how it is trained, and what both cost. Memory is in bytes."""

    config: ModelConfig
    training: TrainConfig
    memory: int | None  # what may be used; None if the system does not say
    parameters: int
    train_memory: dict[str, int]
    serve_memory: dict[str, int]
    operations: dict[str, float]
    filled: float  # the share of a segment that is no padding

    @property
    def needed(self) -> int:
        """Bytes for training, or for serving in fp32 if that takes more."""
        return max(sum(self.train_memory.values()), *self.serve_memory.values())

    @property
    def fits(self) -> bool:
        return self.memory is None or self.needed <= self.memory

    @property
    def minutes(self) -> float:
        """How long training takes; the default if a number of steps is given instead."""
        return DEFAULT_MINUTES if self.training.minutes is None else self.training.minutes

    @property
    def steps_per_minute(self) -> float:
        """An estimate for this machine."""
        return 60 * _rate() / sum(self.operations.values())

    @property
    def has_enough_steps(self) -> bool:
        """Whether the time suffices for a network of this width."""
        return self.steps_per_minute * self.minutes >= ENOUGH_STEPS * max(1, self.config.dim / DIM) ** 2

    @property
    def is_hashed(self) -> bool:
        return self.config.num_hashes > 1 or self.config.alpha > 1

    @property
    def reason(self) -> str:
        """One line about the choice."""
        config, minutes = self.config, f"{self.minutes:g} minute{'s' * (self.minutes != 1)}"
        shape = f"d={config.dim}, L={config.layers}"
        steps = f"about {_rounded(self.steps_per_minute * self.minutes):,} steps in {minutes}"
        if not self.is_hashed:
            return f"{config.num_ids:,} names need no hashing: {steps}; {shape}"
        plain = replace(config, num_hashes=1, alpha=1, coherent=0)
        without = costs(plain, self.training, self.memory, self.filled)
        why = f"without hashing about {_rounded(without.steps_per_minute * self.minutes):,}"
        if not without.fits:
            why = f"no hashing would take {shown_bytes(without.needed)} of {shown_bytes(without.memory or 0)}"
        sizes = f"alpha={config.alpha}, m={config.num_hashes}, {shape}"
        return f"{config.num_ids:,} names as {config.num_tokens:,} tokens, {sizes}: {steps}; {why}"


def choose_for(corpus: Corpus, given: dict[str, Any], training: TrainConfig) -> Sizes:
    """The sizes for a corpus, whose rows may be shorter than a segment, on this machine."""
    seq_len = given.get("seq_len", ModelConfig.seq_len)
    lengths = segment_lengths(corpus, corpus.rows("train"), seq_len)
    filled = float(np.mean(lengths)) / seq_len if len(lengths) else 1.0
    is_limited = training.strategy != "fsdp" and not torch.accelerator.is_available()
    return choose(corpus.num_ids, machine_memory() if is_limited else None, given, training, filled=filled)


def choose(
    num_ids: int,
    memory: int | None,
    given: dict[str, Any],
    training: TrainConfig,
    *,
    filled: float = 1.0,
    must_fit: bool = False,
) -> Sizes:
    """The sizes for a number of names. given: options of the model. filled: the share of a segment that is no padding.

    must_fit: raise InputError if nothing fits into memory, instead of returning the smallest.

    >>> found = choose(1000, 10**10, {"layers": 1}, TrainConfig(minutes=5))
    >>> found.config.alpha, found.config.num_hashes, found.config.layers
    (1, 1, 1)
    """
    if training.loss == "sampled":  # which needs no small output layer
        given = {"alpha": 1} | given

    def sized(alpha: int, dim: int) -> Sizes:
        config = ModelConfig(num_ids=num_ids, **with_proportions(_hashed(given, alpha) | {"dim": dim}))
        return costs(config, training, memory, filled)

    alphas, most = _alphas(num_ids, given)
    usual = given.get("dim", DIM)
    wider, narrower = ((), ()) if "dim" in given else (WIDER_DIMS, NARROWER_DIMS)
    in_time = next((alpha for alpha in alphas if sized(alpha, usual).has_enough_steps), alphas[-1])
    for dim in (*(dim for dim in wider if sized(in_time, dim).has_enough_steps), usual):
        for alpha in alphas[alphas.index(in_time) :]:
            if (found := sized(alpha, dim)).fits:
                return found
    for dim in (usual, *narrower):
        larger = _smallest(lambda alpha, dim=dim: sized(alpha, dim).fits, alphas[-1], most)  # type: ignore[misc]
        if larger is not None:
            return sized(larger, dim)
    least = sized(alphas[-1] if "alpha" in given else most, (usual, *narrower)[-1])
    if must_fit:
        raise InputError(_what_would_fit(least, sized, max_alpha(num_ids, least.config.distinguishing_hashes)))
    return least


def costs(config: ModelConfig, training: TrainConfig, memory: int | None, filled: float = 1.0) -> Sizes:
    """Parameters, memory and operations of a model."""
    return Sizes(
        config,
        training,
        memory,
        size := num_parameters(config),
        train_memory(config, training, size),
        serve_memory(config, size),
        operations(config, training, filled),
        filled,
    )


def _alphas(num_ids: int, given: dict[str, Any]) -> tuple[tuple[int, ...], int]:
    """The values of alpha to try, and the largest of them that may be taken if memory asks for it."""
    config = ModelConfig(num_ids=num_ids, **with_proportions(_hashed(given, given.get("alpha", max(ALPHAS)))))
    hashes, targets = config.distinguishing_hashes, config.num_target_ids
    if targets is not None and config.target_alpha is not None:
        check_sizes(targets, hashes, config.target_alpha)
        targets = None
    if "alpha" in given:
        for size in {num_ids, targets or num_ids}:
            check_sizes(size, hashes, config.alpha)
        return (config.alpha,), config.alpha
    most = min(max_alpha(size, hashes) for size in {num_ids, targets or num_ids})
    # If several hashes are asked for, there are no more tokens than names.
    least = max(given.get("num_hashes", 1), 2 if given.get("coherent") else 1)
    largest = min(most, max(least, num_ids // MIN_BUCKETS))
    return tuple(alpha for alpha in ALPHAS if least <= alpha <= largest) or (min(least, most),), most


def _hashed(given: dict[str, Any], alpha: int) -> dict[str, Any]:
    """The options with this alpha, and one hash where there is no hashing."""
    alone = {"num_hashes": 1} if alpha == 1 and not given.get("coherent") else {}
    return alone | given | {"alpha": alpha}


def _what_would_fit(least: Sizes, sized: Callable[[int, int], Sizes], most: int) -> str:
    """A message about the smallest sizes, which do not fit, and about options that would fit."""
    alpha, dim = least.config.alpha, least.config.dim
    ways = []
    if (larger := _smallest(lambda a: sized(a, dim).fits, alpha, most)) is not None:
        ways.append(f"--alpha {larger}")
    narrower = next((d for d in (*WIDER_DIMS, DIM, *NARROWER_DIMS) if d < dim and sized(alpha, d).fits), None)
    if narrower is not None:
        ways.append(f"--dim {narrower}")
    ways.append(f"--memory {math.ceil(least.needed / 1e8) / 10:.1f}GB")
    return (
        f"alpha={alpha}, dim={dim} take {shown_bytes(least.needed)} with {least.parameters:,} parameters, of "
        f"{shown_bytes(least.memory or 0)}; {' or '.join(ways)} would fit"
    )


def _smallest(fits: Callable[[int], bool], low: int, high: int) -> int | None:
    """The smallest number from low to high that fits. Every number above one that fits must fit as well."""
    if not fits(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return low


def _rate() -> float:
    return ACCELERATOR_RATE if torch.accelerator.is_available() else CORE_RATE * available_cores()


def _rounded(number: float) -> int:
    """A number with two digits that are not 0.

    >>> _rounded(1234.5), _rounded(7.2)
    (1200, 7)
    """
    return round(round(number, 1 - math.floor(math.log10(max(10, number)))))
