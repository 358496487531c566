"""Cross-entropy over tokens at the masked places (Sec. 2.4): full, or sampled for the baseline.

    y (groups, q, d), weight (groups, tokens, d), bias (groups, tokens), targets (groups, q)  →  summed loss

With a softmax per hash there are m groups, each over its own buckets; a joint softmax is one group over all.
The full loss goes through y in pieces and computes the gradient of a piece while its logits are at hand, so
that logits never take more than a budget and are computed once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def full_softmax_loss(y: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, budget_mb: int) -> Tensor:
    """Sum of −log softmax(y·weightᵀ + bias)[target]; no more than budget_mb of logits at a time.

    >>> y, weight = torch.zeros(1, 3, 2), torch.zeros(1, 8, 2)
    >>> round(full_softmax_loss(y, weight, None, torch.tensor([[0, 1, 2]]), 256).item() / 3, 4)   # log 8
    2.0794
    """
    return _FullSoftmax.apply(y, weight, bias, targets, _rows(weight.shape[1], budget_mb))


class _FullSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, rows: int) -> Tensor:
        loss = torch.zeros((), dtype=torch.promote_types(y.dtype, torch.float32), device=y.device)
        y_grad, weight_grad = torch.zeros_like(y), torch.zeros_like(weight)
        bias_grad = None if bias is None else torch.zeros_like(bias)
        for g in range(len(y)):
            for start in range(0, y.shape[1], rows):
                piece, target = y[g, start : start + rows], targets[g, start : start + rows, None]
                logits = (piece @ weight[g].T).to(loss.dtype)
                if bias is not None:
                    logits += bias[g]
                logits -= logits.amax(dim=1, keepdim=True)
                loss -= logits.gather(1, target).sum()
                normaliser = logits.exp_().sum(dim=1, keepdim=True)
                loss += normaliser.log().sum()
                # The gradient by the logits is softmax − one-hot, written over them.
                logits /= normaliser
                logits.scatter_add_(1, target, torch.full_like(target, -1, dtype=logits.dtype))
                slope = logits.to(y.dtype)
                y_grad[g, start : start + rows] = slope @ weight[g]
                weight_grad[g] += slope.T @ piece
                if bias_grad is not None:
                    bias_grad[g] += logits.sum(dim=0)
        ctx.save_for_backward(y_grad, weight_grad, bias_grad)
        return loss

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        scale = upstream[0]
        return *(None if grad is None else grad * scale for grad in ctx.saved_tensors), None, None


def sampled_softmax_loss(
    y: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, sampler: Sampler, budget_mb: int, seed: int
) -> Tensor:
    """The same loss against `sampler.samples` random negatives instead of all tokens (bengio:03, bengio:08).

    The logit of a negative is lowered by the log of how often it is expected among the samples (logQ), and a
    negative that happens to be the target is removed: what is summed then estimates the full normaliser without
    bias. The target itself is always there, so its logit stays as it is.
    """
    rows = _rows(sampler.samples, budget_mb)
    loss = y.new_zeros(())
    for g in range(len(y)):
        negatives, log_q = sampler.draw(seed + g, weight.device)
        for start in range(0, y.shape[1], rows):
            piece, target = y[g, start : start + rows], targets[g, start : start + rows]
            group_bias = None if bias is None else bias[g]
            arguments = (piece, weight[g], group_bias, target, negatives, log_q)
            loss = loss + checkpoint(_sampled_piece, *arguments, use_reentrant=False)
    return loss


def _sampled_piece(
    y: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, negatives: Tensor, log_q: Tensor
) -> Tensor:
    against = y @ weight[negatives].T - log_q
    true = (y * weight[target]).sum(dim=-1)
    if bias is not None:
        against, true = against + bias[negatives], true + bias[target]
    against = against.masked_fill(negatives == target[:, None], -torch.inf)
    total = torch.logsumexp(torch.cat([true[:, None], against], dim=1).float(), dim=1)
    return (total - true).sum()


class Sampler:
    """A proposal distribution over tokens; seeded by the caller, so that a step can be repeated.

    log-uniform: P = log((r + 2) / (r + 1)) / log(tokens + 1) for the r-th most frequent token, Zipf's law.
    empirical: proportional to (count + 1) ** 0.75, as word2vec does.
    """

    def __init__(self, proposal: str, counts: np.ndarray, samples: int) -> None:
        tokens = len(counts)
        rank = np.empty(tokens)
        rank[np.argsort(-counts, kind="stable")] = np.arange(tokens)
        weights = {"log-uniform": np.log1p(1 / (rank + 1)), "empirical": (counts + 1.0) ** 0.75}[proposal]
        self.samples = min(samples, tokens)
        self._cumulative = torch.from_numpy(np.cumsum(weights / weights.sum()))
        # Drawn with replacement: a token is expected samples · P(t) times.
        self._log_q = torch.from_numpy(np.log(self.samples * weights / weights.sum())).float()

    def draw(self, seed: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Sampled tokens (samples,) and the logs of their expected counts (samples,)."""
        uniform = torch.rand(self.samples, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        tokens = torch.searchsorted(self._cumulative, uniform).clamp(max=len(self._cumulative) - 1)
        return tokens.to(device), self._log_q[tokens].to(device)


def _rows(tokens: int, budget_mb: int) -> int:
    """How many rows of 4-byte logits fit; two such pieces exist at a time."""
    return max(1, budget_mb * 2**20 // (4 * tokens * 2))
