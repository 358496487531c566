"""Certified top-k: from the m token distributions of a place to the best ids (Sec. 2.5, Alg. 1, App. C).

    log_probs (batch, m, num_buckets), row j over hash j's own buckets  →  ids, scores (batch, k)

Buckets are opened from the most probable down, their members scored. An id in no opened bucket scores at most
`bound`, the combined log-probability of the best unopened bucket of each hash; once the k-th best score lies
above it, no other id of the catalogue can enter the answer, and the answer is certified. Queries that are not
certified go on with a larger width, or are scored exhaustively when that is cheaper.
Higher score first; of equal scores the smaller id, everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from itertools import count

import torch
from torch import Tensor

from superbloom.errors import InputError
from superbloom.hashing import BloomHash

Combine = Callable[[Tensor], Tensor]

# Increasing functions of the m log-probabilities in the last dimension. subtle: the sum adds from left to
# right, because a reduction may add in another order for another shape, and bound and score must round alike.
COMBINES: dict[str, Combine] = {
    "sum": lambda x: reduce(torch.add, x.unbind(-1)),
    "min": lambda x: x.amin(dim=-1),
    "max": lambda x: x.amax(dim=-1),
}
GROWTH = 4
EXHAUSTIVE_BYTES = 256 * 2**20
NOTHING = torch.iinfo(torch.int64).min


@dataclass(frozen=True)
class TopK:
    """Answers of a batch of queries; where fewer than k ids remain, ids end in −1 with score −inf."""

    ids: Tensor  # (batch, k)
    scores: Tensor  # (batch, k)
    certified: Tensor  # (batch,) no id left out belongs into the answer
    rounds: Tensor  # (batch,) how often the width was set; the last of them may be exhaustive
    scored: Tensor  # (batch,) how many ids were scored


def top_k(
    log_probs: Tensor,
    bloom: BloomHash,
    k: int,
    *,
    beam: int | None = None,
    max_rounds: int | None = None,
    combine: str | Combine = "sum",
    exclude: Tensor | None = None,
) -> TopK:
    """The k best ids of each query, exact unless max_rounds stops the search before it is certified.

    beam is the first width B (by default k); max_rounds=1 is the paper's approximate search. combine is one of
    COMBINES or any function of (..., m) that is increasing in each argument. exclude (batch, any) lists ids that
    may not be answered, −1 fills.

    >>> bloom = BloomHash.random(num_ids=10_000, num_hashes=2, alpha=20, seed=1)
    >>> log_probs = (3 * torch.randn(1, 2, 500, generator=torch.manual_seed(0))).log_softmax(-1)
    >>> found = top_k(log_probs, bloom, k=3)
    >>> torch.equal(found.ids, exhaustive(log_probs, bloom, k=3).ids), bool(found.certified), int(found.scored) < 1000
    (True, True, True)
    """
    scorer = _Scorer(log_probs, bloom, combine, exclude)
    width = k if beam is None else beam
    for name, value in (("k", k), ("beam", width), ("max_rounds", 1 if max_rounds is None else max_rounds)):
        if not isinstance(value, int) or value < 1:
            raise InputError(f"{name}={value} given; whole numbers from 1 are allowed")
    batch, m, num_buckets = log_probs.shape
    device = log_probs.device
    best = torch.full((batch, k), NOTHING, device=device)
    certified = torch.zeros(batch, dtype=torch.bool, device=device)
    rounds, scored = (torch.zeros(batch, dtype=torch.long, device=device) for _ in range(2))
    opened = torch.zeros(batch, m, num_buckets, dtype=torch.bool, device=device)
    before = 0
    for round_ in count(1):
        open_queries = torch.nonzero(~certified).squeeze(1)
        if not len(open_queries) or (max_rounds is not None and round_ > max_rounds):
            break
        rounds[open_queries] = round_
        if width >= num_buckets or (max_rounds is None and scorer.exhaustive_is_cheaper(width)):
            best[open_queries] = scorer.score_all(open_queries, k)
            scored[open_queries] = bloom.num_ids
            certified[open_queries] = True
            break
        # Alg. 1, lines 2 and 4: the next best buckets of each hash up to `width`, and the best one beyond them.
        # subtle: opened ones are masked rather than skipped by rank, since topk may order ties differently each time
        remaining = scorer.log_probs[open_queries].masked_fill_(opened[open_queries], -torch.inf)
        values, buckets = remaining.topk(width - before + 1, dim=-1)
        # Lines 5 and 6: score who lies in a newly opened bucket and in none opened earlier.
        found, new = scorer.score_members(open_queries, buckets[..., :-1], opened)
        best[open_queries] = torch.cat([best[open_queries], found], dim=1).topk(k).values
        scored[open_queries] += new
        # Line 7, for the k-th best. Departs from the paper: the bound is taken over the best *unopened* bucket,
        # which is tighter, and must be beaten strictly, so that an unscored tie with a smaller id is not missed.
        bound = scorer.combine(values[..., -1])
        kth = best[open_queries, k - 1]
        certified[open_queries] = (kth != NOTHING) & (_score_of(kth) > bound)
        before, width = width, width * GROWTH  # departs from the paper: the width grows by a factor, not by B
    return _answer(best, certified, rounds, scored)


def exhaustive(
    log_probs: Tensor, bloom: BloomHash, k: int, *, combine: str | Combine = "sum", exclude: Tensor | None = None
) -> TopK:
    """The same answer by scoring every id of the catalogue."""
    scorer = _Scorer(log_probs, bloom, combine, exclude)
    everyone = torch.arange(len(log_probs), device=log_probs.device)
    best = scorer.score_all(everyone, k)
    ones = torch.ones_like(everyone)
    return _answer(best, ones.bool(), ones, ones * bloom.num_ids)


class _Scorer:
    """Scores of ids for the queries of one batch, as sortable keys."""

    def __init__(self, log_probs: Tensor, bloom: BloomHash, combine: str | Combine, exclude: Tensor | None) -> None:
        if log_probs.shape[1:] != (bloom.num_hashes, bloom.num_buckets):
            raise InputError(
                f"log_probs of shape {tuple(log_probs.shape)} given; these hash functions need "
                f"(batch, {bloom.num_hashes}, {bloom.num_buckets})"
            )
        if bool(log_probs.isnan().any()):
            raise InputError("log_probs hold NaN, which has no rank; look at the model that made them")
        if isinstance(combine, str) and combine not in COMBINES:
            raise InputError(f"combine={combine!r} given; {', '.join(COMBINES)} or a function are allowed")
        self.combine = COMBINES[combine] if isinstance(combine, str) else combine
        # subtle: +0.0 turns −0.0 into 0.0; float32 because its bits make half of a key
        self.log_probs = log_probs.float() + 0.0
        self.bloom = bloom.to(log_probs.device)
        if exclude is not None and (exclude.dim() != 2 or len(exclude) != len(log_probs)):
            raise InputError(
                f"exclude of shape {tuple(exclude.shape)} given; a row of ids for each of the {len(log_probs)} queries "
                "is needed, −1 fills"
            )
        self.exclude = None if exclude is None else torch.sort(exclude.to(log_probs.device).long(), dim=1).values

    def exhaustive_is_cheaper(self, width: int) -> bool:
        """A scored member costs about as much as four ids in order: it is looked up, gathered and de-duplicated."""
        return self.bloom.num_hashes * width * self.bloom.largest_bucket * 4 >= self.bloom.num_ids

    def score_members(self, queries: Tensor, buckets: Tensor, opened: Tensor) -> tuple[Tensor, Tensor]:
        """Keys (q, any) of the members of buckets (q, m, b), and how many are new; marks the buckets opened."""
        bloom, keys = self.bloom, []
        slots = torch.arange(bloom.largest_bucket, device=buckets.device)
        count = torch.zeros(len(queries), dtype=torch.long, device=buckets.device)
        for j in range(bloom.num_hashes):
            starts, ends = bloom.starts[j][buckets[:, j]], bloom.starts[j][buckets[:, j] + 1]
            at = starts[..., None] + slots  # (q, b, largest_bucket)
            exists = (at < ends[..., None]).flatten(1)
            ids = bloom.order[j][at.clamp(max=bloom.num_ids - 1).flatten(1)].long()
            theirs = bloom.table[ids].long()  # (q, c, m)
            # An id was scored before if one of its buckets is open already: in another hash or another round.
            row, hash_ = queries[:, None, None], torch.arange(bloom.num_hashes, device=buckets.device)
            new = exists & ~opened[row, hash_, theirs].any(dim=-1)
            scores = self.combine(self.log_probs[row, hash_, theirs])
            keys.append(self._keys(scores, ids, queries).masked_fill(~new, NOTHING))
            count += new.sum(dim=1)
            opened[queries[:, None], j, buckets[:, j]] = True
        return torch.cat(keys, dim=1), count

    def score_all(self, queries: Tensor, k: int) -> Tensor:
        """Keys (q, k) of the best ids of the whole catalogue, a few queries at a time."""
        bloom, best = self.bloom, []
        ids = torch.arange(bloom.num_ids, device=queries.device)
        for few in queries.split(max(1, EXHAUSTIVE_BYTES // (8 * bloom.num_ids * (bloom.num_hashes + 1)))):
            chosen = self.log_probs[few]
            per_hash = [chosen[:, j].index_select(1, bloom.table[:, j].long()) for j in range(bloom.num_hashes)]
            keys = self._keys(self.combine(torch.stack(per_hash, dim=-1)), ids.expand(len(few), -1), few)
            top = keys.topk(min(k, bloom.num_ids), dim=1).values
            best.append(torch.nn.functional.pad(top, (0, k - top.shape[1]), value=NOTHING))
        return torch.cat(best)

    def _keys(self, scores: Tensor, ids: Tensor, queries: Tensor) -> Tensor:
        """One integer per (score, id) that sorts by score, then by falling id; NOTHING for excluded ids."""
        bits = (scores.float() + 0.0).view(torch.int32)
        ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()  # float order as integer order
        keys = (ordered << 32) + (0xFFFFFFFF - ids)
        if self.exclude is None or not self.exclude.shape[1]:
            return keys
        excluded = self.exclude[queries]
        at = torch.searchsorted(excluded, ids.contiguous()).clamp(max=excluded.shape[1] - 1)
        return keys.masked_fill(excluded.gather(1, at) == ids, NOTHING)


def _score_of(keys: Tensor) -> Tensor:
    ordered = (keys >> 32).int()
    return torch.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).view(torch.float32)


def _answer(best: Tensor, certified: Tensor, rounds: Tensor, scored: Tensor) -> TopK:
    missing = best == NOTHING
    ids = (0xFFFFFFFF - (best & 0xFFFFFFFF)).masked_fill(missing, -1)
    return TopK(ids, _score_of(best).masked_fill(missing, -torch.inf), certified, rounds, scored)
