"""Exact ranking of scores: higher first, of equal scores the smaller id, everywhere the same.

A (score, id) pair is one integer key, so that topk, which orders ties as it likes, has no ties to order. Long
rows are ranked by blocks: the n largest entries lie in the n blocks with the largest maxima.
"""

from __future__ import annotations

from math import isqrt

import torch
from torch import Tensor

from superbloom.errors import InputError

BLOCK = 64
NOTHING = torch.iinfo(torch.int64).min  # the key of no id
LOWEST = torch.finfo(torch.float32).min  # stands for −inf among keys and blocks, so that NOTHING is less


def keys_of(scores: Tensor, ids: Tensor) -> Tensor:
    """One integer per (score, id) that sorts by score, then by falling id.

    >>> keys = keys_of(torch.tensor([-1.5, 0.0, -0.0, -torch.inf]), torch.tensor([3, 9, 4, 0]))
    >>> scores, ids = unkey(keys.sort(descending=True).values)
    >>> ids.tolist(), scores.tolist()
    ([4, 9, 3, 0], [0.0, 0.0, -1.5, -inf])
    """
    bits = (scores.clamp(min=LOWEST) + 0.0).view(torch.int32)  # +0.0 makes −0.0 the 0.0 it equals
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # the order of floats as an order of integers
    return (ordered.long() << 32) + (0xFFFFFFFF - ids.long())


def unkey(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and ids of keys; −inf and −1 where there is none."""
    nothing = keys == NOTHING
    scores = scores_of(keys)
    ids = 0xFFFFFFFF - (keys & 0xFFFFFFFF)
    return scores.masked_fill(nothing | (scores == LOWEST), -torch.inf), ids.masked_fill(nothing, -1)


def scores_of(keys: Tensor) -> Tensor:
    """Scores of keys, −inf being LOWEST; NaN where there is none."""
    ordered = (keys >> 32).int()
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(torch.float32)


def best_keys(scores: Tensor, ids: Tensor | None, permitted: Tensor | None, k: int) -> Tensor:
    """Keys (k,) of the k best of scores (n,), which are overwritten; ids ascend, and are 0 … n−1 if None.

    Blocks of equal maxima are taken from the left, which holds the smaller ids: so the k best keys, not only
    their scores, lie in the k blocks chosen.
    """
    scores.clamp_(min=LOWEST)
    if permitted is not None:
        scores.masked_fill_(~permitted, -torch.inf)
    n = len(scores)
    size = max(1, isqrt(n // k))
    whole = n // size * size
    peaks = scores[:whole].view(-1, size).amax(dim=1)
    if whole < n:
        peaks = torch.cat([peaks, scores[whole:].amax(dim=0, keepdim=True)])
    blocks = peaks.sort(descending=True, stable=True).indices[:k]
    at = (blocks[:, None] * size + torch.arange(size, device=scores.device)).flatten()
    at = at[at < n]
    chosen = scores[at]
    keys = keys_of(chosen, at if ids is None else ids[at]).masked_fill(chosen == -torch.inf, NOTHING)
    best = keys.topk(min(k, len(keys))).values
    return torch.nn.functional.pad(best, (0, k - len(best)), value=NOTHING)


class Largest:
    """The largest entries of each row of a matrix, for any number of them, without sorting the rows."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self.whole = rows.shape[1] // BLOCK * BLOCK
        blocks = rows[:, : self.whole].unflatten(1, (-1, BLOCK))
        self.peaks = blocks.amax(dim=2)
        # subtle: the maximum of anything with NaN is NaN, which is less than nothing
        if not bool((self.peaks < torch.inf).all()) or not bool((rows[:, self.whole :] < torch.inf).all()):
            raise InputError("log_probs hold NaN or +inf, which have no rank; look at the model that made them")

    def of(self, which: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """The n largest entries of the rows `which`, best first, and where they stand; n is at most a row's length."""
        width = self.rows.shape[1]
        if 2 * n * BLOCK > width:
            return self.rows.index_select(0, which).topk(n, dim=1)
        blocks = self.peaks.index_select(0, which).topk(n, dim=1).indices
        at = (blocks[..., None] * BLOCK + torch.arange(BLOCK, device=blocks.device)).flatten(1)  # (rows, n · BLOCK)
        if self.whole < width:
            at = torch.cat([at, torch.arange(self.whole, width, device=at.device).expand(len(at), -1)], dim=1)
        entries = self.rows.flatten().index_select(0, (at + which[:, None] * width).flatten()).view(at.shape)
        values, found = entries.topk(n, dim=1)
        return values, at.gather(1, found)
