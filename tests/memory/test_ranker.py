"""The ranker: it learns what the weights of a mixture cannot say, and nothing where there is nothing to learn."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from superbloom import Corpus, Superbloom
from superbloom.evaluate import HeldOut, ranking_examples
from superbloom.memory import Examples, fit_ranker
from superbloom.memory.ranker import FIT_NAMES, MIN_ROWS, negative_log_likelihood
from superbloom.predict import Predictor

NAMES, FEATURES = 6, 3


def examples(rows: int, is_telling: bool, seed: int = 0) -> Examples:
    """The mixture finds all names equally likely. The hidden name is the one whose first two features have one sign."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(rows, NAMES, FEATURES)).astype(np.float32)
    likely = np.exp(3 * (features[..., 0] * features[..., 1] > 0)) if is_telling else np.ones((rows, NAMES))
    likely /= likely.sum(axis=1, keepdims=True)
    target = (likely.cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1)
    even = torch.full((rows, NAMES), math.log(0.9 / NAMES))
    return Examples(
        torch.from_numpy(features),
        even,
        torch.from_numpy(target),
        torch.full((rows,), math.log(0.1)),
        torch.full((rows,), -9.0),
    )


def loss(ranker, part: Examples) -> float:
    factors = torch.zeros(part.mixture.shape) if ranker is None else torch.from_numpy(ranker(part.features.numpy()))
    return float(negative_log_likelihood(factors, part).mean())


def test_a_ranker_learns_what_a_sum_of_logarithms_cannot_say():
    ranker, unseen = fit_ranker(examples(1500, True), np.arange(1500), 9), examples(1000, True, seed=1)
    assert ranker is not None
    assert loss(ranker, unseen) < loss(None, unseen) - 0.3


def test_there_is_no_ranker_where_nothing_can_be_learned():
    """Or it changes next to nothing."""
    ranker, unseen = fit_ranker(examples(1500, False), np.arange(1500), 9), examples(1000, False, seed=1)
    assert loss(ranker, unseen) < loss(None, unseen) + 0.02


@pytest.mark.parametrize("rows", [MIN_ROWS - 1, 10])
def test_few_rows_are_not_enough(rows):
    assert fit_ranker(examples(1000, True), np.arange(1000) % rows, 9) is None


def test_the_same_rows_give_the_same_ranker_and_leave_the_generator_as_it_was():
    state = torch.get_rng_state()
    one, two = (fit_ranker(examples(300, True), np.arange(300), 9) for _ in range(2))
    assert np.array_equal(one.hidden, two.hidden)
    assert np.array_equal(one.direct, two.direct)
    assert torch.equal(state, torch.get_rng_state())


@pytest.fixture(scope="module")
def superbloom() -> Superbloom:
    rng = np.random.default_rng(0)
    rows = [[f"{group} {i}" for i in rng.integers(0, 12, size=9)] for group in rng.integers(0, 40, size=4000)]
    corpus = Corpus.from_sequences(rows)
    model = Superbloom(alpha=2, dim=16, heads=2, ffn_dim=32, seq_len=16)
    model.fit(corpus, steps=10, quiet=True)
    return model


def test_a_model_learns_to_rank_and_keeps_that_in_its_folder(superbloom, tmp_path):
    ranker = superbloom.model.memory.ranker
    assert ranker is not None
    superbloom.save_pretrained(tmp_path / "model")
    again = Superbloom.from_pretrained(tmp_path / "model")
    for name in ("direct", "hidden", "bias", "out", "offset", "known"):
        assert np.array_equal(getattr(again.model.memory.ranker, name), getattr(ranker, name))
    one, two = ({p.name: p.probability for p in model.predict(["3 1", "3 2"], k=20)} for model in (again, superbloom))
    assert one == pytest.approx(two, rel=1e-5)
    found = superbloom.predict(["3 1", "3 2"], k=len(superbloom.model.vocab), exclude_context=False)
    assert sum(answer.probability for answer in found) == pytest.approx(1, abs=1e-4)
    bare = replace(superbloom.model, memory=replace(superbloom.model.memory, ranker=None))
    asked = Predictor(bare).predict(["3 1", "3 2"], k=20, exclude_context=False)[0]
    assert [p.probability for p in asked] != [p.probability for p in found[:20]]


def test_parts_of_a_ranked_answer_sum_to_its_probability(superbloom):
    predictor = superbloom.predictor
    (found,) = predictor.answer([predictor.query(["3 1", "3 2"], 5, explain=True)])[0]
    for answer, why in zip(found.predictions, found.explanation.why, strict=True):
        assert sum(why.parts.values()) == pytest.approx(answer.probability, rel=1e-5)


def test_examples_have_the_likelihood_that_answers_have(superbloom):
    """Without a ranker, −log p of an example is that of the hidden name among all names."""
    model, corpus = superbloom.model, superbloom._corpus
    memory = replace(model.memory, ranker=None)
    predictor = Predictor(replace(model, memory=memory))
    held_out = HeldOut.of(corpus, "test", model.config.seq_len, draws=40)
    found = ranking_examples(predictor, memory, held_out)
    assert found.features.shape == (40, FIT_NAMES, memory.num_features)
    expected = []
    for ids, places, targets in held_out.parts(40):
        expected = -predictor.log_probability(predictor.beliefs(ids, places), targets[:, None])[:, 0]
    plain = negative_log_likelihood(torch.zeros(found.mixture.shape), found)
    assert plain.tolist() == pytest.approx(expected.tolist(), abs=1e-3)


def test_a_name_that_was_added_later_is_not_judged_by_the_network(superbloom):
    """The network finds it unlikely because it has not seen it. Its score is the same, however unlikely that is."""
    memory, num_ids = superbloom.model.memory, len(superbloom.model.vocab)
    recalled = memory.recall(np.array([[30, num_ids, -2]]), np.array([2]), num_ids + 1)
    is_new = recalled.ids[0] == num_ids
    assert is_new.sum() == 1  # the context has it
    found = []
    for log_network in (-30.0, -12.0):
        network = np.where(recalled.ids < 0, -np.inf, np.where(is_new, log_network, -6.0))
        scores, rest = memory.scores(recalled, network)
        found.append((scores - rest[:, None])[0, is_new])
    assert found[0] == pytest.approx(found[1])


def test_a_factor_of_any_size_leaves_probabilities(superbloom):
    memory = superbloom.model.memory
    recalled = memory.recall(np.array([[0, 1, -2]]), np.array([2]), superbloom.model.config.num_ids)
    network = np.full(recalled.ids.shape, np.log(1e-3))
    huge = replace(memory.ranker, offset=np.array([1e4], np.float32))
    scores, rest = replace(memory, ranker=huge).scores(recalled, network)
    assert np.exp(scores[recalled.ids >= 0]).sum() == pytest.approx(1)
    assert np.isfinite(rest).all()
