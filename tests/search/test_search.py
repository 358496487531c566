"""Certified top-k equals the exhaustive ranking (check 19), with the paper's Figure 2 as an example."""

import itertools
import os
from collections import Counter
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from superbloom.hashing.bloom import BloomHash
from superbloom.hashing.construct import max_alpha
from superbloom.ranking import BLOCK_ENTRIES, BlockTopK
from superbloom.search import certified
from superbloom.search.combined import CombinedSearch
from superbloom.search.cost import MAX_FIRST_WIDTH, CostModel
from superbloom.search.scoring import Bonus
from tests.search.limits import limits
from tests.search.oracle import add, slow_ranking
from tests.support.cases import CASES

# The paper's score; test_posterior.py tests the default.
top_k, exhaustive = (partial(search, combine="sum") for search in (certified.top_k, certified.exhaustive))


def weighted(values):
    return add([np.float32(np.float32(0.5 + j) * value) for j, value in enumerate(values)])


FEWER = int(os.environ.get("SUPERBLOOM_CASES", "250"))  # cases of each property except the main one
SLOW_COMBINES = {"sum": add, "min": min, "max": max, "weights": weighted}


def fast_combine(name: str, m: int):
    return [0.5 + j for j in range(m)] if name == "weights" else name


@dataclass
class Query:
    """A batch of queries with random options, and the plain answer to each query."""

    log_probs: np.ndarray
    bloom: BloomHash
    combine: str
    options: dict
    expected: list
    beam: int

    def check(self, found, *, certified_only: bool = False) -> None:
        width = found.ids.shape[1]
        for row, (ids, scores) in enumerate(self.expected):
            if not certified_only or found.certified[row]:
                assert found.ids[row].tolist() == ids + [-1] * (width - len(ids))
                assert found.scores[row].tolist() == scores + [-np.inf] * (width - len(ids))


@st.composite
def queries(draw):
    num_hashes = draw(st.integers(1, 4))
    num_ids = draw(st.integers(1, 60))
    alpha = draw(st.integers(1, max_alpha(num_ids, num_hashes)))
    bloom = BloomHash.random(num_ids, num_hashes, alpha, seed=draw(st.integers(0, 5)))
    # Few distinct values, so that ties and −inf are the rule.
    value = st.one_of(st.sampled_from([0.0, -1.0, -2.0, -np.inf]), st.floats(-8, 0, width=32))
    batch = draw(st.integers(1, 3))
    log_probs = draw(hnp.arrays(np.float32, (batch, num_hashes, bloom.num_buckets), elements=value))
    combine = draw(st.sampled_from(sorted(SLOW_COMBINES)))
    options = {"combine": fast_combine(combine, num_hashes)}
    limited, ks, excluded, allowed, floors = draw(limits(batch, num_ids, num_ids))
    options |= limited
    bonus = None
    if combine == "sum" and draw(st.booleans()):
        bonus = draw(hnp.arrays(np.float32, num_ids, elements=st.floats(-4, 9, width=32)))
        options["bonus"] = Bonus.of(torch.from_numpy(bonus), bloom)
    expected = []
    for row in range(batch):

        def may(id_, row=row):
            return id_ not in excluded[1][row] and ("allow" not in options or id_ in allowed[1][row])

        expected.append(
            slow_ranking(log_probs[row], bloom, ks[row], SLOW_COMBINES[combine], may, floor=floors[row], bonus=bonus)
        )
    return Query(log_probs, bloom, combine, options, expected, draw(st.integers(1, 8)))


def assert_exact(query: Query, may_fall_back: bool) -> None:
    """All answers are certified and equal the plain ranking; so does the exhaustive ranking."""
    log_probs = torch.from_numpy(query.log_probs)
    with pytest.MonkeyPatch.context() as patch:
        if not may_fall_back:  # a catalogue this small would always be ranked directly
            patch.setattr(CostModel, "is_direct_cheaper", lambda cost, queries, width: False)
            patch.setattr(
                CostModel, "is_hopeless", lambda cost, queries, width: torch.zeros(len(queries), dtype=torch.bool)
            )
        found = top_k(log_probs, query.bloom, beam=query.beam, **query.options)
    assert found.certified.all()
    query.check(found)
    query.check(exhaustive(log_probs, query.bloom, **query.options))
    assert (found.scored <= query.bloom.num_ids).all()


def test_certified_search_equals_exhaustive_ranking(check):
    rounds = Counter()

    @settings(max_examples=CASES)
    @given(queries(), st.booleans())
    def every(query, may_fall_back):
        assert_exact(query, may_fall_back)
        rounds[may_fall_back] += 1

    every()
    searched = f"{rounds[False]:,} of them by opening buckets alone"
    check(19, f"{rounds.total():,} random queries answered as a plain ranking does, {searched}; 0 differ")


def test_a_search_that_stops_one_round_early_is_noticed(check, monkeypatch):
    """The twin certifies a query one round too early, with the ids found before that round."""
    whole = CombinedSearch._open_buckets

    def early(search, queries, width):
        before = {field.name: getattr(queries, field.name) for field in fields(queries)}
        whole(search, queries, width)
        if bool(queries.certified.all()) and bool((before["rounds"] > 0).all()):
            for name in ("best", "scored"):
                setattr(queries, name, before[name])

    monkeypatch.setattr(CombinedSearch, "_open_buckets", early)
    tried = Counter()

    @settings(max_examples=1000, phases=[Phase.generate], derandomize=True, database=None)
    @given(queries())
    def every(query):
        tried["cases"] += 1
        assert_exact(query, may_fall_back=False)

    with pytest.raises(AssertionError):
        every()
    check.twin(19, "a search that stops one round early", f"a wrong answer found by case {tried['cases']:,}")


@settings(max_examples=FEWER)
@given(queries(), st.integers(1, 3))
def test_an_answer_certified_before_the_end_is_the_exhaustive_one(query, max_rounds):
    found = top_k(
        torch.from_numpy(query.log_probs), query.bloom, beam=query.beam, max_rounds=max_rounds, **query.options
    )
    query.check(found, certified_only=True)
    assert (found.rounds <= max_rounds).all()


def test_a_bonus_is_allowed_for_its_rounding_and_no_more(wide):
    """Each of m + 2 float32 additions rounds by at most 2^-24 of the sum. The bound allows for that and little more."""
    bloom, log_probs = wide
    bonus = torch.zeros(bloom.num_ids)
    bonus[7] = 100.0
    found = top_k(log_probs, bloom, 1, beam=16, max_rounds=1, bonus=Bonus.of(bonus, bloom))
    size = found.edge.double().abs().sum(dim=1) + 100
    allowed = found.bound.double() - found.edge.double().sum(dim=1)
    assert (allowed >= 4 * 2.0**-24 * size).all()
    assert (allowed <= 32 * 2.0**-24 * size).all()


def test_with_a_bonus_every_id_of_an_open_bucket_is_scored_once(wide):
    """Buckets are opened in the order of log-probability plus bonus."""
    bloom, log_probs = wide
    bonus = Bonus.of(4 * torch.randn(bloom.num_ids, generator=torch.manual_seed(1)) - 3, bloom)
    found = top_k(log_probs, bloom, 5, beam=16, max_rounds=2, bonus=bonus)
    upper, table = log_probs + bonus.of_bucket, bloom.table.long()
    for row in range(len(log_probs)):
        is_open = [upper[row, j, table[:, j]] > found.edge[row, j] for j in range(bloom.num_hashes)]
        assert found.scored[row] == int(torch.stack(is_open).any(dim=0).sum())
        assert 0 < found.scored[row] < bloom.num_ids


@settings(max_examples=FEWER)
@given(queries())
def test_the_lemma_nothing_outside_the_opened_buckets_beats_the_bound(query):
    """The lemma of App. C: for all s not in S^b, score(s) <= c(p^b)."""
    log_probs, bloom = query.log_probs, query.bloom
    width = min(query.beam, bloom.num_buckets - 1)
    if not width:
        return
    table = bloom.table.numpy()
    for row, (name, combine) in itertools.product(log_probs, SLOW_COMBINES.items()):
        ranked = np.argsort(-row, axis=1, kind="stable")
        bound = combine([row[j, ranked[j, width]] for j in range(bloom.num_hashes)])
        opened = [set(ranked[j, :width].tolist()) for j in range(bloom.num_hashes)]
        for id_ in range(bloom.num_ids):
            if not any(table[id_, j] in opened[j] for j in range(bloom.num_hashes)):
                assert combine([row[j, table[id_, j]] for j in range(bloom.num_hashes)]) <= bound, name


def figure_two(second: list[float]) -> tuple[BloomHash, torch.Tensor]:
    """m=2, four-to-one hashing of 16 ids: id 4a+b lies in bucket a of hash 1 and bucket b of hash 2."""
    table = torch.tensor([[id_ // 4, id_ % 4] for id_ in range(16)], dtype=torch.int32)
    bloom = BloomHash.from_table(table, num_buckets=4, alpha=4)
    return bloom, torch.tensor([[[0.5, 0.3, 0.15, 0.05], second]]).log()


def test_figure_2_left_the_first_round_certifies():
    bloom, log_probs = figure_two([0.6, 0.2, 0.15, 0.05])
    found = top_k(log_probs, bloom, k=1, beam=2, max_rounds=1)
    # S^b: two rows and two columns of the 4 x 4 grid, 12 ids, each scored once. Best: bucket 0 of both.
    assert (found.ids.item(), bool(found.certified), int(found.rounds), int(found.scored)) == (0, True, 1, 12)
    assert found.scores.item() == pytest.approx(np.log(0.5 * 0.6))


def test_figure_2_right_a_second_round_is_needed():
    """The best opened row and column meet only poor partners, so the level line of s* cuts the unopened area."""
    rows = ["8 9 10 11", "8 9 10 11", "2 3 4 5", "2 3 4 5", "2 3 6 7", "2 3 6 7", "4 5 6 7", "4 5 6 7"]
    rows += ["0 1 8 9", "0 1 10 11", "0 1 8 9", "0 1 10 11"]
    table = torch.tensor([[a, int(b)] for a, row in enumerate(rows) for b in row.split()], dtype=torch.int32)
    bloom = BloomHash.from_table(table, num_buckets=12, alpha=4)
    p = torch.tensor([0.15, 0.15, 0.14, 0.14, 0.1, 0.08, 0.08, 0.07, 0.03, 0.02, 0.02, 0.02]).log()
    log_probs = torch.stack([p, p])[None]
    first = top_k(log_probs, bloom, k=1, beam=2, max_rounds=1)
    # Rows 0, 1 and columns 0, 1 hold 16 ids; the best, (0, 8) with id 0, has .15 · .03 < .14 · .14 of the bound.
    assert (bool(first.certified), int(first.scored), first.ids.item()) == (False, 16, 0)
    second = top_k(log_probs, bloom, k=1, beam=2, max_rounds=2)
    # The extended region holds (2, 2), id 8, and nothing outside it exceeds .03 · .03.
    assert (bool(second.certified), int(second.rounds), second.ids.item()) == (True, 2, 8)
    assert exhaustive(log_probs, bloom, k=1).ids.item() == 8


def test_a_callers_own_increasing_function():
    bloom = BloomHash.random(200, 2, 8, seed=3)
    log_probs = torch.randn(5, 2, bloom.num_buckets, generator=torch.manual_seed(0)).log_softmax(-1)

    def weighted(x: torch.Tensor) -> torch.Tensor:
        return 0.3 * x[..., 0] + 0.7 * x[..., 1]

    found, whole = top_k(log_probs, bloom, 9, combine=weighted), exhaustive(log_probs, bloom, 9, combine=weighted)
    assert torch.equal(found.ids, whole.ids)
    assert found.certified.all()


def test_a_callers_own_function_of_one_hash():
    bloom = BloomHash.random(50, 1, 1)
    log_probs = torch.randn(3, 1, 50, generator=torch.manual_seed(0)).log_softmax(-1)
    found = top_k(log_probs, bloom, 4, combine=lambda x: 2 * x[..., 0])
    assert torch.equal(found.ids, top_k(log_probs, bloom, 4).ids)


@pytest.mark.parametrize("options", [{}, {"beam": 4, "max_rounds": 1}])
def test_allowing_every_id_changes_nothing(options):
    bloom = BloomHash.random(2000, 2, 10, seed=0)
    log_probs = torch.randn(4, 2, 200, generator=torch.manual_seed(0)).log_softmax(-1)
    free, allowed = (top_k(log_probs, bloom, 5, allow=allow, **options) for allow in (None, torch.arange(2000)))
    assert torch.equal(free.ids, allowed.ids)


@given(st.integers(1, 4), st.integers(0, 63), st.integers(0, 1000))
def test_the_largest_entries_of_long_rows_are_those_of_a_sort(n, beyond, seed):
    """Rows consist of blocks and a rest; the rest may hold the largest entry."""
    rows = torch.randn(3, 12 * BLOCK_ENTRIES + beyond, generator=torch.manual_seed(seed))
    values, at = BlockTopK(rows).of(torch.tensor([2, 0]), n)
    expected = rows[[2, 0]].topk(n)
    assert torch.equal(values, expected.values)
    assert torch.equal(at, expected.indices)


def test_only_uncertified_queries_open_more_buckets():
    bloom = BloomHash.random(200_000, 2, 10, seed=0)
    peaked = torch.full((2, 20_000), -20.0)
    peaked[:, 0] = 0.0
    peaked[0, bloom.buckets(5)[0]], peaked[1, bloom.buckets(5)[1]] = 10.0, 10.0
    rough = torch.randn(2, 20_000, generator=torch.manual_seed(0))
    log_probs = torch.stack([peaked, rough]).log_softmax(-1)
    found = top_k(log_probs, bloom, k=1, beam=2)
    assert found.ids[:, 0].tolist() == exhaustive(log_probs, bloom, k=1).ids[:, 0].tolist()
    assert found.ids[0, 0] == 5
    assert found.rounds[0] == 1
    assert found.rounds[1] > 1
    assert found.scored[0] < 50


def test_where_all_buckets_tie_every_id_is_ranked():
    bloom = BloomHash.random(4000, 2, 10, seed=0)
    for options in ({}, {"beam": 2, "max_rounds": 1}):
        found = top_k(torch.zeros(3, 2, 400), bloom, k=4, **options)
        assert found.ids.tolist() == [[0, 1, 2, 3]] * 3
        assert found.certified.all()
        assert found.scored.tolist() == [4000] * 3


def test_only_where_all_buckets_tie_every_id_is_ranked():
    bloom = BloomHash.random(4000, 2, 10, seed=0)
    log_probs = torch.randn(2, 2, 400, generator=torch.manual_seed(0))
    log_probs[0] = 0
    found = top_k(log_probs, bloom, k=4, beam=2, max_rounds=1)
    assert found.ids[0].tolist() == [0, 1, 2, 3]
    assert found.scored[0] == 4000
    assert found.scored[1] < 100


def test_where_a_bucket_holds_most_ids_every_id_is_ranked():
    bloom = BloomHash.from_table(torch.arange(100, dtype=torch.int32)[:, None] // 90, num_buckets=11, alpha=10)
    log_probs = torch.randn(1, 1, 11, generator=torch.manual_seed(0))
    found = top_k(log_probs, bloom, k=1, beam=2, max_rounds=1)
    assert (int(found.rounds), int(found.scored), bool(found.certified)) == (0, 100, True)


def test_a_query_that_needs_too_many_buckets_is_ranked_directly():
    """Ids in a good bucket of one hash are in a bad one of the other: half of all buckets would have to be opened."""
    first = torch.arange(200_000) // 10
    table = torch.stack([first, (19_990 - first).clamp(min=0) + torch.arange(200_000) % 10], dim=1).int()
    bloom = BloomHash.from_table(table, num_buckets=20_000, alpha=10)
    log_probs = (-1e-3 * torch.arange(20_000)).expand(1, 2, 20_000)
    found = top_k(log_probs, bloom, k=1)
    assert (int(found.rounds), int(found.scored)) == (1, 200_000)


def test_small_buckets_are_opened_up_to_a_width():
    bloom = BloomHash.random(200_000, 2, 2, seed=0)
    log_probs = torch.randn(1, 2, bloom.num_buckets, generator=torch.manual_seed(0)).log_softmax(-1)
    assert top_k(log_probs, bloom, k=1, max_rounds=1).width.tolist() == [MAX_FIRST_WIDTH]


def test_a_wider_beam_never_scores_an_id_twice():
    bloom = BloomHash.random(300, 3, 6, seed=0)
    log_probs = torch.randn(4, 3, bloom.num_buckets, generator=torch.manual_seed(1)).log_softmax(-1)
    everything = top_k(log_probs, bloom, k=2, beam=bloom.num_buckets, max_rounds=1)
    assert everything.scored.tolist() == [300] * 4


@pytest.mark.parametrize("search", [top_k, exhaustive])
def test_no_queries_have_no_answers(search):
    assert search(torch.zeros(0, 2, 5), BloomHash.random(10, 2, 2), 3).ids.shape == (0, 3)


def test_queries_of_one_batch_are_independent():
    """One query is certified at once, two open more, and one cannot open any and is ranked directly. All are exact."""
    bloom = BloomHash.random(200_000, 2, 10, seed=0)
    peaked = torch.full((2, 20_000), -20.0)
    peaked[0, bloom.buckets(5)[0]], peaked[1, bloom.buckets(5)[1]] = 10.0, 10.0
    rough = torch.randn(2, 20_000, generator=torch.manual_seed(0))
    log_probs = torch.stack([torch.zeros(2, 20_000), rough, peaked, rough.flip(0)]).log_softmax(-1)
    found = top_k(log_probs, bloom, k=1, beam=2)
    assert torch.equal(found.ids, exhaustive(log_probs, bloom, k=1).ids)
    assert found.scored[0] == 200_000
    assert (found.scored[1:] < 200_000).all()
    assert found.rounds[2] == 1
    assert (found.rounds[[1, 3]] > 1).all()


def test_fills_of_lists_are_not_counted_as_scored():
    bloom = BloomHash.random(10, 2, 2)
    found = top_k(torch.zeros(2, 2, 5), bloom, 2, allow=torch.tensor([[0, 1, 0], [2, -1, -1]]))
    assert found.scored.tolist() == [2, 1]
    assert found.ids.tolist() == [[0, 1], [2, -1]]
