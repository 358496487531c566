"""Scores that combine log-probabilities of buckets: the paper's sum, and other increasing functions (App. C)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from superbloom.errors import InputError
from superbloom.hashing import BloomHash
from superbloom.ranking import EMPTY_KEY, LOWEST_SCORE, best_keys, keys_of
from superbloom.search.arguments import check_bonus
from superbloom.search.opening import Limits, Opening
from superbloom.search.queries import Queries
from superbloom.search.scoring import Bonus, Combine, fold_of


class CombinedSearch(Opening):
    """Finds the ids of highest score: a function of the log-probabilities of their buckets, and a bonus for each id."""

    def __init__(
        self,
        log_probs: Tensor,
        bloom: BloomHash,
        limits: Limits,
        combine: str | Sequence[float] | Combine = "sum",
        bonus: Bonus | None = None,
    ) -> None:
        check_bonus(bonus, bloom, combine)
        self.bonus = None if bonus is None else bonus.to(log_probs.device)
        self.combine, self.fold = combine, fold_of(combine, bloom.num_hashes)
        super().__init__(log_probs, bloom, limits)

    def bucket_values(self) -> Tensor:
        return self.log_probs if self.bonus is None else self.log_probs + self.bonus.of_bucket

    def bounds(self, values: Tensor) -> Tensor:
        parts = values.unbind(1)
        bounds = self.fold(parts)
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
            size = self.fold([value.abs() for value in parts]).clamp_(max=-LOWEST_SCORE) + self.bonus.largest
            bounds = bounds + (len(parts) + 2) * 2.0**-22 * size
        return bounds.clamp(min=LOWEST_SCORE)

    def score(self, queries: Queries, buckets: Tensor, opened: Tensor, before: Tensor) -> None:
        """Score the members that no earlier round and no earlier hash of this round has scored."""
        q, m, _ = buckets.shape
        ids, inside = self.members(self.hashes[:, None], buckets)
        ids, new = ids.view(q, -1), (inside & opened[..., None]).view(q, m, -1)
        tokens = self.tokens_of(queries.number, ids).view(-1)
        parts = self.log_probs.view(-1).index_select(0, tokens).view(q, m, -1, m)
        values = parts if self.bonus is None else self.values.view(-1).index_select(0, tokens).view(parts.shape)
        new &= self.is_new(queries, before, values)
        scores, new = self.fold(parts.unbind(-1)).view(q, -1), new.view(q, -1)
        if self.bonus is not None:
            scores = scores + self.bonus.of_id.index_select(0, ids.view(-1)).view(q, -1)
        queries.scored = queries.scored + new.sum(dim=1)
        permitted = self.filter.permits(queries.number, ids)
        if permitted is not None:
            new &= permitted
        keys = torch.where(new, keys_of(scores, ids), EMPTY_KEY)
        queries.best = torch.cat([queries.best, keys], dim=1).topk(queries.best.shape[1], dim=1).values

    def rank_all(self, queries: Queries) -> None:
        columns, common, best, scored = self.bloom.columns, self.filter.common, [], []
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
            scored.append(len(scores) if ids is None else int((ids >= 0).sum()))
            best.append(best_keys(scores, ids, permitted, queries.best.shape[1]))
        queries.finish(best, scored)
