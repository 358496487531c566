"""What a model believes about some queries: token log-probabilities of the network, and what the memory recalls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from superbloom.memory import Recalled
from superbloom.search import Boosts


class Beliefs(NamedTuple):
    """One row per query. Without a memory, `recalled` is None."""

    log_probs: Tensor  # (queries, m, buckets)
    recalled: Recalled | None = None

    @property
    def size(self) -> int:
        """The number of queries."""
        return len(self.log_probs)

    def rows(self, chosen: Sequence[int] | slice) -> Beliefs:
        """The beliefs about some of the queries."""
        recalled = self.recalled
        if recalled is not None:
            recalled = Recalled(recalled.probabilities[chosen], recalled.network[chosen])
        return Beliefs(self.log_probs[chosen], recalled)

    @property
    def log_network(self) -> Tensor:
        """The logarithm of the network's weight, (queries,) float32."""
        if self.recalled is None:
            return torch.zeros(self.size, device=self.log_probs.device)
        return torch.from_numpy(np.log(self.recalled.network)).float().to(self.log_probs.device)

    def boosts(self) -> Boosts | None:
        """What the memory adds to probabilities, in units of the network's weight."""
        if self.recalled is None:
            return None
        matrix, network = self.recalled
        lengths = np.diff(matrix.indptr)
        row = np.repeat(np.arange(len(lengths)), lengths)
        column = np.arange(matrix.nnz) - matrix.indptr[row]
        ids = np.full((len(lengths), int(lengths.max(initial=0))), -1, np.int64)
        values = np.zeros(ids.shape)
        ids[row, column], values[row, column] = matrix.indices, matrix.data / network[row]
        return Boosts(*(torch.from_numpy(part).to(self.log_probs.device) for part in (ids, values)))
