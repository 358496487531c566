"""Which ids a search may return: all except the excluded ones, or only the allowed ones.

    exclude, allow: ids (any,) or (batch, any), −1 fills; or a mask of booleans (num_ids,) or (batch, num_ids)

One row applies to all queries. Otherwise there is one row per query. Wrong shapes, types and ids raise InputError.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from superbloom.errors import InputError


class Filter:
    """The ids that may be returned: `permits` checks given ids, `candidates` lists the ids to rank."""

    def __init__(
        self, exclude: Tensor | None, allow: Tensor | None, batch: int, num_ids: int, device: torch.device
    ) -> None:
        self.num_ids, self.device = num_ids, device
        self.excluded: Tensor | None = None  # (1 or batch, any) ids, ascending, −1 fills
        self.mask: Tensor | None = None  # (1 or batch, num_ids) True where allowed
        self.shared: Tensor | None = None  # (any,) allowed ids of all queries, ascending
        self.lists: Tensor | None = None  # (batch, any) allowed ids of each query, ascending, no duplicates, −1 fills
        if allow is not None:
            rows = self._rows("allow", allow, batch)
            allowed = rows if rows.dtype == torch.bool else rows >= 0
            if not bool(allowed.any(dim=1).all()):
                query = int(allowed.any(dim=1).int().argmin())
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
        """A filter as a matrix of ids or booleans; raises InputError if it does not fit the queries."""
        given = torch.as_tensor(given, device=self.device)
        if given.dtype == torch.uint8:  # some libraries use it for masks, others for numbers
            raise InputError(f"{name} of type torch.uint8 given; make a mask bool (.bool()), or ids int64 (.long())")
        rows = given[None] if given.dim() == 1 else given
        is_mask = given.dtype == torch.bool
        if rows.dim() != 2 or len(rows) not in (1, batch) or (is_mask and rows.shape[1] != self.num_ids):
            raise InputError(
                f"{name} of shape {tuple(given.shape)} given; ids (any,) or ({batch}, any) are allowed, "
                f"or a mask ({self.num_ids},) or ({batch}, {self.num_ids})"
            )
        if is_mask or not rows.numel():
            return rows if is_mask else rows.long()
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
        """The number of ids to score if a query is answered by a direct ranking."""
        if self.lists is not None:
            return self.lists.shape[1]
        if self.shared is not None:
            return len(self.shared)
        return self.num_ids if self.mask is None or len(self.mask) > 1 else int(self.mask.sum())

    def permits(self, queries: Tensor, ids: Tensor) -> Tensor | None:
        """Which of ids (q, any) may be returned for queries (q,), as booleans; None if all may be."""
        permitted, ids = None, ids.long()
        if self._whole_mask is not None:
            permitted = self._whole_mask[queries[:, None] if len(self._whole_mask) > 1 else 0, ids]
        for rows, is_allowed in ((self.lists, True), (self.excluded, False)):
            if rows is not None:
                mine = rows[0] if len(rows) == 1 else rows[queries]
                at = torch.searchsorted(mine, ids.contiguous()).clamp(max=mine.shape[-1] - 1)
                fine = ((mine[at] if mine.dim() == 1 else mine.gather(1, at)) == ids) == is_allowed
                permitted = fine if permitted is None else permitted & fine
        return permitted

    @cached_property
    def _whole_mask(self) -> Tensor | None:
        """The allowed ids as a mask over the whole catalogue; None if there is no such mask."""
        if self.shared is None:
            return self.mask
        mask = torch.zeros(1, self.num_ids, dtype=torch.bool, device=self.device)
        mask[0, self.shared] = True
        return mask if self.mask is None else mask & self.mask

    @cached_property
    def common(self) -> Tensor | None:
        """The ids to rank, ascending, if all queries share them; None if queries differ, or if they are all ids."""
        return torch.nonzero(self.mask[0]).squeeze(1) if self._is_one_mask and self.mask is not None else self.shared

    @property
    def _is_one_mask(self) -> bool:
        """Whether one mask, the same for all queries, alone decides which ids are ranked."""
        return self.mask is not None and len(self.mask) == 1 and self.shared is None and self.lists is None

    def candidates(self, query: int) -> tuple[Tensor | None, Tensor | None]:
        """The ids to rank for a query, ascending (None: all), and which of them may be returned (None: all)."""
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
