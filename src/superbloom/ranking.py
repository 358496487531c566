"""Exact ranking of scores: higher score first, then the smaller id, everywhere the same.

    scores (n,), ids (n,)  →  the k best as keys (k,)

A (score, id) pair becomes one integer key. torch.topk orders ties arbitrarily, but keys have no ties. Long rows are
ranked by blocks: the n largest entries lie in the n blocks with the largest maxima.
"""

from __future__ import annotations

from math import isqrt

import torch
from torch import Tensor

from superbloom.errors import InputError

BLOCK_ENTRIES = 32  # entries of a row per block of BlockTopK
EMPTY_KEY = torch.iinfo(torch.int64).min  # stands for no id
LOWEST_SCORE = torch.finfo(torch.float32).min  # replaces −inf in keys and blocks, so that EMPTY_KEY is less


def keys_of(scores: Tensor, ids: Tensor) -> Tensor:
    """One integer per (score, id) that sorts by score, then by falling id.

    >>> keys = keys_of(torch.tensor([-1.5, 0.0, -0.0, -torch.inf]), torch.tensor([3, 9, 4, 0]))
    >>> scores, ids = unkey(keys.sort(descending=True).values)
    >>> ids.tolist(), scores.tolist()
    ([4, 9, 3, 0], [0.0, 0.0, -1.5, -inf])
    """
    bits = (scores.clamp(min=LOWEST_SCORE) + 0.0).view(torch.int32)  # adding 0.0 turns −0.0 into 0.0
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # these integers have the order of the floats
    return (ordered.long() << 32) + (0xFFFFFFFF - ids.long())


def unkey(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and ids of keys; −inf and −1 for EMPTY_KEY."""
    empty = keys == EMPTY_KEY
    scores = scores_of(keys)
    ids = 0xFFFFFFFF - (keys & 0xFFFFFFFF)
    return scores.masked_fill(empty | (scores == LOWEST_SCORE), -torch.inf), ids.masked_fill(empty, -1)


def scores_of(keys: Tensor) -> Tensor:
    """Scores of keys, with LOWEST_SCORE for −inf and NaN for EMPTY_KEY."""
    ordered = (keys >> 32).int()
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(torch.float32)


def best_keys(scores: Tensor, ids: Tensor | None, permitted: Tensor | None, k: int) -> Tensor:
    """Keys (k,) of the k best scores (n,), which are overwritten; ids ascend, and are 0 … n−1 if None.

    Blocks with equal maxima are taken from the left, where the smaller ids are. So the chosen k blocks hold the k best
    keys, and not only the k best scores.
    """
    scores.clamp_(min=LOWEST_SCORE)
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
    keys = keys_of(chosen, at if ids is None else ids[at]).masked_fill(chosen == -torch.inf, EMPTY_KEY)
    best = keys.topk(min(k, len(keys))).values
    return torch.nn.functional.pad(best, (0, k - len(best)), value=EMPTY_KEY)


class BlockTopK:
    """The n largest entries of rows of a matrix, for any n, without sorting the rows.

    >>> values, columns = BlockTopK(torch.tensor([[1.0, 3.0, 2.0], [6.0, 4.0, 5.0]])).of(torch.tensor([1]), n=2)
    >>> values.tolist(), columns.tolist()
    ([[6.0, 5.0]], [[0, 2]])
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self.whole = rows.shape[1] // BLOCK_ENTRIES * BLOCK_ENTRIES
        blocks = rows[:, : self.whole].unflatten(1, (-1, BLOCK_ENTRIES))
        self.peaks = blocks.amax(dim=2)
        # subtle: the maximum of anything with NaN is NaN, and NaN < inf is False
        if not bool((self.peaks < torch.inf).all()) or not bool((rows[:, self.whole :] < torch.inf).all()):
            raise InputError("log_probs hold NaN or +inf, which have no rank; look at the model that made them")

    def of(self, which: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """The n largest entries of the rows `which`, best first, and their columns; n is at most a row's length."""
        width = self.rows.shape[1]
        if 2 * n * BLOCK_ENTRIES > width:
            return self.rows.index_select(0, which).topk(n, dim=1)
        blocks = self.peaks.index_select(0, which).topk(n, dim=1).indices
        inside = torch.arange(BLOCK_ENTRIES, device=blocks.device)
        at = (blocks[..., None] * BLOCK_ENTRIES + inside).flatten(1)  # (rows, n · BLOCK_ENTRIES)
        if self.whole < width:
            at = torch.cat([at, torch.arange(self.whole, width, device=at.device).expand(len(at), -1)], dim=1)
        entries = self.rows.flatten().index_select(0, (at + which[:, None] * width).flatten()).view(at.shape)
        values, found = entries.topk(n, dim=1)
        return values, at.gather(1, found)
