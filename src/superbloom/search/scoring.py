"""The score of an id: an increasing function of its m log-probabilities (App. C), plus an optional bonus.

m tensors (...), one per hash  →  scores (...)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from superbloom.errors import InputError
from superbloom.hashing import BloomHash

Combine = Callable[[Tensor], Tensor]  # (..., m) → (...)
Fold = Callable[[Sequence[Tensor]], Tensor]  # m tensors → one

# subtle: scores and bounds both add from left to right, because they must round alike.
COMBINES: dict[str, Fold] = {
    "sum": lambda parts: reduce(torch.add, parts),
    "min": lambda parts: reduce(torch.minimum, parts),
    "max": lambda parts: reduce(torch.maximum, parts),
}


def is_sum(combine: str | Sequence[float] | Combine) -> bool:
    return isinstance(combine, str) and combine == "sum"  # compare texts only: == of an array gives an array


def is_posterior(combine: str | Sequence[float] | Combine) -> bool:
    return isinstance(combine, str) and combine == "posterior"


def fold_of(combine: str | Sequence[float] | Combine, num_hashes: int) -> Fold:
    """The function that combines the log-probabilities of m hashes: by name, by weights, or a caller's own.

    >>> fold_of([1.0, 0.5], num_hashes=2)([torch.tensor(-2.0), torch.tensor(-4.0)])
    tensor(-4.)
    """
    if isinstance(combine, str):
        if combine not in COMBINES:
            known = ", ".join(["posterior", *COMBINES])
            raise InputError(f"combine={combine!r} given; {known}, a weight for each hash, or a function are allowed")
        return COMBINES[combine]
    if callable(combine):
        return lambda parts: _checked(combine(torch.stack(list(parts), dim=-1)), parts[0].shape)
    weights = torch.as_tensor(combine, dtype=torch.float32).tolist()
    if len(weights) != num_hashes or not all(0 < weight < math.inf for weight in weights):
        raise InputError(f"combine={combine} given; a positive weight for each of the {num_hashes} hashes is allowed")
    return lambda parts: reduce(torch.add, [weight * part for weight, part in zip(weights, parts, strict=True)])


def _checked(combined: Tensor, shape: torch.Size) -> Tensor:
    """The result of a caller's own function as float32; raises InputError if it has another shape, or NaN."""
    if combined.shape != shape or bool(combined.isnan().any()):
        found = "NaN" if combined.shape == shape else f"shape {tuple(combined.shape)} from {(*shape, '…')}"
        raise InputError(f"combine gave {found}; a function of (..., m) to numbers (...) is allowed")
    return combined.float().contiguous()


@dataclass(frozen=True)
class Bonus:
    """A term added to the score of each id, and an upper bound for each bucket.

    Except for rounding, of_id[id] <= Σ_j of_bucket[j, bucket_j(id)] for every id. So a bucket's log-probability plus
    of_bucket bounds what the bucket adds to the score of any member.
    """

    of_id: Tensor  # (num_ids,)
    of_bucket: Tensor  # (m, num_buckets)

    @classmethod
    def of(cls, of_id: Tensor, bloom: BloomHash) -> Bonus:
        """A bonus from one finite number per id; each hash takes an equal share of it.

        >>> bloom = BloomHash.from_table(torch.tensor([[0, 0], [0, 1], [1, 0]]), num_buckets=2, alpha=2)
        >>> Bonus.of(torch.tensor([4.0, 2.0, 6.0]), bloom).of_bucket.tolist()
        [[2.0, 3.0], [3.0, 1.0]]
        """
        of_id = of_id.float()
        if of_id.shape != (bloom.num_ids,) or not bool(of_id.isfinite().all()):
            raise InputError(
                f"a bonus of shape {tuple(of_id.shape)} given; a finite number for each of the "
                f"{bloom.num_ids:,} ids is needed"
            )
        share = of_id / bloom.num_hashes
        of_bucket = torch.full((bloom.num_hashes, bloom.num_buckets), -torch.inf, device=of_id.device)
        for row, buckets in zip(of_bucket, bloom.table.T, strict=True):
            row.scatter_reduce_(0, buckets.long(), share, "amax")
        return cls(of_id, of_bucket)

    @cached_property
    def largest(self) -> float:
        """The largest absolute value, for the rounding of bounds."""
        return float(self.of_id.abs().max())

    def to(self, device: torch.device) -> Bonus:
        return self if self.of_id.device == device else Bonus(self.of_id.to(device), self.of_bucket.to(device))


@dataclass(frozen=True)
class IdPrior:
    """How frequent each id is, relative to the buckets it lies in: log prior(id) − Σ_j log prior(bucket_j(id))."""

    surplus: Tensor  # (num_ids,)

    @classmethod
    def of(cls, counts: Tensor, bloom: BloomHash) -> IdPrior:
        """From the number of times each id occurs; a prior is the share of counts plus one.

        Ids that were added later have the count −1. They add nothing to the prior of their buckets, so that the
        surplus of other ids does not change. A bucket without others, as without hashing, counts as 1.

        >>> table = torch.tensor([[0, 0], [0, 1], [1, 0]], dtype=torch.int32)
        >>> bloom = BloomHash.from_table(table, num_buckets=2, alpha=2)
        >>> IdPrior.of(torch.tensor([7, 3, 3]), bloom).surplus.exp().tolist()  # 8/16 over 12/16 · 12/16, …
        [0.88..., 1.33..., 1.33...]
        """
        prior = counts.double() + 1
        total = prior.sum()
        surplus = (prior.clamp(min=1) / total).log()
        prior /= total
        for buckets in bloom.table.T.long():
            of_bucket = torch.zeros(bloom.num_buckets, dtype=torch.double, device=prior.device)
            surplus -= of_bucket.index_add_(0, buckets, prior).clamp_(min=1 / total).log()[buckets]
        return cls(surplus.float())

    @classmethod
    def uniform(cls, bloom: BloomHash) -> IdPrior:
        """All ids are equally likely; made once for each table."""
        if bloom not in _UNIFORM:
            _UNIFORM[bloom] = cls.of(torch.zeros(bloom.num_ids, device=bloom.table.device), bloom)
        return _UNIFORM[bloom]

    def to(self, device: torch.device) -> IdPrior:
        return self if self.surplus.device == device else IdPrior(self.surplus.to(device))


_UNIFORM: WeakKeyDictionary[BloomHash, IdPrior] = WeakKeyDictionary()
