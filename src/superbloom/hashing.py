"""Bloom digests of ids (Sec. 2.1, 3.2).

Hash j is a seeded random permutation of the ids cut into num_buckets runs of (almost) alpha ids; a run is
a bucket. Or, spread, every num_buckets consecutive ids fall into different buckets: ids are numbered by frequency, so
that frequent ones share buckets with rare ones only. Or, coherent, ids that go together fall into the same (App. D,
coherent.py). An id is read and predicted as its digest: m tokens, one per hash.
No two ids share a digest, so a digest names its id. The tables and their inverses are kept, not recomputed:

    table (num_ids, m)      bucket of each id under each hash
    order (m, num_ids)      ids sorted by bucket, then by id: the inverse look-up of Sec. 2.5
    starts (m, num_buckets + 1)      bucket b of hash j holds order[j, starts[j, b] : starts[j, b + 1]]

Tokens are numbered hash by hash, special tokens last: hash j, bucket b is token j * num_buckets + b.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import superbloom.fork  # noqa: F401, what forked processes need
from superbloom.errors import InputError, check_whole
from superbloom.special import Special

if TYPE_CHECKING:
    from superbloom.corpus import Corpus

# Rounds of random repair before the regular construction takes over; 5.3M ids at alpha=50 need three.
REPAIR_ROUNDS = 64


def max_alpha(num_ids: int, num_hashes: int) -> int:
    """The largest alpha whose num_buckets ** num_hashes digests still tell num_ids ids apart.

    >>> max_alpha(100, 2), max_alpha(101, 2), max_alpha(100, 1)   # 10 x 10 buckets; 11 x 11; one each
    (11, 10, 1)
    """
    buckets = round(num_ids ** (1 / num_hashes))  # smallest b with b ** m >= num_ids, mended below
    while buckets**num_hashes >= num_ids and buckets > 1:
        buckets -= 1
    while buckets**num_hashes < num_ids:
        buckets += 1
    return num_ids if buckets == 1 else (num_ids - 1) // (buckets - 1)


@dataclass(frozen=True, eq=False)
class BloomHash:
    """Balanced hash functions without complete collisions, and their inverses.

    >>> bloom = BloomHash.random(num_ids=10, num_hashes=2, alpha=3, seed=0)
    >>> bloom.num_buckets, bloom.num_tokens          # ceil(10 / 3); 2 x 4 buckets + 2 x 4 special tokens
    (4, 16)
    >>> int(bloom.buckets(7)[1]) in range(4) and 7 in bloom.members[1][int(bloom.buckets(7)[1])]
    True
    """

    table: Tensor
    order: Tensor
    starts: Tensor
    alpha: int
    num_special: int = len(Special)

    @classmethod
    def random(
        cls,
        num_ids: int,
        num_hashes: int = 2,
        alpha: int = 20,
        seed: int = 0,
        num_special: int = len(Special),
        spread: bool = False,
    ) -> BloomHash:
        """Draw num_hashes hash functions; alpha=1 with one hash is the plain, unhashed vocabulary.

        >>> bloom = BloomHash.random(num_ids=12, num_hashes=2, alpha=3, spread=True)
        >>> bloom.buckets(range(4)).T.sort().values.tolist()     # the four most frequent of twelve ids, four buckets
        [[0, 1, 2, 3], [0, 1, 2, 3]]
        """
        check_sizes(num_ids, num_hashes, alpha)
        buckets = -(-num_ids // alpha)
        rng = np.random.default_rng([seed, num_ids, num_hashes, alpha])
        table = _fill(np.empty((num_ids, 0), dtype=np.int32), num_hashes, buckets, rng, spread)
        return cls.from_table(torch.from_numpy(table), buckets, alpha, num_special)

    @classmethod
    def coherent(
        cls,
        corpus: Corpus,
        num_hashes: int = 2,
        alpha: int = 20,
        coherent: int = 1,
        seed: int = 0,
        num_special: int = len(Special),
        spread: bool = False,
        *,
        targets: bool = False,
    ) -> BloomHash:
        """Hash functions of which the first one or two put ids together that go together in a corpus; App. D.

        No two ids share a bucket of both. The others are random. targets: of the vocabulary that is predicted, if it is
        another one.

        >>> from superbloom.corpus import Corpus
        >>> corpus = Corpus.from_sequences([["oak", "elm", "ash"], ["cod", "eel", "ray"], ["jay", "owl", "kea"]] * 20)
        >>> bloom = BloomHash.coherent(corpus, alpha=3)
        >>> len(set(bloom.buckets([corpus.vocab.id(name) for name in ("oak", "elm", "ash")])[:, 0].tolist()))
        1
        """
        from superbloom.coherent import coherent_columns

        num_ids = len(corpus.target_vocab if targets and corpus.target_vocab is not None else corpus.vocab)
        check_coherent(coherent, num_hashes)
        check_sizes(num_ids, num_hashes if coherent < 2 else 2, alpha)
        if not coherent:
            return cls.random(num_ids, num_hashes, alpha, seed, num_special, spread)
        buckets = -(-num_ids // alpha)
        rng = np.random.default_rng([seed, num_ids, num_hashes, alpha])
        columns = coherent_columns(corpus, buckets, coherent, rng, targets)
        table = _fill(columns, num_hashes, buckets, rng, spread)
        return cls.from_table(torch.from_numpy(table), buckets, alpha, num_special)

    @classmethod
    def from_table(cls, table: Tensor, num_buckets: int, alpha: int, num_special: int = len(Special)) -> BloomHash:
        """Build the inverse look-up of a given table of buckets (num_ids, m)."""
        table = table.int()
        columns = table.numpy().T
        order = np.stack([np.argsort(column, kind="stable") for column in columns]).astype(np.int32)
        sizes = np.stack([np.bincount(column, minlength=num_buckets) for column in columns])
        starts = np.concatenate([np.zeros((len(sizes), 1), np.int64), np.cumsum(sizes, axis=1)], axis=1)
        return cls(table, torch.from_numpy(order), torch.from_numpy(starts), alpha, num_special)

    @property
    def num_ids(self) -> int:
        return self.table.shape[0]

    @property
    def num_hashes(self) -> int:
        return self.table.shape[1]

    @property
    def num_buckets(self) -> int:
        return self.starts.shape[1] - 1

    @property
    def num_tokens(self) -> int:
        """All tokens: m * num_buckets for ids, then num_hashes for each special id."""
        return self.num_hashes * (self.num_buckets + self.num_special)

    @cached_property
    def largest_bucket(self) -> int:
        return int(self.starts.diff(dim=1).max())

    @cached_property
    def spans(self) -> Tensor:
        """Where to copy each bucket from, (m · num_buckets, 3): a run of largest_bucket ids, in `order` as one row.

        The columns are where the run begins, and where within it the bucket does (0, unless the run would pass the
        end of the table) and ends.
        """
        m, n = self.order.shape
        first = self.starts[:, :-1] + n * torch.arange(m, device=self.starts.device)[:, None]
        run = first.clamp(max=m * n - self.largest_bucket)
        spans = torch.stack([run, first - run, first - run + self.starts.diff(dim=1)], dim=-1).view(-1, 3)
        return spans.int() if m * n < 2**31 else spans

    @cached_property
    def columns(self) -> Tensor:
        """The table by hash, (m, num_ids): for scoring every id, where the table by id serves scoring a few."""
        return self.table.T.contiguous()

    @property
    def members(self) -> list[Members]:
        """members[j][bucket] are the ids hash j sends to that bucket, ascending."""
        return [Members(self.order[j], self.starts[j]) for j in range(self.num_hashes)]

    def buckets(self, ids: Any) -> Tensor:
        """Bucket of each id under each hash, (..., m)."""
        ids = torch.as_tensor(ids)
        self._check(ids, lowest=0)
        return self.table[ids.long()].long()

    def digest(self, ids: Any) -> Tensor:
        """The m tokens of each id, (..., m); special ids have tokens of their own.

        >>> bloom = BloomHash.random(num_ids=4, num_hashes=2, alpha=1)
        >>> bloom.digest([Special.PAD, Special.MASK]).tolist()
        [[8, 9], [10, 11]]
        """
        ids = torch.as_tensor(ids)
        self._check(ids, lowest=-self.num_special)
        ids = ids.long()
        hashes = torch.arange(self.num_hashes, device=ids.device)
        tokens = self.table[ids.clamp(min=0)] + hashes * self.num_buckets
        special = self.num_hashes * (self.num_buckets - 1 - ids)[..., None] + hashes
        return torch.where(ids[..., None] >= 0, tokens, special)

    def checksum(self) -> str:
        """Of the digests of all ids."""
        return hashlib.sha256(self.table.cpu().contiguous().numpy().data).hexdigest()

    def to(self, device: torch.device | str) -> BloomHash:
        """The same functions with their tables on another device."""
        if self.table.device == torch.device(device):
            return self
        table, order, starts = (tensor.to(device) for tensor in (self.table, self.order, self.starts))
        return BloomHash(table, order, starts, self.alpha, self.num_special)

    def verify(self) -> None:
        """Raise InputError unless the three tables describe one another; for tables that come from a file."""
        n, m, b = self.num_ids, self.num_hashes, self.num_buckets
        if min(n, m, b, self.alpha) < 1 or self.order.shape != (m, n) or self.starts.shape != (m, b + 1):
            raise InputError(
                f"hash tables of shapes {tuple(self.table.shape)}, {tuple(self.order.shape)}, "
                f"{tuple(self.starts.shape)} do not belong together; save the model again"
            )
        inside = (self.table.min() >= 0) & (self.table.max() < b) & (self.order.min() >= 0) & (self.order.max() < n)
        sound = bool(inside)
        for j in range(m) if sound else ():
            column = self.table[:, j].contiguous()
            # Strictly increasing (bucket, id) pairs: sorted by bucket, and every id there just once.
            step, next_ = column.index_select(0, self.order[j]).diff(), self.order[j].diff()
            sound = sound and bool(((step > 0) | ((step == 0) & (next_ > 0))).all())
            sizes = torch.bincount(column, minlength=b)
            sound = sound and torch.equal(self.starts[j], torch.cat([torch.zeros(1).long(), sizes.cumsum(0)]))
        if not sound:
            raise InputError("hash tables contradict one another; the file was edited: save the model again")

    def _check(self, ids: Tensor, lowest: int) -> None:
        if ids.numel() and (ids.dtype.is_floating_point or ids.min() < lowest or ids.max() >= self.num_ids):
            raise InputError(
                f"ids from {ids.min().item()} to {ids.max().item()} given; "
                f"whole numbers from {lowest} to {self.num_ids - 1} are allowed"
            )


@dataclass(frozen=True)
class Members:
    """The inverse of one hash: index it by bucket."""

    order: Tensor
    starts: Tensor

    def __getitem__(self, bucket: int) -> Tensor:
        if not 0 <= bucket < len(self):
            raise IndexError(f"bucket {bucket} given; 0 to {len(self) - 1} are allowed")
        return self.order[self.starts[bucket] : self.starts[bucket + 1]]

    def __len__(self) -> int:
        return len(self.starts) - 1


def check_sizes(num_ids: int, num_hashes: int, alpha: int) -> None:
    """Raise InputError unless there are enough digests, with the largest alpha that gives enough."""
    check_whole(num_ids=num_ids, num_hashes=num_hashes, alpha=alpha)
    largest = max_alpha(num_ids, num_hashes)
    if alpha > largest:
        buckets = -(-num_ids // alpha)
        raise InputError(
            f"alpha={alpha} leaves {buckets:,} bucket{'s' * (buckets > 1)}, too few to tell {num_ids:,} ids apart "
            f"with {num_hashes} hash{'es' * (num_hashes > 1)}; the largest alpha that works is {largest}"
        )


def check_coherent(coherent: int, num_hashes: int) -> None:
    """Raise InputError unless so many hash functions can be coherent."""
    if type(coherent) is not int or not 0 <= coherent <= min(2, num_hashes):
        raise InputError(
            f"coherent={coherent!r} given with num_hashes={num_hashes}; 0 to {min(2, num_hashes)} is allowed"
        )


def _fill(columns: np.ndarray, num_hashes: int, num_buckets: int, rng: np.random.Generator, spread: bool) -> np.ndarray:
    """The given columns of a table and random ones beside them, num_hashes in all, without complete collisions."""
    num_ids, given = columns.shape
    # Position p of a permutation falls into bucket p * buckets // num_ids: sizes differ by at most one.
    runs = (np.arange(num_ids, dtype=np.int64) * num_buckets // num_ids).astype(np.int32)
    stratum = np.arange(num_ids, dtype=np.int32) // (num_buckets if spread else num_ids)
    table = np.empty((num_ids, num_hashes), dtype=np.int32)
    table[:, :given] = columns
    for j in range(given, num_hashes):
        if spread:
            for start in range(0, num_ids, num_buckets):
                table[start : start + num_buckets, j] = rng.permutation(num_buckets)[: num_ids - start]
        else:
            table[rng.permutation(num_ids), j] = runs
    if given == num_hashes or _repair(table, stratum, num_buckets, rng):
        return table
    if not given:
        return _regular_table(num_ids, num_hashes, num_buckets, rng, spread)
    table[:, 1:] = shifted(columns[:, 0], num_buckets, num_hashes, rng)
    return table


def _repair(table: np.ndarray, stratum: np.ndarray, num_buckets: int, rng: np.random.Generator) -> bool:
    """Remove complete collisions in place by trading last buckets with random partners; False if it gives up.

    Trading keeps every bucket's size, and within a stratum its spread. Each round shuffles the offenders among as many
    random ids.
    """
    for _ in range(REPAIR_ROUNDS):
        offenders = _complete_collisions(table, num_buckets)
        if not len(offenders):
            return True
        partners = _partners(stratum, offenders, rng)
        traders = np.union1d(offenders, partners)  # ascending, so stratum by stratum
        shuffled = traders[np.lexsort((rng.random(len(traders)), stratum[traders]))]
        table[traders, -1] = table[shuffled, -1]
    return False


def _partners(stratum: np.ndarray, offenders: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random id of each offender's stratum, and one more of the last one's."""
    strata = stratum[np.append(offenders, offenders[-1])]
    first, end = (np.searchsorted(stratum, strata, side) for side in ("left", "right"))
    return rng.integers(first, end)


def _complete_collisions(table: np.ndarray, num_buckets: int) -> np.ndarray:
    """All ids that share their whole digest with another."""
    codes = digest_codes(table, num_buckets)
    by_code = np.argsort(codes, kind="stable")
    repeated = codes[by_code[1:]] == codes[by_code[:-1]]
    # subtle: both ids of a pair, since one may be alone in its stratum and have nobody to trade with.
    return by_code[np.append(repeated, False) | np.append(False, repeated)]


def digest_codes(table: np.ndarray, num_buckets: int) -> np.ndarray:
    """A number for each row of buckets, equal for equal ones; of very many digests, different ones may share it."""
    codes = np.zeros(len(table), dtype=np.uint64)
    for column in table.T:
        codes = codes * np.uint64(num_buckets) + column.astype(np.uint64)
    return codes


def _regular_table(
    num_ids: int, num_hashes: int, num_buckets: int, rng: np.random.Generator, spread: bool
) -> np.ndarray:
    """Balanced hashes without complete collisions for any num_ids <= num_buckets ** num_hashes.

    The r-th id of bucket b of hash 0 goes to bucket b + digit_j(r) of hash j, digits in base num_buckets:
    equal digests would need equal b and equal r. Buckets are then renamed at random. Spread, ids are given out by r:
    those of one r are in different buckets of every hash. Used when the digests are so nearly all taken that random
    repair cannot end.
    """
    position = np.arange(num_ids, dtype=np.int64)
    first = position * num_buckets // num_ids
    rank = position - -(-first * num_ids // num_buckets)
    ids = rng.permutation(num_ids)
    if spread:
        ids = np.argsort(np.lexsort((ids, rank)))
    table = np.empty((num_ids, num_hashes), dtype=np.int32)
    table[ids, 0] = rng.permutation(num_buckets)[first]
    table[ids, 1:] = _shifts(first, rank, num_buckets, num_hashes, rng)
    return table


def shifted(first: np.ndarray, num_buckets: int, num_hashes: int, rng: np.random.Generator) -> np.ndarray:
    """Such hashes beside a given one, (num_ids, num_hashes - 1).

    >>> second = shifted(np.array([0, 0, 1, 1]), 2, 2, np.random.default_rng(0))
    >>> sorted(zip([0, 0, 1, 1], second[:, 0].tolist()))
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    ids = np.lexsort((rng.random(len(first)), first))
    rank = np.arange(len(ids)) - np.searchsorted(first[ids], first[ids])
    table = np.empty((len(ids), num_hashes - 1), dtype=np.int32)
    table[ids] = _shifts(first[ids], rank, num_buckets, num_hashes, rng)
    return table


def _shifts(
    first: np.ndarray, rank: np.ndarray, num_buckets: int, num_hashes: int, rng: np.random.Generator
) -> np.ndarray:
    table = np.empty((len(first), num_hashes - 1), dtype=np.int32)
    for j in range(num_hashes - 1):
        table[:, j] = rng.permutation(num_buckets)[(first + rank) % num_buckets]
        rank = rank // num_buckets
    return table
