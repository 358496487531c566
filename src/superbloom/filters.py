"""Which ids may be answered: some excluded, or only some allowed.

Both come as ids (whole numbers, −1 fills) or as a mask (booleans, one for each id of the catalogue), and for all
queries alike (one row) or for each query (batch rows).
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from superbloom.errors import InputError


class Filter:
    """The ids that may be answered, to look up (`permits`) or to list (`candidates`)."""

    def __init__(
        self, exclude: Tensor | None, allow: Tensor | None, batch: int, num_ids: int, device: torch.device
    ) -> None:
        self.num_ids, self.device = num_ids, device
        self.excluded: Tensor | None = None  # (1 or batch, any) sorted ids, −1 fills
        self.listed: Tensor | None = None  # (1 or batch, any) sorted ids, each once, −1 fills
        self._mask: Tensor | None = None  # (1 or batch, num_ids) True where allowed
        if allow is not None:
            rows = self._rows("allow", allow, batch)
            if rows.dtype == torch.bool:
                self._mask = rows
            else:
                rows = rows.sort(dim=1).values
                self.listed = torch.cat([rows[:, :1], rows[:, 1:].masked_fill(rows[:, 1:] == rows[:, :-1], -1)], dim=1)
                self.listed = self.listed.sort(dim=1).values
            self._check_not_empty()
        if exclude is not None:
            rows = self._rows("exclude", exclude, batch)
            if rows.dtype == torch.bool:
                self._mask = ~rows if self._mask is None else self._mask & ~rows
            elif rows.shape[1]:
                self.excluded = rows.sort(dim=1).values

    def _rows(self, name: str, given: Tensor, batch: int) -> Tensor:
        """The filter as a matrix of ids or booleans; raises InputError if it does not fit the queries."""
        given = torch.as_tensor(given, device=self.device)
        rows = given[None] if given.dim() == 1 else given
        mask, kind = given.dtype == torch.bool, given.dtype
        if rows.dim() != 2 or len(rows) not in (1, batch) or (mask and rows.shape[1] != self.num_ids):
            raise InputError(
                f"{name} of shape {tuple(given.shape)} given; ids (any,) or ({batch}, any) are allowed, "
                f"or a mask ({self.num_ids},) or ({batch}, {self.num_ids})"
            )
        if mask:
            return rows
        if kind.is_floating_point or kind.is_complex:
            raise InputError(f"{name} of type {kind} given; whole numbers (ids) or booleans (a mask) are allowed")
        if rows.numel() and (int(rows.min()) < -1 or int(rows.max()) >= self.num_ids):
            unknown = rows[(rows < -1) | (rows >= self.num_ids)][0].item()
            raise InputError(f"{name} holds the id {unknown}; ids from 0 to {self.num_ids - 1} are allowed, −1 fills")
        return rows.long()

    def _check_not_empty(self) -> None:
        rows = self._mask if self.listed is None else self.listed >= 0
        assert rows is not None
        empty = torch.nonzero(~rows.any(dim=1))
        if len(empty):
            raise InputError(
                f"allow holds no id for query {int(empty[0])}; give at least one, or leave allow out to allow all"
            )

    @cached_property
    def most(self) -> int:
        """How many ids a query may be answered with, at most."""
        if self.listed is not None:
            return int((self.listed >= 0).sum(dim=1).max())
        return self.num_ids if self._mask is None else int(self._mask.sum(dim=1).max())

    @property
    def own_lists(self) -> bool:
        """Each query has a list of its own: it is ranked, there is nothing to search for."""
        return self.listed is not None and len(self.listed) > 1

    @cached_property
    def _whole_mask(self) -> Tensor | None:
        """What is allowed of the whole catalogue, for looking up ids that a search finds."""
        if self.listed is None:
            return self._mask
        mask = torch.zeros(len(self.listed), self.num_ids + 1, dtype=torch.bool, device=self.listed.device)
        mask = mask.scatter_(1, self.listed % (self.num_ids + 1), True)[:, :-1]  # −1 falls on the extra place
        return mask if self._mask is None else mask & self._mask

    def permits(self, queries: Tensor, ids: Tensor) -> Tensor | None:
        """Whether the i-th of queries may be answered with each of ids (i, any); None if with every one."""
        return self._look_up(self._whole_mask, queries, ids)

    def _look_up(self, mask: Tensor | None, queries: Tensor, ids: Tensor) -> Tensor | None:
        permitted, ids = None, ids.long().contiguous()
        if mask is not None:
            permitted = mask[queries[:, None] if len(mask) > 1 else 0, ids]
        if self.excluded is not None:
            mine = self.excluded.expand(int(queries.max()) + 1, -1) if len(self.excluded) == 1 else self.excluded
            mine = mine[queries]
            at = torch.searchsorted(mine, ids).clamp(max=mine.shape[1] - 1)
            fine = mine.gather(1, at) != ids
            permitted = fine if permitted is None else permitted & fine
        return permitted

    @cached_property
    def _masked_ids(self) -> Tensor | None:
        """The ids of a mask that is the same for all queries."""
        return None if self._mask is None or len(self._mask) > 1 else torch.nonzero(self._mask[0]).squeeze(1)

    def candidates(self, query: int) -> tuple[Tensor | None, Tensor | None]:
        """The ids to rank for a query, ascending (None: all), and which of them may be answered (None: all)."""
        ids = self._masked_ids if self.listed is None else self.listed[query if len(self.listed) > 1 else 0]
        if ids is not None:
            permitted = self._look_up(self._mask, torch.tensor([query], device=ids.device), ids.clamp(min=0)[None])
            return ids, (ids >= 0) if permitted is None else (ids >= 0) & permitted[0]
        permitted = None if self._mask is None else self._mask[query].clone()
        if self.excluded is not None:
            mine = self.excluded[query if len(self.excluded) > 1 else 0]
            if permitted is None:
                permitted = torch.ones(self.num_ids, dtype=torch.bool, device=mine.device)
            permitted[mine[mine >= 0]] = False
        return None, permitted
