"""Algorithm 1 of the paper in plain code (Sec. 2.5), for one query: read this first, then certified.py.

    log_p (m, num_buckets), row j over the buckets of hash j  →  the k best ids, their scores, the last width b

Names and line numbers are the paper's: s is an id, η_j(s) its bucket under hash j, γ(s) its score. This code is slow;
the tests compare `top_k` with it. certified.py answers batches, with filters and a cost model.
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from superbloom.hashing import BloomHash


def reference_top_k(log_p: Tensor, bloom: BloomHash, k: int, beam: int = 1) -> tuple[list[int], list[float], int]:
    """The k ids of highest score, best first; among equal scores, the smaller id first. beam is the paper's B.

    Figure 2 of the paper has two hashes, four ids in each bucket, and B=2. Row a lists the four ids of bucket a of
    hash 1, each by its bucket of hash 2. On the left, the best opened buckets meet in id 0. Its 0.25 · 0.25 is above
    the bound 0.2 · 0.2, so the first round certifies it.

    >>> rows = ["4567", "4567", "2345", "2345", "0123", "0123", "0167", "0167"]
    >>> table = torch.tensor([[first, int(second)] for first, row in enumerate(rows) for second in row])
    >>> bloom = BloomHash.from_table(table, num_buckets=8, alpha=4)
    >>> p = torch.tensor([0.25, 0.2, 0.19, 0.18, 0.1, 0.04, 0.03, 0.01])
    >>> ids, scores, b = reference_top_k(torch.stack([p, p.roll(4)]).log(), bloom, k=1, beam=2)
    >>> ids, b
    ([0], 2)

    On the right, the best opened buckets do not meet. The best candidate is id 0 with 0.25 · 0.1, which is below the
    bound 0.2 · 0.2. The second round finds id 8 with 0.19 · 0.19, which is above the bound 0.18 · 0.18.

    >>> ids, scores, b = reference_top_k(torch.stack([p, p]).log(), bloom, k=1, beam=2)
    >>> ids, b
    ([8], 4)
    """
    m, num_buckets = log_p.shape  # line 1
    eta, eta_inverse = bloom.table.tolist(), bloom.members

    def gamma(s: int) -> float:
        return _sum([log_p[j, eta[s][j]] for j in range(m)])

    falling = log_p.sort(dim=1, descending=True).values  # line 2
    scores: dict[int, float] = {}
    best: list[int] = []
    for b in range(beam, num_buckets + beam, beam):  # line 3
        log_p_b = falling[:, min(b, num_buckets) - 1]  # line 4
        for j in range(m):
            for h in torch.nonzero(log_p[j] >= log_p_b[j]).flatten().tolist():  # line 5
                scores |= {s: gamma(s) for s in eta_inverse[j][h].tolist()}  # line 6
        best = sorted(scores, key=lambda s: (-scores[s], s))[:k]
        # Departs from the paper: ">" instead of "≥". Sums are rounded, so an id that is not scored may equal the bound.
        if len(best) == k and scores[best[-1]] > _sum(log_p_b):  # line 7
            break
    return best, [scores[s] for s in best], b  # line 10


def _sum(values: Tensor | list[Tensor]) -> float:
    """From left to right, in scores as in bounds: both must round alike."""
    return float(reduce(torch.add, values))
