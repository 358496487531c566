"""With a memory's boosts, the search equals a plain ranking by log(p(s) + boost(s)) (check 19)."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from superbloom.errors import InputError
from superbloom.hashing.bloom import BloomHash
from superbloom.search import Boosts, boosted_log_probability, exhaustive, top_k
from superbloom.search import boosted as module
from tests.search.test_posterior import Query, case_that_notices, queries
from tests.support.cases import CASES


@st.composite
def boosted_queries(draw) -> Query:
    """Queries as in test_posterior, in which some ids have a boost: none, small ones, ties, or more than p itself."""
    query = draw(queries())
    batch, num_ids = len(query.log_probs), query.bloom.num_ids
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    most = draw(st.sampled_from([0, min(3, num_ids), num_ids]))
    size = draw(st.sampled_from([1e-6, 1e-2, 3.0]))
    ids, values = np.full((batch, most), -1), np.zeros((batch, most))
    for row in range(batch):
        own = rng.permutation(num_ids)[: rng.integers(0, most + 1)]
        ids[row, : len(own)], values[row, : len(own)] = own, size * rng.choice([0.25, 0.5, rng.random()], len(own))
    for row, scores in enumerate(query.scores):
        for id_, value in zip(ids[row].tolist(), values[row].tolist(), strict=True):
            if id_ >= 0 and value > 0:
                scores[id_] = math.log(math.exp(scores[id_]) + value)
    query.options["boosts"] = Boosts(torch.from_numpy(ids), torch.from_numpy(values))
    return query


def assert_exact(query: Query, is_opening: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FIRST_EXTRA", query.extra)
        found = query.search(is_opening)
    assert found.certified.all()
    query.check(found)


def test_boosted_answers_are_those_of_a_plain_ranking(check):
    ways = Counter()

    @settings(max_examples=CASES)
    @given(boosted_queries(), st.booleans())
    def every(query, is_opening):
        ways[is_opening] += 1
        assert_exact(query, is_opening)
        query.check(exhaustive(query.log_probs, query.bloom, **query.options))

    every()
    check(19, f"{ways.total():,} random queries with a memory answered as a plain ranking does; 0 differ")


def noticed() -> int:
    return case_that_notices(boosted_queries(), assert_exact)


def test_ids_with_a_boost_that_are_found_twice_are_noticed(check, monkeypatch):
    """The twin lets the search of the network return ids that the memory has scored."""
    monkeypatch.setattr(module, "_union", lambda exclude, ids, num_ids: exclude)
    check.twin(19, "ids with a boost searched twice", f"a wrong answer found by case {noticed():,}")


def test_a_bound_of_boosted_ids_that_is_too_low_is_noticed(check, monkeypatch):
    """The twin stops too early: its bound forgets what the network may add."""
    monkeypatch.setattr(module, "SLACK", -2.0)
    check.twin(19, "a bound of ids with a boost too low", f"a wrong answer found by case {noticed():,}")


def test_only_above_the_best_of_the_memory_is_the_network_searched():
    """Boosts above all probabilities of the network: nothing else needs to be scored."""
    bloom = BloomHash.random(200_000, 2, 20, seed=0)
    log_probs = torch.randn(2, 2, 10_000, generator=torch.manual_seed(0)).log_softmax(-1)
    ids = torch.arange(40).repeat(2, 1) * 7
    boosts = Boosts(ids, torch.linspace(0.9, 0.5, 40).repeat(2, 1).double())
    found = top_k(log_probs, bloom, 5, boosts=boosts)
    assert found.ids.tolist() == [[0, 7, 14, 21, 28]] * 2
    assert found.certified.all()
    assert (found.scored < 9000).all()
    everything = boosted_log_probability(log_probs, bloom, torch.arange(200_000).repeat(2, 1), boosts)
    assert torch.equal(found.scores, everything.topk(5).values)


def test_boosts_of_another_batch_are_refused():
    bloom = BloomHash.random(50, 2, 2)
    boosts = Boosts(torch.zeros(3, 1, dtype=torch.long), torch.zeros(3, 1))
    with pytest.raises(InputError, match=r"boosts of shape \(3, 1\) given; ids and values \(2, any\) are needed"):
        top_k(torch.zeros(2, 2, 25).log_softmax(-1), bloom, 1, boosts=boosts)


def test_no_bucket_is_opened_where_the_boosts_alone_are_the_answer():
    """The k-th boosted id is above what any other id can have, and so proves the answer."""
    bloom = BloomHash.random(3000, 2, 4)
    log_probs = torch.randn(1, 2, bloom.num_buckets, generator=torch.manual_seed(0)).log_softmax(-1)
    boosts = Boosts(torch.tensor([[7, 70, 700]]), torch.tensor([[3.0, 2.0, 1.5]]))
    for max_rounds in (1, 4):
        found = top_k(log_probs, bloom, 2, boosts=boosts, max_rounds=max_rounds)
        assert found.ids.tolist() == [[7, 70]]
        assert bool(found.certified)
        assert (int(found.scored), int(found.width)) == (3, 0)
        assert bool(found.bound < found.scores[0, 1])
        others = torch.tensor([[id_ for id_ in range(3000) if id_ not in (7, 70, 700)]])
        assert bool((boosted_log_probability(log_probs, bloom, others, boosts) <= found.bound).all())
