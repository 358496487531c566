"""Training learns what there is to learn, and says what it cannot do."""

import re
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from superbloom import Corpus, Superbloom
from superbloom.config.training import TrainConfig
from superbloom.errors import InputError
from superbloom.evaluate.held_out import HeldOut
from superbloom.evaluate.recall import evaluate, ranks
from superbloom.model.model import Model
from superbloom.model.network import dropout
from superbloom.model.prior import Prior
from superbloom.predict import Predictor
from superbloom.training.fit import fit

pytestmark = pytest.mark.system

SMALL = {"alpha": 2, "dim": 32, "heads": 2, "ffn_dim": 64}
FAST = {"batch_size": 32, "learning_rate": 5e-3, "warmup": 20, "valid_rows": 200, "quiet": True}
# From noise: a start from co-occurrences knows the rings before the first step.
COLD = FAST | {"batch_size": 128, "learning_rate": 0.02, "warmup": 10, "warm_start": False}


def weights(superbloom: Superbloom) -> dict[str, torch.Tensor]:
    return superbloom.model.network.state_dict()


def assert_equal_weights(one: Superbloom, other: Superbloom) -> None:
    for name, value in weights(one).items():
        assert torch.equal(value, weights(other)[name]), name


@pytest.mark.parametrize(
    ("options", "training"),
    [
        ({}, {"steps": 80}),
        (
            {"norm": "post", "transform": True, "softmax": "joint"},
            {"steps": 220, "batch_size": 256, "learning_rate": 0.01},
        ),
        ({"inputs": "tokens", "mask_as": "element", "distance": False}, {"steps": 80}),
        ({"positions": True, "tied": False, "dropout": 0.1}, {"steps": 80}),
        ({"num_hashes": 1, "alpha": 1}, {"steps": 40}),
        ({"num_hashes": 3, "alpha": 3}, {"steps": 120}),
    ],
)
def test_every_kind_of_model_learns_the_rings(ring_corpus, options, training):
    """192 names in 24 rings of 8: the hidden name is mostly among the ten best."""
    superbloom = Superbloom(**SMALL | options).fit(ring_corpus, **COLD | training)
    figures = superbloom.evaluate(ring_corpus)
    assert figures["recall"]["10"]["value"] > 0.6
    assert figures["yardsticks"]["popularity"]["10"]["value"] < 0.15
    assert figures["certified"] == 1.0


def test_answers_follow_the_context(ring_corpus):
    superbloom = Superbloom(**SMALL).fit(ring_corpus, steps=60, **FAST)
    for ring in (3, 11):
        found = superbloom.predict([f"ring {ring} name {i}" for i in (1, 5, 6)], k=6)
        assert sum(prediction.name.startswith(f"ring {ring} ") for prediction in found) >= 4


@pytest.mark.parametrize("proposal", ["log-uniform", "empirical"])
def test_the_sampled_softmax_baseline_learns_too(ring_corpus, proposal):
    superbloom = Superbloom(**SMALL | {"num_hashes": 1, "alpha": 1}).fit(
        ring_corpus, steps=100, loss="sampled", samples=80, proposal=proposal, **COLD
    )
    assert superbloom.evaluate(ring_corpus)["recall"]["10"]["value"] > 0.7


@pytest.mark.parametrize("options", [{}, {"tied": False}])
def test_a_sampled_softmax_has_rows_and_no_average(ring_corpus, options):
    """Averaged layers would not match rows that are not averaged."""
    options |= {"num_hashes": 1, "alpha": 1, "dim": 32, "heads": 2}
    one, other = (
        Superbloom(**options).fit(ring_corpus, steps=5, loss="sampled", samples=80, average=average, **FAST)
        for average in (0.0, 0.9)
    )
    assert_equal_weights(one, other)


def test_bf16_learns_too(ring_corpus):
    superbloom = Superbloom(**SMALL).fit(ring_corpus, steps=80, precision="bf16", **COLD)
    assert superbloom.evaluate(ring_corpus)["recall"]["10"]["value"] > 0.6


def test_a_second_vocabulary_is_learned(ring_corpus):
    """Input names, output the ring they belong to: S^O differs from S^I, with hash functions of its own."""
    names = [ring_corpus.vocab.names(ring_corpus.row(row)) for row in range(len(ring_corpus))]
    rings = [[name.split(" name")[0] for name in row] for row in names]
    corpus = Corpus.from_sequences(names, targets=rings)
    superbloom = Superbloom(**SMALL).fit(corpus, steps=40, **COLD)
    assert superbloom.model.target_bloom.num_ids == 24
    assert superbloom.evaluate(corpus)["recall"]["1"]["value"] > 0.95
    assert superbloom.predict([f"ring 7 name {i}" for i in range(6)], k=1)[0].name == "ring 7"


def test_the_same_seed_gives_the_same_weights_and_another_other_ones(ring_corpus):
    one, other, third = (
        Superbloom(**SMALL, dropout=0.1).fit(ring_corpus, steps=5, seed=seed, **FAST) for seed in (3, 3, 4)
    )
    assert_equal_weights(one, other)
    assert not torch.equal(weights(one)["embedding.weight"], weights(third)["embedding.weight"])


def test_the_model_is_the_average_of_the_steps(ring_corpus):
    """One step is its own average; after several, answers are those of the average, validated as such."""
    for steps in (1, 8):
        one, other = (Superbloom(**SMALL).fit(ring_corpus, steps=steps, average=a, **FAST) for a in (0.0, 0.9))
        alike = torch.equal(weights(one)["embedding.weight"], weights(other)["embedding.weight"])
        assert alike == (steps == 1)
    held_out = HeldOut.of(ring_corpus, "valid", 32, draws=200)
    counts = torch.from_numpy(ring_corpus.id_counts("train"))
    prior = Prior(counts)
    rank = ranks(Predictor(replace(other.model, prior=prior)), held_out, filter_seen=True).rank
    assert other.metrics["history"][-1]["recall_at_10"] == float((rank < 10).mean())


def test_the_best_validated_weights_are_taken_and_training_stops(ring_corpus, capsys):
    """A learning rate that ruins what was learnt: the model is what it was before."""
    options = FAST | {"valid_every": 10, "quiet": False, "remember": "none"}
    fitted = Superbloom(**SMALL).fit(ring_corpus, steps=400, patience=3, **options | {"learning_rate": 0.3})
    recalls = [point["recall_at_10"] for point in fitted.metrics["history"]]
    best = len(recalls) - 1 - recalls[::-1].index(max(recalls))
    assert fitted.training["taken"] == fitted.metrics["history"][best]["step"]
    first = recalls.index(max(recalls))
    assert len(recalls) == first + 1 + 3  # then it was enough
    assert fitted.training["steps"] == fitted.metrics["history"][-1]["step"] < 400
    assert (
        f"no better validation in 3 since step {fitted.metrics['history'][first]['step']}: the weights of"
        in capsys.readouterr().err
    )
    held_out = HeldOut.of(ring_corpus, "valid", 32, draws=200)
    prior = Prior.of_corpus(ring_corpus)
    rank = ranks(Predictor(replace(fitted.model, prior=prior)), held_out, filter_seen=True).rank
    assert float((rank < 10).mean()) == recalls[best] > recalls[-1]


@pytest.mark.parametrize(("remember", "what"), [("both", "pairs and rows"), ("pairs", "pairs"), ("none", None)])
def test_what_was_counted_is_reported_before_training(ring_corpus, capsys, remember, what):
    Superbloom(**SMALL).fit(ring_corpus, steps=1, **FAST | {"quiet": False}, remember=remember)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("counted")]
    pattern = rf"counted {what} in \d+\.\d s: validation recall@10 [01]\.\d{{3}}; training …"
    assert [bool(re.fullmatch(pattern, line)) for line in lines] == ([True] if what else [])


def test_without_patience_the_last_weights_are_taken(ring_corpus):
    ruinous = FAST | {"valid_every": 10, "learning_rate": 0.3, "remember": "none"}
    last = Superbloom(**SMALL).fit(ring_corpus, steps=60, patience=0, **ruinous)
    assert (last.training["steps"], last.training["taken"]) == (60, 60)
    recalls = [point["recall_at_10"] for point in last.metrics["history"]]
    assert recalls[-1] < max(recalls)


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_dropout_drops_its_share_and_keeps_the_mean(share):
    torch.manual_seed(0)
    x = torch.ones(1001, 999, requires_grad=True)
    dropped = dropout(x, share)
    assert float((dropped == 0).float().mean()) == pytest.approx(share, abs=0.004)
    assert float(dropped.detach().mean()) == pytest.approx(1, abs=0.004)
    dropped.sum().backward()
    assert torch.equal(x.grad, dropped.detach())  # a gradient where something was kept, as much larger
    neighbours = (dropped[:, 1:] == 0) & (dropped[:, :-1] == 0)
    assert float(neighbours.float().mean()) == pytest.approx(share**2, abs=0.005)
    assert dropout(x, 0.0) is x


def test_dropout_is_on_from_the_first_step(ring_corpus):
    """One step with and without dropout from the same start gives other weights."""
    one, other = (Superbloom(**SMALL, dropout=rate).fit(ring_corpus, steps=1, **FAST) for rate in (0.0, 0.5))
    assert not torch.equal(weights(one)["layers.0.widen.weight"], weights(other)["layers.0.widen.weight"])
    assert not one.model.network.training


def test_minutes_end_training(ring_corpus):
    started = time.monotonic()
    superbloom = Superbloom(**SMALL).fit(ring_corpus, minutes=0.02, **FAST)
    assert superbloom.training["steps"] > 1
    assert len(superbloom.metrics["history"]) >= 2  # about every tenth of the time, and at the end
    assert 1.2 <= superbloom.training["seconds"] < time.monotonic() - started


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 5, "minutes": 1}, "steps=5, minutes=1: give one of them"),
        ({"steps": 0}, "steps=0: 1 or more"),
        ({"steps": 1, "batch_size": 0}, "batch_size=0: 1 or more"),
        ({"steps": 1, "mask_share": 1.5}, "mask_share=1.5: between 0 and 1"),
        ({"steps": 1, "patience": -1}, "patience=-1: 0 or more is allowed"),
        ({"steps": 1, "average": 1.0}, "average=1.0: from 0 to below 1 is allowed"),
        ({"steps": 1, "warm_start": 1}, "warm_start=1: True or False is allowed"),
        ({"steps": 1, "precision": "fp8"}, "precision='fp8': 'auto' or 'fp32' or 'bf16' is allowed"),
        ({"steps": 1, "learning_rate": 0}, "learning_rate=0: more than 0"),
        ({"steps": 1, "seed": -1}, "seed=-1: 0 to 2"),
        ({"steps": 1, "weight_decay": float("nan")}, "weight_decay=nan: 0 or more is allowed"),
        ({"steps": 1, "learning_rate": "1"}, "learning_rate='1': more than 0"),
        ({"minutes": 1e300}, "minutes=1e\\+300: up to a million"),
        ({"steps": 1, "speed": 3}, r"unknown options \['speed'\]"),
        ({"steps": 1, "loss": "sampled"}, "loss='sampled' with num_hashes=2"),
        ({"steps": 1, "resume": True}, "resume=True without a run folder"),
        ({"steps": 1, "devices": 0}, "devices=0: 1 or more"),
        ({"steps": 1, "workers": -1}, "workers=-1: 0 to 256"),
        ({"steps": 1, "strategy": "magic"}, "strategy='magic': 'ddp' or 'fsdp' is allowed"),
        ({"steps": 1, "batch_size": 5, "devices": 2}, "batch_size=5 does not divide among 2 processes"),
    ],
)
def test_training_options_that_cannot_work_are_refused(ring_corpus, options, message):
    with pytest.raises(InputError, match=message):
        Superbloom(**SMALL).fit(ring_corpus, quiet=True, **options)


def test_a_list_is_not_a_corpus():
    with pytest.raises(InputError, match=r"a list given; give a Corpus, e.g. Corpus.from_sequences\(rows\)"):
        Superbloom().fit([["a", "b"]])


def test_options_that_no_corpus_allows_are_refused_at_once():
    with pytest.raises(InputError, match="alpha=-1: 1 or more is allowed"):
        Superbloom(alpha=-1)
    with pytest.raises(InputError, match="heads=3 does not divide dim=64"):
        Superbloom("sequence", dim=64, heads=3)


def test_options_and_presets_that_do_not_exist_are_refused():
    with pytest.raises(InputError, match=r"unknown options \['depth'\]; num_hashes, alpha, hash_seed"):
        Superbloom(depth=3)
    with pytest.raises(InputError, match="preset 'large' given; entities, sequence, text, baseline, sampled-softmax"):
        Superbloom("large")


def test_alpha_shrinks_to_fit_a_small_catalogue_unless_it_was_asked_for():
    corpus = Corpus.from_sequences([["a", "b", "c"]] * 20)
    assert Superbloom().config_for(corpus).alpha == 2
    names = [f"name {i}" for i in range(10)]  # ten names allow alpha 3, nine targets 4
    targets = [f"target {min(i, 8)}" for i in range(10)]
    assert Superbloom().config_for(Corpus.from_sequences([names] * 9, targets=[targets] * 9)).alpha == 3
    with pytest.raises(InputError, match="alpha=3 leaves 1 bucket, .* the largest alpha that works is 2"):
        Superbloom(alpha=3).fit(corpus, steps=1, quiet=True)


def test_a_diverging_run_stops_at_once_and_names_the_step(ring_corpus):
    message = r"the loss became .*, its gradient (nan|inf), at step \d+; lower learning_rate=1e\+30"
    with pytest.raises(InputError, match=message):
        Superbloom(**SMALL).fit(ring_corpus, steps=50, **FAST | {"learning_rate": 1e30, "warmup": 1})


def test_a_model_of_other_names_is_refused(ring_corpus):
    other = Corpus.from_sequences([["a", "b", "c", "d"]] * 20)
    superbloom = Superbloom(**SMALL).fit(ring_corpus, steps=1, **FAST)
    with pytest.raises(InputError, match="4 of the corpus's 4 names are not among the 192 of the model"):
        superbloom.evaluate(other)
    model = Model.create(superbloom.model.config, ring_corpus.vocab)
    with pytest.raises(InputError, match="and they differ"):
        fit(model, other, TrainConfig(steps=1), quiet=True)


def test_evaluation_does_not_depend_on_the_batch_size(ring_corpus, monkeypatch):
    from superbloom.evaluate import recall as module

    superbloom = Superbloom(**SMALL).fit(ring_corpus, steps=10, **FAST)
    held_out = module.HeldOut.of(ring_corpus, "test", 32)
    whole = module.ranks(superbloom.predictor, held_out, chunk=1000)
    for chunk in (1, 7):
        for ours, theirs in zip(module.ranks(superbloom.predictor, held_out, chunk=chunk), whole, strict=True):
            assert np.allclose(ours, theirs, rtol=1e-5)  # ranks and ids are whole numbers


def test_recall_by_hand(ring_corpus):
    """A model that knows nothing but frequencies answers as popularity does."""
    superbloom = Superbloom(num_hashes=1, alpha=1, dim=16, heads=2).fit(
        ring_corpus, steps=1, warm_start=False, remember="none", **FAST | {"learning_rate": 1e-9}
    )
    figures = evaluate(superbloom.predictor, ring_corpus)
    assert figures["recall"]["10"]["value"] == pytest.approx(
        figures["yardsticks"]["popularity"]["10"]["value"], abs=0.06
    )
