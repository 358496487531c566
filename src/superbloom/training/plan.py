"""The report of `superbloom plan`: what the chosen sizes cost on this machine, in memory and time (docs/sizes.md).

choice.py chooses. Memory is counted. Times are estimates from matrix products that are timed on this machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich import box
from rich.table import Table

from superbloom.training.choice import USEFUL_STEPS, Sizes
from superbloom.training.costs import output_weights, softmaxes_joined
from superbloom.training.units import shown_bytes

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


def measure() -> Rates:
    """Time matrix products on this machine for a few tenths of a second."""
    square, wide = torch.ones(512, 512), torch.ones(2**15, 512)
    one, many = torch.ones(512, 1), torch.ones(64, 512)
    return Rates(
        2 * 512**3 * _per_second(lambda: square @ square),
        4 * wide.numel() * _per_second(lambda: wide @ one),
        2 * 64 * wide.numel() * _per_second(lambda: many @ wide.T),
    )


def seconds_per_step(sizes: Sizes, rates: Rates) -> float:
    return sum(sizes.operations.values()) / (SHARE_OF_PRODUCTS * rates.products)


def seconds_per_query(sizes: Sizes, rates: Rates) -> dict[str, tuple[float, float]]:
    """Seconds for one query and for 64 at once, for each precision of the head."""
    one = 4 * output_weights(sizes.config) / rates.reading
    many = 64 * 2 * output_weights(sizes.config) * softmaxes_joined(sizes.config) / rates.narrow
    layers = sizes.operations["layers"] / 3 / sizes.training.batch_size / rates.products
    return {
        name: (layers + a * one + SEARCH_SECONDS[0], 64 * layers + b * max(one, many) + SEARCH_SECONDS[1])
        for name, (a, b) in HEAD_TIMES.items()
    }


def document(sizes: Sizes, rates: Rates) -> dict[str, Any]:
    """The sizes and their costs as plain numbers, ready for JSON."""
    step, queries = seconds_per_step(sizes, rates), seconds_per_query(sizes, rates)
    return {
        "model": asdict(sizes.config),
        "reason": sizes.reason,
        "hashed": sizes.is_hashed,
        "parameters": sizes.parameters,
        "tokens": sizes.config.num_tokens,
        "memory": sizes.memory,
        "training_memory": sizes.train_memory | {"all": sum(sizes.train_memory.values())},
        "serving_memory": sizes.serve_memory,
        "operations_per_step": sizes.operations,
        "minutes": sizes.minutes,
        "estimates": {
            "products_per_second": rates.products,
            "bytes_read_per_second": rates.reading,
            "products_with_64_vectors_per_second": rates.narrow,
            "seconds_per_step": step,
            "steps_per_minute": 60 / step,
            "minutes_to_a_useful_model": USEFUL_STEPS * step / 60,
            "seconds_per_query": {name: one for name, (one, _) in queries.items()},
            "seconds_per_64_queries": {name: many for name, (_, many) in queries.items()},
        },
    }


def table(sizes: Sizes, rates: Rates) -> Table:
    """The same as a table that fits 80 columns."""
    config, training, minutes = sizes.config, sizes.training, sizes.minutes
    hashing = f"{config.num_hashes} × {config.num_buckets:,} tokens" if sizes.is_hashed else "You do not need hashing"
    title = (
        f"{config.num_ids:,} ids, alpha={config.alpha}, m={config.num_hashes}, d={config.dim}, L={config.layers}.\n"
        f"{hashing}."
    )
    shown = Table(title=title, title_justify="left", title_style="", box=box.SIMPLE, pad_edge=False, show_header=False)
    shown.add_column("")
    shown.add_column("", justify="right")
    step = seconds_per_step(sizes, rates)
    output = sizes.operations["output"] / sum(sizes.operations.values())
    shown.add_row(f"a step of {training.batch_size} segments", f"{_seconds(step)}, {output:.0%} of it the output")
    shown.add_row("steps per minute", f"{60 / step:,.0f}" if step < 20 else f"{60 / step:,.1f}")
    shown.add_row(f"steps in {minutes:g} minutes", f"{60 * minutes / step:,.0f}")
    shown.add_row(f"to a first useful network, {USEFUL_STEPS} steps", _seconds(USEFUL_STEPS * step), end_section=True)
    shown.add_row("parameters", f"{sizes.parameters:,}", end_section=True)
    shown.add_row("memory for training", shown_bytes(sum(sizes.train_memory.values())), style="bold")
    for name, size in sizes.train_memory.items():
        shown.add_row(f"  {name}", shown_bytes(size))
    shown.add_section()
    for name, size in sizes.serve_memory.items():
        shown.add_row(f"memory for serving, {name}", shown_bytes(size))
    shown.add_section()
    for name, (one, many) in seconds_per_query(sizes, rates).items():
        shown.add_row(f"a query with {name}, and 64 at once", f"{_seconds(one)}, {_seconds(many)}")
    shown.caption = (
        f"Times are estimates: products at {rates.products / 1e9:,.0f} GFLOP/s and a matrix read at "
        f"{rates.reading / 1e9:,.0f} GB/s were measured now (docs/sizes.md)."
    )
    shown.caption_justify = "left"
    return shown


def _seconds(seconds: float) -> str:
    if seconds >= 120:
        return f"{seconds / 60:,.0f} minutes" if seconds < 7200 else f"{seconds / 3600:,.1f} hours"
    if seconds >= 1:
        return f"{seconds:,.1f} s"
    return f"{1000 * seconds:,.0f} ms" if seconds >= 0.1 else f"{1000 * seconds:,.1f} ms"


def _per_second(work: Callable[[], Any], seconds: float = 0.2) -> float:
    """Calls per second, by the fastest of several calls: other programs may slow down the rest."""
    best, end = math.inf, time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        work()
        best = min(best, time.perf_counter() - began)
    return 1 / best
