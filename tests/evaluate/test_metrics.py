"""Metrics equal those of an independent library (ir_measures) and of plain counting."""

import ir_measures
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ir_measures import RR, Qrel, R, ScoredDoc, Success, nDCG

from superbloom.evaluate.metrics import DEEPEST, KS, breadth, mrr, ndcg, recall

ranks = st.lists(st.integers(0, DEEPEST), min_size=1, max_size=30)


def asked(rank: list[int]) -> tuple[list[Qrel], list[ScoredDoc]]:
    """One relevant document a query, and answers that have it at the rank given, or not at all."""
    qrels, run = [], []
    for query, place in enumerate(rank):
        qrels.append(Qrel(str(query), "asked", 1))
        answers = [f"other {number}" for number in range(DEEPEST)]
        if place < DEEPEST:
            answers[place] = "asked"
        run += [ScoredDoc(str(query), name, -float(number)) for number, name in enumerate(answers)]
    return qrels, run


@given(ranks)
def test_metrics_are_those_of_an_independent_library(rank):
    found = [recall(np.array(rank)), ndcg(np.array(rank)), mrr(np.array(rank))]
    for k in KS:
        theirs = ir_measures.calc_aggregate([R @ k, Success @ k, nDCG @ k, RR @ k], *asked(rank))
        ours = {R @ k: found[0][str(k)]["value"], nDCG @ k: found[1][str(k)], RR @ k: found[2][str(k)]}
        assert ours | {Success @ k: ours[R @ k]} == pytest.approx(theirs)


def test_breadth_is_what_counting_gives():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 50, 300)
    answers = np.array([rng.choice(300, DEEPEST, replace=False) for _ in range(40)])
    answers[3, 5:] = -1  # fewer were left
    targets = rng.integers(0, 300, 40)
    found = breadth(answers, targets, counts)
    for k in KS:
        given_ = [int(id_) for row in answers for id_ in row[:k] if id_ >= 0]
        assert found["coverage"][str(k)] == len(set(given_)) / 300
        often = sum(int(counts[id_]) for id_ in given_) / len(given_)
        asked_often = sum(int(counts[id_]) for id_ in targets) / len(targets)
        assert found["popularity bias"][str(k)] == pytest.approx(often / asked_often)
