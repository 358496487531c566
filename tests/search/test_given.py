"""With scores that are given for some ids, the search equals a plain ranking by them and the network (check 19)."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from superbloom.errors import InputError
from superbloom.hashing.bloom import BloomHash
from superbloom.ranking import scores_of
from superbloom.search import Given, exhaustive, log_probability_with, top_k
from superbloom.search import given as module
from tests.search.test_posterior import Query, case_that_notices, queries
from tests.support.cases import CASES


@st.composite
def queries_with_given_scores(draw) -> Query:
    """Queries as in test_posterior, in which some ids have a given score: higher, lower, tied, or all of them."""
    query = draw(queries())
    batch, num_ids = len(query.log_probs), query.bloom.num_ids
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    most = draw(st.sampled_from([0, min(3, num_ids), num_ids]))
    shift = draw(st.sampled_from([-8.0, -1.0, 0.5, 4.0]))
    ids, values = np.full((batch, most), -1), np.zeros((batch, most), np.float32)
    for row, scores in enumerate(query.scores):
        own = rng.permutation(num_ids)[: rng.integers(0, most + 1)]
        ids[row, : len(own)] = own
        values[row, : len(own)] = np.log(1 / num_ids) + shift * rng.choice([0.5, 1.0, rng.random()], len(own))
        for id_, value in zip(own.tolist(), values[row].tolist(), strict=False):
            scores[id_] = value
    query.options["given"] = Given(torch.from_numpy(ids), torch.from_numpy(values))
    return query


def assert_exact(query: Query, is_opening: bool) -> None:
    found = query.search(is_opening)
    assert found.certified.all()
    query.check(found)


def test_answers_with_given_scores_are_those_of_a_plain_ranking(check):
    ways = Counter()

    @settings(max_examples=CASES)
    @given(queries_with_given_scores(), st.booleans())
    def every(query, is_opening):
        ways[is_opening] += 1
        assert_exact(query, is_opening)
        query.check(exhaustive(query.log_probs, query.bloom, **query.options))

    every()
    check(19, f"{ways.total():,} random queries with a memory answered as a plain ranking does; 0 differ")


def noticed() -> int:
    return case_that_notices(queries_with_given_scores(), assert_exact)


def test_given_ids_that_are_found_twice_are_noticed(check, monkeypatch):
    """The twin lets the search of the network return ids that have a given score."""
    monkeypatch.setattr(module, "_union", lambda exclude, ids, num_ids: exclude)
    check.twin(19, "ids with a given score searched twice", f"a wrong answer found by case {noticed():,}")


def test_a_floor_of_the_network_that_is_too_high_is_noticed(check, monkeypatch):
    """The twin searches the network only above the best given score, not above the k-th."""
    monkeypatch.setattr(module, "scores_of", lambda keys: scores_of(keys) + 2.0)
    check.twin(19, "a floor of the network's search too high", f"a wrong answer found by case {noticed():,}")


def test_only_above_the_best_given_scores_is_the_network_searched():
    """Scores above all probabilities of the network: nothing else needs to be scored."""
    bloom = BloomHash.random(200_000, 2, 20, seed=0)
    log_probs = torch.randn(2, 2, 10_000, generator=torch.manual_seed(0)).log_softmax(-1)
    ids = torch.arange(40).repeat(2, 1) * 7
    scores = Given(ids, torch.linspace(-0.1, -0.7, 40).repeat(2, 1))
    found = top_k(log_probs, bloom, 5, given=scores)
    assert found.ids.tolist() == [[0, 7, 14, 21, 28]] * 2
    assert found.certified.all()
    assert (found.scored < 9000).all()
    everything = log_probability_with(log_probs, bloom, torch.arange(200_000).repeat(2, 1), scores)
    assert torch.equal(found.scores, everything.topk(5).values)


def test_given_scores_of_another_batch_are_refused():
    bloom = BloomHash.random(50, 2, 2)
    scores = Given(torch.zeros(3, 1, dtype=torch.long), torch.zeros(3, 1))
    with pytest.raises(InputError, match=r"given ids have shape \(3, 1\); ids and scores \(2, any\) are needed"):
        top_k(torch.zeros(2, 2, 25).log_softmax(-1), bloom, 1, given=scores)


def test_no_bucket_is_opened_where_the_given_scores_alone_are_the_answer():
    """The k-th given score is above what any other id can have, and so proves the answer."""
    bloom = BloomHash.random(3000, 2, 4)
    log_probs = torch.randn(1, 2, bloom.num_buckets, generator=torch.manual_seed(0)).log_softmax(-1)
    scores = Given(torch.tensor([[7, 70, 700]]), torch.tensor([[3.0, 2.0, 1.5]]).log())
    for max_rounds in (1, 4):
        found = top_k(log_probs, bloom, 2, given=scores, max_rounds=max_rounds)
        assert found.ids.tolist() == [[7, 70]]
        assert bool(found.certified)
        assert (int(found.scored), int(found.width)) == (3, 0)
        assert bool(found.bound < found.scores[0, 1])
        others = torch.tensor([[id_ for id_ in range(3000) if id_ not in (7, 70, 700)]])
        assert bool((log_probability_with(log_probs, bloom, others, scores) <= found.bound).all())
