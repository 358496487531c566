"""A bound on the mass of the ids that a search did not score, for probabilities.

    edge (q, m), bound (q,), scored (q,)  →  log Σ exp(score / temperature) over the unscored ids, at most (q,)

The mass of the scored ids is exact. Together they bracket the normaliser over the whole catalogue.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from superbloom.hashing import BloomHash
from superbloom.ranking import LOWEST_SCORE
from superbloom.search.queries import Queries

QUERIES_IN_CACHE = 8  # queries summed together: their log-probabilities stay in the cache
SUM_ROUNDING = 1e-5  # relative error of a sum over the buckets of a hash


def unscored_mass(queries: Queries, upper: Tensor, bloom: BloomHash, temperature: float, is_sum: bool) -> Tensor:
    """An upper bound (q,) for all queries of a batch; upper (q, m, num_buckets) are the values of the buckets."""
    # Every unscored id scores at most the bound.
    unscored = (bloom.num_ids - queries.scored).log() + queries.bound.clamp(max=-LOWEST_SCORE) / temperature
    if is_sum:
        # Unscored ids lie in closed buckets of hash j, and their other buckets are not above the edges.
        in_closed = _closed_mass(queries.edge, upper, temperature) + math.log(bloom.largest_bucket)
        hashes = torch.arange(bloom.num_hashes, device=upper.device)
        others = torch.stack([queries.edge[:, hashes != j].sum(dim=1) for j in hashes], dim=1)
        unscored = torch.minimum(unscored, (in_closed + others / temperature).amin(dim=1))
    return unscored.masked_fill(queries.bound == -torch.inf, -torch.inf)


def _closed_mass(edge: Tensor, upper: Tensor, temperature: float) -> Tensor:
    """An upper bound of log Σ exp(value / temperature) over the closed buckets of each hash, (q, m).

    subtle: an open bucket is first counted with the value of the edge and then subtracted. So no value is above the
    edge and nothing overflows. Few queries at a time need few passes over memory.
    """
    found = []
    for values, at in zip(upper.split(QUERIES_IN_CACHE), edge[..., None].split(QUERIES_IN_CACHE), strict=True):
        opened = (values > at).sum(dim=2)
        above = torch.sub(values, at.clamp(min=LOWEST_SCORE)).div_(temperature)
        total = above.clamp_(max=0).exp_().sum(dim=2)
        found.append((total - opened).clamp(min=0) + SUM_ROUNDING * (total + opened))
    return torch.cat(found).log() + edge / temperature
