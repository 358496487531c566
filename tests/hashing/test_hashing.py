"""Balanced digests without complete collisions, for every size that allows them."""

import hashlib
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from superbloom.errors import InputError
from superbloom.hashing import construct as hashing
from superbloom.hashing.bloom import BloomHash
from superbloom.hashing.construct import max_alpha
from superbloom.special import Special
from tests.support.digests import assert_sound


@st.composite
def sizes(draw):
    num_ids = draw(st.integers(1, 400))
    num_hashes = draw(st.integers(1, 4))
    alpha = draw(st.integers(1, max_alpha(num_ids, num_hashes)))
    return num_ids, num_hashes, alpha


@given(sizes(), st.integers(0, 3), st.booleans())
def test_every_allowed_size_is_balanced_and_invertible(size, seed, spread):
    num_ids, num_hashes, alpha = size
    assert_sound(BloomHash.random(num_ids, num_hashes, alpha, seed=seed, spread=spread))


@pytest.mark.parametrize(("num_ids", "alpha"), [(10_000, 10), (10_001, 10), (5_003, 50), (301, 2)])
def test_spread_ids_of_like_frequency_never_share_a_bucket(num_ids, alpha):
    bloom = BloomHash.random(num_ids, 2, alpha, seed=1, spread=True)
    assert_sound(bloom)
    for start in range(0, num_ids, bloom.num_buckets):
        like = bloom.buckets(torch.arange(start, min(start + bloom.num_buckets, num_ids))).numpy()
        assert all(len(np.unique(column)) == len(like) for column in like.T)
    plain = BloomHash.random(num_ids, 2, alpha, seed=1).buckets(torch.arange(bloom.num_buckets)).numpy()
    assert len(np.unique(plain[:, 0])) < bloom.num_buckets, "this one is not spread"


@given(st.integers(1, 10**7), st.integers(1, 4))
def test_max_alpha_is_the_largest_that_tells_ids_apart(num_ids, num_hashes):
    largest = max_alpha(num_ids, num_hashes)
    assert (-(-num_ids // largest)) ** num_hashes >= num_ids
    if num_ids > 1:
        assert (-(-num_ids // (largest + 1))) ** num_hashes < num_ids


@pytest.mark.parametrize(("num_ids", "num_hashes", "alpha"), [(100, 2, 10), (64, 3, 16), (81, 4, 27)])
def test_when_every_digest_is_taken_the_regular_construction_fills_them_all(num_ids, num_hashes, alpha):
    assert_sound(BloomHash.random(num_ids, num_hashes, alpha))


@pytest.mark.parametrize("spread", [False, True])
def test_tables_of_usual_sizes_stay_random(monkeypatch, spread):
    """About fifty ids share their digest with another at first. They trade buckets, and all other ids keep theirs."""
    monkeypatch.setattr(hashing, "_regular_table", None)
    for seed in range(5):
        BloomHash.random(5000, 2, 20, seed=seed, spread=spread).verify()


def test_alpha_one_with_one_hash_is_the_plain_vocabulary():
    bloom = BloomHash.random(50, num_hashes=1, alpha=1)
    assert sorted(bloom.digest(torch.arange(50)).flatten().tolist()) == list(range(50))


def test_seeds_give_different_functions_and_the_same_seed_the_same():
    tables = [BloomHash.random(1000, 2, 10, seed=seed).table for seed in (1, 1, 2)]
    assert torch.equal(tables[0], tables[1])
    assert not torch.equal(tables[0], tables[2])


def test_hashes_are_independent_of_one_another():
    """Ids that share a bucket of one hash share a bucket of another about as often as by chance."""
    bloom = BloomHash.random(20_000, 2, 20, seed=0)
    first, second = bloom.table.numpy().T
    mates = [bloom.members[0][bucket].numpy() for bucket in range(bloom.num_buckets)]
    again = sum((second[ids][:, None] == second[ids][None]).sum() - len(ids) for ids in mates)
    pairs = sum(len(ids) * (len(ids) - 1) for ids in mates)
    assert again == 0  # never, in fact: a pair that met in both would share its digest
    assert pairs == 1000 * 20 * 19
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03


def test_tokens_are_numbered_by_hash_and_specials_collide_with_nothing():
    bloom = BloomHash.random(30, num_hashes=3, alpha=4)
    tokens = bloom.digest(torch.arange(30))
    assert torch.equal(tokens, bloom.buckets(torch.arange(30)) + torch.arange(3) * bloom.num_buckets)
    special = bloom.digest(list(Special)).flatten().tolist()
    assert len(set(special)) == 3 * len(Special)
    assert set(special) == set(range(3 * bloom.num_buckets, bloom.num_tokens))


def test_digest_keeps_the_shape_of_its_input():
    bloom = BloomHash.random(30, num_hashes=2, alpha=3)
    assert bloom.digest(torch.zeros(4, 5, dtype=torch.long)).shape == (4, 5, 2)
    assert bloom.digest(np.zeros((4, 5), dtype=np.int32)).shape == (4, 5, 2)
    assert bloom.digest(7).shape == (2,)
    assert bloom.digest([]).shape == (0, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (10, 2, 5),
            "alpha=5 leaves 2 buckets, too few to tell 10 ids apart with 2 hashes; the largest alpha that works is 3",
        ),
        (
            (10, 1, 2),
            "alpha=2 leaves 5 buckets, too few to tell 10 ids apart with 1 hash; the largest alpha that works is 1",
        ),
        ((10, 2, 0), "alpha=0 given"),
        ((10, 0, 1), "num_hashes=0 given"),
        ((0, 1, 1), "num_ids=0 given"),
    ],
)
def test_sizes_that_cannot_work_are_refused_with_what_would(arguments, message):
    with pytest.raises(InputError, match=message):
        BloomHash.random(*arguments)


@pytest.mark.parametrize("ids", [[10], [-5], [0, 10], [-5, 0]])
def test_ids_outside_are_refused(ids):
    with pytest.raises(InputError, match="-4 to 9 are allowed"):
        BloomHash.random(10, 2, 2).digest(ids)
    with pytest.raises(InputError, match="0 to 9 are allowed"):
        BloomHash.random(10, 2, 2).buckets(ids)


def test_fractions_are_not_ids():
    with pytest.raises(InputError, match="whole numbers"):
        BloomHash.random(10, 2, 2).digest([0.5])


def test_a_bucket_outside_is_refused():
    with pytest.raises(IndexError, match="bucket 5 given; 0 to 4 are allowed"):
        BloomHash.random(10, 2, 2).members[0][5]


@pytest.mark.parametrize("table", ["table", "order", "starts"])
def test_verify_refuses_tables_that_were_edited(table):
    bloom = BloomHash.random(100, 2, 5)
    bloom.verify()
    edited = getattr(bloom, table)
    edited[0, 0], edited[1, 1] = edited[1, 1] + 1, edited[0, 0]
    with pytest.raises(InputError, match="contradict"):
        bloom.verify()


def test_verify_refuses_any_single_number_that_is_another():
    bloom = BloomHash.random(12, 2, 3)
    for name in ("table", "order", "starts"):
        sound = getattr(bloom, name)
        for place, other in itertools.product(np.ndindex(sound.shape), (-1, 1, 12, -12)):
            wrong = sound.clone()
            wrong[place] += other
            with pytest.raises(InputError, match="hash tables contradict one another"):
                replace(bloom, **{name: wrong}).verify()
    bloom.verify()


@pytest.mark.parametrize(
    "parts",
    [
        {"order": torch.zeros(2, 11).int()},
        {"order": torch.zeros(1, 12).int()},
        {"starts": torch.zeros(1, 5).long()},
        {"starts": torch.zeros(2, 1).long()},
        {"table": torch.zeros(12, 0).int(), "order": torch.zeros(0, 12).int(), "starts": torch.zeros(0, 5).long()},
        {"table": torch.zeros(0, 2).int(), "order": torch.zeros(2, 0).int(), "starts": torch.zeros(2, 5).long()},
        {"alpha": 0},
    ],
    ids=str,
)
def test_verify_refuses_tables_of_other_shapes(parts):
    with pytest.raises(InputError, match="do not belong together; save the model again"):
        replace(BloomHash.random(12, 2, 3), **parts).verify()


def test_the_checksum_is_that_of_the_digests():
    tables = [BloomHash.random(100, 2, 5, seed=seed) for seed in (0, 0, 1)]
    assert tables[0].checksum() == tables[1].checksum() != tables[2].checksum()
    assert tables[0].checksum() == hashlib.sha256(tables[0].table.numpy().tobytes()).hexdigest()


def test_tables_go_to_another_device_whole():
    bloom = BloomHash.random(12, 2, 3, num_special=7)
    assert bloom.to("cpu") is bloom
    moved = bloom.to("meta")
    assert {part.device.type for part in (moved.table, moved.order, moved.starts)} == {"meta"}
    assert (moved.alpha, moved.num_special, moved.num_ids, moved.num_buckets) == (3, 7, 12, 4)


@settings(max_examples=40)
@given(sizes())
def test_spans_are_runs_that_hold_each_bucket(size):
    bloom = BloomHash.random(*size)
    flat = bloom.order.flatten()
    for number, (run, first, end) in enumerate(bloom.spans.tolist()):
        hash_, bucket = divmod(number, bloom.num_buckets)
        assert 0 <= run <= len(flat) - bloom.largest_bucket
        assert 0 <= first <= end <= bloom.largest_bucket
        assert flat[run + first : run + end].tolist() == bloom.members[hash_][bucket].tolist()
    assert len(bloom.spans) == bloom.num_hashes * bloom.num_buckets
    assert bloom.largest_bucket == max(len(part[b]) for part in bloom.members for b in range(bloom.num_buckets))
    assert torch.equal(bloom.columns, bloom.table.T)


@pytest.mark.slow
def test_the_papers_catalogue_hashes_without_complete_collisions():
    assert_sound(BloomHash.random(5_281_889, num_hashes=2, alpha=50))


def test_ids_that_are_none_are_told_from_the_first_to_the_last():
    message = "ids from -3 to 12 given; whole numbers from 0 to 9 are allowed"
    with pytest.raises(InputError, match=message):
        BloomHash.random(10, 2, 2).buckets(torch.tensor([4, 12, -3]))
