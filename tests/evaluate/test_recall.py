"""Recall, its interval and deciles by hand; yardsticks against a plain recount."""

from collections import Counter, defaultdict

import numpy as np
import pytest

from superbloom import Superbloom
from superbloom.config import EvaluateOptions
from superbloom.corpus.cooccurrence import similarity
from superbloom.errors import InputError
from superbloom.evaluate.held_out import HeldOut
from superbloom.evaluate.metrics import deciles, recall
from superbloom.evaluate.recall import evaluate
from superbloom.evaluate.yardsticks import cooccurrence, popularity, repetition
from superbloom.special import Special


def test_held_out_rows_hide_one_element_of_a_segment(ring_corpus):
    held_out = HeldOut.of(ring_corpus, "test", seq_len=5)
    rows = ring_corpus.rows("test")
    assert len(held_out) == len(rows)
    for row, ids, place, target in zip(rows, held_out.ids, held_out.places, held_out.targets, strict=True):
        assert ids[place] == Special.MASK
        segment = [int(target) if id_ == Special.MASK else int(id_) for id_ in ids if id_ != Special.PAD]
        whole = ring_corpus.row(row).tolist()
        assert any(whole[start : start + len(segment)] == segment for start in range(len(whole)))
        assert len(segment) == min(5, len(whole))
    assert not np.array_equal(held_out.places, HeldOut.of(ring_corpus, "test", seq_len=5, seed=1).places)


def test_recall_and_its_interval_by_hand():
    shares = recall(np.array([0] * 30 + [5] * 20 + [20] * 50))
    assert shares["1"]["value"] == 0.3
    assert shares["10"]["value"] == shares["20"]["value"] == 0.5
    # Wilson, n = 100, p = 0.3
    assert shares["1"]["low"] == pytest.approx(0.2189, abs=1e-4)
    assert shares["1"]["high"] == pytest.approx(0.3958, abs=1e-4)


def test_deciles_go_from_frequent_to_rare():
    frequency = np.arange(100)
    found = deciles(np.where(frequency >= 90, 0, 20), frequency)
    assert [decile["recall_at_1"] for decile in found] == [1.0] + [0.0] * 9
    assert [decile["lowest_frequency"] for decile in found] == [90, 80, 70, 60, 50, 40, 30, 20, 10, 0]


def test_repetition_answers_with_the_context_itself():
    ids = np.array([[7, 3, Special.MASK, 3], [1, Special.MASK, Special.PAD, Special.PAD]])
    held_out = HeldOut(ids, places=np.array([2, 1]), targets=np.array([7, 5]))
    assert repetition(held_out, 20).tolist() == [1, 20]  # 3 stands there twice, 7 once; 5 not at all


@pytest.mark.parametrize("near", [False, True])
def test_yardsticks_equal_a_plain_recount(ring_corpus, near):
    """Popularity and co-occurrence in a few lines of dictionaries."""
    held_out = HeldOut.of(ring_corpus, "test", seq_len=32)
    frequency, together = Counter(), defaultdict(Counter)
    for row in ring_corpus.rows("train"):
        ids = ring_corpus.row(row).tolist()
        frequency.update(ids)
        for i, one in enumerate(ids):
            for j, other in enumerate(ids):
                if i != j and abs(i - j) <= 16:
                    together[one][other] += 1
    popular = sorted(frequency, key=lambda id_: (-frequency[id_], id_))
    expected_popular, expected_together = [], []
    for ids, place, target in zip(held_out.ids, held_out.places, held_out.targets.tolist(), strict=True):
        expected_popular.append(min(popular.index(target), 20))
        scores = Counter()
        for at in np.flatnonzero(ids >= 0):
            id_, weight = int(ids[at]), 1 / abs(at - place) if near else 1
            for other, count in together[id_].items():
                scores[other] += weight * count / np.sqrt(frequency[id_] * frequency[other])
        ahead = sum(score > scores[target] for score in scores.values()) if target in scores else 20
        expected_together.append(min(ahead, 20))
    assert popularity(ring_corpus, held_out, 20).tolist() == expected_popular
    found = cooccurrence(similarity(ring_corpus), held_out, 20, near)
    assert np.abs(found - np.array(expected_together)).max() <= 1  # float32 may order near-ties otherwise
    assert (found == expected_together).mean() > 0.95


@pytest.mark.system
def test_options_may_be_given_as_an_object_or_as_keywords(ring_corpus):
    predictor = Superbloom(alpha=2, dim=16, heads=2).fit(ring_corpus, steps=1, quiet=True).predictor
    options = EvaluateOptions(rows=7, yardsticks=False)
    assert evaluate(predictor, ring_corpus, options) == evaluate(predictor, ring_corpus, rows=7, yardsticks=False)
    assert evaluate(predictor, ring_corpus, options, rows=5)["rows"] == 5
    with pytest.raises(InputError, match=r"unknown options \['row'\]; beam, max_rounds, split, rows, draws"):
        evaluate(predictor, ring_corpus, row=5)
