"""Algorithm 1 in plain code equals the plain ranking, and the search equals Algorithm 1."""

import ast
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from superbloom.hashing.bloom import BloomHash
from superbloom.hashing.construct import max_alpha
from superbloom.search import reference, top_k
from superbloom.search.reference import reference_top_k
from tests.search.oracle import add, slow_ranking
from tests.support.cases import CASES

PAGE = Path(__file__).parents[2] / "docs" / "search.md"


@st.composite
def cases(draw):
    """Log-probabilities (m, num_buckets) with many ties and −inf, a small catalogue, k and B."""
    num_hashes, num_ids = draw(st.integers(1, 3)), draw(st.integers(1, 40))
    alpha = draw(st.integers(1, max_alpha(num_ids, num_hashes)))
    bloom = BloomHash.random(num_ids, num_hashes, alpha, seed=draw(st.integers(0, 5)))
    value = st.one_of(st.sampled_from([0.0, -1.0, -2.0, -np.inf]), st.floats(-8, 0, width=32))
    log_probs = draw(hnp.arrays(np.float32, (num_hashes, bloom.num_buckets), elements=value))
    return log_probs, bloom, draw(st.integers(1, num_ids)), draw(st.integers(1, 4))


def assert_equals_the_plain_ranking(log_probs, bloom, k, beam):
    ids, scores, width = reference_top_k(torch.from_numpy(log_probs), bloom, k, beam)
    assert (ids, scores) == slow_ranking(log_probs, bloom, k, add, lambda _: True)
    assert width % beam == 0
    return ids, scores


@settings(max_examples=CASES)
@given(cases())
def test_the_reference_equals_the_plain_ranking_and_the_search_equals_the_reference(case):
    log_probs, bloom, k, beam = case
    ids, scores = assert_equals_the_plain_ranking(*case)
    for options in ({}, {"beam": beam, "max_rounds": bloom.num_buckets}):  # ranked directly; by opening buckets
        found = top_k(torch.from_numpy(log_probs)[None], bloom, k, combine="sum", **options)
        assert (found.ids[0].tolist(), found.scores[0].tolist()) == (ids, scores)


def test_a_bound_taken_one_bucket_too_early_is_noticed(monkeypatch):
    """The next bucket is not open yet, and the twin takes the bound from the one after it."""
    whole = inspect.getsource(reference_top_k)
    early = whole.replace("_sum(log_p_b):", "_sum(falling[:, min(b + 2, num_buckets) - 1]):")
    assert early != whole
    exec(compile("from __future__ import annotations\n" + early, "twin", "exec"), twin := dict(vars(reference)))
    monkeypatch.setitem(globals(), "reference_top_k", twin["reference_top_k"])

    @settings(max_examples=1000, phases=[Phase.generate], derandomize=True, database=None)
    @given(cases())
    def every(case):
        assert_equals_the_plain_ranking(*case)

    with pytest.raises(AssertionError):
        every()


def test_a_wider_beam_ends_no_sooner():
    """B=1 opens as few buckets as certify the answer; a larger B opens a multiple of B that is at least as many."""
    bloom = BloomHash.random(200, 2, 8, seed=3)
    log_probs = torch.randn(2, bloom.num_buckets, generator=torch.manual_seed(0)).log_softmax(-1)
    least = reference_top_k(log_probs, bloom, k=5)[2]
    assert 1 < least < bloom.num_buckets
    for beam in range(2, 8):
        assert reference_top_k(log_probs, bloom, k=5, beam=beam)[2] == -(-least // beam) * beam


def test_the_page_shows_the_code_as_it_is():
    function = ast.parse(inspect.getsource(reference_top_k)).body[0]
    lines = inspect.getsource(reference_top_k).splitlines()
    code = [lines[0], *lines[function.body[0].end_lineno :]]
    shown = re.search(r"```python\n(def reference_top_k.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert shown is not None
    assert shown[1].splitlines() == code
