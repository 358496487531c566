"""The arguments of a search: refused with InputError unless they fit the hash tables and the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from superbloom.errors import InputError, check_whole
from superbloom.hashing import BloomHash
from superbloom.search.scoring import Bonus, Combine, is_sum


def check_inputs(log_probs: Tensor, bloom: BloomHash) -> None:
    if log_probs.dim() != 3 or log_probs.shape[1:] != (bloom.num_hashes, bloom.num_buckets):
        raise InputError(
            f"log_probs of shape {tuple(log_probs.shape)} given; these hash functions need "
            f"(batch, {bloom.num_hashes}, {bloom.num_buckets}): are they another model's?"
        )


def check_bonus(bonus: Bonus | None, bloom: BloomHash, combine: str | Sequence[float] | Combine) -> None:
    shape = (bloom.num_hashes, bloom.num_buckets)
    fits = bonus is None or (bonus.of_bucket.shape == shape and len(bonus.of_id) == bloom.num_ids)
    if not fits or not (bonus is None or is_sum(combine)):
        raise InputError("a bonus is a term of the sum, for the ids of these tables: combine='sum', or no bonus")


def checked_k(k: int | Tensor, batch: int, num_ids: int, device: torch.device) -> tuple[Tensor, int]:
    """k of each query (batch,), and the largest k."""
    if not isinstance(k, Tensor):
        check_whole(k=k)
        least = most = int(k)
    elif k.dtype.is_floating_point or k.dtype == torch.bool or k.shape != (batch,):
        raise InputError(f"k={_shown(k)} given; a whole number, or one for each of the {batch} queries, is allowed")
    else:
        least, most = (int(k.min()), int(k.max())) if batch else (1, 1)
    if least < 1 or most > num_ids:
        wrong = least if least < 1 else most
        raise InputError(f"k={wrong} given; the catalogue has {num_ids:,} ids, so 1 to {num_ids} is allowed")
    if isinstance(k, Tensor):
        return k.to(device).long(), most
    return torch.full((batch,), most, dtype=torch.long, device=device), most


def checked_floor(min_score: float | Tensor | None, batch: int, device: torch.device) -> Tensor:
    """min_score of each query (batch,), −inf if there is none."""
    if min_score is None:
        return torch.full((batch,), -torch.inf, device=device)
    floor = torch.as_tensor(min_score, dtype=torch.float32, device=device)
    if floor.shape not in ((), (batch,)) or bool(floor.isnan().any()):
        raise InputError(
            f"min_score={_shown(min_score)} given; a number, or one for each of the {batch} queries, is allowed"
        )
    return floor.expand(batch).clone()


def _shown(given: Any) -> str:
    return f"a tensor of shape {tuple(given.shape)}" if isinstance(given, Tensor) and given.dim() else str(given)
