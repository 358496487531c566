"""The search for probabilities equals a plain ranking by the formula of posterior.py (check 19)."""

import math

import pytest
import torch

from superbloom.hashing.bloom import BloomHash
from superbloom.search import exhaustive, top_k
from superbloom.search import posterior as module
from superbloom.search.opening import Limits
from superbloom.search.posterior import PosteriorSearch


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
