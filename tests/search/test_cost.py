"""The cost model decides as its formulas say, on numbers worked out by hand: 200,000 ids, m=2, 10 ids a bucket."""

import pytest
import torch

from superbloom.hashing.bloom import BloomHash
from superbloom.search.cost import MAX_FIRST_WIDTH, MIN_FIRST_WIDTH, CostModel
from superbloom.search.filters import Filter
from superbloom.search.queries import Queries


@pytest.fixture(scope="module")
def bloom() -> BloomHash:
    return BloomHash.random(200_000, 2, 10, seed=0)


def model(bloom: BloomHash) -> CostModel:
    nothing = Filter(None, None, 1, bloom.num_ids, torch.device("cpu"))
    return CostModel(bloom, nothing)


@pytest.mark.parametrize(
    ("alpha", "k", "width"),
    [
        (10, 1, MAX_FIRST_WIDTH),  # 2,400 members would be 120 buckets of 10 in two hashes
        (20, 1, 60),
        (50, 1, MIN_FIRST_WIDTH),
        (20, 10_000, 250),  # 250 buckets of 20 in two hashes
        (20, 10_001, 251),
    ],
)
def test_the_first_round_has_some_thousand_members_and_at_least_k(alpha, k, width):
    assert model(BloomHash.random(20_000, 2, alpha)).first_width(k) == width


def test_queries_are_scored_together_as_far_as_memory_allows(bloom):
    assert model(bloom).queries_at_once(100) == 2**19 // 2000
    assert model(bloom).queries_at_once(20_000) == 1
    assert model(bloom).queries_at_once(10**6) == 1  # there are 20,000 buckets


@pytest.mark.parametrize(("queries", "width"), [(1, 525), (4, 975)])
def test_a_direct_ranking_is_chosen_where_it_costs_no_more(bloom, queries, width):
    """queries · 225,000 against 120,000 + queries · 10 · 20 · width."""
    assert not model(bloom).is_direct_cheaper(queries, width - 1)
    assert model(bloom).is_direct_cheaper(queries, width)


def test_a_query_is_hopeless_if_the_bound_falls_too_slowly(bloom):
    """Opening costs 200 a bucket, four direct rankings 900,000: 4,500 buckets, 3.775 rounds of four times 24."""
    queries = Queries.start(torch.ones(6, dtype=torch.long), torch.full((6,), -torch.inf), num_hashes=2, largest_k=1)
    queries.earlier, queries.bound = torch.full((6,), -8.0), torch.full((6,), -10.0)  # one round lowers it by 2
    rounds_left = torch.tensor([3.7, 3.8, 3.8, torch.inf, 3.8, 0.0])
    queries.threshold = queries.bound - 2 * rounds_left
    queries.certified[2] = True
    queries.scored = torch.tensor([9, 9, 9, 9, 0, 0])
    # Fourth: fewer than k ids were found, so one more round is due. Last two: no bucket could be opened.
    assert model(bloom).is_hopeless(queries, 24).tolist() == [False, True, False, False, True, True]
    queries.earlier = queries.bound  # it does not fall at all
    assert model(bloom).is_hopeless(queries, 24).tolist() == [True, True, False, False, True, True]
