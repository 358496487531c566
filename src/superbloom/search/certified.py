"""Certified top-k: from the m token distributions of a place to the best ids (Sec. 2.5, Alg. 1, App. C).

    log_probs (batch, m, num_buckets), row j over hash j's own buckets  →  ids, scores (batch, k)

Buckets are opened from the most probable down, their members scored. An id in no opened bucket scores at most
`bound`, the combined log-probability of the best unopened bucket of each hash; once the k-th best score lies
above it, no other id of the catalogue can enter the answer, and the answer is certified. Queries that are not
certified open more, as far as their k-th best score so far asks for, or rank every id when that is cheaper.
Higher score first; of equal scores the smaller id, everywhere.

Each hash has an edge: buckets with values above it are open. So m numbers tell what a query has scored, and
buckets that tie at the edge stay closed until it falls below them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from superbloom.errors import InputError, check_whole
from superbloom.hashing import BloomHash
from superbloom.ranking import LOWEST, NOTHING, Largest, best_keys, keys_of, scores_of, unkey
from superbloom.search.filters import Filter
from superbloom.search.scoring import Bonus, Combine, fold_of, is_sum

FIRST = 2400  # members to score in the first round, in so many buckets of each hash:
FEWEST, MOST = 24, 96
GROWTH = 4  # of the width, from round to round
MEMBERS = 2**21  # scored together, over all queries: bounds memory
# What things cost, in ids of a direct ranking (docs/search.md): a member of an opened bucket, which is looked up at
# random; a round; and the start of a direct ranking.
MEMBER, ROUND, DIRECT = 10, 120_000, 25_000
SOON_RANKED = 500_000  # ids, in two milliseconds
SUMMED = 8  # queries: their log-probabilities stay in the cache
ROUNDING = 1e-5  # of a sum of so many numbers


@dataclass(frozen=True)
class TopK:
    """Answers of a batch of queries; where fewer than k ids remain, ids end in −1 with score −inf.

    >>> log_probs = torch.tensor([[[0.5, 0.3, 0.2]]]).log()                 # one query, one hash, three buckets
    >>> found = top_k(log_probs, BloomHash.from_table(torch.tensor([[2], [0], [1]]), num_buckets=3, alpha=1), k=2)
    >>> found.ids.tolist(), [f"{score:.2f}" for score in found.scores[0].exp()], bool(found.certified)
    ([[1, 2]], ['0.50', '0.30'], True)
    """

    ids: Tensor  # (batch, k)
    scores: Tensor  # (batch, k)
    certified: Tensor  # (batch,) no id left out belongs into the answer
    rounds: Tensor  # (batch,) how often buckets were opened; 0 if every id was ranked at once
    scored: Tensor  # (batch,) how many ids were scored
    width: Tensor  # (batch,) how many buckets of each hash were opened, at most
    edge: Tensor  # (batch, m) buckets with values above it were opened; −inf if every id was ranked
    bound: Tensor  # (batch,) what an id in no opened bucket scores at most; −inf if every id was ranked
    # With a temperature: log Σ exp(score / temperature) over the scored ids, and over the others at most.
    mass: Tensor | None = None
    unscored: Tensor | None = None


def top_k(
    log_probs: Tensor,
    bloom: BloomHash,
    k: int | Tensor,
    *,
    beam: int | None = None,
    max_rounds: int | None = None,
    combine: str | Sequence[float] | Combine = "sum",
    exclude: Tensor | None = None,
    allow: Tensor | None = None,
    min_score: float | Tensor | None = None,
    bonus: Bonus | None = None,
    temperature: float | None = None,
) -> TopK:
    """The k best ids of each query, exact unless max_rounds stops the search before it is certified.

    k is a number, or one for each query. beam is the first width B; max_rounds=1 is the paper's approximate
    search. combine is sum, min or max, a positive weight for each hash, or any function of (..., m) that is
    increasing in each argument (exact then up to its own rounding). exclude and allow are ids, −1 fills, or masks
    over the catalogue, for all queries or a row for each. Ids that score less than min_score are not answered. With
    a temperature, the answer tells the mass of what was scored, and at most of what was not.

    >>> bloom = BloomHash.random(num_ids=200_000, num_hashes=2, alpha=20, seed=1)
    >>> log_probs = (3 * torch.randn(1, 2, 10_000, generator=torch.manual_seed(0))).log_softmax(-1)
    >>> found = top_k(log_probs, bloom, k=3)
    >>> torch.equal(found.ids, exhaustive(log_probs, bloom, k=3).ids), bool(found.certified), int(found.scored) < 10_000
    (True, True, True)
    """
    search = _Search(log_probs, bloom, k, combine, exclude, allow, min_score, bonus, temperature)
    width = search.first_width() if beam is None else beam
    check_whole(beam=width, max_rounds=1 if max_rounds is None else max_rounds)
    queries, done = search.start(), []
    if search.filter.lists is not None or not len(queries):  # there is nothing to search for
        search.rank_all(queries)
        return search.answer(queries)
    for round_ in range(1, 1 + (max_rounds or bloom.num_buckets)):
        direct = max_rounds is None and search.direct_is_cheaper(len(queries), width)
        if direct or width >= bloom.num_buckets or width * bloom.largest_bucket > bloom.num_ids:
            search.rank_all(queries)
            break
        queries = search.open_buckets(queries, width)
        if round_ == max_rounds or bool(queries.certified.all()):
            break
        if max_rounds is None and bool((hopeless := search.hopeless(queries, width)).any()):
            done.append(queries[hopeless])
            search.rank_all(done[-1])
            queries = queries[~hopeless]
        if bool(queries.certified.any()):
            done.append(queries[queries.certified])
            queries = queries[~queries.certified]
        if not len(queries):
            break
        width *= GROWTH  # departs from the paper: the width grows by a factor, not by B
    if max_rounds is not None and bool((none := queries.scored == 0).any()):  # where all buckets tie, none is the best
        done.append(queries[~none])
        search.rank_all(queries := queries[none])
    return search.answer(_Queries.join([*done, queries]))


def exhaustive(log_probs: Tensor, bloom: BloomHash, k: int | Tensor, **options: Any) -> TopK:
    """The same answer by scoring every id of the catalogue; options as of top_k, but for beam and max_rounds.

    >>> bloom = BloomHash.random(num_ids=10, num_hashes=2, alpha=2)
    >>> int(exhaustive(torch.zeros(1, 2, 5).log_softmax(-1), bloom, k=3).scored)
    10
    """
    return top_k(log_probs, bloom, k, beam=bloom.num_buckets, **options)  # all buckets: that ranks every id


@dataclass
class _Queries:
    """What is known of some queries of a batch so far; every tensor has a row for each."""

    number: Tensor  # their places in the batch
    k: Tensor
    floor: Tensor  # min_score
    best: Tensor  # (q, largest k) keys
    edge: Tensor  # (q, m) buckets with values above are open
    bound: Tensor  # what ids in no open bucket score at most
    threshold: Tensor  # what an id has to score to enter the answer
    certified: Tensor
    rounds: Tensor
    scored: Tensor
    width: Tensor
    earlier: Tensor  # the bound at a fraction of the width
    mass: Tensor

    def __len__(self) -> int:
        return len(self.number)

    def __getitem__(self, which: Tensor | slice) -> _Queries:
        return _Queries(*(getattr(self, field.name)[which] for field in fields(self)))

    @staticmethod
    def join(parts: list[_Queries]) -> _Queries:
        """All queries of the parts in the order of the batch."""
        if len(parts) == 1:
            return parts[0]
        order = torch.cat([part.number for part in parts]).argsort()
        columns = ([getattr(part, field.name) for part in parts] for field in fields(_Queries))
        return _Queries(*(torch.cat(column)[order] for column in columns))


class _Search:
    """What is asked of one batch of queries, and how to find it."""

    def __init__(
        self,
        log_probs: Tensor,
        bloom: BloomHash,
        k: int | Tensor,
        combine: str | Sequence[float] | Combine,
        exclude: Tensor | None,
        allow: Tensor | None,
        min_score: float | Tensor | None,
        bonus: Bonus | None,
        temperature: float | None,
    ) -> None:
        if log_probs.dim() != 3 or log_probs.shape[1:] != (bloom.num_hashes, bloom.num_buckets):
            raise InputError(
                f"log_probs of shape {tuple(log_probs.shape)} given; these hash functions need "
                f"(batch, {bloom.num_hashes}, {bloom.num_buckets}): are they another model's?"
            )
        self.is_sum = is_sum(combine)
        fits = bonus is None or (bonus.of_bucket.shape == log_probs.shape[1:] and len(bonus.of_id) == bloom.num_ids)
        if not fits or not (bonus is None or self.is_sum):
            raise InputError("a bonus is a term of the sum, for the ids of these tables: combine='sum', or no bonus")
        if temperature is not None and not 0 < temperature < math.inf:
            raise InputError(f"temperature={temperature} given; more than 0 is allowed")
        batch, m, _ = log_probs.shape
        device = log_probs.device
        self.log_probs, self.bloom = log_probs.float().contiguous(), bloom.to(device)
        self.bonus = None if bonus is None else bonus.to(device)
        # What each bucket adds to a score at most; buckets are opened in this order.
        self.upper = self.log_probs if self.bonus is None else self.log_probs + self.bonus.of_bucket
        self.largest = Largest(self.upper.flatten(0, 1))
        self.combine, self.fold = combine, fold_of(combine, m)
        self.filter = Filter(exclude, allow, batch, bloom.num_ids, device)
        self.k, self.min_score, self.temperature = k, min_score, temperature
        self.most = self._checked_k(batch)
        self.hashes = torch.arange(m, device=device)

    def start(self) -> _Queries:
        """All queries, nothing known of them."""
        batch, m, _ = self.log_probs.shape
        device = self.log_probs.device

        def row(value: float, kind: torch.dtype = torch.float32) -> Tensor:
            return torch.full((batch,), value, dtype=kind, device=device)

        floor = self._checked_floor(batch)
        return _Queries(
            number=torch.arange(batch, device=device),
            k=self.k.to(device).long() if isinstance(self.k, Tensor) else row(self.k, torch.long),
            floor=floor,
            best=torch.full((batch, self.most), NOTHING, device=device),
            edge=torch.full((batch, m), torch.inf, device=device),
            bound=row(torch.inf),
            threshold=floor,
            certified=row(False, torch.bool),
            rounds=row(0, torch.long),
            scored=row(0, torch.long),
            width=row(0, torch.long),
            earlier=row(torch.inf),
            mass=row(-torch.inf),
        )

    def _checked_k(self, batch: int) -> int:
        """The largest k."""
        k, num_ids = self.k, self.bloom.num_ids
        if not isinstance(k, Tensor):
            check_whole(k=k)
            least = most = int(k)
        elif k.dtype.is_floating_point or k.dtype == torch.bool or k.shape != (batch,):
            raise InputError(f"k={_shown(k)} given; a whole number, or one for each of the {batch} queries, is allowed")
        else:
            least, most = (int(k.min()), int(k.max())) if batch else (1, 1)
        if least < 1 or most > num_ids:
            wrong = least if least < 1 else most
            raise InputError(f"k={wrong} given; the catalogue has {num_ids:,} ids, so 1 to {num_ids} is allowed")
        return most

    def _checked_floor(self, batch: int) -> Tensor:
        given, device = self.min_score, self.log_probs.device
        if given is None:
            return torch.full((batch,), -torch.inf, device=device)
        floor = torch.as_tensor(given, dtype=torch.float32, device=device)
        if floor.shape not in ((), (batch,)) or bool(floor.isnan().any()):
            raise InputError(
                f"min_score={_shown(given)} given; a number, or one for each of the {batch} queries, is allowed"
            )
        return floor.expand(batch).clone()

    def _members(self, width: int) -> int:
        return self.bloom.num_hashes * min(width, self.bloom.num_buckets) * self.bloom.largest_bucket

    def first_width(self) -> int:
        """Buckets with some thousand members, in which most queries find their answer, and at least k."""
        return max(FEWEST, min(FIRST // self._members(1), MOST), -(-self.most // self._members(1)))

    def direct_is_cheaper(self, queries: int, width: int) -> bool:
        """Whether to rank every id now, rather than open buckets up to a width.

        That also gives the exact mass, so where the mass is asked for and few ids are to be ranked, it is done.
        """
        if self.temperature is not None and self.filter.work <= SOON_RANKED:
            return True
        return queries * (DIRECT + self.filter.work) <= ROUND + queries * MEMBER * self._members(width)

    def hopeless(self, queries: _Queries, width: int) -> Tensor:
        """Which queries will sooner be answered by ranking every id than by opening as many buckets as they need.

        Bounds fall with the logarithm of the width, so the last fall tells how far the rest of the way is: too far,
        if anything, since thresholds rise. Where fewer than k ids were found, one more round is due.
        """
        fall = (queries.earlier - queries.bound).clamp(min=1e-9)
        rounds = ((queries.bound - queries.threshold) / fall).masked_fill(queries.threshold == -torch.inf, 1.0)
        needed = (width * GROWTH**rounds).clamp(max=self.bloom.num_buckets).masked_fill(queries.scored == 0, torch.inf)
        return ~queries.certified & (MEMBER * needed * self._members(1) >= 4 * (DIRECT + self.filter.work))

    def open_buckets(self, queries: _Queries, width: int) -> _Queries:
        """A round of Alg. 1 for some queries, a few at a time if their buckets have many members."""
        few = max(1, MEMBERS // self._members(width))
        parts = [queries] if len(queries) <= few else [queries[i : i + few] for i in range(0, len(queries), few)]
        for part in parts:
            self._open_buckets(part, width)
        return _Queries.join(parts)

    def _open_buckets(self, queries: _Queries, width: int) -> None:
        """Lines 2 to 7: open the best buckets of each hash, at most `width` of them, and score their members."""
        q, m = queries.edge.shape
        rows = (queries.number[:, None] * m + self.hashes).view(-1)
        values, buckets = self.largest.of(rows, width + 1)
        values, buckets = values.view(q, m, -1), buckets.view(q, m, -1)
        # An id whose buckets all have rank r or more scores at most bounds[r]: open no more than the k-th score asks.
        bounds = self._bounds(values.unbind(1))
        reach = (bounds >= queries.threshold[:, None]).sum(dim=1, keepdim=True).clamp_(max=width)
        before, after = queries.edge, values.gather(2, reach[..., None].expand(-1, m, 1))
        closed = values <= before[..., None]
        ranks = slice(values.shape[2] - int(closed.sum(dim=2).max()), int(reach.max()))  # to open, of any query
        opened, buckets = (closed & (values > after))[..., ranks], buckets[..., ranks]
        queries.edge, queries.bound, queries.width = after.squeeze(2), bounds.gather(1, reach).squeeze(1), reach[:, 0]
        queries.rounds = queries.rounds + 1
        self._score(queries, buckets, opened, before)
        # Line 7, for the k-th best. Departs from the paper: the bound is taken over the best *unopened* bucket,
        # which is tighter, and must be beaten strictly, so that an unscored tie with a smaller id is not missed.
        kth = scores_of(queries.best.gather(1, queries.k[:, None] - 1)).squeeze(1)
        queries.threshold = torch.fmax(kth, queries.floor)
        queries.certified = queries.threshold > queries.bound
        queries.earlier = bounds[:, width // GROWTH]

    def _bounds(self, values: Sequence[Tensor]) -> Tensor:
        """What an id with these bucket values scores at most, (q, ranks)."""
        bounds = self.fold(values)
        if callable(self.combine):
            # subtle: a caller's function may round up what is smaller: allow for some units of the last place
            size = bounds.abs().clamp_(max=-LOWEST)
            if bool((bounds.diff(dim=1) > 1e-4 * size[:, 1:]).any()):
                raise InputError(
                    "combine gave more for less; a function that is increasing in each argument is allowed"
                )
            bounds = (bounds + 1e-5 * size).flip(1).cummax(dim=1).values.flip(1)
        if self.bonus is not None:
            # subtle: bound and score add the same terms in another order, and each addition rounds by itself
            size = self.fold([value.abs() for value in values]).clamp_(max=-LOWEST) + self.bonus.largest
            bounds = bounds + (len(values) + 2) * 2.0**-22 * size
        return bounds.clamp(min=LOWEST)

    def _score(self, queries: _Queries, buckets: Tensor, opened: Tensor, before: Tensor) -> None:
        """Lines 5 and 6: score who lies in a newly opened bucket (q, m, b) and was not scored before."""
        bloom, (q, m, _) = self.bloom, buckets.shape
        # Members lie side by side: copy each bucket as one run of `order`, as long as the largest bucket.
        size = bloom.largest_bucket
        spans = bloom.spans.index_select(0, (buckets + bloom.num_buckets * self.hashes[:, None]).view(-1))
        run, first, end = spans.unbind(1)
        ids = bloom.order.view(-1).unfold(0, size, 1).index_select(0, run).view(q, -1)
        slots = torch.arange(size, dtype=torch.int32, device=run.device)
        inside = (slots >= first[:, None]) & (slots < (end * opened.flatten())[:, None])
        new = inside.view(q, m, -1)
        # The values of all buckets of these ids, m tensors (q, m, members).
        offsets = (queries.number[:, None] * m + self.hashes) * bloom.num_buckets
        if self.log_probs.numel() < 2**31:
            offsets = offsets.int()
        tokens = bloom.table.index_select(0, ids.view(-1)).view(q, -1, m) + offsets[:, None]
        parts = self.log_probs.view(-1).index_select(0, tokens.view(-1)).view(q, m, -1, m).unbind(-1)
        values = parts
        if self.bonus is not None:
            values = self.upper.view(-1).index_select(0, tokens.view(-1)).view(q, m, -1, m).unbind(-1)
        for i in range(m):
            # An id was scored before if a bucket of it was open before this round, or is opened by an earlier hash.
            limit = torch.where(self.hashes > i, queries.edge[:, i, None], before[:, i, None])
            new &= values[i] <= limit[..., None]
        scores, new = self.fold(parts).view(q, -1), new.view(q, -1)
        if self.bonus is not None:
            scores = scores + self.bonus.of_id.index_select(0, ids.view(-1)).view(q, -1)
        queries.scored = queries.scored + new.sum(dim=1)
        permitted = self.filter.permits(queries.number, ids)
        if permitted is not None:
            new &= permitted
        keys = torch.where(new, keys_of(scores, ids), NOTHING)
        queries.best = torch.cat([queries.best, keys], dim=1).topk(queries.best.shape[1], dim=1).values
        if self.temperature is not None:
            mass = torch.where(new, scores / self.temperature, -torch.inf).logsumexp(dim=1)
            queries.mass = torch.logaddexp(queries.mass, mass)

    def rank_all(self, queries: _Queries) -> None:
        """Score every id that may be answered, one query after the other."""
        columns, common, best, mass, scored = self.bloom.columns, self.filter.common, [], [], []
        if common is not None:
            columns = columns.index_select(1, common)
        for query in queries.number.tolist():
            ids, permitted = self.filter.candidates(query)
            known = ids
            if ids is not None and common is None:  # a list of the query's own, with fills
                known = ids.clamp(min=0)
                columns = self.bloom.columns.index_select(1, known)
            per_hash = zip(self.log_probs[query], columns, strict=True)
            scores = self.fold([log_probs.index_select(0, column) for log_probs, column in per_hash])
            if self.bonus is not None:
                scores = scores + (self.bonus.of_id if known is None else self.bonus.of_id[known])
            if self.temperature is not None:
                scaled = scores / self.temperature
                mass.append((scaled if permitted is None else scaled[permitted]).logsumexp(dim=0))
            scored.append(len(scores) if ids is None else int((ids >= 0).sum()))
            best.append(best_keys(scores, ids, permitted, queries.best.shape[1]))
        queries.best = torch.stack(best) if best else queries.best
        queries.mass = torch.stack(mass) if mass else queries.mass
        queries.scored = torch.tensor(scored, dtype=torch.long, device=queries.scored.device)
        queries.certified = torch.ones_like(queries.certified)
        queries.bound = torch.full_like(queries.bound, -torch.inf)
        queries.edge = torch.full_like(queries.edge, -torch.inf)

    def answer(self, queries: _Queries) -> TopK:
        scores, ids = unkey(queries.best)
        if isinstance(self.k, Tensor) or self.min_score is not None:
            rank = torch.arange(scores.shape[1], device=ids.device)
            left_out = (rank >= queries.k[:, None]) | (scores < queries.floor[:, None])
            ids, scores = ids.masked_fill(left_out, -1), scores.masked_fill(left_out, -torch.inf)
        mass = unscored = None
        if self.temperature is not None:
            mass, unscored = queries.mass, self._unscored(queries)
        found = (queries.certified, queries.rounds, queries.scored, queries.width, queries.edge, queries.bound)
        return TopK(ids, scores, *found, mass, unscored)

    def _unscored(self, queries: _Queries) -> Tensor:
        """At most so large is log Σ exp(score / temperature) over the ids that were not scored."""
        assert self.temperature is not None
        # As many ids as were not scored, none of them above the bound.
        unscored = (self.bloom.num_ids - queries.scored).log() + queries.bound.clamp(max=-LOWEST) / self.temperature
        if self.is_sum:
            # Those ids lie in closed buckets of hash j, and their other buckets are not above the edges.
            in_closed = self._closed(queries) + math.log(self.bloom.largest_bucket)
            others = torch.stack([queries.edge[:, self.hashes != j].sum(dim=1) for j in self.hashes], dim=1)
            unscored = torch.minimum(unscored, (in_closed + others / self.temperature).amin(dim=1))
        return unscored.masked_fill(queries.bound == -torch.inf, -torch.inf)

    def _closed(self, queries: _Queries) -> Tensor:
        """At most so large is log Σ exp(value / temperature) over the buckets of each hash that are not open, (q, m).

        subtle: an open bucket counts as if it had the value of the edge, and is then taken off again: no value is above
        the edge, so that nothing overflows, and few passes are made over memory, a few queries at a time.
        """
        assert self.temperature is not None
        edge, found = queries.edge[..., None], []
        for upper, at in zip(self.upper.split(SUMMED), edge.split(SUMMED), strict=True):
            opened = (upper > at).sum(dim=2)
            above = torch.sub(upper, at.clamp(min=LOWEST)).div_(self.temperature)
            total = above.clamp_(max=0).exp_().sum(dim=2)
            found.append((total - opened).clamp(min=0) + ROUNDING * (total + opened))
        return torch.cat(found).log() + queries.edge / self.temperature


def _shown(given: Any) -> str:
    return f"a tensor of shape {tuple(given.shape)}" if isinstance(given, Tensor) and given.dim() else str(given)
