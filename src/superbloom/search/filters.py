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
    """The ids that may be answered, to look up (`permits`) or to rank (`candidates`)."""

    def __init__(
        self, exclude: Tensor | None, allow: Tensor | None, batch: int, num_ids: int, device: torch.device
    ) -> None:
        self.num_ids, self.device = num_ids, device
        self.excluded: Tensor | None = None  # (1 or batch, any) sorted ids, −1 fills
        self.mask: Tensor | None = None  # (1 or batch, num_ids) True where allowed
        self.shared: Tensor | None = None  # (any,) allowed ids, ascending, of all queries
        self.lists: Tensor | None = None  # (batch, any) allowed ids of each query, ascending, each once, −1 fills
        if allow is not None:
            rows = self._rows("allow", allow, batch)
            there = rows if rows.dtype == torch.bool else rows >= 0
            if not bool(there.any(dim=1).all()):
                query = int(there.any(dim=1).int().argmin())
                raise InputError(f"allow holds no id for query {query}; give at least one, or leave allow out")
            if rows.dtype == torch.bool:
                self.mask = rows
            elif len(rows) == 1:
                self.shared = rows[rows >= 0].unique()
            else:
                rows = rows.sort(dim=1).values
                repeated = torch.nn.functional.pad(rows[:, 1:] == rows[:, :-1], (1, 0))
                self.lists = rows.masked_fill(repeated, -1).sort(dim=1).values
        if exclude is not None:
            rows = self._rows("exclude", exclude, batch)
            if rows.dtype == torch.bool:
                self.mask = ~rows if self.mask is None else self.mask & ~rows
            elif rows.shape[1]:
                self.excluded = rows.sort(dim=1).values

    def _rows(self, name: str, given: Tensor, batch: int) -> Tensor:
        """The filter as a matrix of ids or booleans; raises InputError if it does not fit the queries."""
        given = torch.as_tensor(given, device=self.device)
        if given.dtype == torch.uint8:  # a mask to some libraries, numbers to others
            raise InputError(f"{name} of type torch.uint8 given; make a mask bool (.bool()), or ids int64 (.long())")
        rows = given[None] if given.dim() == 1 else given
        mask = given.dtype == torch.bool
        if rows.dim() != 2 or len(rows) not in (1, batch) or (mask and rows.shape[1] != self.num_ids):
            raise InputError(
                f"{name} of shape {tuple(given.shape)} given; ids (any,) or ({batch}, any) are allowed, "
                f"or a mask ({self.num_ids},) or ({batch}, {self.num_ids})"
            )
        if mask or not rows.numel():
            return rows if mask else rows.long()
        if given.dtype.is_floating_point or given.dtype.is_complex:
            raise InputError(
                f"{name} of type {given.dtype} given; whole numbers (ids) or booleans (a mask) are allowed"
            )
        if int(rows.min()) < -1 or int(rows.max()) >= self.num_ids:
            unknown = rows[(rows < -1) | (rows >= self.num_ids)][0].item()
            raise InputError(f"{name} holds the id {unknown}; ids from 0 to {self.num_ids - 1} are allowed, −1 fills")
        return rows.long()

    @cached_property
    def work(self) -> int:
        """How many ids there are to score, if a query is answered by ranking them all."""
        if self.lists is not None:
            return self.lists.shape[1]
        if self.shared is not None:
            return len(self.shared)
        return self.num_ids if self.mask is None or len(self.mask) > 1 else int(self.mask.sum())

    def permits(self, queries: Tensor, ids: Tensor) -> Tensor | None:
        """Whether the i-th of queries may be answered with each of ids (i, any); None if with every one."""
        permitted, ids = None, ids.long()
        if self._whole_mask is not None:
            permitted = self._whole_mask[queries[:, None] if len(self._whole_mask) > 1 else 0, ids]
        if self.excluded is not None:
            mine = self.excluded[0] if len(self.excluded) == 1 else self.excluded[queries]
            at = torch.searchsorted(mine, ids.contiguous()).clamp(max=mine.shape[-1] - 1)
            fine = (mine[at] if mine.dim() == 1 else mine.gather(1, at)) != ids
            permitted = fine if permitted is None else permitted & fine
        return permitted

    @cached_property
    def _whole_mask(self) -> Tensor | None:
        """What is allowed of the whole catalogue."""
        if self.shared is None:
            return self.mask
        mask = torch.zeros(1, self.num_ids, dtype=torch.bool, device=self.device)
        mask[0, self.shared] = True
        return mask if self.mask is None else mask & self.mask

    @cached_property
    def common(self) -> Tensor | None:
        """The ids to rank, ascending, where they are the same for all queries; None if they are all ids, or differ."""
        return torch.nonzero(self.mask[0]).squeeze(1) if self._is_one_mask and self.mask is not None else self.shared

    @property
    def _is_one_mask(self) -> bool:
        """Whether a mask alone says what may be ranked, for all queries."""
        return self.mask is not None and len(self.mask) == 1 and self.shared is None and self.lists is None

    def candidates(self, query: int) -> tuple[Tensor | None, Tensor | None]:
        """The ids to rank for a query, ascending (None: all), and which of them may be answered (None: all)."""
        ids = self.common if self.lists is None else self.lists[query]
        permitted = None if self.lists is None else self.lists[query] >= 0
        if self.mask is not None and not self._is_one_mask:
            row = self.mask[query if len(self.mask) > 1 else 0]
            allowed = row if ids is None else row[ids.clamp(min=0)]
            permitted = allowed if permitted is None else permitted & allowed
        if self.excluded is not None:
            mine = self.excluded[query if len(self.excluded) > 1 else 0]
            if ids is None:
                fine = torch.ones(self.num_ids, dtype=torch.bool, device=self.device)
                fine[mine[mine >= 0]] = False
            else:
                fine = torch.isin(ids, mine, invert=True)
            permitted = fine if permitted is None else permitted & fine
        return ids, permitted
