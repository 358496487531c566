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

import torch
from torch import Tensor

from superbloom.hashing import BloomHash
from superbloom.ranking import BLOCK_ENTRIES, EMPTY_KEY, LOWEST_SCORE, best_keys, keys_of, scores_of
from superbloom.search.cost import MAX_MEMBERS_AT_ONCE
from superbloom.search.opening import Limits, Opening
from superbloom.search.queries import Queries
from superbloom.search.scoring import IdPrior

EXTRA_CANDIDATES = 12  # ids beyond k whose probability is computed first
CANDIDATE_GROWTH = 2  # factor of their number, while another id may be among the k best
COUNTED_WIDTH = 512  # counting the buckets that can hold better ids takes less time than sorting this number
SLACK = 1e-5  # of bounds, relative to their size, because they round
UNDERFLOW = 1e-37  # probabilities below it have few digits in float32, or none
IDS_AT_ONCE = 2**17  # whose estimates stay in the processor's cache
MAX_RANGE_NATS = 60.0  # of weights whose exponentials float32 holds side by side
ESTIMATE_SLACK = 1e-3  # of estimates within that range, relative to their size; and some for sums over large buckets
LOWEST = torch.finfo(torch.double).min  # stands for −inf, so that differences are numbers


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

    def is_hopeless(self, queries: Queries, width: int) -> Tensor:  # noqa: ARG002 (the sum needs it)
        """By the number of buckets above the k-th score: from the share of blocks of buckets that hold such a one."""
        peaks = self.best_buckets.peaks.unflatten(0, (-1, len(self.hashes)))[queries.number]
        is_below = (peaks < queries.threshold[:, None, None]).float().mean(dim=2)
        needed = self.bloom.num_buckets * (1 - is_below ** (1 / BLOCK_ENTRIES)).amax(dim=1)
        return self.cost.is_too_much(queries, needed.masked_fill(queries.threshold == -torch.inf, 0.0))

    def _open_buckets(self, queries: Queries, width: int) -> None:
        if width >= COUNTED_WIDTH:
            lowest = queries.threshold - 3 * SLACK * queries.threshold.abs().clamp(min=1)
            needed = (self.values[queries.number] >= lowest[:, None, None]).sum(dim=2).max()
            width = max(1, min(width, int(needed)))
        super()._open_buckets(queries, width)

    def score(self, queries: Queries, buckets: Tensor, opened: Tensor, before: Tensor) -> None:
        """Add the best members of newly opened buckets to the answers."""
        q, m, _ = buckets.shape
        ids, inside = self.members(self.hashes[:, None], buckets)  # (q, m, b, size)
        inside &= opened[..., None]
        weights = self.surplus.index_select(0, ids.view(-1)).view(ids.shape).double()
        new, rest = inside, torch.zeros(ids.shape, device=ids.device)
        for step in range(1, m):  # hash j looks at hash j + step: its own bucket is the same for all members
            other = (self.hashes + step) % m
            row = (queries.number[:, None] * m + other)[..., None, None] * self.bloom.num_buckets
            at = ids + self.bloom.num_ids * other[:, None, None]
            tokens = self.bloom.columns.view(-1).index_select(0, at.view(-1)).view(ids.shape) + row
            values = self.log_probs.view(-1).index_select(0, tokens.view(-1)).view(ids.shape)
            weights += values
            rest += values.exp()
            edges = torch.where(self.hashes > other, queries.edge[:, other], before[:, other])
            new = new & (values <= edges[..., None, None])
        queries.scored = queries.scored + new.flatten(1).sum(dim=1)
        # The most that a member can have: its share of this bucket, and all of its other buckets.
        weights.masked_fill_(~inside, -torch.inf)
        shares = (weights - weights.amax(-1, keepdim=True).clamp_(min=LOWEST)).float().exp_()
        rows = (queries.number[:, None] * m + self.hashes)[..., None] * self.bloom.num_buckets
        own = self.log_probs.view(-1).take(rows + buckets)
        upper = torch.addcmul(rest, shares, (own.exp() / shares.sum(-1)).nan_to_num_(0.0)[..., None]).div_(m)
        permitted = self.filter.permits(queries.number, ids.view(q, -1))
        if permitted is not None:
            new = new & permitted.view_as(new)
        self._keep_best(queries, upper.masked_fill_(~new, -1.0).flatten(1), ids.view(q, -1))

    def _keep_best(self, queries: Queries, upper: Tensor, ids: Tensor) -> None:
        """Add ids (q, any) to the answers, those with the highest upper bounds first, until the k best are found.

        upper is the most that the probability of an id can be; −1 leaves the id out.
        """
        upper = upper.mul_(1 + SLACK).add_(UNDERFLOW)
        left = int((upper >= queries.threshold.exp()[:, None]).sum(dim=1).max())  # ids that can enter, of any query
        count = min(left, self.largest_k + EXTRA_CANDIDATES)
        while count:
            best = upper.topk(min(count + 1, left), dim=1)
            at = best.indices[:, :count]
            chosen, is_permitted = ids.gather(1, at), best.values[:, :count] > 0
            keys = torch.where(is_permitted, keys_of(self.log_probability(queries.number, chosen), chosen), EMPTY_KEY)
            queries.best = torch.cat([queries.best, keys], dim=1).topk(self.largest_k, dim=1).values
            queries.update_threshold()
            if count >= left or bool((best.values[:, count] < queries.threshold.exp()).all()):
                return
            upper.scatter_(1, at, -1.0)
            left -= count
            count = min(left, CANDIDATE_GROWTH * count)

    def log_probability(self, queries: Tensor, ids: Tensor) -> Tensor:
        """log p(s) of ids (q, c) for queries (q,), float32."""
        return _rounded(self.log_contributions(queries, ids).logsumexp(-1))

    def log_contributions(self, queries: Tensor, ids: Tensor) -> Tensor:
        """What each hash adds to p(s), as logarithms (q, c, m) in float64: log(p_j · share / m)."""
        few = max(1, MAX_MEMBERS_AT_ONCE // max(1, len(queries) * self.cost.members(1)))
        return torch.cat([self._log_contributions(queries, part) for part in ids.split(few, dim=1)], dim=1)

    def _log_contributions(self, queries: Tensor, ids: Tensor) -> Tensor:
        values, weights = self._weights(queries, ids)
        buckets = self.bloom.table.index_select(0, ids.flatten()).view(values.shape)
        members, inside = self.members(self.hashes, buckets)  # (q, c, m, size)
        totals = _log_sum(self._weights(queries, members)[1].masked_fill_(~inside, -torch.inf))
        # −inf where nothing in a bucket has any weight
        shares = (weights[..., None] - totals).nan_to_num_(nan=-torch.inf, neginf=-torch.inf)
        return values.double() - math.log(values.shape[-1]) + shares

    def _weights(self, queries: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """log p_j of the buckets of ids (q, …): (q, …, m), and w of each id in float64: (q, …)."""
        tokens = self.tokens_of(queries, ids)
        values = self.log_probs.view(-1).index_select(0, tokens.flatten()).view(tokens.shape)
        weights = self.surplus.index_select(0, ids.flatten()).view(ids.shape).double()
        for part in values.unbind(-1):
            weights += part
        return values, weights

    def rank_all(self, queries: Queries) -> None:
        """Score every permitted id, one query after the other: first by an estimate, then those that can be best."""
        best, scored, k = [], [], self.largest_k
        for number in queries.number:
            ids, permitted = self.filter.candidates(int(number))
            scored.append(self.bloom.num_ids if ids is None else int((ids >= 0).sum()))
            if ids is None or len(ids) * self.cost.members(1) >= self.bloom.num_ids:
                ids, permitted = self._likely(number, ids, permitted)
            if ids is None or len(ids) * self.cost.members(1) >= self.bloom.num_ids:
                scores = self._all_scores(self.log_probs[number])
                scores = scores if ids is None else scores[ids.clamp(min=0)]
            else:
                scores = self.log_probability(number[None], ids.clamp(min=0)[None])[0]
            best.append(best_keys(scores, ids, permitted, k))
        queries.finish(best, scored)

    def _likely(self, number: Tensor, ids: Tensor | None, permitted: Tensor | None) -> tuple[Tensor | None, ...]:
        """Those of ids (None: all) that can be among the k best of a query, and which of them may be returned.

        Probabilities are estimated in float32 on one scale, which is close if all weights lie near each other;
        otherwise the result is what was given.
        """
        log_probs, columns = self.log_probs[number], self.bloom.columns
        tops = log_probs.amax(dim=1, keepdim=True)
        lows = log_probs.masked_fill(log_probs == -torch.inf, torch.inf).amin(dim=1, keepdim=True)
        least, most = self.surplus.aminmax()
        if not bool((tops - lows).abs().sum() + most - least + tops.max() - tops.min() < MAX_RANGE_NATS):
            return ids, permitted
        estimates, sums = self.surplus - most, torch.zeros_like(log_probs)
        parts = list(zip(estimates.split(IDS_AT_ONCE), columns.split(IDS_AT_ONCE, dim=1), strict=True))
        values = log_probs - tops
        for part, column in parts:
            for value, buckets in zip(values, column, strict=True):
                part += value.index_select(0, buckets)
            part.exp_()
            for total, buckets in zip(sums, column, strict=True):
                total.index_add_(0, buckets, part)
        ratios = ((log_probs - tops.max()).exp_() / sums).nan_to_num_(nan=0.0, posinf=0.0)
        for part, column in parts:
            part *= sum(ratio.index_select(0, buckets) for ratio, buckets in zip(ratios, column, strict=True))
        if ids is not None:
            estimates = estimates.index_select(0, ids.clamp(min=0))
        kth = scores_of(best_keys(estimates, ids, permitted, self.largest_k)[-1])
        if not bool(kth > UNDERFLOW):
            return ids, permitted
        lowest = kth * (1 - ESTIMATE_SLACK - self.bloom.largest_bucket * 2.0**-22)
        at = [(part >= lowest).nonzero() + i * IDS_AT_ONCE for i, part in enumerate(estimates.split(IDS_AT_ONCE))]
        likely = torch.cat(at).squeeze(1)
        return likely if ids is None else ids[likely], None

    def _all_scores(self, log_probs: Tensor) -> Tensor:
        """log p of every id for one query (m, num_buckets), in float64 and with a scale for each bucket: (num_ids,)."""
        bloom, terms = self.bloom, []
        weights = self.surplus.double()
        for values, column in zip(log_probs, bloom.columns, strict=True):
            weights += values.index_select(0, column)
        for values, column, order, starts in zip(log_probs, bloom.columns, bloom.order, bloom.starts, strict=True):
            members = weights.index_select(0, order)
            top = torch.segment_reduce(members, "max", offsets=starts).clamp(min=LOWEST)
            parts = (members - top.repeat_interleave(starts.diff())).exp_()
            sums = torch.segment_reduce(parts, "sum", offsets=starts).log() + top
            terms.append((values - sums).index_select(0, column))
        total = weights + torch.stack(terms).logsumexp(0) - math.log(len(log_probs))
        return _rounded(total.nan_to_num_(nan=-torch.inf))


def _rounded(scores: Tensor) -> Tensor:
    """Scores in float32. Near 0, float32 keeps more digits than sums have right, so multiples of 2⁻³⁰ are taken."""
    return scores.mul_(2.0**30).round_().div_(2.0**30).float()


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
