"""What a model believes about some queries: token log-probabilities of the network, and what the memory recalls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from superbloom.search import Given


class Remembered(NamedTuple):
    """The names that a memory brings for each query, −1 fills, and their scores."""

    ids: Tensor  # (queries, names)
    share: Tensor  # (queries, names) the memory's share of the mixture, float64
    scores: Tensor  # (queries, names) log p(s), float64; −inf fills
    log_network: Tensor  # (queries,) all other names have this plus the log-probability of the network, float64


class Beliefs(NamedTuple):
    """One row per query. Without a memory, `remembered` is None."""

    log_probs: Tensor  # (queries, m, buckets)
    remembered: Remembered | None = None

    @property
    def size(self) -> int:
        """The number of queries."""
        return len(self.log_probs)

    def rows(self, chosen: Sequence[int] | slice) -> Beliefs:
        """The beliefs about some of the queries."""
        kept = None if self.remembered is None else Remembered(*(part[chosen] for part in self.remembered))
        return Beliefs(self.log_probs[chosen], kept)

    @property
    def log_network(self) -> Tensor:
        """The logarithm of the network's factor, (queries,) float32."""
        if self.remembered is None:
            return torch.zeros(self.size, device=self.log_probs.device)
        return self.remembered.log_network.float()

    def given(self) -> Given | None:
        """The scores of the memory's names, in units of the network's factor."""
        if self.remembered is None:
            return None
        scores = self.remembered.scores - self.remembered.log_network[:, None]
        return Given(self.remembered.ids, scores.float())
