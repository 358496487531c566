"""Certified top-k for batches: from m token distributions to the best ids (Sec. 2.5, Alg. 1, App. C).

    log_probs (batch, m, num_buckets), row j over the buckets of hash j  →  ids, scores (batch, k)

reference.py has the same algorithm for one query in plain code. A round opens the best buckets of each hash and scores
their members. An id in no opened bucket scores at most `bound`, the combined values of the best unopened bucket of each
hash. If the k-th best score lies above the bound, no other id can enter the answer: it is certified. The other queries
open more buckets, or rank every id if that is cheaper (cost.py). Higher score first, then the smaller id, everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from superbloom.errors import InputError, check_whole
from superbloom.hashing import BloomHash
from superbloom.ranking import EMPTY_KEY, LOWEST_SCORE, BlockTopK, best_keys, keys_of, scores_of, unkey
from superbloom.search.arguments import check_inputs, checked_floor, checked_k
from superbloom.search.cost import WIDTH_GROWTH, CostModel
from superbloom.search.filters import Filter
from superbloom.search.mass import unscored_mass
from superbloom.search.queries import Queries
from superbloom.search.scoring import Bonus, Combine, fold_of, is_sum


@dataclass(frozen=True)
class TopK:
    """The answers to a batch of queries; if fewer than k ids remain, ids end in −1 with score −inf.

    >>> log_probs = torch.tensor([[[0.5, 0.3, 0.2]]]).log()                 # one query, one hash, three buckets
    >>> found = top_k(log_probs, BloomHash.from_table(torch.tensor([[2], [0], [1]]), num_buckets=3, alpha=1), k=2)
    >>> found.ids.tolist(), [f"{score:.2f}" for score in found.scores[0].exp()], bool(found.certified)
    ([[1, 2]], ['0.50', '0.30'], True)
    """

    ids: Tensor  # (batch, k)
    scores: Tensor  # (batch, k)
    certified: Tensor  # (batch,) True if no other id belongs in the answer
    rounds: Tensor  # (batch,) number of rounds that opened buckets; 0 if every id was ranked at once
    scored: Tensor  # (batch,) number of ids scored
    width: Tensor  # (batch,) number of opened buckets of each hash, at most
    edge: Tensor  # (batch, m) buckets with values above it were opened; −inf if every id was ranked
    bound: Tensor  # (batch,) the highest score that an id in no opened bucket can have; −inf if every id was ranked
    # With a temperature: log Σ exp(score / temperature) over the scored ids, and an upper bound over the others.
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
    """The k best ids of each query. Exact, unless max_rounds stops the search before it is certified.

    k: a number, or one for each query.
    beam: the first width, the paper's B. max_rounds=1 is the paper's approximate search.
    combine: "sum", "min", "max", a positive weight for each hash, or any function of (..., m) that is increasing in
    each argument (exact up to its own rounding).
    exclude, allow: ids (−1 fills) or masks over the catalogue; one for all queries, or a row for each query.
    min_score: ids with a lower score are left out.
    temperature: also return the mass of the scored ids, and a bound on the mass of the others.

    >>> bloom = BloomHash.random(num_ids=200_000, num_hashes=2, alpha=20, seed=1)
    >>> log_probs = (3 * torch.randn(1, 2, 10_000, generator=torch.manual_seed(0))).log_softmax(-1)
    >>> found = top_k(log_probs, bloom, k=3)
    >>> torch.equal(found.ids, exhaustive(log_probs, bloom, k=3).ids), bool(found.certified), int(found.scored) < 10_000
    (True, True, True)
    """
    search = _Search(log_probs, bloom, k, combine, exclude, allow, min_score, bonus, temperature)
    width = search.cost.first_width(search.largest_k) if beam is None else beam
    check_whole(beam=width, max_rounds=1 if max_rounds is None else max_rounds)
    queries, done = search.start(), []
    if search.filter.lists is not None or not len(queries):  # there is nothing to search for
        search.rank_all(queries)
        return search.answer(queries)
    for round_ in range(1, 1 + (max_rounds or bloom.num_buckets)):  # line 3
        direct = max_rounds is None and search.cost.is_direct_cheaper(len(queries), width)
        if direct or width >= bloom.num_buckets or width * bloom.largest_bucket > bloom.num_ids:
            search.rank_all(queries)
            break
        queries = search.open_buckets(queries, width)  # lines 4 to 7
        if round_ == max_rounds or bool(queries.certified.all()):
            break
        if max_rounds is None and bool((hopeless := search.cost.is_hopeless(queries, width)).any()):
            done.append(queries[hopeless])
            search.rank_all(done[-1])
            queries = queries[~hopeless]
        if bool(queries.certified.any()):
            done.append(queries[queries.certified])
            queries = queries[~queries.certified]
        if not len(queries):
            break
        width *= WIDTH_GROWTH  # Departs from the paper: the width grows by a factor, not by B.
    # Where all buckets tie, none is the best, and none was opened.
    if max_rounds is not None and bool((untouched := queries.scored == 0).any()):
        done.append(queries[~untouched])
        search.rank_all(queries := queries[untouched])
    return search.answer(Queries.join([*done, queries]))  # line 10


def exhaustive(log_probs: Tensor, bloom: BloomHash, k: int | Tensor, **options: Any) -> TopK:
    """The same answer by scoring every id; takes the options of top_k except beam and max_rounds.

    >>> bloom = BloomHash.random(num_ids=10, num_hashes=2, alpha=2)
    >>> int(exhaustive(torch.zeros(1, 2, 5).log_softmax(-1), bloom, k=3).scored)
    10
    """
    return top_k(log_probs, bloom, k, beam=bloom.num_buckets, **options)  # a width of all buckets ranks every id


class _Search:
    """The inputs of one batch of queries, and the steps that work on their state."""

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
        self.is_sum = is_sum(combine)
        check_inputs(log_probs, bloom, bonus, temperature, self.is_sum)
        batch, m, _ = log_probs.shape
        device = log_probs.device
        self.log_probs, self.bloom = log_probs.float().contiguous(), bloom.to(device)
        self.bonus = None if bonus is None else bonus.to(device)
        # The most that each bucket adds to a score. Line 2: buckets are opened in this order.
        self.upper = self.log_probs if self.bonus is None else self.log_probs + self.bonus.of_bucket
        self.best_buckets = BlockTopK(self.upper.flatten(0, 1))
        self.combine, self.fold = combine, fold_of(combine, m)
        self.filter = Filter(exclude, allow, batch, bloom.num_ids, device)
        self.min_score, self.temperature = min_score, temperature
        self.k, self.largest_k = checked_k(k, batch, bloom.num_ids, device)
        self.has_one_k = not isinstance(k, Tensor)
        self.cost = CostModel(self.bloom, self.filter, wants_mass=temperature is not None)
        self.hashes = torch.arange(m, device=device)

    def start(self) -> Queries:
        """All queries, before the first round."""
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
        bounds = self._bounds(values.unbind(1))
        reach = (bounds >= queries.threshold[:, None]).sum(dim=1, keepdim=True).clamp_(max=width)
        before, after = queries.edge, values.gather(2, reach[..., None].expand(-1, m, 1))  # line 4: p_j^b
        closed = values <= before[..., None]
        ranks = slice(values.shape[2] - int(closed.sum(dim=2).max()), int(reach.max()))  # that some query opens
        opened, buckets = (closed & (values > after))[..., ranks], buckets[..., ranks]
        queries.edge, queries.bound, queries.width = after.squeeze(2), bounds.gather(1, reach).squeeze(1), reach[:, 0]
        queries.rounds = queries.rounds + 1
        self._score(queries, buckets, opened, before)
        # Line 7, for the k-th best. Departs from the paper: the bound is that of the best *unopened* buckets, which is
        # tighter. The k-th score must be above it, so that an unscored tie with a smaller id is not missed.
        kth = scores_of(queries.best.gather(1, queries.k[:, None] - 1)).squeeze(1)
        queries.threshold = torch.fmax(kth, queries.floor)
        queries.certified = queries.threshold > queries.bound
        queries.earlier = bounds[:, width // WIDTH_GROWTH]

    def _bounds(self, values: Sequence[Tensor]) -> Tensor:
        """The highest score that an id with these bucket values can have, (q, ranks)."""
        bounds = self.fold(values)
        if callable(self.combine):
            # subtle: a caller's function may round a smaller input up; allow for some units in the last place
            size = bounds.abs().clamp_(max=-LOWEST_SCORE)
            if bool((bounds.diff(dim=1) > 1e-4 * size[:, 1:]).any()):
                raise InputError(
                    "combine gave more for less; a function that is increasing in each argument is allowed"
                )
            bounds = (bounds + 1e-5 * size).flip(1).cummax(dim=1).values.flip(1)
        if self.bonus is not None:
            # subtle: bound and score add the same terms in different orders, and each addition rounds
            size = self.fold([value.abs() for value in values]).clamp_(max=-LOWEST_SCORE) + self.bonus.largest
            bounds = bounds + (len(values) + 2) * 2.0**-22 * size
        return bounds.clamp(min=LOWEST_SCORE)

    def _score(self, queries: Queries, buckets: Tensor, opened: Tensor, before: Tensor) -> None:
        """Lines 5 and 6: score the members of newly opened buckets (q, m, b) that were not scored before."""
        bloom, (q, m, _) = self.bloom, buckets.shape
        # Members are stored side by side: copy each bucket as one run of `order`, as long as the largest bucket.
        size = bloom.largest_bucket
        spans = bloom.spans.index_select(0, (buckets + bloom.num_buckets * self.hashes[:, None]).view(-1))
        run, first, end = spans.unbind(1)
        ids = bloom.order.view(-1).unfold(0, size, 1).index_select(0, run).view(q, -1)
        slots = torch.arange(size, dtype=torch.int32, device=run.device)
        inside = (slots >= first[:, None]) & (slots < (end * opened.flatten())[:, None])
        new = inside.view(q, m, -1)
        # The values of all buckets of these ids: m tensors (q, m, members).
        offsets = (queries.number[:, None] * m + self.hashes) * bloom.num_buckets
        if self.log_probs.numel() < 2**31:
            offsets = offsets.int()
        tokens = bloom.table.index_select(0, ids.view(-1)).view(q, -1, m) + offsets[:, None]
        parts = self.log_probs.view(-1).index_select(0, tokens.view(-1)).view(q, m, -1, m).unbind(-1)
        values = parts
        if self.bonus is not None:
            values = self.upper.view(-1).index_select(0, tokens.view(-1)).view(q, m, -1, m).unbind(-1)
        for i in range(m):
            # An id was scored before if one of its buckets was open before this round, or is opened by an earlier hash.
            limit = torch.where(self.hashes > i, queries.edge[:, i, None], before[:, i, None])
            new &= values[i] <= limit[..., None]
        scores, new = self.fold(parts).view(q, -1), new.view(q, -1)
        if self.bonus is not None:
            scores = scores + self.bonus.of_id.index_select(0, ids.view(-1)).view(q, -1)
        queries.scored = queries.scored + new.sum(dim=1)
        permitted = self.filter.permits(queries.number, ids)
        if permitted is not None:
            new &= permitted
        keys = torch.where(new, keys_of(scores, ids), EMPTY_KEY)
        queries.best = torch.cat([queries.best, keys], dim=1).topk(queries.best.shape[1], dim=1).values
        if self.temperature is not None:
            mass = torch.where(new, scores / self.temperature, -torch.inf).logsumexp(dim=1)
            queries.mass = torch.logaddexp(queries.mass, mass)

    def rank_all(self, queries: Queries) -> None:
        """Score every permitted id, one query after the other."""
        columns, common, best, mass, scored = self.bloom.columns, self.filter.common, [], [], []
        if common is not None:
            columns = columns.index_select(1, common)
        for query in queries.number.tolist():
            ids, permitted = self.filter.candidates(query)
            known = ids
            if ids is not None and common is None:  # the query's own list, with fills
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

    def answer(self, queries: Queries) -> TopK:
        scores, ids = unkey(queries.best)
        if not self.has_one_k or self.min_score is not None:
            rank = torch.arange(scores.shape[1], device=ids.device)
            left_out = (rank >= queries.k[:, None]) | (scores < queries.floor[:, None])
            ids, scores = ids.masked_fill(left_out, -1), scores.masked_fill(left_out, -torch.inf)
        mass = unscored = None
        if self.temperature is not None:
            mass = queries.mass
            unscored = unscored_mass(queries, self.upper, self.bloom, self.temperature, self.is_sum)
        found = (queries.certified, queries.rounds, queries.scored, queries.width, queries.edge, queries.bound)
        return TopK(ids, scores, *found, mass, unscored)
