"""The prior: how frequent an id is among the ids that share its buckets, which its tokens do not show.

    score(id) = Σ_j log p_j(token_j) + weight · (log prior(id) − Σ_j log prior(token_j))

Not in the paper. The m hashes saw the same evidence, so exp(score) is overconfident. Scores become probabilities when
they are divided by a temperature and normalised over the catalogue. training/calibrate.py chooses weight and
temperature. counts (num_ids,)  →  a Bonus of the search.
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
    """The number of times each id occurs in training rows, and how it enters scores and probabilities."""

    counts: Tensor  # (num_ids,); −1 for ids that were added later (extend.py)
    weight: float
    temperature: float

    @classmethod
    def untuned(cls, counts: Tensor, bloom: BloomHash) -> Prior:
        """A prior for a model in training, close to what calibration chooses: weight .5 at α=4, near 1 at α=50."""
        return cls(counts, max(0.0, 1 - 2 / bloom.alpha), float(bloom.num_hashes))

    def bonus(self, bloom: BloomHash) -> Bonus | None:
        """The term that the search adds to the score of each id; None if the weight is 0."""
        return Bonus.of(self.weight * surplus(self.counts, bloom), bloom) if self.weight else None


def training_counts(corpus: Corpus) -> Tensor:
    """The number of times each id occurs in training rows (num_ids,), clamped to int32: a prior needs only its log."""
    return torch.from_numpy(corpus.id_counts("train")).clamp(max=2**31 - 1).int()


def surplus(counts: Tensor, bloom: BloomHash) -> Tensor:
    """log prior(id) − Σ_j log prior(token_j) of each id, (num_ids,). A prior is the share of counts plus one.

    >>> bloom = BloomHash.from_table(torch.tensor([[0, 0], [0, 1], [1, 0]], dtype=torch.int32), num_buckets=2, alpha=2)
    >>> surplus(torch.tensor([7, 3, 3]), bloom).exp().tolist()  # 8/16 over 12/16 · 12/16, 4/16 over 12/16 · 4/16, …
    [0.88..., 1.33..., 1.33...]
    """
    # Ids that were added later (count −1) add 0 to the sums, so they do not change the surplus of other ids.
    prior = counts.double() + 1
    total = prior.sum()
    result = (prior.clamp(min=1) / total).log()
    prior /= total
    for buckets in bloom.table.T.long():
        of_token = torch.zeros(bloom.num_buckets, dtype=torch.double, device=prior.device).index_add_(0, buckets, prior)
        result -= of_token.log()[buckets]
    return result.float()
