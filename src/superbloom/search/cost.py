"""The cost model of the search: how many buckets to open first, and when to rank every id instead.

It decides speed only; answers are exact either way. Costs are measured in ids of a direct ranking (docs/search.md):
scoring one id of a direct ranking costs 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from superbloom.hashing import BloomHash
from superbloom.search.filters import Filter
from superbloom.search.queries import Queries

FIRST_ROUND_MEMBERS = 2400  # ids to score in the first round, in a width between these two:
MIN_FIRST_WIDTH, MAX_FIRST_WIDTH = 24, 96  # buckets of each hash
WIDTH_GROWTH = 4  # factor of the width from round to round
MAX_MEMBERS_AT_ONCE = 2**19  # ids scored together, over all queries: bounds memory, and fits a cache
MEMBER_COST = 10  # of a member of an opened bucket, which is looked up at random
ROUND_COST = 120_000  # of starting a round
DIRECT_COST = 25_000  # of starting a direct ranking
HOPELESS_FACTOR = 4  # opening buckets may cost this many times a direct ranking before a query gives up


@dataclass(frozen=True)
class CostModel:
    """Estimates for the queries of one batch."""

    bloom: BloomHash
    filter: Filter

    def members(self, width: int) -> int:
        """The most ids that `width` buckets of each hash can hold."""
        return self.bloom.num_hashes * min(width, self.bloom.num_buckets) * self.bloom.largest_bucket

    def first_width(self, k: int) -> int:
        """Buckets with some thousand members, in which most queries find their answer, and with at least k."""
        return max(
            MIN_FIRST_WIDTH, min(FIRST_ROUND_MEMBERS // self.members(1), MAX_FIRST_WIDTH), -(-k // self.members(1))
        )

    def queries_at_once(self, width: int) -> int:
        """The number of queries whose members are scored together."""
        return max(1, MAX_MEMBERS_AT_ONCE // self.members(width))

    def is_direct_cheaper(self, queries: int, width: int) -> bool:
        """Whether to rank every id now instead of opening buckets up to a width."""
        return queries * (DIRECT_COST + self.filter.work) <= ROUND_COST + queries * MEMBER_COST * self.members(width)

    def is_hopeless(self, queries: Queries, width: int) -> Tensor:
        """Which queries are answered sooner by ranking every id than by opening all buckets they need, (q,).

        Bounds fall with the logarithm of the width, so the last fall predicts how many rounds are left. The prediction
        is rather too high, because thresholds rise. A query that has found fewer than k ids gets one more round.
        """
        fall = (queries.earlier - queries.bound).clamp(min=1e-9)
        rounds = ((queries.bound - queries.threshold) / fall).masked_fill(queries.threshold == -torch.inf, 1.0)
        return self.is_too_much(queries, (width * WIDTH_GROWTH**rounds).clamp(max=self.bloom.num_buckets))

    def is_too_much(self, queries: Queries, needed: Tensor) -> Tensor:
        """Which queries are answered sooner by ranking every id than by opening `needed` buckets of each hash, (q,)."""
        needed = needed.masked_fill(queries.scored == 0, torch.inf)
        direct = HOPELESS_FACTOR * (DIRECT_COST + self.filter.work)
        return ~queries.certified & (MEMBER_COST * needed * self.members(1) >= direct)
