"""The state of the search: what is known about some queries of a batch so far.

Each hash has an edge: a bucket is open if its value lies above the edge. So m numbers describe which ids a query has
scored. Buckets that tie at the edge stay closed until the edge falls below them. Every tensor has one row per query.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from superbloom.ranking import EMPTY_KEY, scores_of


@dataclass
class Queries:
    """Some queries of a batch; q is their number."""

    number: Tensor  # (q,) the row of each query in the batch
    k: Tensor  # (q,)
    floor: Tensor  # (q,) min_score
    best: Tensor  # (q, largest k) keys of the best ids so far
    edge: Tensor  # (q, m) buckets with values above it are open
    bound: Tensor  # (q,) the highest score that an id in no open bucket can have
    threshold: Tensor  # (q,) the score that an id needs to enter the answer
    certified: Tensor  # (q,)
    rounds: Tensor  # (q,)
    scored: Tensor  # (q,)
    width: Tensor  # (q,)
    earlier: Tensor  # (q,) the bound at a fraction of the width, for the cost model

    @classmethod
    def start(cls, k: Tensor, floor: Tensor, num_hashes: int, largest_k: int) -> Queries:
        """All queries of a batch before the first round."""
        batch, device = len(floor), floor.device

        def row(value: float, kind: torch.dtype = torch.float32) -> Tensor:
            return torch.full((batch,), value, dtype=kind, device=device)

        return cls(
            number=torch.arange(batch, device=device),
            k=k,
            floor=floor,
            best=torch.full((batch, largest_k), EMPTY_KEY, device=device),
            edge=torch.full((batch, num_hashes), torch.inf, device=device),
            bound=row(torch.inf),
            threshold=floor,
            certified=row(False, torch.bool),
            rounds=row(0, torch.long),
            scored=row(0, torch.long),
            width=row(0, torch.long),
            earlier=row(torch.inf),
        )

    def finish(self, best: list[Tensor], scored: list[int]) -> None:
        """Take the keys of a direct ranking, one tensor per query; such an answer is certified."""
        self.best = torch.stack(best) if best else self.best
        self.scored = torch.tensor(scored, dtype=torch.long, device=self.scored.device)
        self.certified = torch.ones_like(self.certified)
        self.bound = torch.full_like(self.bound, -torch.inf)
        self.edge = torch.full_like(self.edge, -torch.inf)

    def update_threshold(self) -> None:
        """Set the threshold to the k-th best score so far, or to min_score if that is higher."""
        kth = scores_of(self.best.gather(1, self.k[:, None] - 1)).squeeze(1)
        self.threshold = torch.fmax(kth, self.floor)

    def __len__(self) -> int:
        return len(self.number)

    def __getitem__(self, which: Tensor | slice) -> Queries:
        return Queries(*(getattr(self, field.name)[which] for field in fields(self)))

    @staticmethod
    def join(parts: list[Queries]) -> Queries:
        """The queries of all parts, in the order of the batch."""
        if len(parts) == 1:
            return parts[0]
        order = torch.cat([part.number for part in parts]).argsort()
        columns = ([getattr(part, field.name) for part in parts] for field in fields(Queries))
        return Queries(*(torch.cat(column)[order] for column in columns))
