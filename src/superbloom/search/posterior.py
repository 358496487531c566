"""Probabilities of ids from the m token distributions of a place (not in the paper; docs/search.md).

The m hashes see the same evidence, and adding their log-probabilities counts it m times. An id that shares one bucket
with a likely id then gets half of its score for nothing. Here every hash divides the probability of a bucket among its
members, and the m views are averaged:

    w(s) = log prior(s) + Σ_i log(p_i(b_i(s)) / π_i(b_i(s)))      π_i(b): the prior of all members of bucket b of hash i
    p(s) = 1/m · Σ_j p_j(b_j(s)) · exp(w(s)) / Σ over members t of b_j(s) of exp(w(t))

p sums to one over the catalogue. A share is at most 1, so p(s) ≤ 1/m · Σ_j p_j(b_j(s)): an id in no opened bucket has
at most the mean probability of the best unopened buckets, and Algorithm 1 holds with that bound. Scores are log p(s).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from superbloom.hashing import BloomHash
from superbloom.ranking import EMPTY_KEY, LOWEST_SCORE, best_keys, keys_of, scores_of
from superbloom.search.opening import Limits, Opening
from superbloom.search.queries import Queries
from superbloom.search.scoring import IdPrior

EXTRA_CANDIDATES = 32  # ids beyond k whose probability is computed first
CANDIDATE_GROWTH = 4  # factor of their number, while another id may be among the k best
SLACK = 1e-5  # of bounds, relative to their size, because they round
UNDERFLOW = 1e-37  # probabilities below it have few digits in float32, or none
MAX_RANGE_NATS = 600.0  # of weights whose exponentials float64 holds side by side
LOWEST = torch.finfo(torch.double).min  # stands for −inf, so that differences are numbers


class _Known(NamedTuple):
    """Opened buckets (q, m, b), ascending, and the logarithms of the sums of their members' weights."""

    buckets: Tensor
    totals: Tensor


class _Parts(NamedTuple):
    """Some ids (q, c): log p_j of their buckets (q, c, m), their weights w (q, c), buckets and totals (q, c, m)."""

    values: Tensor
    weights: Tensor
    buckets: Tensor
    totals: Tensor

    def terms(self) -> Tensor:
        """What each hash adds to p: log(p_j · share / m), (q, c, m); −inf where nothing in a bucket has any weight."""
        shares = (self.weights[..., None] - self.totals).nan_to_num_(nan=-torch.inf, neginf=-torch.inf)
        return self.most() + shares

    def most(self) -> Tensor:
        """The most that each hash can add: the same with a share of 1."""
        return self.values.double() - math.log(self.values.shape[-1])


class PosteriorSearch(Opening):
    """Finds the ids of highest probability.

    Probabilities are rounded to float32 at the end of sums in float64, so that equal ones stay equal in any order of
    summation, and ties go to the smaller id.
    """

    def __init__(self, log_probs: Tensor, bloom: BloomHash, limits: Limits, prior: IdPrior | None = None) -> None:
        super().__init__(log_probs, bloom, limits)
        self.surplus = (prior or IdPrior.uniform(self.bloom)).to(log_probs.device).surplus

    def bounds(self, values: Tensor) -> Tensor:
        bounds = values.logsumexp(dim=1) - math.log(values.shape[1])
        size = bounds.abs().clamp_(min=1, max=-LOWEST_SCORE)
        # −inf becomes the score that it has in keys: an id in closed buckets may tie with an id that was scored.
        return (bounds + SLACK * size).clamp_(min=LOWEST_SCORE)

    def score(self, queries: Queries, buckets: Tensor, opened: Tensor, before: Tensor) -> None:
        """Add the best members of newly opened buckets to the answers."""
        q, m, _ = buckets.shape
        ids, inside = self.members(self.hashes[:, None], buckets)  # (q, m, b, size)
        inside = inside & opened[..., None]
        values, weights = self._weights(queries.number, ids)
        weights = weights.masked_fill(~inside, -torch.inf)
        totals = _log_sum(weights)  # (q, m, b)
        # The most that a member can have: its share of this bucket, and all of its other buckets.
        terms = values.exp()
        shares = (weights - totals[..., None]).exp_().nan_to_num_(0.0).float()
        for j in range(m):
            terms[:, j, ..., j] *= shares[:, j]
        upper = terms.sum(-1) / m
        new = inside & self.is_new(queries, before, values.flatten(2, 3)).view_as(inside)
        queries.scored = queries.scored + new.flatten(1).sum(dim=1)
        permitted = self.filter.permits(queries.number, ids.view(q, -1))
        if permitted is not None:
            new = new & permitted.view_as(new)
        order = buckets.masked_fill(~opened, self.bloom.num_buckets).sort(dim=-1)
        known = _Known(order.values, totals.gather(2, order.indices))
        self._keep_best(queries, upper.masked_fill(~new, -1.0).flatten(1), ids.view(q, -1), known)

    def _keep_best(self, queries: Queries, upper: Tensor, ids: Tensor, known: _Known) -> None:
        """Add ids (q, any) to the answers, those with the highest upper bounds first, until the k best are found.

        upper is the most that the probability of an id can be; −1 leaves the id out.
        """
        earlier, total = queries.best, upper.shape[1]
        count = min(total, self.largest_k + EXTRA_CANDIDATES)
        while True:
            best = upper.topk(min(count + 1, total), dim=1)
            limits, chosen = best.values[:, :count], ids.gather(1, best.indices[:, :count])
            keys = self._keys(queries, chosen, limits >= 0, known, earlier)
            queries.best = torch.cat([earlier, keys], dim=1).topk(self.largest_k, dim=1).values
            if count >= total:
                return
            kth = scores_of(queries.best.gather(1, queries.k[:, None] - 1)).squeeze(1)
            needed = torch.fmax(kth, queries.floor).exp()
            if bool((best.values[:, count] * (1 + SLACK) + UNDERFLOW < needed).all()):
                return
            count = min(total, CANDIDATE_GROWTH * count)

    def _keys(self, queries: Queries, ids: Tensor, is_permitted: Tensor, known: _Known, earlier: Tensor) -> Tensor:
        """Keys of permitted ids (q, c), except those that cannot be among the k best whatever their other buckets."""
        parts = self._parts(queries.number, ids, known)
        is_unknown = parts.totals.isnan()
        terms = parts.terms()
        low = terms.masked_fill(is_unknown, -torch.inf).logsumexp(-1).masked_fill(~is_permitted, -torch.inf)
        high = torch.where(is_unknown, parts.most(), terms).logsumexp(-1)
        before = torch.where(earlier == EMPTY_KEY, -torch.inf, scores_of(earlier)).double()
        best = torch.cat([before, low], dim=1).topk(self.largest_k, dim=1).values
        needed = best.gather(1, queries.k[:, None] - 1) - SLACK
        can_enter = is_permitted & (high >= needed)
        self._sum_buckets(queries.number, parts, is_unknown & can_enter[..., None])
        scores = parts.terms().logsumexp(-1)
        has_key = is_permitted & ~parts.totals.isnan().any(-1)
        return torch.where(has_key, keys_of(scores.float(), ids), EMPTY_KEY)

    def log_probability(self, queries: Tensor, ids: Tensor) -> Tensor:
        """log p(s) of ids (q, c) for queries (q,), float32."""
        return self.log_contributions(queries, ids).logsumexp(-1).float()

    def log_contributions(self, queries: Tensor, ids: Tensor) -> Tensor:
        """What each hash adds to p(s), as logarithms (q, c, m) in float64."""
        parts = self._parts(queries, ids, None)
        self._sum_buckets(queries, parts, parts.totals.isnan())
        return parts.terms()

    def _parts(self, queries: Tensor, ids: Tensor, known: _Known | None) -> _Parts:
        """What is known about ids (q, c); the totals of buckets that are not known are NaN."""
        q, c = ids.shape
        values, weights = self._weights(queries, ids)
        buckets = self.bloom.table.index_select(0, ids.flatten()).view(q, c, len(self.hashes)).long()
        totals = torch.full(buckets.shape, torch.nan, dtype=torch.double, device=ids.device)
        if known is not None:
            by_hash = buckets.transpose(1, 2).contiguous()
            at = torch.searchsorted(known.buckets, by_hash).clamp_(max=known.buckets.shape[2] - 1)
            is_known = known.buckets.gather(2, at) == by_hash
            totals = torch.where(is_known, known.totals.gather(2, at), torch.nan).transpose(1, 2)
        return _Parts(values, weights, buckets, totals)

    def _sum_buckets(self, queries: Tensor, parts: _Parts, which: Tensor) -> None:
        """Sum the weights of the members of some buckets (q, c, m), in place."""
        query, column, hash_ = which.nonzero(as_tuple=True)
        if len(query):
            members, inside = self.members(hash_, parts.buckets[query, column, hash_])
            weights = self._weights(queries[query], members)[1].masked_fill(~inside, -torch.inf)
            parts.totals[query, column, hash_] = _log_sum(weights)

    def _weights(self, queries: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """log p_j of the buckets of ids (q, …): (q, …, m), and w of each id in float64: (q, …)."""
        tokens = self.tokens_of(queries, ids)
        values = self.log_probs.view(-1).index_select(0, tokens.flatten()).view(tokens.shape)
        weights = self.surplus.index_select(0, ids.flatten()).view(ids.shape).double()
        for part in values.unbind(-1):
            weights += part
        return values, weights

    def rank_all(self, queries: Queries) -> None:
        """Score every permitted id, one query after the other."""
        best, scored = [], []
        for number in queries.number.tolist():
            ids, permitted = self.filter.candidates(number)
            if ids is None:
                scores = self._all_scores(number)
            elif len(ids) * len(self.hashes) * self.bloom.largest_bucket < self.bloom.num_ids:
                scores = self.log_probability(queries.number.new_tensor([number]), ids.clamp(min=0)[None])[0]
            else:
                scores = self._all_scores(number)[ids.clamp(min=0)]
            scored.append(len(scores) if ids is None else int((ids >= 0).sum()))
            best.append(best_keys(scores, ids, permitted, queries.best.shape[1]))
        queries.finish(best, scored)

    def _all_scores(self, number: int) -> Tensor:
        """log p of every id for one query, (num_ids,)."""
        bloom, log_probs = self.bloom, self.log_probs[number]
        weights = self.surplus.double()
        for values, column in zip(log_probs, bloom.columns, strict=True):
            weights += values.index_select(0, column)
        largest = weights.max()
        smallest = torch.where(weights == -torch.inf, largest, weights).min()
        if not bool(largest - smallest < MAX_RANGE_NATS):
            return self._all_scores_of_any_range(log_probs, weights)
        weights.sub_(largest).exp_()
        total = torch.zeros_like(weights)
        for values, column, order, starts in zip(log_probs, bloom.columns, bloom.order, bloom.starts, strict=True):
            sums = torch.segment_reduce(weights.index_select(0, order), "sum", offsets=starts)
            total += (values.double().exp_() / sums).index_select(0, column)
        return (weights.mul_(total) / len(log_probs)).log_().nan_to_num_(nan=-torch.inf).float()

    def _all_scores_of_any_range(self, log_probs: Tensor, weights: Tensor) -> Tensor:
        """The same where exponentials of the weights (num_ids,) would vanish: each bucket has its own scale."""
        bloom, terms = self.bloom, []
        for values, column, order, starts in zip(log_probs, bloom.columns, bloom.order, bloom.starts, strict=True):
            members = weights.index_select(0, order)
            top = torch.segment_reduce(members, "max", offsets=starts).clamp(min=LOWEST)
            parts = (members - top.repeat_interleave(starts.diff())).exp_()
            sums = torch.segment_reduce(parts, "sum", offsets=starts).log() + top
            terms.append((values - sums).index_select(0, column))
        total = weights + torch.stack(terms).logsumexp(0) - math.log(len(log_probs))
        return total.nan_to_num_(nan=-torch.inf).float()


def _log_sum(weights: Tensor) -> Tensor:
    """log Σ exp over the last dimension, in float64. Exponentials are in float32: equal weights have equal ones."""
    top = weights.amax(-1, keepdim=True).clamp_(min=LOWEST)
    return (weights - top).float().exp_().sum(-1, dtype=torch.double).log_() + top.squeeze(-1)


def log_contributions(log_probs: Tensor, bloom: BloomHash, ids: Tensor, prior: IdPrior | None = None) -> Tensor:
    """What each hash adds to the probability of given ids (batch, any): logarithms (batch, any, m) in float64."""
    numbers = torch.arange(len(ids), device=log_probs.device)
    return PosteriorSearch(log_probs, bloom, Limits(1), prior).log_contributions(numbers, ids)


def bucket_shares(
    log_probs: Tensor, bloom: BloomHash, prior: IdPrior, hash_: int, bucket: int
) -> tuple[Tensor, Tensor]:
    """The members of a bucket and the share of its probability that each gets, for one query (m, num_buckets)."""
    members = bloom.members[hash_][bucket].long()
    values = log_probs[torch.arange(bloom.num_hashes), bloom.table[members].long()].double()
    return members, (values.sum(1) + prior.surplus[members]).softmax(0)


def log_probability(log_probs: Tensor, bloom: BloomHash, ids: Tensor, prior: IdPrior | None = None) -> Tensor:
    """log p(s) of given ids (batch, any) under log_probs (batch, m, num_buckets); −1 fills and has −inf."""
    search = PosteriorSearch(log_probs, bloom, Limits(1), prior)
    numbers = torch.arange(len(ids), device=log_probs.device)
    found = search.log_probability(numbers, ids.clamp(min=0))
    return found.masked_fill(ids < 0, -torch.inf)
