"""Hash tables with balanced buckets and a different digest for every id (Sec. 2.1, 3.2).

    given columns (num_ids, 0 to m)  →  table (num_ids, m), the bucket of each id under each hash

Each random column is a permutation of the ids, cut into runs. Ids that share their whole digest (complete collisions)
then trade buckets. If almost all digests are in use, trading cannot end, and a regular construction takes over.
"""

from __future__ import annotations

import numpy as np

from superbloom.errors import InputError, check_whole

# Rounds of random repair before the regular construction takes over; 5.3 million ids at alpha=50 need three.
MAX_REPAIR_ROUNDS = 64


def max_alpha(num_ids: int, num_hashes: int) -> int:
    """The largest alpha that leaves a different digest for each of num_ids ids.

    >>> max_alpha(100, 2), max_alpha(101, 2), max_alpha(100, 1)   # 10 x 10 buckets; 11 x 11; one each
    (11, 10, 1)
    """
    buckets = round(num_ids ** (1 / num_hashes))  # smallest b with b ** m >= num_ids; the loops correct rounding
    while buckets**num_hashes >= num_ids and buckets > 1:
        buckets -= 1
    while buckets**num_hashes < num_ids:
        buckets += 1
    return num_ids if buckets == 1 else (num_ids - 1) // (buckets - 1)


def check_sizes(num_ids: int, num_hashes: int, alpha: int) -> None:
    """Raise InputError unless there are enough digests; the message gives the largest alpha that works."""
    check_whole(num_ids=num_ids, num_hashes=num_hashes, alpha=alpha)
    largest = max_alpha(num_ids, num_hashes)
    if alpha > largest:
        buckets = -(-num_ids // alpha)
        raise InputError(
            f"alpha={alpha} leaves {buckets:,} bucket{'s' * (buckets > 1)}, too few to tell {num_ids:,} ids apart "
            f"with {num_hashes} hash{'es' * (num_hashes > 1)}; the largest alpha that works is {largest}"
        )


def check_coherent(coherent: int, num_hashes: int) -> None:
    """Raise InputError unless this number of hash functions can be coherent."""
    if type(coherent) is not int or not 0 <= coherent <= min(2, num_hashes):
        raise InputError(
            f"coherent={coherent!r} given with num_hashes={num_hashes}; 0 to {min(2, num_hashes)} is allowed"
        )


def fill_table(
    columns: np.ndarray, num_hashes: int, num_buckets: int, rng: np.random.Generator, spread: bool
) -> np.ndarray:
    """A table without complete collisions: the given columns, then random ones, num_hashes in all."""
    num_ids, given = columns.shape
    runs = even_runs(num_ids, num_buckets).astype(np.int32)
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


def even_runs(num_ids: int, num_buckets: int) -> np.ndarray:
    """The bucket of each position if positions are cut into runs whose sizes differ by at most one, (num_ids,).

    >>> even_runs(7, 3).tolist()
    [0, 0, 0, 1, 1, 2, 2]
    """
    return np.arange(num_ids, dtype=np.int64) * num_buckets // num_ids


def _repair(table: np.ndarray, stratum: np.ndarray, num_buckets: int, rng: np.random.Generator) -> bool:
    """Remove complete collisions in place by trading last buckets with random partners; False if it gives up.

    Trading keeps the size of every bucket; trading within a stratum keeps the spread. Each round shuffles the offenders
    together with an equal number of random ids.
    """
    for _ in range(MAX_REPAIR_ROUNDS):
        offenders = _complete_collisions(table, num_buckets)
        if not len(offenders):
            return True
        partners = _partners(stratum, offenders, rng)
        traders = np.union1d(offenders, partners)  # ascending, so stratum by stratum
        shuffled = traders[np.lexsort((rng.random(len(traders)), stratum[traders]))]
        table[traders, -1] = table[shuffled, -1]
    return False


def _partners(stratum: np.ndarray, offenders: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random id from the stratum of each offender, and a second one from the stratum of the last."""
    strata = stratum[np.append(offenders, offenders[-1])]
    first, end = (np.searchsorted(stratum, strata, side) for side in ("left", "right"))
    return rng.integers(first, end)


def _complete_collisions(table: np.ndarray, num_buckets: int) -> np.ndarray:
    """All ids that share their whole digest with another id."""
    codes = digest_codes(table, num_buckets)
    by_code = np.argsort(codes, kind="stable")
    repeated = codes[by_code[1:]] == codes[by_code[:-1]]
    # subtle: return both ids of a pair, because one may be alone in its stratum and have no partner to trade with
    return by_code[np.append(repeated, False) | np.append(False, repeated)]


def digest_codes(table: np.ndarray, num_buckets: int) -> np.ndarray:
    """A number for each row of buckets, equal for equal rows, (len(table),).

    Numbers wrap at 2^64: with more possible digests, different rows may share a number.
    """
    codes = np.zeros(len(table), dtype=np.uint64)
    for column in table.T:
        codes = codes * np.uint64(num_buckets) + column.astype(np.uint64)
    return codes


def repeated(codes: np.ndarray) -> np.ndarray:
    """Which codes occurred before, as booleans.

    >>> repeated(np.array([5, 7, 5, 5])).tolist()
    [False, False, True, True]
    """
    again = np.ones(len(codes), dtype=bool)
    again[np.unique(codes, return_index=True)[1]] = False
    return again


def _regular_table(
    num_ids: int, num_hashes: int, num_buckets: int, rng: np.random.Generator, spread: bool
) -> np.ndarray:
    """Balanced hashes without complete collisions for any num_ids <= num_buckets ** num_hashes.

    The r-th id of bucket b of hash 0 goes to bucket b + digit_j(r) of hash j, with digits in base num_buckets. Equal
    digests would need equal b and equal r. Buckets are then renamed at random. With spread, ids are assigned in the
    order of r: ids with the same r are in different buckets of every hash.
    """
    first = even_runs(num_ids, num_buckets)
    rank = np.arange(num_ids, dtype=np.int64) - -(-first * num_ids // num_buckets)
    ids = rng.permutation(num_ids)
    if spread:
        ids = np.argsort(np.lexsort((ids, rank)))
    table = np.empty((num_ids, num_hashes), dtype=np.int32)
    table[ids, 0] = rng.permutation(num_buckets)[first]
    table[ids, 1:] = _shifts(first, rank, num_buckets, num_hashes, rng)
    return table


def shifted(first: np.ndarray, num_buckets: int, num_hashes: int, rng: np.random.Generator) -> np.ndarray:
    """The same construction for a given first hash: the other hashes, (num_ids, num_hashes - 1).

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
    """Buckets (b + digit_j(r)) of the hashes after the first, renamed at random."""
    table = np.empty((len(first), num_hashes - 1), dtype=np.int32)
    for j in range(num_hashes - 1):
        table[:, j] = rng.permutation(num_buckets)[(first + rank) % num_buckets]
        rank = rank // num_buckets
    return table
