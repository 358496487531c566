"""Certified top-k equals the exhaustive ranking, and the paper's Figure 2 retold."""

import itertools

import numpy as np
import pytest
import torch
from conftest import CASES
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from superbloom.errors import InputError
from superbloom.hashing import BloomHash, max_alpha
from superbloom.search import COMBINES, _Scorer, exhaustive, top_k


def slow_ranking(log_probs: np.ndarray, bloom: BloomHash, k: int, combine, exclude) -> tuple[list[int], list[float]]:
    """Score every id in plain Python; higher score first, then smaller id."""
    scores = []
    for id_ in range(bloom.num_ids):
        per_hash = [np.float32(log_probs[j, bucket]) for j, bucket in enumerate(bloom.buckets(id_).tolist())]
        scores.append(combine(per_hash))
    ranked = sorted((id_ for id_ in range(bloom.num_ids) if id_ not in exclude), key=lambda id_: (-scores[id_], id_))[
        :k
    ]
    missing = k - len(ranked)
    return ranked + [-1] * missing, [float(scores[id_]) for id_ in ranked] + [-np.inf] * missing


def add(values):
    total = values[0]
    for value in values[1:]:
        total = np.float32(total + value)
    return total


SLOW_COMBINES = {"sum": add, "min": min, "max": max}


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
    exclude = draw(hnp.arrays(np.int64, (batch, draw(st.integers(0, 4))), elements=st.integers(-1, num_ids - 1)))
    return log_probs, bloom, draw(st.integers(1, num_ids + 3)), draw(st.integers(1, 8)), exclude


@settings(max_examples=CASES)
@given(queries(), st.sampled_from(sorted(COMBINES)), st.booleans())
def test_certified_search_equals_exhaustive_ranking(query, combine, may_fall_back):
    log_probs, bloom, k, beam, exclude = query
    tensors = torch.from_numpy(log_probs), torch.from_numpy(exclude)
    with pytest.MonkeyPatch.context() as patch:
        if not may_fall_back:  # so small a catalogue would nearly always be ranked exhaustively
            patch.setattr(_Scorer, "exhaustive_is_cheaper", lambda scorer, width: False)
        found = top_k(tensors[0], bloom, k, beam=beam, combine=combine, exclude=tensors[1])
    whole = exhaustive(tensors[0], bloom, k, combine=combine, exclude=tensors[1])
    assert found.certified.all()
    for row in range(len(log_probs)):
        ids, scores = slow_ranking(log_probs[row], bloom, k, SLOW_COMBINES[combine], set(exclude[row]))
        assert found.ids[row].tolist() == ids
        assert found.scores[row].tolist() == scores
        assert whole.ids[row].tolist() == ids
    assert (found.scored <= bloom.num_ids).all()


@settings(max_examples=CASES)
@given(queries(), st.integers(1, 3))
def test_an_answer_certified_before_the_end_is_the_exhaustive_one(query, max_rounds):
    log_probs, bloom, k, beam, exclude = query
    tensors = torch.from_numpy(log_probs), torch.from_numpy(exclude)
    found = top_k(tensors[0], bloom, k, beam=beam, max_rounds=max_rounds, exclude=tensors[1])
    for row in torch.nonzero(found.certified).flatten().tolist():
        ids, scores = slow_ranking(log_probs[row], bloom, k, add, set(exclude[row]))
        assert found.ids[row].tolist() == ids
        assert found.scores[row].tolist() == scores
    assert (found.rounds <= max_rounds).all()


@settings(max_examples=CASES)
@given(queries())
def test_the_lemma_nothing_outside_the_opened_buckets_beats_the_bound(query):
    """App. C, written out: for all s not in S^b, score(s) <= c(p^b)."""
    log_probs, bloom, _, beam, _ = query
    width = min(beam, bloom.num_buckets - 1)
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


def test_growth_goes_on_only_for_open_queries():
    bloom = BloomHash.random(4000, 2, 10, seed=0)
    peaked = torch.full((2, 400), -20.0)
    peaked[:, 0] = 0.0
    peaked[0, bloom.buckets(5)[0]], peaked[1, bloom.buckets(5)[1]] = 10.0, 10.0
    flat = torch.zeros(2, 400)
    found = top_k(torch.stack([peaked, flat]).log_softmax(-1), bloom, k=1, beam=2)
    assert found.ids[:, 0].tolist() == [5, 0]
    assert found.rounds[0] == 1
    assert found.rounds[1] > 1
    assert found.scored[0] < 50


def test_a_wider_beam_never_scores_an_id_twice():
    bloom = BloomHash.random(300, 3, 6, seed=0)
    log_probs = torch.randn(4, 3, bloom.num_buckets, generator=torch.manual_seed(1)).log_softmax(-1)
    everything = top_k(log_probs, bloom, k=2, beam=bloom.num_buckets, max_rounds=1)
    assert everything.scored.tolist() == [300] * 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "k=0 given"),
        ({"beam": 0}, "beam=0 given"),
        ({"max_rounds": 0}, "max_rounds=0 given"),
        ({"combine": "mean"}, "combine='mean' given; sum, min, max or a function are allowed"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    bloom = BloomHash.random(10, 2, 2)
    arguments = {"k": 1} | change
    with pytest.raises(InputError, match=message):
        top_k(torch.zeros(1, 2, 5), bloom, **arguments)


def test_bad_log_probs_are_refused():
    bloom = BloomHash.random(10, 2, 2)
    with pytest.raises(InputError, match=r"shape \(1, 2, 4\) given; these hash functions need \(batch, 2, 5\)"):
        top_k(torch.zeros(1, 2, 4), bloom, 1)
    with pytest.raises(InputError, match=r"exclude of shape \(3,\) given; a row of ids for each of the 1 queries"):
        top_k(torch.zeros(1, 2, 5), bloom, 1, exclude=torch.tensor([1, 2, 3]))
    with pytest.raises(InputError, match="NaN"):
        top_k(torch.full((1, 2, 5), torch.nan), bloom, 1)
