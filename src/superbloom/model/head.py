"""The output layer for serving: token log-probabilities from weights held in fp32, bf16 or int8.

At five million ids one query reads 650 MB of fp32 weights, and little else takes time. Half or a quarter of the
bytes, on a CPU, at close to the same ranking; docs/search.md has the measurements.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from superbloom.errors import InputError
from superbloom.model.network import Network

Product = Callable[[Tensor], Tensor]  # x (q, d) → x · weightᵀ (q, rows)
CHUNK = 1024  # rows of bf16 weights widened together: they stay in the cache until they are used
LEVELS = 63  # of int8 inputs: with 127 the sums of two products may overflow 16 bits on processors without VNNI


class Head:
    """log p_j over the buckets of each hash, (q, m, buckets), from y (q, m, d)."""

    def __init__(self, network: Network, precision: str = "fp32") -> None:
        if precision not in PRODUCTS:
            raise InputError(f"precision={precision!r} given; {', '.join(PRODUCTS)} are allowed")
        self.network, self.precision = network, precision
        weight, _ = network.output_layer()  # (m, buckets, d)
        groups = [weight.flatten(0, 1)] if network.config.softmax == "joint" else list(weight)
        make = PRODUCTS[precision]
        self._products = [] if make is None else [make(group.detach()) for group in groups]

    @torch.inference_mode()
    def log_probs(self, y: Tensor) -> Tensor:
        if not self._products:
            return self.network.log_probs(y)
        if self.network.config.softmax == "joint":
            logits = self._products[0](y.flatten(0, 1)).unflatten(0, y.shape[:2])
        else:
            logits = torch.stack([product(y[:, j]) for j, product in enumerate(self._products)], dim=1)
        return self.network.normalise(logits)


def _bf16(weight: Tensor) -> Product:
    """x · weightᵀ (q, rows) of weights held in bf16, widened a few rows at a time and summed in fp32.

    subtle: a product of torch in bf16 rounds its results to three digits, differently from batch to batch, so that
    an answer would depend on what else is asked.
    """
    narrow = weight.bfloat16()

    def product(x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            return F.linear(x.bfloat16(), narrow).float()
        out, wide = x.new_empty(len(narrow), len(x)), x.T.contiguous()
        for start in range(0, len(narrow), CHUNK):
            torch.mm(narrow[start : start + CHUNK].float(), wide, out=out[start : start + CHUNK])
        return out.T.contiguous()

    return product


def _int8(weight: Tensor) -> Product:
    """x · weightᵀ (q, rows) in whole numbers, with a scale for each row of both: the same in any batch."""
    scale = (weight.abs().amax(dim=1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
    zeros = torch.zeros(len(weight), dtype=torch.long)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch names a successor, which is slower than fp32 on a CPU
            rounded = torch.quantize_per_channel(weight, scale.double(), zeros, axis=0, dtype=torch.qint8)
            packed = torch.ops.quantized.linear_prepack(rounded, None)
            multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
            multiply(weight[:1], 1.0, LEVELS + 1, packed)
    except (RuntimeError, AttributeError) as error:
        reason = str(error).splitlines()[0][:120]
        raise InputError(f"precision='int8' is not to be had here ({reason}); choose 'bf16' or 'fp32'") from None

    def product(x: Tensor) -> Tensor:
        size = x.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
        return multiply(x / size, 1 / LEVELS, LEVELS + 1, packed) * size

    return product


# How to multiply with weights held in each precision; fp32 is what the network itself does.
PRODUCTS: dict[str, Callable[[Tensor], Product] | None] = {
    "fp32": None,
    "bf16": _bf16,
    "int8": _int8,
}
