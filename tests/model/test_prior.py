"""The prior of ids against plain Python, and the bounds of a bonus."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from superbloom.hashing.bloom import BloomHash
from superbloom.hashing.construct import max_alpha
from superbloom.hashing.growth import extended
from superbloom.model.prior import Prior
from superbloom.search.scoring import Bonus, IdPrior
from tests.search.oracle import plain_surplus


@st.composite
def tables(draw):
    num_hashes, num_ids = draw(st.integers(1, 4)), draw(st.integers(1, 40))
    alpha = draw(st.integers(1, max_alpha(num_ids, num_hashes)))
    return BloomHash.random(num_ids, num_hashes, alpha, seed=draw(st.integers(0, 5)))


@given(tables(), st.data())
def test_the_surplus_of_each_id_equals_a_plain_calculation(bloom, data):
    counts = data.draw(hnp.arrays(np.int32, bloom.num_ids, elements=st.integers(0, 10**6)))
    found = Prior(torch.from_numpy(counts)).of_ids(bloom).surplus
    assert found.tolist() == pytest.approx(plain_surplus(counts.tolist(), bloom.table.tolist()), rel=1e-5, abs=1e-5)


def test_a_surplus_worked_out_by_hand():
    """Counts plus one: 8, 4, 4 of 16. Both buckets of id 0 have 12 of 16, ids 1 and 2 are alone in one of theirs."""
    bloom = BloomHash.from_table(torch.tensor([[0, 0], [0, 1], [1, 0]]), num_buckets=2, alpha=2)
    found = IdPrior.of(torch.tensor([7, 3, 3]), bloom).surplus.exp()
    assert found.tolist() == pytest.approx([(8 / 16) / (12 / 16) ** 2, 1 / (12 / 16), 1 / (12 / 16)])


def test_without_counts_all_ids_are_alike():
    bloom = BloomHash.random(40, 2, 4, seed=0)
    assert torch.equal(IdPrior.uniform(bloom).surplus, IdPrior.of(torch.zeros(40), bloom).surplus)
    # Ten buckets of four ids: 1/40 over 1/10 · 1/10.
    assert IdPrior.uniform(bloom).surplus.exp().tolist() == pytest.approx([2.5] * 40)


def test_ids_that_share_no_bucket_have_no_surplus():
    bloom = BloomHash.random(50, 1, 1)
    assert IdPrior.of(torch.arange(50), bloom).surplus.abs().max() < 1e-6


def test_ids_added_later_do_not_change_the_surplus_of_others():
    bloom = BloomHash.random(60, 2, 6, seed=0)
    counts = torch.arange(60) ** 2
    more = extended(bloom, [[]] * 9, reserve=0.5)
    before, after = IdPrior.of(counts, bloom), IdPrior.of(torch.cat([counts, torch.full((9,), -1)]), more)
    assert torch.equal(after.surplus[:60], before.surplus)
    # A new id has the prior of an id that never occurred, relative to buckets without it.
    expected = plain_surplus([*counts.tolist(), *[-1] * 9], more.table.tolist())
    assert after.surplus.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-5)


@given(tables(), st.data())
def test_the_buckets_of_an_id_promise_at_least_its_bonus(bloom, data):
    of_id = data.draw(hnp.arrays(np.float32, bloom.num_ids, elements=st.floats(-30, 30, width=32)))
    bonus = Bonus.of(torch.from_numpy(of_id), bloom)
    promised = bonus.of_bucket[torch.arange(bloom.num_hashes), bloom.table.long()].double().sum(dim=1)
    assert (promised >= bonus.of_id - 1e-6 * (1 + bonus.of_id.abs())).all()
    assert np.array_equal(bonus.of_id, of_id)
    for j, bucket in np.ndindex(bloom.num_hashes, bloom.num_buckets):
        # No more is promised than a member can ask for.
        assert bonus.of_bucket[j, bucket] * bloom.num_hashes == pytest.approx(of_id[bloom.members[j][bucket]].max())


def test_the_counts_are_those_of_training_rows(ring_corpus):
    assert Prior.of_corpus(ring_corpus).counts.tolist() == ring_corpus.id_counts("train").tolist()


def test_counts_beyond_int32_stay_the_largest(ring_corpus, monkeypatch):
    """Wrapped, the most frequent id would be the rarest."""
    counts = np.array([2**32 + 1000, 3 * 10**9, 2**31 - 1, 5])
    monkeypatch.setattr(type(ring_corpus), "id_counts", lambda corpus, split: counts)
    assert Prior.of_corpus(ring_corpus).counts.tolist() == [2**31 - 1] * 3 + [5]
