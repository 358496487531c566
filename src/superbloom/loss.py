"""Cross-entropy over tokens at the masked places (Sec. 2.4): full, or sampled for the baseline.

The full loss goes through the logits in pieces and computes the gradient of a piece while its logits are at hand, so
that they never take more than a budget and most are computed once. Both give gradients by the embedding table itself,
not by a part of it: no copy of that size is made and padded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

ROWS = 256  # of a piece, at least: with fewer, adding to the gradient of the weights costs more than computing it


def full_softmax_loss(
    y: Tensor, table: Tensor, bias: Tensor | None, targets: Tensor, tokens: int, budget_mb: int
) -> Tensor:
    """Sum of −log softmax(y·weightᵀ + bias)[target] over groups; no more than budget_mb of logits at a time.

    With a softmax per hash there are m groups, each over its own buckets; a joint softmax is one group over all.
    y (groups, q, d) and targets (groups, q); group g has rows g·tokens and on of table (rows, d) and bias (rows,).

    >>> y, table = torch.zeros(1, 3, 2), torch.zeros(9, 2)
    >>> round(full_softmax_loss(y, table, None, torch.tensor([[0, 1, 2]]), 8, 256).item() / 3, 4)   # log 8
    2.0794
    """
    return _FullSoftmax.apply(y, table, bias, targets, tokens, _logits(budget_mb))


class _FullSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, y: Tensor, table: Tensor, bias: Tensor | None, targets: Tensor, tokens: int, budget: int
    ) -> Tensor:
        groups, queries, _ = y.shape
        rows = min(queries, max(ROWS, budget // tokens))
        width = min(tokens, max(1, budget // max(1, rows)))
        y_grad, table_grad = torch.zeros_like(y), torch.zeros_like(table)
        bias_grad = None if bias is None else torch.zeros_like(bias)
        room = y.new_empty(rows * width, dtype=torch.promote_types(y.dtype, torch.float32))
        loss = room.new_zeros(())
        for g in range(groups):
            own = slice(g * tokens, (g + 1) * tokens)
            part = _Group(table[own], None if bias is None else bias[own], width, room)
            grads = table_grad[own], None if bias_grad is None else bias_grad[own]
            for start in range(0, queries, rows):
                piece = slice(start, start + rows)
                some, y_grad[g, piece] = part.loss_and_gradients(y[g, piece], targets[g, piece], *grads)
                loss += some
        ctx.save_for_backward(y_grad, table_grad, bias_grad)
        return loss

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        # In place: this is the only backward there is.
        return *(None if grad is None else grad.mul_(upstream[0]) for grad in ctx.saved_tensors), None, None, None


class _Group:
    """The softmax over weight (tokens, d), as many tokens at a time as fit into `room`, where logits are written."""

    def __init__(self, weight: Tensor, bias: Tensor | None, width: int, room: Tensor) -> None:
        self.weight, self.bias, self.room = weight, bias, room
        self.blocks = [slice(start, start + width) for start in range(0, len(weight), width)]

    def logits(self, y: Tensor, block: slice) -> Tensor:
        weight = self.weight[block]
        out = self.room[: len(y) * len(weight)].view(len(y), len(weight))
        if _plain(y, out):
            torch.mm(y, weight.T, out=out)  # memory that is new to the process costs a third more time
        else:
            out.copy_(y @ weight.T)
        return out if self.bias is None else out.add_(self.bias[block])

    def loss_and_gradients(
        self, y: Tensor, target: Tensor, weight_grad: Tensor, bias_grad: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The loss of y (q, d), and its gradient by y; those by weight and bias are added to what is given."""
        highest = self.room.new_full((len(y), 1), -torch.inf)
        normaliser = torch.zeros_like(highest)
        for block in self.blocks:
            exponentials = self.logits(y, block)
            above = torch.maximum(exponentials.amax(dim=1, keepdim=True), highest)
            total = exponentials.sub_(above).exp_().sum(dim=1, keepdim=True)
            normaliser = total + normaliser * (highest - above).exp()
            highest = above
        true = self.weight[target]
        right = (y * true).sum(dim=1, keepdim=True) + (0 if self.bias is None else self.bias[target, None])
        loss = (highest + normaliser.log() - right).sum()
        # The gradient by the logits is softmax − one-hot; what divides the softmax divides y instead, which is smaller.
        scaled, y_grad = (y / normaliser).to(y.dtype), torch.zeros_like(normaliser.expand_as(y))
        for block in reversed(self.blocks):
            if block is not self.blocks[-1]:  # the last one's are still at hand
                exponentials = self.logits(y, block).sub_(highest).exp_()
            slope = exponentials.to(y.dtype)
            y_grad += slope @ self.weight[block]
            if _plain(slope, weight_grad):
                weight_grad[block].addmm_(slope.T, scaled)
            else:
                weight_grad[block] += slope.T @ scaled
            if bias_grad is not None:
                bias_grad[block] += (exponentials.T @ normaliser.reciprocal()).squeeze(1)
        weight_grad.index_add_(0, target, -y.to(weight_grad.dtype))
        if bias_grad is not None:
            bias_grad.index_add_(0, target, torch.full_like(target, -1, dtype=bias_grad.dtype))
        return loss, (y_grad / normaliser - true).to(y.dtype)


def _plain(one: Tensor, other: Tensor) -> bool:
    """Whether products may be written in place: of one type, and none that autocast would choose another for."""
    return one.dtype == other.dtype and not torch.is_autocast_enabled(one.device.type)


def sampled_softmax_loss(
    y: Tensor,
    table: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    sampler: Sampler,
    budget_mb: int,
    seed: int,
    sparse: bool = False,
) -> Tensor:
    """The loss of y (q, d) against `sampler.samples` random negatives instead of all tokens (bengio:03, bengio:08).

    The logit of a negative is lowered by the log of how often it is expected among the samples (logQ), and a
    negative that happens to be the target is removed: what is summed then estimates the full normaliser without
    bias. The target itself is always there, so its logit stays as it is. With sparse, the gradient by the table holds
    the rows of targets and negatives alone.
    """
    rows = max(1, _logits(budget_mb) // sampler.samples)
    negatives, log_q = sampler.draw(seed, table.device)
    weight, true = (F.embedding(chosen, table, sparse=sparse) for chosen in (negatives, targets))
    offset = -log_q if bias is None else bias[negatives] - log_q
    own = torch.zeros_like(targets, dtype=y.dtype) if bias is None else bias[targets]
    loss = y.new_zeros(())
    for start in range(0, len(y), rows):
        some = slice(start, start + rows)
        arguments = (y[some], weight, offset, negatives, true[some], own[some], targets[some])
        loss = loss + checkpoint(_sampled_piece, *arguments, use_reentrant=False)
    return loss


def _sampled_piece(
    y: Tensor, weight: Tensor, offset: Tensor, negatives: Tensor, true: Tensor, own: Tensor, targets: Tensor
) -> Tensor:
    against = (y @ weight.T + offset).masked_fill(negatives == targets[:, None], -torch.inf)
    right = (y * true).sum(dim=-1) + own
    total = torch.logsumexp(torch.cat([right[:, None], against], dim=1).float(), dim=1)
    return (total - right).sum()


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


def _logits(budget_mb: int) -> int:
    """How many 4-byte logits fit."""
    return budget_mb * 2**20 // 4
