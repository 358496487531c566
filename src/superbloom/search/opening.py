"""What all searches share: inputs, the state of queries, and a round of Algorithm 1 that opens the best buckets.

    log_probs (batch, m, num_buckets), row j over the buckets of hash j  →  ids, scores (batch, k)

A search says how ids are scored (`score`, `rank_all`) and how high an id in unopened buckets can score (`bounds`):
combined.py for sums and other increasing functions, posterior.py for probabilities.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from superbloom.hashing import BloomHash
from superbloom.ranking import BlockTopK, unkey
from superbloom.search.arguments import check_inputs, checked_floor, checked_k
from superbloom.search.cost import WIDTH_GROWTH, CostModel
from superbloom.search.filters import Filter
from superbloom.search.queries import Queries


@dataclass(frozen=True)
class TopK:
    """The answers to a batch of queries; if fewer than k ids remain, ids end in −1 with score −inf."""

    ids: Tensor  # (batch, k)
    scores: Tensor  # (batch, k)
    certified: Tensor  # (batch,) True if no other id belongs in the answer
    rounds: Tensor  # (batch,) number of rounds that opened buckets; 0 if every id was ranked at once
    scored: Tensor  # (batch,) number of ids scored
    width: Tensor  # (batch,) number of opened buckets of each hash, at most
    edge: Tensor  # (batch, m) buckets with values above it were opened; −inf if every id was ranked
    bound: Tensor  # (batch,) the highest score that an id in no opened bucket can have; −inf if every id was ranked


@dataclass(frozen=True)
class Limits:
    """Which ids may be returned, and how many: the options that every search takes."""

    k: int | Tensor
    exclude: Tensor | None = None
    allow: Tensor | None = None
    min_score: float | Tensor | None = None


class Opening(ABC):
    """The inputs of one batch of queries, and the steps that work on their state."""

    def __init__(self, log_probs: Tensor, bloom: BloomHash, limits: Limits) -> None:
        check_inputs(log_probs, bloom)
        batch, m, _ = log_probs.shape
        device = log_probs.device
        self.log_probs, self.bloom = log_probs.float().contiguous(), bloom.to(device)
        self.filter = Filter(limits.exclude, limits.allow, batch, bloom.num_ids, device)
        self.k, self.largest_k = checked_k(limits.k, batch, bloom.num_ids, device)
        self.has_one_k, self.min_score = not isinstance(limits.k, Tensor), limits.min_score
        self.cost = CostModel(self.bloom, self.filter)
        self.hashes = torch.arange(m, device=device)
        # Line 2: buckets are opened in the order of these values, (batch, m, num_buckets).
        self.values = self.bucket_values()

    @cached_property
    def best_buckets(self) -> BlockTopK:
        """The order of the buckets; InputError if a value has no rank."""
        return BlockTopK(self.values.flatten(0, 1))

    def bucket_values(self) -> Tensor:
        """The most that each bucket can add to the score of a member."""
        return self.log_probs

    @abstractmethod
    def bounds(self, values: Tensor) -> Tensor:
        """The highest score of an id whose buckets have these values (q, m, ranks): (q, ranks)."""

    @abstractmethod
    def score(self, queries: Queries, buckets: Tensor, opened: Tensor, before: Tensor) -> None:
        """Lines 5 and 6: score the members of the buckets (q, m, b) that are opened; `before` are the old edges."""

    @abstractmethod
    def rank_all(self, queries: Queries) -> None:
        """Score every permitted id."""

    def is_hopeless(self, queries: Queries, width: int) -> Tensor:
        """Which queries are answered sooner by ranking every id than by opening more buckets, (q,)."""
        return self.cost.is_hopeless(queries, width)

    def start(self) -> Queries:
        """All queries, before the first round."""
        _ = self.best_buckets  # refuses NaN, also where every id is ranked
        floor = checked_floor(self.min_score, len(self.k), self.log_probs.device)
        return Queries.start(self.k, floor, len(self.hashes), self.largest_k)

    def open_buckets(self, queries: Queries, width: int) -> Queries:
        """One round of Alg. 1, for a few queries at a time if their buckets have many members."""
        few = self.cost.queries_at_once(width)
        parts = [queries] if len(queries) <= few else [queries[i : i + few] for i in range(0, len(queries), few)]
        for part in parts:
            self._open_buckets(part, width)
        return Queries.join(parts)

    def _open_buckets(self, queries: Queries, width: int) -> None:
        """Lines 4 to 7: open the best buckets of each hash, at most `width`, and score their members."""
        q, m = queries.edge.shape
        rows = (queries.number[:, None] * m + self.hashes).view(-1)
        values, buckets = self.best_buckets.of(rows, width + 1)
        values, buckets = values.view(q, m, -1), buckets.view(q, m, -1)
        # An id whose buckets all have rank r or more scores at most bounds[r]. So the k-th score limits how many
        # buckets are worth opening.
        bounds = self.bounds(values)
        reach = (bounds >= queries.threshold[:, None]).sum(dim=1, keepdim=True).clamp_(max=width)
        before, after = queries.edge, values.gather(2, reach[..., None].expand(-1, m, 1))  # line 4: p_j^b
        closed = values <= before[..., None]
        ranks = slice(values.shape[2] - int(closed.sum(dim=2).max()), int(reach.max()))  # that some query opens
        opened, buckets = (closed & (values > after))[..., ranks], buckets[..., ranks]
        queries.edge, queries.bound, queries.width = after.squeeze(2), bounds.gather(1, reach).squeeze(1), reach[:, 0]
        queries.rounds = queries.rounds + 1
        self.score(queries, buckets, opened, before)
        # Line 7, for the k-th best. Departs from the paper: the bound is that of the best *unopened* buckets, which is
        # tighter. The k-th score must be above it, so that an unscored tie with a smaller id is not missed.
        queries.update_threshold()
        queries.certified = queries.threshold > queries.bound
        queries.earlier = bounds[:, width // WIDTH_GROWTH]

    def members(self, hashes: Tensor, buckets: Tensor) -> tuple[Tensor, Tensor]:
        """The ids in these buckets of these hashes (…,): (…, largest bucket), and which of them are members.

        Members are stored side by side: each bucket is copied as one run of `order`, as long as the largest bucket.
        """
        bloom, size = self.bloom, self.bloom.largest_bucket
        spans = bloom.spans.index_select(0, (buckets + bloom.num_buckets * hashes).flatten())
        run, first, end = spans.unbind(1)
        ids = bloom.order.view(-1).unfold(0, size, 1).index_select(0, run)
        slots = torch.arange(size, dtype=torch.int32, device=run.device)
        inside = (slots >= first[:, None]) & (slots < end[:, None])
        return ids.view(*buckets.shape, size), inside.view(*buckets.shape, size)

    def is_new(self, queries: Queries, before: Tensor, values: Tensor) -> Tensor:
        """Which members of buckets are not scored yet, (q, m, n), from the values of all their buckets (q, m, n, m).

        A member is scored if one of its buckets was open before this round, or is opened by an earlier hash.
        """
        new = torch.ones(values.shape[:-1], dtype=torch.bool, device=values.device)
        for i, value in enumerate(values.unbind(-1)):
            limit = torch.where(self.hashes > i, queries.edge[:, i, None], before[:, i, None])
            new &= value <= limit[..., None]
        return new

    def tokens_of(self, queries: Tensor, ids: Tensor) -> Tensor:
        """Where the values of all buckets of ids (q, …) lie in the flat log_probs of queries (q,): (q, …, m)."""
        bloom, m = self.bloom, len(self.hashes)
        offsets = (queries[:, None] * m + self.hashes) * bloom.num_buckets
        if self.log_probs.numel() < 2**31:
            offsets = offsets.int()
        rows = bloom.table.index_select(0, ids.flatten()).view(*ids.shape, m)
        return rows + offsets.view(len(queries), *[1] * (ids.dim() - 1), m)

    def answer(self, queries: Queries) -> TopK:
        scores, ids = unkey(queries.best)
        if not self.has_one_k or self.min_score is not None:
            rank = torch.arange(scores.shape[1], device=ids.device)
            left_out = (rank >= queries.k[:, None]) | (scores < queries.floor[:, None])
            ids, scores = ids.masked_fill(left_out, -1), scores.masked_fill(left_out, -torch.inf)
        found = (queries.certified, queries.rounds, queries.scored, queries.width, queries.edge, queries.bound)
        return TopK(ids, scores, *found)
