"""The best ids where a memory adds to the probability of some of them (memory/): score log(p(s) + boost(s)).

Ids with a boost are scored one by one, the highest upper bounds first: p(s) is at most the mean probability of the
buckets of s. The search of the network then finds the best of all other ids. It needs only those above the k-th best
id with a boost, so it stops early. Both parts are exact, so their union is.
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
from superbloom.search.posterior import SLACK, log_probability
from superbloom.search.scoring import IdPrior

FIRST_EXTRA = 32  # ids beyond k whose probability is computed first
GROWTH = 4  # factor of their number, while another id may be among the k best


class Boosts(NamedTuple):
    """Ids and what is added to their probability; both (batch, any), −1 fills. No id occurs twice in a row."""

    ids: Tensor
    values: Tensor

    def of(self, ids: Tensor) -> Tensor:
        """The boosts of ids (batch, any), 0 where there is none."""
        if not self.ids.shape[1]:
            return torch.zeros(ids.shape, dtype=torch.double, device=ids.device)
        order = self.ids.sort(dim=1)
        at = torch.searchsorted(order.values, ids.contiguous()).clamp_(max=self.ids.shape[1] - 1)
        found = self.values.gather(1, order.indices).gather(1, at).double()
        return torch.where((order.values.gather(1, at) == ids) & (ids >= 0), found, 0.0)


def boosted_log_probability(
    log_probs: Tensor, bloom: BloomHash, ids: Tensor, boosts: Boosts, prior: IdPrior | None = None
) -> Tensor:
    """log(p(s) + boost(s)) of ids (batch, any), float32; −1 fills and has −inf."""
    return _sum(log_probability(log_probs, bloom, ids, prior), boosts.of(ids))


def _sum(network: Tensor, boosts: Tensor) -> Tensor:
    """log(p + boost), summed in float64 and rounded to float32."""
    return torch.logaddexp(network.double(), boosts.double().log()).float()


def boosted_top_k(
    log_probs: Tensor,
    bloom: BloomHash,
    limits: Limits,
    boosts: Boosts,
    prior: IdPrior | None,
    search: Callable[[Limits], TopK],
) -> TopK:
    """The k best ids. `search` finds those of the network alone, within given limits."""
    batch, device = len(log_probs), log_probs.device
    if boosts.ids.shape != boosts.values.shape or len(boosts.ids) != batch:
        raise InputError(f"boosts of shape {tuple(boosts.ids.shape)} given; ids and values ({batch}, any) are needed")
    k, largest_k = checked_k(limits.k, batch, bloom.num_ids, device)
    floor = checked_floor(limits.min_score, batch, device)
    permitted = Filter(limits.exclude, limits.allow, batch, bloom.num_ids, device).permits(
        torch.arange(batch, device=device), boosts.ids.clamp(min=0)
    )
    is_open = boosts.ids >= 0 if permitted is None else permitted & (boosts.ids >= 0)
    best, scored = _best_boosted(log_probs, bloom, boosts, prior, is_open, k, largest_k)
    kth = scores_of(best.gather(1, k[:, None] - 1)).squeeze(1)  # NaN if there are fewer
    kth = kth.masked_fill(kth == LOWEST_SCORE, -torch.inf)
    others = search(
        replace(limits, exclude=_union(limits.exclude, boosts.ids, bloom.num_ids), min_score=torch.fmax(kth, floor))
    )
    keys = torch.where(others.ids < 0, EMPTY_KEY, keys_of(others.scores, others.ids))
    keys = torch.cat([best, keys], dim=1).topk(largest_k, dim=1).values
    scores, ids = unkey(keys)
    rank = torch.arange(largest_k, device=device)
    left_out = (rank >= k[:, None]) | (scores < floor[:, None])
    ids, scores = ids.masked_fill(left_out, -1), scores.masked_fill(left_out, -torch.inf)
    return replace(others, ids=ids, scores=scores, scored=others.scored + scored)


def _best_boosted(
    log_probs: Tensor,
    bloom: BloomHash,
    boosts: Boosts,
    prior: IdPrior | None,
    is_open: Tensor,
    k: Tensor,
    largest_k: int,
) -> tuple[Tensor, Tensor]:
    """Keys (batch, largest k) of the best ids with a boost, and the number of ids scored for each query."""
    batch, total = boosts.ids.shape
    best = torch.full((batch, largest_k), EMPTY_KEY, device=log_probs.device)
    if not total:
        return best, torch.zeros(batch, dtype=torch.long, device=log_probs.device)
    ids = boosts.ids.clamp(min=0)
    upper = boosts.values.double().clone()
    for j, column in enumerate(bloom.columns):
        buckets = column.index_select(0, ids.flatten()).view(ids.shape).long()
        upper += log_probs[:, j].gather(1, buckets).double().exp_() / bloom.num_hashes
    order = upper.masked_fill(~is_open, -1.0).sort(dim=1, descending=True)
    begin, end = 0, min(total, largest_k + FIRST_EXTRA)
    while True:
        at = order.indices[:, begin:end]
        chosen = torch.where(order.values[:, begin:end] >= 0, ids.gather(1, at), -1)
        scores = _sum(log_probability(log_probs, bloom, chosen, prior), boosts.values.gather(1, at))
        keys = torch.where(chosen < 0, EMPTY_KEY, keys_of(scores, chosen))
        best = torch.cat([best, keys], dim=1).topk(largest_k, dim=1).values
        if end == total:
            break
        kth = scores_of(best.gather(1, k[:, None] - 1)).squeeze(1).nan_to_num(nan=LOWEST_SCORE)
        reach = order.values[:, end]
        if bool(((reach < 0) | (reach.log() + SLACK * (1 + reach.log().abs()) < kth)).all()):
            break
        begin, end = end, min(total, GROWTH * end)
    return best, (order.values[:, :end] >= 0).sum(dim=1)


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
