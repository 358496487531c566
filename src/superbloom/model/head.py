"""The output layer for serving (Sec. 2.3), with weights in fp32, bf16 or int8.

    y (q, m, d)  →  log-probabilities (q, m, buckets)

At five million ids and d=768, one query reads 650 MB of fp32 weights, and this takes most of the time. bf16 and int8
read a half or a quarter of the bytes, with almost the same ranking: docs/search.md has the measurements.
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
BF16_ROWS_AT_ONCE = 1024  # rows of bf16 weights widened together: they stay in the cache until they are used
# Positive levels of int8 inputs: with 127, the sum of two products may overflow 16 bits on processors without VNNI.
INT8_INPUT_LEVELS = 63


class Head:
    """The output layer of a network in one precision.

    >>> from superbloom.config import ModelConfig
    >>> head = Head(Network(ModelConfig(num_ids=100, alpha=4)), "bf16")
    >>> head.log_probs(torch.zeros(3, 2, 128)).exp().sum(-1).shape      # 3 positions, 2 hashes
    torch.Size([3, 2])
    """

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
        """log p_j over the buckets of each hash, (q, m, buckets), from y (q, m, d)."""
        if not self._products:
            return self.network.log_probs(y)
        if self.network.config.softmax == "joint":
            logits = self._products[0](y.flatten(0, 1)).unflatten(0, y.shape[:2])
        else:
            logits = torch.stack([product(y[:, j]) for j, product in enumerate(self._products)], dim=1)
        return self.network.normalise(logits)


def _bf16(weight: Tensor) -> Product:
    """x · weightᵀ (q, rows) with bf16 weights, widened a few rows at a time and summed in fp32.

    subtle: torch's own bf16 product rounds results to three digits, and differently from batch to batch. An answer
    would depend on the other queries of its batch.
    """
    narrow = weight.bfloat16()

    def product(x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            return F.linear(x.bfloat16(), narrow).float()
        out, wide = x.new_empty(len(narrow), len(x)), x.T.contiguous()
        for start in range(0, len(narrow), BF16_ROWS_AT_ONCE):
            rows = slice(start, start + BF16_ROWS_AT_ONCE)
            torch.mm(narrow[rows].float(), wide, out=out[rows])
        return out.T.contiguous()

    return product


def _int8(weight: Tensor) -> Product:
    """x · weightᵀ (q, rows) in whole numbers, with a scale for each row of x and weight: the same in any batch."""
    scale = (weight.abs().amax(dim=1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
    zeros = torch.zeros(len(weight), dtype=torch.long)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch recommends a successor, but on a CPU it is slower than fp32
            rounded = torch.quantize_per_channel(weight, scale.double(), zeros, axis=0, dtype=torch.qint8)
            packed = torch.ops.quantized.linear_prepack(rounded, None)
            multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
            multiply(weight[:1], 1.0, INT8_INPUT_LEVELS + 1, packed)
    except (RuntimeError, AttributeError) as error:
        reason = str(error).splitlines()[0][:120]
        raise InputError(f"precision='int8' is not available here ({reason}); choose 'bf16' or 'fp32'") from None

    def product(x: Tensor) -> Tensor:
        size = x.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
        return multiply(x / size, 1 / INT8_INPUT_LEVELS, INT8_INPUT_LEVELS + 1, packed) * size

    return product


BYTES_PER_WEIGHT = {"fp32": 4, "bf16": 2, "int8": 1}
# The product of each precision; for fp32, the network's own is used.
PRODUCTS: dict[str, Callable[[Tensor], Product] | None] = {
    "fp32": None,
    "bf16": _bf16,
    "int8": _int8,
}
