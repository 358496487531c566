"""The prior: how often each id occurs in training rows, which its tokens do not show (not in the paper).

Ids that share a bucket share its probability; the search divides it among them by what the other hashes say and by this
prior (search/posterior.py). counts (num_ids,)  →  an IdPrior of the search.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from superbloom.corpus import Corpus
from superbloom.hashing import BloomHash
from superbloom.search import IdPrior


@dataclass(frozen=True, eq=False)
class Prior:
    """The number of times each id occurs in training rows."""

    counts: Tensor  # (num_ids,); −1 for ids that were added later (extend.py)

    @classmethod
    def of_corpus(cls, corpus: Corpus) -> Prior:
        """The counts of the ids that are predicted, clamped to int32: a prior needs only their logarithms."""
        return cls(torch.from_numpy(corpus.id_counts("train")).clamp(max=2**31 - 1).int())

    def of_ids(self, bloom: BloomHash) -> IdPrior:
        """How frequent each id is, relative to its buckets."""
        return IdPrior.of(self.counts, bloom)
