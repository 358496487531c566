"""Add ids to hash functions: each new id gets its own digest, and no old digest changes (not in the paper).

    table (num_ids, m)  →  table (num_ids + new, m)

A bucket holds alpha ids and a reserve for more. New ids go to the emptiest buckets, so that buckets stay even. A new id
that is declared similar to known ids goes to the buckets of those ids instead. Without hashing, each new id gets a
bucket of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from superbloom.config import ExtendOptions
from superbloom.errors import InputError
from superbloom.hashing.bloom import BloomHash
from superbloom.hashing.construct import digest_codes, repeated

MAX_IDS = 2**31 - 1  # ids are int32
MAX_TRADE_ROUNDS = 64  # rounds of random trades; ids that still collide are then placed by trying every bucket


def extended(
    bloom: BloomHash, similar: Sequence[Sequence[int]], reserve: float = ExtendOptions.reserve, seed: int = 0
) -> BloomHash:
    """Hash functions with len(similar) more ids. similar[i] lists known ids that new id i is similar to, or none.

    >>> bloom = BloomHash.random(num_ids=40, num_hashes=2, alpha=4)
    >>> more = extended(bloom, [[], [7, 9]])
    >>> torch.equal(more.table[:40], bloom.table), more.buckets(41).tolist() == [more.table[7, 0], more.table[9, 1]]
    (True, True)
    """
    largest, room = room_for_more(bloom, reserve)
    if len(similar) > room:
        raise InputError(_full(bloom, len(similar), room, reserve))
    if not is_hashed(bloom):
        own = torch.arange(bloom.num_ids, bloom.num_ids + len(similar), dtype=bloom.table.dtype)
        grown = torch.cat([bloom.table, own[:, None]])
        return BloomHash.from_table(grown, len(grown), bloom.alpha, bloom.num_special)
    rng = np.random.default_rng([seed, bloom.num_ids, len(similar)])
    sizes = bloom.starts.diff(dim=1).numpy().copy()
    table = np.full((len(similar), bloom.num_hashes), -1, dtype=np.int32)
    for row, others in enumerate(similar):
        # With one similar id, leave the last bucket open: the whole digest belongs to that id.
        for j in range(bloom.num_hashes - (len(others) == 1) if others else 0):
            bucket = int(bloom.table[others[j % len(others)], j])
            if sizes[j, bucket] < largest:
                table[row, j] = bucket
                sizes[j, bucket] += 1
    for j in range(bloom.num_hashes):
        free = np.flatnonzero(table[:, j] < 0)
        table[free, j] = rng.permutation(_emptiest(sizes[j], len(free), rng))
        sizes[j] += np.bincount(table[free, j], minlength=bloom.num_buckets)
    free = np.array([not others for others in similar])
    _separate(table, free, bloom, sizes, largest, rng)
    whole = torch.cat([bloom.table, torch.from_numpy(table)])
    return BloomHash.from_table(whole, bloom.num_buckets, bloom.alpha, bloom.num_special)


def is_hashed(bloom: BloomHash) -> bool:
    """Whether ids have several buckets, or share them."""
    return bloom.num_hashes > 1 or bloom.num_buckets < bloom.num_ids


def room_for_more(bloom: BloomHash, reserve: float) -> tuple[int, int]:
    """The number of ids a bucket may hold with this reserve, and the number of ids that can be added."""
    if isinstance(reserve, bool) or not isinstance(reserve, int | float) or not 0 <= reserve <= 10:
        raise InputError(f"reserve={reserve!r} given; a share of alpha is allowed, 0 to 10")
    if not is_hashed(bloom):
        return 1, MAX_IDS - bloom.num_ids
    largest = bloom.alpha + math.ceil(round(bloom.alpha * reserve, 6))
    room = bloom.num_buckets * largest - bloom.num_ids
    return largest, max(0, min(room, bloom.num_buckets**bloom.num_hashes - bloom.num_ids))


def _full(bloom: BloomHash, wanted: int, room: int, reserve: float) -> str:
    after = bloom.num_ids + wanted
    if bloom.num_buckets**bloom.num_hashes < after:
        grow = "no digest is left for them; "
    else:
        largest = -(-after // bloom.num_buckets)
        enough = math.ceil(100 * (largest - bloom.alpha) / bloom.alpha) / 100
        grow = f"extend with reserve={enough:.2f}, so that buckets have up to {largest} ids to search; or "
    tokens = bloom.num_hashes * -(-after // bloom.alpha)
    return (
        f"{wanted:,} new names, but reserve={reserve} has room for {room:,} more than the {bloom.num_ids:,} there are: "
        f"{grow}train again with all names, {tokens:,} tokens instead of {bloom.num_hashes * bloom.num_buckets:,}"
    )


def _emptiest(sizes: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """The buckets for `count` more ids, one each, that keep the fullest bucket as small as possible.

    >>> sorted(_emptiest(np.array([3, 1, 2]), 4, np.random.default_rng(0)).tolist())[:3]
    [1, 1, 2]
    """
    low, high = int(sizes.min()), int(sizes.max()) + count
    while low < high:  # the lowest level with room below it
        level = (low + high) // 2
        low, high = (low, level) if np.maximum(0, level - sizes).sum() >= count else (level + 1, high)
    below = np.maximum(0, low - 1 - sizes)
    brim = np.flatnonzero(sizes < low)
    last = rng.choice(brim, count - int(below.sum()), replace=False) if len(brim) else brim
    return np.concatenate([np.repeat(np.arange(len(sizes)), below), last])


def _separate(
    table: np.ndarray, free: np.ndarray, bloom: BloomHash, sizes: np.ndarray, largest: int, rng: np.random.Generator
) -> None:
    """Trade last buckets among the new ids until all digests differ; ids that still collide move where there is room.

    free: which new ids have no similar ids. The others trade only if they collide.
    """
    partners = np.flatnonzero(free)
    taken = np.sort(digest_codes(bloom.table.numpy(), bloom.num_buckets))
    for _ in range(MAX_TRADE_ROUNDS):
        offenders = _colliding(digest_codes(table, bloom.num_buckets), taken)
        if not len(offenders):
            return
        drawn = partners[rng.integers(0, len(partners), len(offenders) + 1)] if len(partners) else partners
        traders = np.union1d(offenders, drawn)
        table[traders, -1] = table[rng.permutation(traders), -1]
    for row in _colliding(digest_codes(table, bloom.num_buckets), taken):
        others = np.sort(np.concatenate([taken, np.delete(digest_codes(table, bloom.num_buckets), row)]))
        for j in reversed(range(bloom.num_hashes)):
            tried = np.repeat(table[row : row + 1], bloom.num_buckets, axis=0)
            tried[:, j] = np.arange(bloom.num_buckets)
            usable = ~np.isin(digest_codes(tried, bloom.num_buckets), others) & (sizes[j] < largest)
            if usable.any():
                bucket = int(np.flatnonzero(usable)[np.argmin(sizes[j][usable])])
                sizes[j, table[row, j]] -= 1
                sizes[j, bucket] += 1
                table[row, j] = bucket
                break
        else:
            raise InputError(
                "no digest is left for some of the new names; raise reserve, or train again with all names"
            )


def _colliding(codes: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """The new ids whose digest is taken by an old id or by an earlier new id."""
    at = np.searchsorted(taken, codes).clip(max=len(taken) - 1)
    return np.flatnonzero(repeated(codes) | (taken[at] == codes))
