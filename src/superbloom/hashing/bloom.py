"""Bloom digests of ids: the hash functions and their inverses (Sec. 2.1, 3.2). construct.py builds the tables.

    table (num_ids, m)             bucket of each id under each hash
    order (m, num_ids)             ids sorted by bucket, then by id: the inverse look-up of Sec. 2.5
    starts (m, num_buckets + 1)    bucket b of hash j holds order[j, starts[j, b] : starts[j, b + 1]]

An id is read and predicted as its digest: m tokens, one per hash. No two ids share a digest. Tokens are numbered hash
by hash, special tokens last: hash j, bucket b is token j * num_buckets + b.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

import superbloom.runtime.fork  # noqa: F401, forked processes need it
from superbloom.corpus import Corpus
from superbloom.errors import InputError
from superbloom.hashing.coherent import coherent_columns
from superbloom.hashing.construct import check_coherent, check_sizes, fill_table
from superbloom.special import Special


@dataclass(frozen=True, eq=False)
class BloomHash:
    """m balanced hash functions and their inverses; no two ids share all m buckets.

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
        """Draw num_hashes hash functions: random permutations of the ids, cut into runs of alpha ids.

        With spread, every num_buckets consecutive ids fall into different buckets. Ids are numbered by frequency, so a
        frequent id shares its buckets with rare ids only. alpha=1 with one hash is the plain, unhashed vocabulary.

        >>> bloom = BloomHash.random(num_ids=12, num_hashes=2, alpha=3, spread=True)
        >>> bloom.buckets(range(4)).T.sort().values.tolist()     # the four most frequent ids, four buckets
        [[0, 1, 2, 3], [0, 1, 2, 3]]
        """
        check_sizes(num_ids, num_hashes, alpha)
        buckets = -(-num_ids // alpha)
        rng = np.random.default_rng([seed, num_ids, num_hashes, alpha])
        table = fill_table(np.empty((num_ids, 0), dtype=np.int32), num_hashes, buckets, rng, spread)
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
        """Hash functions whose first one or two put ids that occur together into the same bucket (App. D).

        coherent: the number of such functions; no two ids share the buckets of both. The other functions are random.
        targets: hash the vocabulary that is predicted, if it is a second one.

        >>> from superbloom.corpus import Corpus
        >>> corpus = Corpus.from_sequences([["oak", "elm", "ash"], ["cod", "eel", "ray"], ["jay", "owl", "kea"]] * 20)
        >>> bloom = BloomHash.coherent(corpus, alpha=3)
        >>> len(set(bloom.buckets([corpus.vocab.id(name) for name in ("oak", "elm", "ash")])[:, 0].tolist()))
        1
        """
        num_ids = len(corpus.target_vocab if targets and corpus.target_vocab is not None else corpus.vocab)
        check_coherent(coherent, num_hashes)
        check_sizes(num_ids, num_hashes if coherent < 2 else 2, alpha)
        if not coherent:
            return cls.random(num_ids, num_hashes, alpha, seed, num_special, spread)
        buckets = -(-num_ids // alpha)
        rng = np.random.default_rng([seed, num_ids, num_hashes, alpha])
        columns = coherent_columns(corpus, buckets, coherent, rng, targets)
        table = fill_table(columns, num_hashes, buckets, rng, spread)
        return cls.from_table(torch.from_numpy(table), buckets, alpha, num_special)

    @classmethod
    def from_table(cls, table: Tensor, num_buckets: int, alpha: int, num_special: int = len(Special)) -> BloomHash:
        """Build the inverse of a given table of buckets (num_ids, m)."""
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
        """The number of tokens: m * num_buckets for ids, then m for each special id."""
        return self.num_hashes * (self.num_buckets + self.num_special)

    @cached_property
    def largest_bucket(self) -> int:
        return int(self.starts.diff(dim=1).max())

    @cached_property
    def spans(self) -> Tensor:
        """A run of largest_bucket ids that contains each bucket, (m · num_buckets, 3), with `order` as one row.

        The columns are the start of the run, and the start and end of the bucket within it. The bucket starts at 0,
        except where the run would pass the end of the table.
        """
        m, n = self.order.shape
        first = self.starts[:, :-1] + n * torch.arange(m, device=self.starts.device)[:, None]
        run = first.clamp(max=m * n - self.largest_bucket)
        spans = torch.stack([run, first - run, first - run + self.starts.diff(dim=1)], dim=-1).view(-1, 3)
        return spans.int() if m * n < 2**31 else spans

    @cached_property
    def columns(self) -> Tensor:
        """The table by hash, (m, num_ids), for scoring every id; `table` is faster for scoring a few."""
        return self.table.T.contiguous()

    @property
    def members(self) -> list[Members]:
        """members[j][bucket] holds the ids in that bucket of hash j, ascending."""
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
        """SHA-256 of the digests of all ids."""
        return hashlib.sha256(self.table.cpu().contiguous().numpy().data).hexdigest()

    def to(self, device: torch.device | str) -> BloomHash:
        """The same functions, with tables on another device."""
        if self.table.device == torch.device(device):
            return self
        table, order, starts = (tensor.to(device) for tensor in (self.table, self.order, self.starts))
        return BloomHash(table, order, starts, self.alpha, self.num_special)

    def verify(self) -> None:
        """Raise InputError unless the three tables match; for tables that come from a file."""
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
            # Strictly increasing (bucket, id) pairs: sorted by bucket, and no id occurs twice.
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
