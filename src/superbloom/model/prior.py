"""What an id's tokens do not tell: how frequent it is among those that share its buckets (not in the paper).

    score(id) = Σ_j log p_j(token_j) + weight · (log prior(id) − Σ_j log prior(token_j))

The sum runs over m hashes that saw the same evidence, so exp(score) is too sure of itself: divided by a temperature
before it is normalised over the catalogue, it becomes a probability. calibrate.py chooses weight and temperature.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from superbloom.corpus import Corpus
from superbloom.hashing import BloomHash
from superbloom.search import Bonus


@dataclass(frozen=True, eq=False)
class Prior:
    """How often each id occurs in training rows, and how that enters scores and probabilities."""

    counts: Tensor  # (num_ids,); −1 of those that were added later (growth.py)
    weight: float
    temperature: float

    @classmethod
    def untuned(cls, counts: Tensor, bloom: BloomHash) -> Prior:
        """One to look at a model with while it is trained: about what is chosen in the end, .5 at α=4, near 1 at 50."""
        return cls(counts, max(0.0, 1 - 2 / bloom.alpha), float(bloom.num_hashes))

    def bonus(self, bloom: BloomHash) -> Bonus | None:
        """What the search adds to each id's score."""
        return Bonus.of(self.weight * surplus(self.counts, bloom), bloom) if self.weight else None


def training_counts(corpus: Corpus) -> Tensor:
    """How often each id occurs in training rows; int32 is as far as a prior, a matter of logarithms, counts."""
    return torch.from_numpy(corpus.id_counts("train")).clamp(max=2**31 - 1).int()


def surplus(counts: Tensor, bloom: BloomHash) -> Tensor:
    """log prior(id) − Σ_j log prior(token_j) of each id, priors being counts plus one, as shares.

    >>> bloom = BloomHash.from_table(torch.tensor([[0, 0], [0, 1], [1, 0]], dtype=torch.int32), num_buckets=2, alpha=2)
    >>> surplus(torch.tensor([7, 3, 3]), bloom).exp().tolist()  # 8/16 over 12/16 · 12/16, 4/16 over 12/16 · 4/16, …
    [0.88..., 1.33..., 1.33...]
    """
    # What was added later is in no sum, so that it changes nobody else's.
    prior = counts.double() + 1
    total = prior.sum()
    result = (prior.clamp(min=1) / total).log()
    prior /= total
    for buckets in bloom.table.T.long():
        of_token = torch.zeros(bloom.num_buckets, dtype=torch.double, device=prior.device).index_add_(0, buckets, prior)
        result -= of_token.log()[buckets]
    return result.float()
