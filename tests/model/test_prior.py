"""The prior of ids and its calibration against plain numpy, and the bounds of probabilities."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from superbloom.training.calibrate import DRAWS_PER_ROW, MAX_HIDDEN_ELEMENTS, TEMPERATURES, WEIGHTS, calibrate

from superbloom import Corpus, Superbloom
from superbloom.config.model import ModelConfig
from superbloom.corpus import split_of
from superbloom.evaluate.held_out import HeldOut
from superbloom.hashing.bloom import BloomHash
from superbloom.hashing.construct import max_alpha
from superbloom.model.model import Model
from superbloom.model.prior import Prior, surplus, training_counts
from superbloom.predict import Predictor
from superbloom.search.scoring import Bonus
from superbloom.special import Special


def plain_surplus(counts, table) -> np.ndarray:
    """log of an id's share over the product of its buckets' shares, added up id by id."""
    share = (np.asarray(counts) + 1) / (np.sum(counts) + len(counts))
    result = np.log(share)
    for id_, digest in enumerate(table):
        for j, bucket in enumerate(digest):
            result[id_] -= np.log(sum(share[other] for other in range(len(table)) if table[other][j] == bucket))
    return result


@st.composite
def tables(draw):
    num_hashes, num_ids = draw(st.integers(1, 4)), draw(st.integers(1, 40))
    alpha = draw(st.integers(1, max_alpha(num_ids, num_hashes)))
    return BloomHash.random(num_ids, num_hashes, alpha, seed=draw(st.integers(0, 5)))


@given(tables(), st.data())
def test_the_surplus_of_each_id_equals_a_plain_calculation(bloom, data):
    counts = data.draw(hnp.arrays(np.int32, bloom.num_ids, elements=st.integers(0, 10**6)))
    found = surplus(torch.from_numpy(counts), bloom)
    assert found.numpy() == pytest.approx(plain_surplus(counts, bloom.table.tolist()), rel=1e-5, abs=1e-5)


def test_ids_that_share_no_bucket_have_nothing_to_add():
    bloom = BloomHash.random(50, 1, 1)
    counts = torch.arange(50)
    assert surplus(counts, bloom).abs().max() < 1e-6
    assert Prior(counts, 0.0, 1.0).bonus(bloom) is None
    assert torch.equal(Prior(counts, 0.5, 1.0).bonus(bloom).of_id, 0.5 * surplus(counts, bloom))


@given(tables(), st.data())
def test_the_buckets_of_an_id_promise_at_least_its_bonus(bloom, data):
    of_id = data.draw(hnp.arrays(np.float32, bloom.num_ids, elements=st.floats(-30, 30, width=32)))
    bonus = Bonus.of(torch.from_numpy(of_id), bloom)
    promised = bonus.of_bucket[torch.arange(bloom.num_hashes), bloom.table.long()].double().sum(dim=1)
    assert (promised >= bonus.of_id - 1e-6 * (1 + bonus.of_id.abs())).all()
    assert np.array_equal(bonus.of_id, of_id)
    for j, bucket in np.ndindex(bloom.num_hashes, bloom.num_buckets):
        # No more is promised than a member can ask for.
        assert bonus.of_bucket[j, bucket] * bloom.num_hashes == pytest.approx(of_id[bloom.members[j][bucket]].max())


def zipf(rows: int = 400, names: int = 60, targets: bool = False, **options) -> Corpus:
    """Rows of names whose frequency falls with their number."""
    rng = np.random.default_rng(0)
    share = 1 / np.arange(1, names + 1)
    drawn = [rng.choice(names, size=6, replace=False, p=share / share.sum()) for _ in range(rows)]
    if targets:
        options["targets"] = [[f"target {n % 20}" for n in row] for row in drawn]
    return Corpus.from_sequences([[f"name {n}" for n in row] for row in drawn], **options)


def tiny(corpus: Corpus, steps: int, **options) -> Superbloom:
    sizes = {"alpha": 6, "dim": 16, "heads": 2, "ffn_dim": 16, "layers": 1, "seq_len": 6}
    return Superbloom(**sizes | options).fit(corpus, steps=steps, quiet=True)


def plain_calibration(model: Model, corpus: Corpus) -> np.ndarray:
    """Minus the log-likelihood of the hidden ids at each weight and temperature, one hidden id after the other."""
    table, m = model.target_bloom.table.numpy(), model.config.num_hashes
    counts = np.zeros(len(table))
    for row in corpus.rows("train"):
        np.add.at(counts, corpus.targets[corpus.offsets[row] : corpus.offsets[row + 1]], 1)
    more = plain_surplus(counts, table.tolist())
    drawings = [HeldOut.of(corpus, "valid", model.config.seq_len, seed=seed) for seed in range(DRAWS_PER_ROW)]
    hidden = [part for drawing in drawings for part in zip(drawing.ids, drawing.places, drawing.targets, strict=True)]
    loss = np.zeros((len(WEIGHTS), len(TEMPERATURES)))
    for ids, place, target in hidden[:MAX_HIDDEN_ELEMENTS]:
        log_probs = model.log_probs(torch.from_numpy(ids[None]), torch.tensor([[place]]))[0].double().numpy()
        scores = sum(log_probs[j, table[:, j]] for j in range(m))
        for i, weight in enumerate(WEIGHTS):
            for j, temperature in enumerate(TEMPERATURES):
                scaled = (scores + weight * more) / (m * temperature)
                loss[i, j] += np.log(np.exp(scaled - scaled.max()).sum()) + scaled.max() - scaled[target]
    return loss


@pytest.mark.system
@pytest.mark.parametrize(
    ("rows", "steps", "options"),
    [
        (400, 3, {}),
        (400, 150, {}),
        (400, 150, {"alpha": 2}),
        (400, 600, {"alpha": 2}),  # it has learnt its rows by heart
        (6000, 20, {}),  # more than enough rows to choose by
        (400, 40, {"num_hashes": 3}),
        (400, 40, {"softmax": "joint"}),
        (400, 40, {"target_alpha": 4}),
    ],
)
def test_calibration_picks_what_a_plain_likelihood_picks(rows, steps, options):
    corpus = zipf(rows, targets="target_alpha" in options)
    model = tiny(corpus, steps, **options).model
    loss = plain_calibration(model, corpus)
    i, j = np.unravel_index(loss.argmin(), loss.shape)
    prior = calibrate(model, corpus)
    assert (prior.weight, prior.temperature) == (WEIGHTS[i], TEMPERATURES[j] * model.config.num_hashes)
    assert (model.prior.weight, model.prior.temperature) == (prior.weight, prior.temperature)  # as fit has chosen
    assert prior.counts.tolist() == corpus.id_counts("train").tolist()


def test_an_unhashed_model_gets_no_prior_but_a_temperature():
    corpus = zipf()
    model = tiny(corpus, 20, alpha=1, num_hashes=1).model
    assert model.prior.weight == 0.0
    assert Predictor(model).bonus is None
    # Without buckets to share, the surplus is nothing: any weight has the same likelihood, only the temperature counts.
    assert model.prior.temperature == TEMPERATURES[plain_calibration(model, corpus)[0].argmin()]


def test_without_validation_rows_the_prior_has_no_weight():
    keys = [key for key in map(str, range(2000)) if split_of([key])[0] == 0][:400]
    corpus = zipf(keys=keys)
    assert len(corpus.rows("valid")) == 0
    config = ModelConfig(num_ids=corpus.num_ids, num_hashes=3, alpha=6, dim=16, heads=2, ffn_dim=16)
    prior = calibrate(Model.create(config, corpus.vocab), corpus)
    assert (prior.weight, prior.temperature) == (0.0, 3.0)
    assert prior.counts.tolist() == corpus.id_counts("train").tolist()
    fitted = tiny(corpus, 2)
    assert fitted.model.prior.weight == 0.0
    assert len(fitted.predict(["name 1"], k=3)) == 3


@pytest.fixture(scope="module")
def fitted(ring_corpus):
    model = Superbloom(alpha=2, dim=32, heads=2, ffn_dim=64, seq_len=8).fit(ring_corpus, steps=30, quiet=True).model
    return replace(model, prior=replace(model.prior, weight=0.5, temperature=1.7))


CONTEXT = ["ring 1 name 2", "ring 1 name 3"]


def true_shares(model: Model, *, prior: bool = True, permitted=lambda name: True) -> dict[str, float]:
    """The share of each name in the sum of exp(score / temperature) over all permitted names."""
    ids = torch.tensor([[*map(model.vocab.id, CONTEXT), Special.MASK]])
    log_probs = model.log_probs(ids, torch.tensor([[2]]))[0].double().numpy()
    table = model.bloom.table.numpy()
    scores = sum(log_probs[j, table[:, j]] for j in range(table.shape[1]))
    if prior:
        scores = scores + model.prior.weight * plain_surplus(model.prior.counts.numpy(), table.tolist())
    mass = np.exp(scores / model.prior.temperature)
    names = model.vocab.names(range(len(table)))
    mass *= [permitted(name) for name in names]
    return dict(zip(names, mass / mass.sum(), strict=True))


@pytest.mark.parametrize("prior", [True, False])
def test_the_probabilities_of_all_names_are_their_shares_and_sum_to_one(fitted, prior):
    (found,) = Predictor(fitted, prior=prior).predict(CONTEXT, k=len(fitted.vocab))
    assert len(found) == len(fitted.vocab)
    assert sum(p.probability for p in found) == pytest.approx(1, abs=1e-5)
    shares = true_shares(fitted, prior=prior)
    for p in found:
        assert p.probability == pytest.approx(shares[p.name], rel=1e-4)
        assert p.at_least == p.probability  # all is scored
    assert [p.probability for p in found] == sorted((p.probability for p in found), reverse=True)


@pytest.mark.parametrize("prior", [True, False])
@pytest.mark.parametrize("options", [{"beam": 1}, {"beam": 3}, {"beam": 20}, {"beam": 2, "exclude": ["ring 1 name 4"]}])
def test_a_search_cut_short_brackets_the_true_share(fitted, options, prior):
    (found,) = Predictor(fitted, prior=prior).predict(CONTEXT, k=50, max_rounds=1, **options)
    shares = true_shares(fitted, prior=prior, permitted=lambda name: name not in options.get("exclude", ()))
    assert found
    for p in found:
        assert p.at_least * (1 - 1e-4) <= shares[p.name] <= p.probability * (1 + 1e-4)
    # Not all was scored, so that neither end is the share itself.
    assert found[0].at_least < shares[found[0].name] < found[0].probability


def test_probabilities_are_shares_of_what_may_be_answered(fitted):
    allow = [f"ring {r} name 1" for r in range(6)]
    (found,) = Predictor(fitted).predict(CONTEXT, k=6, allow=allow)
    shares = true_shares(fitted, permitted=lambda name: name in allow)
    assert {p.name: p.probability for p in found} == pytest.approx({name: shares[name] for name in allow}, rel=1e-4)


def test_without_a_prior_the_temperature_is_the_number_of_hashes(fitted):
    bare = replace(fitted, prior=None)
    assert Predictor(bare).temperature == 2.0
    (found,) = Predictor(bare).predict(CONTEXT, k=10)
    expected = true_shares(replace(fitted, prior=replace(fitted.prior, temperature=2.0)), prior=False)
    assert [p.probability for p in found] == pytest.approx([expected[p.name] for p in found], rel=1e-4)


def test_counts_beyond_int32_stay_the_largest(ring_corpus, monkeypatch):
    """Wrapped, the most frequent id would be the rarest."""
    counts = np.array([2**32 + 1000, 3 * 10**9, 2**31 - 1, 5])
    monkeypatch.setattr(type(ring_corpus), "id_counts", lambda corpus, split: counts)
    assert training_counts(ring_corpus).tolist() == [2**31 - 1] * 3 + [5]
