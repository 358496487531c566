"""The fit of what the context says about its own ids: its likelihood, and what it finds in rows made for it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from superbloom import Corpus, Superbloom
from superbloom.evaluate import HeldOut
from superbloom.model import Prior, Repetition
from superbloom.predict import Predictor
from superbloom.training import repetition as module
from superbloom.training.repetition import fit_repetition

SMALL = {"alpha": 4, "dim": 16, "ffn_dim": 32, "heads": 2, "layers": 1}


def rows_of(repeats: bool, count: int = 3000) -> list[list[str]]:
    """Eight of forty names of a group; with repeats, the second half of a row is its first half again."""
    rng, rows = np.random.default_rng(0), []
    for number in range(count):
        group = number % 5
        chosen = [f"{group} {i}" for i in rng.permutation(40)[:8]]
        rows.append(chosen[:4] * 2 if repeats else chosen)
    return rows


@pytest.fixture(scope="module")
def fitted() -> dict[bool, tuple[Superbloom, Corpus]]:
    corpora = {repeats: Corpus.from_sequences(rows_of(repeats)) for repeats in (False, True)}
    return {
        repeats: (Superbloom(**SMALL).fit(corpus, steps=60, quiet=True), corpus) for repeats, corpus in corpora.items()
    }


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("mask_as", ["question", "next"])
def test_the_likelihood_of_the_fit_is_that_of_the_predictor(repeats, mask_as):
    corpus = Corpus.from_sequences(rows_of(repeats))
    model = Superbloom(mask_as=mask_as, **SMALL).fit(corpus, steps=5, quiet=True).model
    by_distance = torch.tensor([-1.5, 0.5, 2.0, 0.0, 1.0, 0.0])
    model = replace(model, prior=Prior.of_corpus(corpus), repetition=None, memory=None)
    held_out = HeldOut.of(corpus, "valid", model.config.seq_len, draws=80)
    ids, places, targets = next(held_out.parts(80))
    kept = module._kept(Predictor(model), ids, places, targets, count=6)
    found = kept.log_probability(by_distance.double())
    predictor = Predictor(replace(model, repetition=Repetition(by_distance)))
    expected = predictor.log_probability(predictor.beliefs(ids, places), targets[:, None])[:, 0]
    assert torch.allclose(found.float(), expected, atol=1e-4)


def test_names_that_never_come_again_become_less_likely(fitted):
    model, corpus = fitted[False]
    found = model.model.repetition
    assert found.by_distance[:2].max() < -0.5
    assert likelihood(model, corpus) > likelihood(model, corpus, bare=True)


def test_names_that_always_come_again_become_more_likely(fitted):
    model, corpus = fitted[True]
    assert likelihood(model, corpus) > likelihood(model, corpus, bare=True)


def test_a_saved_model_has_the_same_numbers(fitted, tmp_path):
    model, _ = fitted[True]
    model.save_pretrained(tmp_path / "model")
    ours, stored = model.model.repetition, Superbloom.from_pretrained(tmp_path / "model").model.repetition
    assert torch.equal(stored.by_distance, ours.by_distance)


def likelihood(model: Superbloom, corpus: Corpus, *, bare: bool = False) -> float:
    predictor = Predictor(replace(model.model, repetition=None) if bare else model.model, network_only=True)
    held_out = HeldOut.of(corpus, "valid", 32, seed=1, draws=300)
    ids, places, targets = next(held_out.parts(300))
    return float(predictor.log_probability(predictor.beliefs(ids, places), targets[:, None]).mean())


def test_nothing_is_fitted_without_rows_or_a_need(fitted, monkeypatch):
    model, corpus = fitted[False]
    assert fit_repetition(model.model, corpus, 100) is not None
    by_sum = replace(model.model.config, score="sum")
    monkeypatch.setattr(model.model.network, "config", by_sum)
    assert fit_repetition(model.model, corpus, 100) is None
    monkeypatch.undo()
    few = Corpus.from_sequences(rows_of(False, 500))
    assert len(few.rows("valid")) < module.MIN_ROWS
    assert Superbloom(**SMALL).fit(few, steps=1, quiet=True).model.repetition is None
    assert fit_repetition(replace(model.model, target_vocab=few.vocab), corpus, 100) is None


def test_a_model_without_distances_is_fitted_one_number():
    model = Superbloom(distance=False, **SMALL).fit(Corpus.from_sequences(rows_of(False)), steps=5, quiet=True)
    assert len(model.model.repetition.by_distance) == 1
