"""Products of float32 matrices in bfloat16, on CPUs with AMX instructions.

Factors are rounded to 8 bits of mantissa. Sums, weights, logits and the softmax stay in float32. On other CPUs and on
accelerators, nothing changes: oneDNN has such products only for AMX, not for AVX512-BF16.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def bf16_products() -> Iterator[None]:
    """Inside the block, oneDNN may compute products of float32 matrices in bfloat16.

    >>> with bf16_products():
    ...     torch.backends.mkldnn.matmul.fp32_precision
    'bf16'
    """
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before, matmul.fp32_precision = matmul.fp32_precision, "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before
