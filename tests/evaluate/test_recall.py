"""Recall, its interval and deciles by hand; yardsticks against a plain recount."""

from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pytest

from superbloom import Corpus, Superbloom
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


@pytest.fixture(scope="module")
def older_and_newer() -> tuple[Superbloom, Superbloom, Corpus]:
    """A model of names a0 to a9, and one continued on a newer corpus that also has b0 to b4, which stand alone."""
    older = [[f"a{(i + j) % 10}" for j in range(4)] for i in range(60)]
    newer = older + [["b0", "b1", "b2", "b3", "b4"], ["a0", "b3", "a1"]] * 30
    first = Superbloom(alpha=3, num_hashes=2, dim=16, heads=2).fit(Corpus.from_sequences(older), steps=5, quiet=True)
    corpus = Corpus.from_sequences(newer)
    return first, Superbloom().fit(corpus, from_model=first, steps=5, quiet=True), corpus


@pytest.mark.system
def test_hidden_names_that_a_model_does_not_know_count_as_missed(older_and_newer):
    old, continued, corpus = older_and_newer
    figures, later = (model.evaluate(corpus, split="train") for model in (old, continued))
    hidden = HeldOut.of(corpus, "train", old.model.config.seq_len)
    unknown = sum(corpus.vocab.name(int(target)).startswith("b") for target in hidden.targets)
    assert 0 < unknown < len(hidden)
    assert figures["unknown"] == {"names": 5, "of": 15, "hidden": unknown}
    assert "unknown" not in later
    assert figures["rows"] == later["rows"] == len(hidden)
    assert figures["yardsticks"] == later["yardsticks"]  # of the same hidden elements, whatever a model knows
    # Ten names and k = 20: every hidden name that it knows is found, and no other.
    for ranked in (figures["recall"], figures["network"]):
        assert ranked["20"]["value"] == pytest.approx(1 - unknown / len(hidden))
    assert later["recall"]["20"]["value"] == 1


@pytest.mark.system
def test_a_corpus_of_known_names_is_measured_as_before(older_and_newer):
    """Rows without unknown names, in a corpus that numbers its names in another order than the model."""
    old, *_ = older_and_newer
    rows = [[f"a{(3 * i + j) % 10}" for j in range(3)] for i in range(80)]
    corpus = Corpus.from_sequences([*rows, *[["a7", "a8"]] * 50])
    ours, theirs = old.evaluate(corpus), evaluate(old.predictor, corpus.under(old.model.vocab))
    assert corpus.vocab.names(range(10)) != old.model.vocab.names(range(10))
    assert "unknown" not in ours
    for name in ("recall", "network", "memory", "ndcg", "ghosts", "negative log-likelihood", "coverage"):
        assert ours[name] == theirs[name], name


def test_rows_in_order_of_time_are_cut_where_they_were(older_and_newer):
    old, *_ = older_and_newer
    events = pa.table({"user_id": [1] * 6, "item_id": ["a1", "b1", "a2", "b2", "a3", "a4"]})
    corpus = Corpus.from_interactions(events, min_item_count=1)
    known = corpus.under(old.model.vocab, drop_unknown=True)
    assert known.vocab.names(known.row(0)) == ["a1", "a2", "a3", "a4"]
    assert [corpus.cuts[split].tolist() for split in ("valid", "test")] == [[4], [5]]
    assert [known.cuts[split].tolist() for split in ("valid", "test")] == [[2], [3]]


def test_contexts_are_read_without_names_that_are_not_known():
    mask, pad = int(Special.MASK), int(Special.PAD)
    hidden = HeldOut(
        np.array([[3, 0, 1, mask], [mask, 0, 2, pad], [0, 0, mask, 3]]),
        np.array([3, 0, 2]),
        np.array([1, 0, 2]),
        before=[np.array([3, 0, 1]), np.array([], np.int64), np.array([0, 2])],
    )
    found = hidden.under(np.array([-1, 5, 6, 7]), np.array([-1, 5, 6, 7]))
    assert found.ids.tolist() == [[7, 5, mask, pad], [mask, 6, pad, pad], [mask, 7, pad, pad]]
    assert (found.places.tolist(), found.targets.tolist()) == ([2, 0, 0], [5, -1, 6])
    assert [ids.tolist() for ids in found.before] == [[7, 5], [], [6]]
    assert found.take(np.array([2])).targets.tolist() == [6]
