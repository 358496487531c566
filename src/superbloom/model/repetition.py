"""How much more or less likely the context's own buckets are than the network says (not in the paper).

With tied embeddings, y is closest to the buckets of the context, so the network predicts them even where rows never
repeat a name. A few numbers, fitted to validation rows after training, correct that (docs/decisions.md):

    log p_j(b) + by_distance[c]    for the buckets b of the context, normalised again; c is the distance of the nearest
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

DISTANCES = (2, 4, 8, 16, 32)  # where classes of distance begin, after the first


@dataclass(frozen=True, eq=False)
class Repetition:
    """What is added for buckets of the context."""

    by_distance: Tensor  # (classes,); one class if places mean nothing to the model

    def adjust(self, log_probs: Tensor, buckets: Tensor, classes: Tensor) -> Tensor:
        """log_probs (q, m, num_buckets) with what is added to the buckets (q, n, m) of elements of classes (q, n)."""
        buckets, classes = nearest(buckets, classes, len(self.by_distance))
        terms = torch.cat([self.by_distance, torch.zeros(1)]).to(log_probs.device)[classes]
        return log_probs.scatter_add(2, buckets, terms).log_softmax(-1)


def distance_classes(context: Tensor, places: Tensor, count: int) -> Tensor:
    """The class of each element of contexts (q, n), seen from places (q,): (q, n); `count` where there is none.

    >>> distance_classes(torch.tensor([[7, 8, 9, -1, 6, 5]]), torch.tensor([3]), 6)
    tensor([[1, 1, 0, 6, 0, 1]])
    """
    apart = (torch.arange(context.shape[1], device=context.device) - places[:, None]).abs()
    classes = torch.bucketize(apart, torch.tensor(DISTANCES, device=context.device), right=True)
    return classes.clamp_(max=count - 1).masked_fill_(context < 0, count)


def nearest(buckets: Tensor, classes: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The buckets (q, m, n) of each hash, ascending, and the class of each: (q, m, n).

    A bucket that occurs several times has its nearest class once, and otherwise `count`, which stands for none.

    >>> nearest(torch.tensor([[[3], [5], [3]]]), torch.tensor([[2, 0, 1]]), 6)
    (tensor([[[3, 3, 5]]]), tensor([[[1, 6, 0]]]))
    """
    keys = (buckets.transpose(1, 2) * (count + 1) + classes[:, None]).sort(dim=-1).values
    buckets, classes = keys // (count + 1), keys % (count + 1)
    is_again = torch.zeros_like(keys, dtype=torch.bool)
    is_again[..., 1:] = buckets[..., 1:] == buckets[..., :-1]
    return buckets, classes.masked_fill(is_again, count)
