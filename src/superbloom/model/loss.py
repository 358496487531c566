"""Cross-entropy over tokens at the masked positions (Sec. 2.4): full softmax, or sampled softmax for the baseline.

    y (groups, q, d), table (rows, d), targets (groups, q)  →  the summed loss, a scalar

Both compute logits in pieces, and the gradient of a piece while its logits are in memory. So logits never exceed a
memory budget, and most are computed once. Gradients refer to the whole embedding table: the gradient of a part would
have to be copied and padded to the size of the table.
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
    """Sum of −log softmax(y·weightᵀ + bias)[target] over groups, with at most budget_mb of logits at a time.

    A softmax per hash has m groups, each over its own buckets; a joint softmax has one group over all buckets.
    y (groups, q, d) and targets (groups, q). Group g uses rows g·tokens … (g+1)·tokens − 1 of table (rows, d) and
    bias (rows,).

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
                # The gradient of the logits is softmax − one-hot.
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
    """A softmax over weight (tokens, d). Logits are written to `room`; its width is the number of tokens at a time.

    negatives: the token of each row, for sampled rows; a query does not see rows of its own target.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, room: Tensor, negatives: Tensor | None = None) -> None:
        self.weight, self.bias, self.room, self.negatives = weight, bias, room, negatives
        self.blocks = [slice(start, start + room.shape[1]) for start in range(0, len(weight), room.shape[1])]

    def logits(self, y: Tensor, target: Tensor, block: slice) -> Tensor:
        weight = self.weight[block]
        out = self.room.view(-1)[: len(y) * len(weight)].view(len(y), len(weight))
        if _is_writable_in_place(y, out):
            torch.mm(y, weight.T, out=out)  # fresh memory would cost a third more time
        else:
            out.copy_(y @ weight.T)
        if self.bias is not None:
            out += self.bias[block]
        if self.negatives is not None:
            out.masked_fill_(self.negatives[block] == target[:, None], -torch.inf)
        return out

    def normaliser(self, y: Tensor, target: Tensor, highest: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        """The highest logit of each query and Σ exp(logit − highest), (q, 1) each, starting from the given values."""
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
        # Divide y by the normaliser instead of the softmax: y is smaller.
        scaled, y_grad = (y / normaliser).to(y.dtype), torch.zeros_like(normaliser.expand_as(y))
        for block in reversed(self.blocks):
            if block is not self.blocks[-1]:  # those of the last block are still in memory
                self.exponentials = self.logits(y, target, block).sub_(highest).exp_()
            slope = self.exponentials.to(y.dtype)
            y_grad += slope @ self.weight[block]
            if _is_writable_in_place(slope, weight_grad):
                weight_grad[block].addmm_(slope.T, scaled)
            else:
                weight_grad[block] += slope.T @ scaled
            if bias_grad is not None:
                bias_grad[block] += (self.exponentials.T @ normaliser.reciprocal()).squeeze(1)
        return y_grad / normaliser


def _room(y: Tensor, rows: int, width: int) -> Tensor:
    """Memory for the logits of a piece, in float32 or wider."""
    return y.new_empty(rows, width, dtype=torch.promote_types(y.dtype, torch.float32))


def _is_writable_in_place(factor: Tensor, out: Tensor) -> bool:
    """Whether a product of `factor` may be written to `out`: the types are equal, and autocast changes none."""
    return factor.dtype == out.dtype and not torch.is_autocast_enabled(factor.device.type)


def _scaled(grads: tuple[Tensor | None, ...], upstream: Tensor) -> Iterator[Tensor | None]:
    """Gradients times upstream, in place: there is only one backward for each forward."""
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

    The logit of a negative is lowered by the log of its expected count among the samples (logQ), unless the sampler
    leaves that out. A negative that equals the target is removed. The sum then estimates the full normaliser without
    bias. The target is always included, so its logit is not changed. With sparse, the gradient of the table holds only
    the rows of targets and negatives.
    """
    negatives, log_q = sampler.draw(seed, table.device)
    weight, true = (F.embedding(chosen, table, sparse=sparse) for chosen in (negatives, targets))
    offset = -log_q if bias is None else bias[negatives] - log_q
    own = torch.zeros_like(targets, dtype=table.dtype) if bias is None else bias[targets]
    return _SampledSoftmax.apply(y, weight, offset, true, own, negatives, targets, budget_mb)


class _SampledSoftmax(torch.autograd.Function):
    """Negatives have weight (samples, d) and offset (samples,); targets have true (q, d) and own (q,)."""

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
            slope = (right - highest).exp() / normaliser - 1  # gradient of the target's own logit
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
    """A proposal distribution over tokens. The caller gives the seed, so that a step can be repeated.

    log-uniform: P = log((r + 2) / (r + 1)) / log(tokens + 1) for the r-th most frequent token, Zipf's law.
    empirical: P is proportional to (count + 1) ** 0.75, as in word2vec.
    Without log_q, expected counts are 1, so that the loss does not correct for the proposal.
    """

    def __init__(self, proposal: str, counts: np.ndarray, samples: int, log_q: bool = True) -> None:
        tokens = len(counts)
        rank = np.empty(tokens)
        rank[np.argsort(-counts, kind="stable")] = np.arange(tokens)
        weights = {"log-uniform": np.log1p(1 / (rank + 1)), "empirical": (counts + 1.0) ** 0.75}[proposal]
        self.samples = min(samples, tokens)
        self._cumulative = torch.from_numpy(np.cumsum(weights / weights.sum()))
        # Tokens are drawn with replacement: the expected count of a token is samples · P(token).
        expected = self.samples * weights / weights.sum() if log_q else np.ones(tokens)
        self._log_q = torch.from_numpy(np.log(expected)).float()

    def draw(self, seed: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Sampled tokens (samples,) and the logs of their expected counts (samples,)."""
        uniform = torch.rand(self.samples, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        tokens = torch.searchsorted(self._cumulative, uniform).clamp(max=len(self._cumulative) - 1)
        return tokens.to(device), self._log_q[tokens].to(device)
