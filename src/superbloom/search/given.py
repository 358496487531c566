"""The best ids where the score of some of them is known already, as that of names in a memory (memory/).

The search of the network finds the best of all other ids. It needs only those above the k-th best given score, so it
stops early. Both parts are exact, so their union is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from superbloom.errors import InputError
from superbloom.hashing import BloomHash
from superbloom.ranking import EMPTY_KEY, LOWEST_SCORE, keys_of, scores_of, unkey
from superbloom.search.arguments import checked_floor, checked_k
from superbloom.search.filters import Filter
from superbloom.search.opening import Limits, TopK
from superbloom.search.posterior import log_probability
from superbloom.search.scoring import IdPrior


class Given(NamedTuple):
    """Ids and their scores, in place of the network's; both (batch, any), −1 fills. No id occurs twice in a row."""

    ids: Tensor
    scores: Tensor  # float32

    def instead_of(self, scores: Tensor, ids: Tensor) -> Tensor:
        """Scores (batch, any) of ids, with those that are given in place of the others."""
        if not self.ids.shape[1]:
            return scores
        order = self.ids.sort(dim=1)
        at = torch.searchsorted(order.values, ids.contiguous()).clamp_(max=self.ids.shape[1] - 1)
        own = self.scores.gather(1, order.indices).gather(1, at)
        return torch.where((order.values.gather(1, at) == ids) & (ids >= 0), own, scores)


def log_probability_with(
    log_probs: Tensor, bloom: BloomHash, ids: Tensor, given: Given, prior: IdPrior | None = None
) -> Tensor:
    """The scores of ids (batch, any): given ones, or log p(s) of the network; −1 fills and has −inf."""
    return given.instead_of(log_probability(log_probs, bloom, ids, prior), ids)


def top_k_with(bloom: BloomHash, limits: Limits, given: Given, batch: int, search: Callable[[Limits], TopK]) -> TopK:
    """The k best ids. `search` finds those of the network alone, within given limits."""
    device = given.ids.device
    if given.ids.shape != given.scores.shape or len(given.ids) != batch:
        raise InputError(f"given ids have shape {tuple(given.ids.shape)}; ids and scores ({batch}, any) are needed")
    k, largest_k = checked_k(limits.k, batch, bloom.num_ids, device)
    floor = checked_floor(limits.min_score, batch, device)
    permitted = Filter(limits.exclude, limits.allow, batch, bloom.num_ids, device).permits(
        torch.arange(batch, device=device), given.ids.clamp(min=0)
    )
    is_open = given.ids >= 0 if permitted is None else permitted & (given.ids >= 0)
    best = torch.where(is_open, keys_of(given.scores, given.ids), EMPTY_KEY)
    best = torch.nn.functional.pad(best, (0, largest_k), value=EMPTY_KEY).topk(largest_k, dim=1).values
    kth = scores_of(best.gather(1, k[:, None] - 1)).squeeze(1)  # NaN if there are fewer
    kth = kth.masked_fill(kth == LOWEST_SCORE, -torch.inf)
    others = search(
        replace(limits, exclude=_union(limits.exclude, given.ids, bloom.num_ids), min_score=torch.fmax(kth, floor))
    )
    keys = torch.where(others.ids < 0, EMPTY_KEY, keys_of(others.scores, others.ids))
    keys = torch.cat([best, keys], dim=1).topk(largest_k, dim=1).values
    scores, ids = unkey(keys)
    rank = torch.arange(largest_k, device=device)
    left_out = (rank >= k[:, None]) | (scores < floor[:, None])
    ids, scores = ids.masked_fill(left_out, -1), scores.masked_fill(left_out, -torch.inf)
    return replace(others, ids=ids, scores=scores, scored=others.scored + is_open.sum(dim=1))


def _union(exclude: Tensor | None, ids: Tensor, num_ids: int) -> Tensor:
    """A filter that excludes these ids (batch, any) as well."""
    if exclude is None or not ids.shape[1]:
        return ids if exclude is None else exclude
    rows = exclude[None] if exclude.dim() == 1 else exclude
    rows = rows.to(ids.device).expand(len(ids), -1)
    if rows.dtype != torch.bool:
        return torch.cat([rows.long(), ids], dim=1)
    marked = torch.nn.functional.pad(rows, (0, 1))  # fills mark the extra column
    return marked.scatter(1, ids.masked_fill(ids < 0, num_ids), True)[:, :num_ids]
