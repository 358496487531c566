"""The search for probabilities equals a plain ranking by the formula of posterior.py (check 19)."""

import gc
import math
import os
import weakref
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from superbloom.errors import InputError
from superbloom.hashing.bloom import BloomHash
from superbloom.hashing.construct import max_alpha
from superbloom.hashing.growth import extended, room_for_more
from superbloom.search import IdPrior, bucket_shares, exhaustive, log_contributions, log_probability, top_k
from superbloom.search import posterior as module
from superbloom.search.opening import Limits
from superbloom.search.posterior import PosteriorSearch
from tests.search.limits import limits
from tests.search.oracle import log_sum, plain_log_probability, plain_surplus
from tests.support.cases import CASES

FEWER = int(os.environ.get("SUPERBLOOM_CASES", "250"))  # cases of each property except the main one
CLOSE = 1e-5  # the order of scores that differ by less is open: the search rounds to float32
EQUAL = 1e-11  # scores that differ by less are equal, and the smaller id comes first
RESERVE = 0.5  # of buckets, for ids that are added later


@st.composite
def catalogues(draw, most_ids: int = 90):
    """Hash functions, some with ids that were added later, and the counts of their ids, or None."""
    num_hashes, num_ids = draw(st.integers(1, 4)), draw(st.integers(1, most_ids))
    alpha = draw(st.integers(1, min(12, max_alpha(num_ids, num_hashes))))
    bloom = BloomHash.random(num_ids, num_hashes, alpha, seed=draw(st.integers(0, 5)))
    if draw(st.booleans()):
        return bloom, None
    kinds = [st.integers(0, 2), st.integers(0, 10**6), st.sampled_from([0, 5, 2**31 - 1])]
    count = kinds[draw(st.integers(0, 2))]
    counts = draw(st.lists(count, min_size=num_ids, max_size=num_ids))
    new = draw(st.integers(0, min(5, room_for_more(bloom, RESERVE)[1])))
    try:
        return extended(bloom, [[]] * new, reserve=RESERVE), counts + [-1] * new
    except InputError:  # no digest is left
        return bloom, counts


@st.composite
def values(draw, batch: int, bloom: BloomHash) -> np.ndarray:
    """Log-probabilities (batch, m, num_buckets): smooth or with many ties, flat or peaked, some of them −inf."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    logits = draw(st.sampled_from([0.5, 2, 8, 30])) * rng.normal(size=(batch, bloom.num_hashes, bloom.num_buckets))
    log_probs = logits - np.logaddexp.reduce(logits, axis=2, keepdims=True)
    step = draw(st.sampled_from([None, 0.25, 1, 4]))
    if step is not None:
        log_probs = step * np.round(log_probs / step)
    log_probs[rng.random(log_probs.shape) < draw(st.sampled_from([0, 0.1, 0.6]))] = -np.inf
    return log_probs.astype(np.float32)


@dataclass
class Query:
    """A batch of queries with random options, and what a plain calculation says of each."""

    log_probs: torch.Tensor
    bloom: BloomHash
    options: dict
    scores: list[list[float]]  # log p of every id
    permitted: list[set[int]]
    ks: list[int]
    floors: list[float]
    beam: int
    extra: int

    def search(self, is_opening: bool, **options):
        """The answers; is_opening: never rank every id because that is cheaper."""
        with pytest.MonkeyPatch.context() as patch:
            if is_opening:
                patch.setattr("superbloom.search.cost.DIRECT_COST", 10**12)
            patch.setattr(module, "EXTRA_CANDIDATES", self.extra)
            return top_k(self.log_probs, self.bloom, beam=self.beam, **self.options, **options)

    def check(self, found, *, certified_only: bool = False) -> None:
        for row, (ids, scores) in enumerate(zip(found.ids.tolist(), found.scores.tolist(), strict=True)):
            if not certified_only or found.certified[row]:
                self.check_row(row, ids, scores)

    def check_row(self, row: int, ids: list[int], scores: list[float]) -> None:
        truth, k = self.scores[row], self.ks[row]
        found = [id_ for id_ in ids if id_ >= 0]
        assert len(found) <= k
        assert ids == found + [-1] * (len(ids) - len(found))
        assert scores[len(found) :] == [-math.inf] * (len(ids) - len(found))
        assert len(set(found)) == len(found)
        assert set(found) <= self.permitted[row]
        assert scores[: len(found)] == pytest.approx([truth[id_] for id_ in found], abs=CLOSE, rel=1e-6)
        assert all(score >= self.floors[row] for score in scores[: len(found)])
        missing = {id_ for id_ in self.permitted[row] - set(found) if truth[id_] >= self.floors[row] + CLOSE}
        if self.floors[row] == -math.inf:
            missing = self.permitted[row] - set(found)
        assert not missing or len(found) == k
        # An id that comes later, or not at all, has no higher score, and a larger id if the score is the same.
        lowest, largest = math.inf, Counter()
        for id_ in [*found, *sorted(missing)]:
            assert truth[id_] <= lowest + CLOSE
            key = truth[id_] if truth[id_] == -math.inf else round(truth[id_] / EQUAL)
            assert id_ + 1 > max(largest[key - 1], largest[key], largest[key + 1])
            if id_ not in missing:
                lowest, largest[key] = min(lowest, truth[id_]), id_ + 1


@st.composite
def queries(draw):
    bloom, counts = draw(catalogues())
    batch, num_ids = draw(st.integers(1, 3)), bloom.num_ids
    log_probs = draw(values(batch, bloom))
    options = {"combine": "posterior"} if draw(st.booleans()) else {}  # the default
    if counts is not None:
        options["prior"] = IdPrior.of(torch.tensor(counts), bloom)
    largest = draw(st.sampled_from([1, min(5, num_ids), num_ids]))
    limited, ks, excluded, allowed, floors = draw(limits(batch, num_ids, largest))
    options |= limited
    table = bloom.table.tolist()
    surplus = plain_surplus([0] * num_ids if counts is None else counts, table)
    scores = [plain_log_probability(row, table, surplus) for row in log_probs.tolist()]
    permitted = [
        {id_ for id_ in range(num_ids) if id_ not in out and ("allow" not in options or id_ in only)}
        for out, only in zip(excluded[1], allowed[1], strict=True)
    ]
    beam, extra = draw(st.integers(1, 8)), draw(st.sampled_from([0, 3, 32]))
    return Query(torch.from_numpy(log_probs), bloom, options, scores, permitted, ks, floors, beam, extra)


def assert_exact(query: Query, is_opening: bool) -> bool:
    """All answers are certified and equal the plain ranking; whether a query was answered by opening buckets."""
    found = query.search(is_opening)
    assert found.certified.all()
    query.check(found)
    assert (found.scored <= query.bloom.num_ids).all()
    return bool((found.rounds > 0).any())


def test_the_most_probable_ids_are_those_of_a_plain_ranking(check):
    ways = Counter()

    @settings(max_examples=CASES)
    @given(queries(), st.booleans())
    def every(query, is_opening):
        ways[assert_exact(query, is_opening)] += 1
        query.check(exhaustive(query.log_probs, query.bloom, **query.options))

    every()
    opened = f"{ways[True]:,} of them by opening buckets"
    check(19, f"{ways.total():,} random queries for probabilities answered as a plain ranking does, {opened}; 0 differ")


@settings(max_examples=FEWER)
@given(queries(), st.integers(1, 3))
def test_an_answer_certified_before_the_end_is_the_plain_one(query, max_rounds):
    found = query.search(is_opening=False, max_rounds=max_rounds)
    query.check(found, certified_only=True)
    assert (found.rounds <= max_rounds).all()


def case_that_notices(cases=None, exact=None) -> int:
    """The number of cases until a property fails on a broken twin; by default, that of plain queries."""
    tried = Counter()

    @settings(max_examples=1000, phases=[Phase.generate], derandomize=True, database=None)
    @given(queries() if cases is None else cases)
    def every(query):
        tried["cases"] += 1
        (exact or assert_exact)(query, is_opening=True)

    with pytest.raises(AssertionError):
        every()
    return tried["cases"]


def test_the_normaliser_of_a_wrong_bucket_is_noticed(check, monkeypatch):
    """The twin divides by the sum of a bucket of the next id."""
    whole = module._log_sum
    monkeypatch.setattr(module, "_log_sum", lambda weights: whole(weights).roll(1, dims=1))
    noticed = f"a wrong answer found by case {case_that_notices():,}"
    check.twin(19, "probabilities normalised over a wrong bucket", noticed)


def test_a_bound_that_is_too_low_is_noticed(check, monkeypatch):
    whole = PosteriorSearch.bounds
    monkeypatch.setattr(PosteriorSearch, "bounds", lambda search, values: whole(search, values) - 0.5)
    check.twin(19, "a bound of probabilities too low by 0.5", f"a wrong answer found by case {case_that_notices():,}")


@settings(max_examples=FEWER)
@given(catalogues(), st.data())
def test_the_probabilities_of_all_ids_sum_to_one(case, data):
    bloom, counts = case
    generator = torch.manual_seed(data.draw(st.integers(0, 99)))
    logits = torch.randn(2, bloom.num_hashes, bloom.num_buckets, generator=generator)
    log_probs = (data.draw(st.sampled_from([0.1, 1, 5])) * logits).log_softmax(-1)
    prior = None if counts is None else IdPrior.of(torch.tensor(counts), bloom)
    found = exhaustive(log_probs, bloom, bloom.num_ids, prior=prior)
    assert found.scores.double().exp().sum(dim=1).tolist() == pytest.approx([1, 1], abs=1e-5)


@pytest.mark.parametrize("counts", [None, torch.arange(500)])
def test_an_id_alone_in_its_bucket_has_the_probability_of_the_bucket(counts):
    bloom = BloomHash.random(500, 1, 1)
    log_probs = torch.randn(3, 1, 500, generator=torch.manual_seed(0)).log_softmax(-1)
    prior = None if counts is None else IdPrior.of(counts, bloom)
    for options in ({}, {"beam": 2, "max_rounds": 500}):
        found = top_k(log_probs, bloom, 5, prior=prior, **options)
        assert torch.equal(found.scores, log_probs[:, 0, bloom.table[:, 0].long()].gather(1, found.ids))
        assert torch.equal(found.scores, log_probs[:, 0].topk(5).values)


@settings(max_examples=FEWER)
@given(catalogues(), st.data())
def test_given_ids_get_the_probabilities_of_the_formula(case, data):
    """log_probability, the parts of each hash, and the shares of a bucket."""
    bloom, counts = case
    log_probs = torch.from_numpy(data.draw(values(2, bloom)))
    prior = IdPrior.of(torch.zeros(bloom.num_ids) if counts is None else torch.tensor(counts), bloom)
    table = bloom.table.tolist()
    surplus = plain_surplus(counts or [0] * bloom.num_ids, table)
    truth = [plain_log_probability(row, table, surplus) for row in log_probs.tolist()]
    ids = torch.from_numpy(data.draw(hnp.arrays(np.int64, (2, 3), elements=st.integers(-1, bloom.num_ids - 1))))
    found = log_probability(log_probs, bloom, ids, prior)
    expected = [
        [-math.inf if id_ < 0 else truth[row][id_] for id_ in wanted] for row, wanted in enumerate(ids.tolist())
    ]
    for row in range(2):
        assert found[row].tolist() == pytest.approx(expected[row], abs=CLOSE, rel=1e-6)
    parts = log_contributions(log_probs, bloom, ids.clamp(min=0), prior)
    assert parts.shape == (2, 3, bloom.num_hashes)
    summed = parts.logsumexp(-1).masked_fill(ids < 0, -torch.inf)
    assert torch.allclose(summed.float(), found, rtol=2e-7, atol=1e-9)
    hash_ = data.draw(st.integers(0, bloom.num_hashes - 1))
    bucket = data.draw(st.integers(0, bloom.num_buckets - 1))
    weights = [
        surplus[id_] + sum(log_probs[0, i, b].item() for i, b in enumerate(row))
        for id_, row in enumerate(table)
        if row[hash_] == bucket
    ]
    if log_sum(weights) > -math.inf:  # otherwise nobody has a share
        members, shares = bucket_shares(log_probs[0], bloom, prior, hash_, bucket)
        assert members.tolist() == [id_ for id_, row in enumerate(table) if row[hash_] == bucket]
        assert shares.tolist() == pytest.approx([math.exp(w - log_sum(weights)) for w in weights], abs=CLOSE)


def test_where_closed_buckets_hold_ids_of_no_probability_the_smaller_id_comes_first():
    """All ids have the score −inf: those of the one bucket with a value, which is opened, and all others."""
    bloom = BloomHash.random(2000, 2, 10, seed=0)
    log_probs = torch.full((1, 2, 200), -torch.inf)
    log_probs[0, 0, 7] = 0.0
    found = top_k(log_probs, bloom, 3, beam=2, max_rounds=9)
    assert found.certified.all()
    assert found.ids.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(("seed", "k"), [(204, 1), (204, 5), (240, 5)])
def test_probabilities_too_small_for_float32_are_ranked(monkeypatch, seed, k):
    """The exponential of a score is 0 in float32 below 1e-45, and has few digits below 1e-38."""
    monkeypatch.setattr("superbloom.search.cost.DIRECT_COST", 10**12)
    monkeypatch.setattr(module, "EXTRA_CANDIDATES", 0)
    bloom = BloomHash.random(3000, 2, 1, seed=seed % 7)
    log_probs = -104 + 0.7 * torch.randn(2, 2, 3000, generator=torch.manual_seed(seed))
    found = top_k(log_probs, bloom, k, beam=8)
    assert (found.scored < 3000).all()
    assert (found.scores - exhaustive(log_probs, bloom, k).scores).abs().max() < 1e-4


@pytest.mark.parametrize("size", [1, 100, 1000, 10_000])
@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_a_bound_allows_for_its_rounding_and_little_more(m, size):
    bloom = BloomHash.random(9, m, 1)
    values = -size - torch.rand(20_000, m, 9, generator=torch.manual_seed(size))
    bounds = PosteriorSearch(values[:1], bloom, Limits(1)).bounds(values)
    exact = values.double().logsumexp(1) - math.log(m)
    assert (bounds > exact.float()).all()
    assert (bounds < exact + 2e-5 * exact.abs().clamp(min=1)).all()


@pytest.mark.parametrize("size", [3.0, 400.0])
def test_a_ranking_of_all_ids_is_the_same_on_one_scale_and_on_many(size, monkeypatch):
    """Exponentials of one scale vanish where log-probabilities lie far apart; each bucket then has its own scale."""
    bloom = BloomHash.random(300, 2, 5, seed=1)
    log_probs = (size * torch.randn(4, 2, bloom.num_buckets, generator=torch.manual_seed(2))).log_softmax(-1)
    found = exhaustive(log_probs, bloom, 300)
    monkeypatch.setattr("superbloom.search.posterior.MAX_RANGE_NATS", -1.0)
    other = exhaustive(log_probs, bloom, 300)
    assert torch.allclose(found.scores, other.scores, rtol=1e-6)
    assert bool((found.scores > -torch.inf).all())
    if size == 3.0:
        assert torch.equal(found.ids, other.ids)


@pytest.mark.parametrize("step", [None, 0.5])
@pytest.mark.parametrize("size", [0.0, 0.01, 1.0, 5.0, 50.0])
@pytest.mark.parametrize("m", [1, 2, 3])
def test_estimates_leave_out_only_ids_that_are_not_among_the_best(m, size, step, monkeypatch):
    """With ties, values of −inf and filters; the other search has no estimates."""
    bloom = BloomHash.random(20_000, m, 8 if m > 1 else 1, seed=m)
    generator = torch.manual_seed(int(100 * size) + m)
    log_probs = (size * torch.randn(3, m, bloom.num_buckets, generator=generator)).log_softmax(-1)
    if step is not None:
        log_probs = step * (log_probs / step).round()
        log_probs[1, :, torch.rand(bloom.num_buckets, generator=generator) < 0.9] = -torch.inf
        log_probs[2, 0] = -torch.inf
    prior = IdPrior.of(torch.randint(0, 1000, (20_000,), generator=generator), bloom)
    allow = torch.rand(3, 20_000, generator=generator) < 0.5
    for options in ({}, {"allow": allow}, {"allow": allow[0]}, {"exclude": torch.arange(50)}):
        found = exhaustive(log_probs, bloom, 7, prior=prior, **options)
        with monkeypatch.context() as patch:
            patch.setattr(module, "MAX_RANGE_NATS", -1.0)
            other = exhaustive(log_probs, bloom, 7, prior=prior, **options)
        assert torch.equal(found.ids, other.ids)
        assert torch.allclose(found.scores, other.scores, rtol=1e-6)


def test_the_uniform_prior_is_made_once_and_not_kept_longer_than_its_table():
    bloom = BloomHash.random(30, 2, 3)
    assert IdPrior.uniform(bloom) is IdPrior.uniform(bloom)
    kept = weakref.ref(bloom)
    del bloom
    gc.collect()
    assert kept() is None
