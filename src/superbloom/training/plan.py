"""Chooses the sizes of a model: alpha, m and d for a catalogue and a memory, and what they cost (docs/sizes.md).

Given options stay as they are, and the others are chosen. alpha starts where one softmax computes all tokens at ease. d
starts at the paper's value for a catalogue of this size. Then d is lowered, and after that alpha is raised, until
training fits. Memory is counted. Times are estimates from matrix products that are timed on this machine.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.table import Table

from superbloom.config import ModelConfig, TrainConfig
from superbloom.errors import InputError
from superbloom.hashing import check_sizes, max_alpha
from superbloom.training.costs import operations, output_weights, serve_memory, softmaxes_joined, train_memory
from superbloom.training.limits import machine_memory, num_parameters

UNITS = {"": 1} | {f"{k}{b}": f ** (i + 1) for f, b in ((1000, "b"), (1024, "ib")) for i, k in enumerate("kmgt")}
MAX_TOKENS = 200_000  # of the paper's largest full softmax, and of the largest in docs/training.md
DIMS = (768, 512, 384, 256, 192, 128, 96, 64, 48, 32)
# (at most this number of ids, start with this d): our default, then the paper's at 500K, 1M and 5.3M ids.
DIM_OF_IDS = ((200_000, 128), (1_000_000, 256), (5_000_000, 512), (math.inf, 768))
MIN_DIM = 128  # d is not lowered further while a larger alpha fits
# A training step reaches this share of the rate of large matrix products (docs/sizes.md).
SHARE_OF_PRODUCTS = 0.6
# Time of a head relative to fp32, for one query and for 64 (docs/search.md).
HEAD_TIMES = {"fp32": (1.0, 1.0), "bf16": (0.75, 0.70), "int8": (0.45, 0.42)}
SEARCH_SECONDS = (0.8e-3, 15.7e-3)  # for one query and for 64


@dataclass(frozen=True)
class Rates:
    """What a machine does per second."""

    products: float  # floating-point operations of large products
    reading: float  # bytes of a matrix that is multiplied with one vector
    narrow: float  # floating-point operations of the product of such a matrix with 64 vectors


@dataclass(frozen=True)
class Plan:
    """The sizes of a model, how it is trained, and what both cost. Memory is in bytes."""

    config: ModelConfig
    training: TrainConfig
    memory: int
    parameters: int
    train_memory: dict[str, int]
    serve_memory: dict[str, int]
    operations: dict[str, float]

    @property
    def needed(self) -> int:
        """Bytes for training, or for serving in fp32 if that takes more."""
        return max(sum(self.train_memory.values()), *self.serve_memory.values())

    def seconds_per_step(self, rates: Rates) -> float:
        return sum(self.operations.values()) / (SHARE_OF_PRODUCTS * rates.products)

    def seconds_per_query(self, rates: Rates) -> dict[str, tuple[float, float]]:
        """Seconds for one query and for 64 at once, for each precision of the head."""
        one = 4 * output_weights(self.config) / rates.reading
        many = 64 * 2 * output_weights(self.config) * softmaxes_joined(self.config) / rates.narrow
        layers = self.operations["layers"] / 3 / self.training.batch_size / rates.products
        return {
            name: (layers + a * one + SEARCH_SECONDS[0], 64 * layers + b * max(one, many) + SEARCH_SECONDS[1])
            for name, (a, b) in HEAD_TIMES.items()
        }

    def document(self, rates: Rates) -> dict[str, Any]:
        """The plan as plain numbers, ready for JSON."""
        return {
            "model": asdict(self.config),
            "parameters": self.parameters,
            "tokens": self.config.num_tokens,
            "memory": self.memory,
            "training_memory": self.train_memory | {"all": sum(self.train_memory.values())},
            "serving_memory": self.serve_memory,
            "operations_per_step": self.operations,
            "estimates": {
                "products_per_second": rates.products,
                "bytes_read_per_second": rates.reading,
                "products_with_64_vectors_per_second": rates.narrow,
                "seconds_per_step": self.seconds_per_step(rates),
                "seconds_per_query": {name: one for name, (one, _) in self.seconds_per_query(rates).items()},
                "seconds_per_64_queries": {name: many for name, (_, many) in self.seconds_per_query(rates).items()},
            },
        }


def plan(num_ids: int, memory: int | None, model: dict[str, Any], training: TrainConfig) -> Plan:
    """The first sizes that fit into memory. The options in `model` stay as they are."""
    if num_ids < 2:
        raise InputError(f"--ids {num_ids} given; 2 or more is allowed")
    memory = memory or machine_memory()
    if memory is None:
        raise InputError("the system does not say how much memory it has; give --memory, e.g. 16GB")
    base = ModelConfig(num_ids=num_ids, **_with_heads(model))
    hashes = base.distinguishing_hashes
    if "alpha" in model:
        check_sizes(num_ids, hashes, base.alpha)
    most = max_alpha(num_ids, hashes)
    first = min(most, max(base.alpha, -(-base.num_hashes * num_ids // MAX_TOKENS)))
    alphas = (base.alpha, base.alpha) if "alpha" in model else (first, most)
    start = next(dim for ids, dim in DIM_OF_IDS if num_ids <= ids)
    dims = (base.dim,) if "dim" in model else tuple(dim for dim in DIMS if dim <= start)

    def sized(alpha: int, dim: int) -> Plan:
        return costs(
            ModelConfig(num_ids=num_ids, **_with_heads(model | {"alpha": alpha, "dim": dim})), training, memory
        )

    for dim in dims:
        if dim >= MIN_DIM and _fits(found := sized(alphas[0], dim)):
            return found
    for dim in dims:
        if dim <= MIN_DIM or len(dims) == 1:
            alpha = _smallest(lambda alpha, dim=dim: _fits(sized(alpha, dim)), *alphas)  # type: ignore[misc]
            if alpha is not None:
                return sized(alpha, dim)
    raise InputError(_what_would_fit(sized(alphas[1], dims[-1]), sized, most))


def _what_would_fit(least: Plan, sized: Callable[[int, int], Plan], most: int) -> str:
    """A message about the smallest plan, which does not fit, and about options that would fit."""
    alpha, dim = least.config.alpha, least.config.dim
    ways = []
    if (larger := _smallest(lambda a: _fits(sized(a, dim)), alpha, most)) is not None:
        ways.append(f"--alpha {larger}")
    narrower = next((d for d in DIMS if d < dim and _fits(sized(alpha, d))), None)
    if narrower is not None:
        ways.append(f"--dim {narrower}")
    need = least.needed
    ways.append(f"--memory {math.ceil(need / 1e8) / 10:.1f}GB")
    return (
        f"alpha={alpha}, dim={dim} take {shown(need)} with {least.parameters:,} parameters, of {shown(least.memory)}; "
        f"{' or '.join(ways)} would fit"
    )


def _fits(plan: Plan) -> bool:
    return plan.needed <= plan.memory


def costs(config: ModelConfig, training: TrainConfig, memory: int) -> Plan:
    """Parameters, memory and operations of a model."""
    return Plan(
        config,
        training,
        memory,
        size := num_parameters(config),
        train_memory(config, training, size),
        serve_memory(config, size),
        operations(config, training),
    )


def measure() -> Rates:
    """Time matrix products on this machine for a few tenths of a second."""
    square, wide = torch.ones(512, 512), torch.ones(2**15, 512)
    one, many = torch.ones(512, 1), torch.ones(64, 512)
    return Rates(
        2 * 512**3 * _per_second(lambda: square @ square),
        4 * wide.numel() * _per_second(lambda: wide @ one),
        2 * 64 * wide.numel() * _per_second(lambda: many @ wide.T),
    )


def in_bytes(text: str) -> int:
    """The number of bytes in a text that people write.

    >>> in_bytes("16GB"), in_bytes("1.5 GiB"), in_bytes("1000")
    (16000000000, 1610612736, 1000)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?b?)", text.strip().lower(), re.ASCII)
    unit = found and (found[2] if found[2] in UNITS else {"b": ""}.get(found[2], found[2] + "b"))
    if found is None or unit not in UNITS or not (value := int(float(found[1]) * UNITS[unit])):
        raise InputError(f"memory {text!r} given; a number of bytes is allowed, or with a unit: 16GB, 16GiB, 500MB")
    return value


def shown(size: float) -> str:
    """A number of bytes as text.

    >>> shown(1_234_000_000), shown(56_000_000)
    ('1.2 GB', '56 MB')
    """
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"


def table(found: Plan, rates: Rates) -> Table:
    """The plan as a table."""
    config, training = found.config, found.training
    title = (
        f"{config.num_ids:,} ids, alpha={config.alpha}, m={config.num_hashes}, d={config.dim}, L={config.layers}: "
        f"{config.num_hashes} × {config.num_buckets:,} tokens"
    )
    shown_ = Table(title=title, title_justify="left", title_style="")
    shown_.add_column("")
    shown_.add_column("", justify="right")
    shown_.add_row("parameters", f"{found.parameters:,}", end_section=True)
    whole = sum(found.train_memory.values())
    shown_.add_row("memory for training", shown(whole), style="bold")
    for name, size in found.train_memory.items():
        shown_.add_row(f"  {name}", shown(size))
    shown_.add_section()
    for name, size in found.serve_memory.items():
        shown_.add_row(f"memory for serving, {name}", shown(size))
    shown_.add_section()
    step = found.seconds_per_step(rates)
    output = found.operations["output"] / sum(found.operations.values())
    shown_.add_row(
        f"a step of {training.batch_size} segments, estimate", f"{_seconds(step)}, {output:.0%} of it the output"
    )
    for name, (one, many) in found.seconds_per_query(rates).items():
        shown_.add_row(f"a query with {name}, and 64 at once, estimate", f"{_seconds(one)}, {_seconds(many)}")
    shown_.caption = (
        f"Times: this machine's products at {rates.products / 1e9:,.0f} GFLOP/s, a matrix read at "
        f"{rates.reading / 1e9:,.0f} GB/s, by shares measured elsewhere (docs/sizes.md)"
    )
    shown_.caption_justify = "left"
    return shown_


def _seconds(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:,.1f} s"
    return f"{1000 * seconds:,.0f} ms" if seconds >= 0.1 else f"{1000 * seconds:,.1f} ms"


def _with_heads(options: dict[str, Any]) -> dict[str, Any]:
    """The options with heads and ffn_dim in the paper's proportion to dim, unless they are given."""
    dim = options.get("dim")
    if type(dim) is not int or dim < 1:
        return options
    heads = next(h for h in range(max(4, dim // 64), 0, -1) if dim % h == 0)
    return {"heads": heads, "ffn_dim": 4 * dim} | options


def _smallest(fits: Callable[[int], bool], low: int, high: int) -> int | None:
    """The smallest number from low to high that fits. Every number above one that fits must fit as well."""
    if not fits(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return low


def _per_second(work: Callable[[], Any], seconds: float = 0.2) -> float:
    """Calls per second, by the fastest of several calls: other programs may slow down the rest."""
    best, end = math.inf, time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        work()
        best = min(best, time.perf_counter() - began)
    return 1 / best
