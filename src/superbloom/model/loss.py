"""Cross-entropy over tokens at the masked places (Sec. 2.4): full, or sampled for the baseline.

Both go through the logits in pieces and compute the gradient of a piece while its logits are at hand, so that they
never take more than a budget and most are computed once. Gradients are by the embedding table itself, not by a part of
it: no copy of that size is made and padded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

# Rows (queries) of a piece of logits, at least: with fewer, adding to the gradient of the weights takes longer than
# computing it.
MIN_PIECE_ROWS = 256


def piece_shape(queries: int, tokens: int, budget_mb: int) -> tuple[int, int]:
    """Rows and tokens of the largest piece of logits (queries, tokens) that the loss holds at a time.

    >>> piece_shape(queries=5000, tokens=8000, budget_mb=64)    # 2 ** 24 logits: all tokens of 2,097 queries
    (2097, 8000)
    >>> piece_shape(queries=5000, tokens=1_000_000, budget_mb=64)
    (256, 65536)
    """
    budget = _logits_in(budget_mb)
    rows = min(queries, max(MIN_PIECE_ROWS, budget // tokens))
    return rows, min(tokens, max(1, budget // max(1, rows)))


def _logits_in(megabytes: int) -> int:
    """The number of 4-byte logits that fit."""
    return megabytes * 2**20 // 4


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
    return _FullSoftmax.apply(y, table, bias, targets, tokens, budget_mb)


class _FullSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, y: Tensor, table: Tensor, bias: Tensor | None, targets: Tensor, tokens: int, budget_mb: int
    ) -> Tensor:
        groups, queries, _ = y.shape
        rows, width = piece_shape(queries, tokens, budget_mb)
        room = _room(y, rows, width)
        y_grad, table_grad = torch.zeros_like(y), torch.zeros_like(table)
        bias_grad = None if bias is None else torch.zeros_like(bias)
        loss = room.new_zeros(())
        for g in range(groups):
            own = slice(g * tokens, (g + 1) * tokens)
            weight, weight_grad = table[own], table_grad[own]
            group_bias, group_bias_grad = (None if part is None else part[own] for part in (bias, bias_grad))
            group = _Group(weight, group_bias, room)
            for start in range(0, queries, rows):
                some, target = y[g, start : start + rows], targets[g, start : start + rows]
                highest = room.new_full((len(some), 1), -torch.inf)
                highest, normaliser = group.normaliser(some, target, highest, torch.zeros_like(highest))
                true = weight[target]
                right = (some * true).sum(dim=1, keepdim=True)
                loss += (highest + normaliser.log() - right).sum()
                slope = group.gradients(some, target, highest, normaliser, weight_grad, group_bias_grad)
                # The gradient by the logits is softmax − one-hot.
                y_grad[g, start : start + rows] = slope - true
                weight_grad.index_add_(0, target, -some.to(weight.dtype))
                if group_bias is not None and group_bias_grad is not None:
                    loss -= group_bias[target].sum()
                    group_bias_grad.index_add_(0, target, -torch.ones_like(target, dtype=group_bias.dtype))
        ctx.save_for_backward(y_grad, table_grad, bias_grad)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        return *_scaled(ctx.saved_tensors, upstream[0]), None, None, None


class _Group:
    """A softmax over weight (tokens, d), as many tokens at a time as fit into `room`, where logits are written.

    names, if given, tell which token each row stands for; a query whose target it is does not see that row.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, room: Tensor, names: Tensor | None = None) -> None:
        self.weight, self.bias, self.room, self.names = weight, bias, room, names
        self.blocks = [slice(start, start + room.shape[1]) for start in range(0, len(weight), room.shape[1])]

    def logits(self, y: Tensor, target: Tensor, block: slice) -> Tensor:
        weight = self.weight[block]
        out = self.room.view(-1)[: len(y) * len(weight)].view(len(y), len(weight))
        if _plain(y, out):
            torch.mm(y, weight.T, out=out)  # memory that is new to the process costs a third more time
        else:
            out.copy_(y @ weight.T)
        if self.bias is not None:
            out += self.bias[block]
        return out if self.names is None else out.masked_fill_(self.names[block] == target[:, None], -torch.inf)

    def normaliser(self, y: Tensor, target: Tensor, highest: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        """The highest logit of each query and Σ exp(logit − highest), beyond what is given; (q, 1) each."""
        for block in self.blocks:
            self.exponentials = self.logits(y, target, block)
            above = torch.maximum(self.exponentials.amax(dim=1, keepdim=True), highest)
            sums = self.exponentials.sub_(above).exp_().sum(dim=1, keepdim=True)
            highest, total = above, sums + total * (highest - above).exp()
        return highest, total

    def gradients(
        self,
        y: Tensor,
        target: Tensor,
        highest: Tensor,
        normaliser: Tensor,
        weight_grad: Tensor,
        bias_grad: Tensor | None,
    ) -> Tensor:
        """softmax · weight (q, d); softmaxᵀ · y is added to weight_grad, and its column sums to bias_grad."""
        # What divides the softmax divides y instead, which is smaller.
        scaled, y_grad = (y / normaliser).to(y.dtype), torch.zeros_like(normaliser.expand_as(y))
        for block in reversed(self.blocks):
            if block is not self.blocks[-1]:  # the last one's are still at hand
                self.exponentials = self.logits(y, target, block).sub_(highest).exp_()
            slope = self.exponentials.to(y.dtype)
            y_grad += slope @ self.weight[block]
            if _plain(slope, weight_grad):
                weight_grad[block].addmm_(slope.T, scaled)
            else:
                weight_grad[block] += slope.T @ scaled
            if bias_grad is not None:
                bias_grad[block] += (self.exponentials.T @ normaliser.reciprocal()).squeeze(1)
        return y_grad / normaliser


def _room(y: Tensor, rows: int, width: int) -> Tensor:
    """Memory for the logits of a piece, in float32 or wider."""
    return y.new_empty(rows, width, dtype=torch.promote_types(y.dtype, torch.float32))


def _plain(one: Tensor, other: Tensor) -> bool:
    """Whether products may be written in place: of one type, and none that autocast would choose another for."""
    return one.dtype == other.dtype and not torch.is_autocast_enabled(one.device.type)


def _scaled(grads: tuple[Tensor | None, ...], upstream: Tensor) -> Iterator[Tensor | None]:
    """In place: there is one backward for each forward."""
    return (None if grad is None else grad.mul_(upstream) for grad in grads)


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
    negatives, log_q = sampler.draw(seed, table.device)
    weight, true = (F.embedding(chosen, table, sparse=sparse) for chosen in (negatives, targets))
    offset = -log_q if bias is None else bias[negatives] - log_q
    own = torch.zeros_like(targets, dtype=table.dtype) if bias is None else bias[targets]
    return _SampledSoftmax.apply(y, weight, offset, true, own, negatives, targets, budget_mb)


class _SampledSoftmax(torch.autograd.Function):
    """Against negatives weight (samples, d) with offset (samples,); targets are true (q, d) with own (q,)."""

    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        weight: Tensor,
        offset: Tensor,
        true: Tensor,
        own: Tensor,
        negatives: Tensor,
        targets: Tensor,
        budget_mb: int,
    ) -> Tensor:
        rows, width = piece_shape(len(y), len(weight), budget_mb)
        room = _room(y, rows, width)
        group = _Group(weight, offset, room, negatives)
        grads = [torch.zeros_like(part) for part in (y, weight, offset, true, own)]
        y_grad, weight_grad, offset_grad, true_grad, own_grad = grads
        loss = room.new_zeros(())
        for start in range(0, len(y), rows):
            piece = slice(start, start + rows)
            some, target = y[piece], targets[piece]
            right = (some * true[piece]).sum(dim=1, keepdim=True).to(room.dtype) + own[piece, None]
            highest, normaliser = group.normaliser(some, target, right, torch.ones_like(right))
            loss += (highest + normaliser.log() - right).sum()
            slope = (right - highest).exp() / normaliser - 1  # by the target's own logit
            y_grad[piece] = group.gradients(some, target, highest, normaliser, weight_grad, offset_grad)
            y_grad[piece] += slope * true[piece]
            true_grad[piece] = slope * some
            own_grad[piece] = slope.squeeze(1)
        ctx.save_for_backward(*grads)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        return *_scaled(ctx.saved_tensors, upstream[0]), None, None, None


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
