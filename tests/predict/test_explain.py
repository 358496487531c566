"""Why an answer: its parts and shares by plain counting, and a proof that is checked for every id."""

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch

from superbloom import MASK
from superbloom.answers import Certificate, Found
from superbloom.config import QueryOptions
from superbloom.corpus.vocab import Vocab
from superbloom.errors import InputError, UnknownNameError
from superbloom.memory import Events, Memory, Pairs, Rows
from superbloom.predict import Predictor
from superbloom.predict.explain import BEST_SHOWN, MAX_MATES, SAMPLE_SHOWN, facts_of
from superbloom.predict.query import Query
from tests.support.serving import WEIGHTS, sure

NAMES, TAGS, WORDS = 3000, 400, 1200
CLOSE = 1e-3  # relative, of probabilities; absolute, of their logarithms


@cache
def predictor(m: int = 2, mask_as: str = "question", prior: bool = True, kind: str = "names", score: str = "posterior"):
    rng = np.random.default_rng(m)
    targets = None
    if kind == "text":
        singles = [f"w{number}" for number in range(WORDS - 200)]
        words = [*singles, *(f"{one} {two}" for one, two in zip(singles[:200], singles[200:400], strict=True))]
        kinds = np.array([2 if " " in word else 1 for word in words], dtype=np.int8)
        vocab, _ = Vocab.from_arrays(words, rng.integers(1, 500, WORDS), kinds, "lowercase")
    else:
        vocab, _ = Vocab.from_arrays([f"name {i}" for i in range(NAMES)], rng.integers(1, 500, NAMES))
    if kind == "targets":
        targets, _ = Vocab.from_arrays([f"tag {i}" for i in range(TAGS)], rng.integers(1, 500, TAGS))
    # So sure that few buckets are worth opening.
    options = {"num_hashes": m, "alpha": 1 if m == 1 else 4, "mask_as": mask_as, "score": score, "std": 0.6}
    return Predictor(sure(vocab, targets, seed=m, **options), prior=prior)


def ask(predictor: Predictor, query: Query) -> list[Found]:
    (found,) = predictor.answer([query])
    return found


@dataclass
class Everyone:
    """Log-probabilities at a mask (m, buckets); of each id, its buckets and shares (n, m), and its surplus (n,)."""

    log_probs: torch.Tensor
    buckets: torch.Tensor
    shares: torch.Tensor
    surplus: torch.Tensor

    @property
    def values(self) -> torch.Tensor:
        """What each hash adds to each probability, (n, m)."""
        return self.buckets * self.shares / self.shares.shape[1]

    @property
    def probability(self) -> torch.Tensor:
        return self.values.sum(dim=1)


def everyone(predictor: Predictor, query: Query, mask: int) -> Everyone:
    """The formula of search/posterior.py, bucket by bucket, in float64."""
    model, table = predictor.model, predictor.model.target_bloom.table.long()
    log_probs = model.log_probs(torch.tensor([query.ids]), torch.tensor([query.places]))[mask].double()
    parts = torch.stack([log_probs[j][table[:, j]] for j in range(table.shape[1])], dim=1)
    counts = torch.tensor([1.0 + model.target_vocab.count(id_) * predictor.prior for id_ in range(len(table))]).double()
    prior = counts / counts.sum()
    members = [[(table[:, j] == b).nonzero()[:, 0] for b in range(log_probs.shape[1])] for j in range(table.shape[1])]
    surplus = prior.log()
    for groups in members:
        for group in groups:
            surplus[group] -= prior[group].sum().log()
    weights, shares = surplus + parts.sum(dim=1), torch.zeros_like(parts)
    for j, groups in enumerate(members):
        for group in groups:
            shares[group, j] = weights[group].softmax(dim=0)
    found = Everyone(log_probs, parts.exp(), shares, surplus)
    assert found.probability.sum().item() == pytest.approx(1.0, abs=1e-5)
    return found


def check_why(predictor: Predictor, query: Query, mask: int, found: Found) -> None:
    """Every part of every answer by plain counting."""
    model, bloom, all_ = predictor.model, predictor.model.target_bloom, everyone(predictor, query, mask)
    first = 0 if model.vocab.kinds is None else 1
    assert len(found.explanation.why) == len(found.predictions)
    for prediction, why in zip(found.predictions, found.explanation.why, strict=True):
        id_ = model.target_vocab.id(prediction.name.replace("_", " "))
        products = [math.exp(token.log_prob) * token.share for token in why.tokens]
        assert sum(products) / len(products) == pytest.approx(prediction.probability, rel=CLOSE)
        assert prediction.probability == pytest.approx(all_.probability[id_].item(), rel=CLOSE)
        assert prediction.score == pytest.approx(math.log(prediction.probability), abs=CLOSE)
        assert why.prior == pytest.approx(all_.surplus[id_].item(), abs=CLOSE)
        assert [token.token for token in why.tokens] == bloom.digest(id_).tolist()
        assert [token.hash for token in why.tokens] == [*range(bloom.num_hashes)]
        for j, token in enumerate(why.tokens):
            assert token.bucket == int(bloom.table[id_, j])
            assert math.exp(token.log_prob) == pytest.approx(all_.buckets[id_, j].item(), rel=CLOSE)
            better, alike = ((all_.log_probs[j] > token.log_prob + gap).sum() for gap in (CLOSE, -CLOSE))
            assert better < token.rank <= alike
            members = (bloom.table[:, j] == token.bucket).nonzero()[:, 0].tolist()
            assert token.members == len(members)
            assert token.share == pytest.approx(all_.shares[id_, j].item(), rel=CLOSE)
            shares = {predictor.name(other): all_.shares[other, j].item() for other in members if other != id_}
            assert token.mate_shares == pytest.approx(sorted(shares.values(), reverse=True)[:MAX_MATES], rel=CLOSE)
            assert token.mate_shares == pytest.approx([shares.pop(mate) for mate in token.mates], rel=CLOSE)
        assert [part.place for part in why.depends_on] == [place - first for place in query.elements]
        assert [part.name for part in why.depends_on] == model.vocab.names(query.ids[p] for p in query.elements)


def check_dependence(predictor: Predictor, query: Query, mask: int, found: Found) -> None:
    """Each difference is what asking without the element, alone, gives."""
    everything = len(predictor.model.target_vocab)
    for number, place in enumerate(query.elements):
        ids = (*query.ids[:place], int(MASK), *query.ids[place + 1 :])
        hidden = Query(ids, QueryOptions(k=everything))
        answers = ask(predictor, hidden)[hidden.places.index(query.places[mask])].predictions
        scores = {prediction.name: prediction.score for prediction in answers}
        for prediction, why in zip(found.predictions, found.explanation.why, strict=True):
            difference = why.depends_on[number].difference
            assert difference == pytest.approx(prediction.score - scores[prediction.name], abs=CLOSE)


def check_certificate(predictor: Predictor, query: Query, mask: int, found: Found) -> Certificate:
    """The proof, for every id of the catalogue."""
    bloom, certificate = predictor.model.target_bloom, found.explanation.certificate
    all_ = everyone(predictor, query, mask)
    values, probability, m = all_.values, all_.probability, bloom.num_hashes
    names = [prediction.name for prediction in found.predictions]
    assert found.certified == (
        certificate.bound is None or (certificate.kth is not None and certificate.bound < certificate.kth)
    )
    if certificate.bound is None:
        assert certificate.edges is None
        unopened = torch.zeros(bloom.num_ids, dtype=torch.bool)
        is_open = ~unopened
        assert certificate.opened == [bloom.num_buckets] * m
    else:
        edges = torch.tensor(certificate.edges, dtype=torch.double)
        assert sum(certificate.edges) == pytest.approx(certificate.bound, rel=CLOSE)
        surely, perhaps = all_.buckets / m > edges * (1 + CLOSE), all_.buckets / m > edges * (1 - CLOSE)
        is_open = surely.any(dim=1)
        unopened = ~perhaps.any(dim=1)
        assert unopened.any()
        assert (values[~is_open] <= edges * (1 + CLOSE)).all()
        assert (probability[~is_open] <= certificate.bound * (1 + CLOSE)).all()
        for j, opened in enumerate(certificate.opened):
            table = bloom.table[:, j]
            least, most = (len(table[column[:, j]].unique()) for column in (surely, perhaps))
            assert least <= opened <= most
    barred = set() if query.allow is None else set(range(bloom.num_ids)) - set(query.allow)
    barred |= set(query.exclude)
    if certificate.kth is not None:
        assert certificate.kth == pytest.approx(
            found.predictions[-1].probability if len(names) == query.k else query.options.min_score, rel=CLOSE
        )
        if found.certified:
            answered = {predictor.model.target_vocab.id(name.replace("_", " ")) for name in names}
            others = [id_ for id_ in range(bloom.num_ids) if id_ not in answered | barred]
            assert (probability[others] <= certificate.kth * (1 + CLOSE)).all()
    else:
        assert len(names) < query.k
    assert certificate.num_buckets == bloom.num_buckets
    shown = [point.name for point in certificate.points]
    assert len(set(shown)) == len(shown)
    assert {point.name for point in certificate.points if point.answer} == set(names)
    ids = [predictor.model.target_vocab.id(name.replace("_", " ")) for name in shown]
    shown = torch.tensor([point.values for point in certificate.points], dtype=torch.double)
    assert torch.allclose(shown, values[ids], rtol=CLOSE, atol=0)
    assert torch.allclose(shown.sum(dim=1), probability[ids], rtol=CLOSE, atol=0)
    named = {prediction.name: prediction.probability for prediction in found.predictions}
    for point in certificate.points:
        if point.answer:
            assert sum(point.values) == pytest.approx(named[point.name], rel=CLOSE)
    assert [point.excluded for point in certificate.points] == [id_ in barred for id_ in ids]
    opened = torch.tensor([point.opened for point in certificate.points])
    assert (opened | ~is_open[ids]).all()
    assert not (opened & unopened[ids]).any()
    assert not any(point.answer and not point.opened for point in certificate.points)
    return certificate


def check(predictor: Predictor, query: Query) -> list[Certificate]:
    """All of it, for each mask; and the answers are those given without reasons."""
    found = ask(predictor, query)
    plain = ask(predictor, replace(query, options=replace(query.options, explain=False)))
    for one, other in zip(found, plain, strict=True):
        assert [p.name for p in one.predictions] == [p.name for p in other.predictions]
        assert [p.score for p in one.predictions] == pytest.approx([p.score for p in other.predictions], abs=1e-5)
        assert (one.certified, one.rounds, one.scored) == (other.certified, other.rounds, other.scored)
        assert other.explanation is None
    certificates = []
    for mask, one in enumerate(found):
        check_why(predictor, query, mask, one)
        check_dependence(predictor, query, mask, one)
        certificates.append(check_certificate(predictor, query, mask, one))
    return certificates


@pytest.mark.parametrize("prior", [True, False])
@pytest.mark.parametrize("mask_as", ["question", "element", "next"])
@pytest.mark.parametrize("m", [1, 2, 3])
def test_an_answer_is_explained_by_its_parts_and_proved(m, mask_as, prior):
    asked = predictor(m, mask_as, prior)
    (certificate,) = check(asked, asked.query(["name 3", "name 5", MASK, "name 8"], k=5, explain=True))
    assert certificate.bound is not None
    assert max(certificate.opened) < certificate.num_buckets


def test_the_points_are_the_answers_the_best_others_and_some_of_the_rest():
    asked = predictor()
    query = asked.query(["name 3", "name 5"], k=5, explain=True)
    (found,) = ask(asked, query)
    points, names = found.explanation.certificate.points, asked.model.target_vocab.names
    best = everyone(asked, query, 0).probability.argsort(descending=True).tolist()
    shown = {point.name: point for point in points}
    assert [p.name for p in found.predictions] == names(best[:5])
    opened = [name for name in names(best[5:]) if name not in shown or shown[name].opened]
    assert set(opened[:BEST_SHOWN]) <= shown.keys()
    others = [point for point in points if point.opened and not point.answer]
    unopened = [point for point in points if not point.opened]
    assert BEST_SHOWN + SAMPLE_SHOWN // 4 <= len(others) <= BEST_SHOWN + SAMPLE_SHOWN
    assert SAMPLE_SHOWN // 2 <= len(unopened) <= SAMPLE_SHOWN


def test_each_mask_has_its_own_reasons():
    asked = predictor(mask_as="element")
    one, two = check(asked, asked.query([MASK, "name 3", MASK, "name 3"], k=3, explain=True))
    assert one != two


def test_a_context_of_nothing_depends_on_nothing():
    asked = predictor()
    query = asked.query([], k=2, explain=True)
    check(asked, query)
    (found,) = ask(asked, query)
    assert [why.depends_on for why in found.explanation.why] == [[], []]


def test_filters_are_part_of_the_proof():
    asked = predictor()
    best = [prediction.name for prediction in asked.predict(["name 3"], k=40)[0]]
    probabilities = [prediction.probability for prediction in asked.predict(["name 3"], k=40)[0]]
    for options in (
        {"exclude": best[:3]},
        {"exclude": best, "k": 1},
        {"allow": best[5:20]},
        {"allow": best[5:20], "exclude": best[6:9]},
        {"min_score": 0.999 * probabilities[1]},
        {"min_score": probabilities[20]},
        {"min_score": 2 * probabilities[0]},
        {"min_score": 0.0, "allow": best[5:8]},
        {"min_score": -8.0, "allow": best[5:8]},
        {"allow": best[30:33], "exclude": best[30:33]},
        {"allow": best[:7], "k": 7},
        {"beam": 3},
    ):
        check(asked, asked.query(["name 3"], **{"k": 5} | options, explain=True))


def test_who_is_alone_in_an_answer_has_no_kth():
    asked = predictor()
    (certificate,) = check(asked, asked.query(["name 3"], k=5, allow=["name 1", "name 2"], explain=True))
    assert certificate.kth is None
    assert certificate.bound is None  # any name would do: all were scored


def test_all_names_of_a_catalogue_may_be_asked_for(monkeypatch):
    monkeypatch.setattr("superbloom.predict.reader.MAX_EXPLAINED", TAGS)
    asked = predictor(kind="targets")
    (certificate,) = check(asked, asked.query(["name 3"], k=TAGS, explain=True))
    assert certificate.bound is None
    assert sum(point.answer for point in certificate.points) == TAGS


def test_a_search_cut_short_has_no_proof():
    asked = predictor()
    (certificate,) = check(asked, asked.query(["name 3"], k=5, beam=1, max_rounds=1, explain=True))
    assert certificate.opened == [1, 1]
    assert certificate.kth is None or certificate.kth <= certificate.bound


@pytest.mark.parametrize("mask_as", ["question", "element"])
def test_what_is_predicted_may_be_another_catalogue(mask_as):
    asked = predictor(kind="targets", mask_as=mask_as)
    query = asked.query(["name 3", MASK, "name 8"], k=4, beam=2, exclude=["tag 7"], explain=True)
    check(asked, query)
    (found,) = ask(asked, query)
    assert all(mate.startswith("tag") for why in found.explanation.why for mate in why.tokens[0].mates)


@pytest.mark.parametrize("mask_as", ["question", "element", "next"])
def test_of_a_text_every_word_is_told(mask_as):
    asked = predictor(kind="text", mask_as=mask_as)
    query = asked.query("w1 w201 w7 [MASK] W9", k=3, explain=True)
    check(asked, query)
    (found,) = ask(asked, query)
    told = [(part.place, part.name) for part in found.explanation.why[0].depends_on]
    assert told == [(0, "w1 w201"), (1, "w7"), (3, "w9")]


def test_a_model_that_ranks_by_the_sum_has_reasons_but_no_certificate():
    asked = predictor(score="sum")
    query = asked.query(["name 3", "name 5"], k=5, explain=True)
    (found,) = ask(asked, query)
    assert found.explanation.certificate is None
    log_probs = asked.model.log_probs(torch.tensor([query.ids]), torch.tensor([query.places]))[0]
    for prediction, why in zip(found.predictions, found.explanation.why, strict=True):
        buckets = asked.model.target_bloom.buckets(asked.model.target_vocab.id(prediction.name)).tolist()
        by_sum = sum(log_probs[j, bucket].item() for j, bucket in enumerate(buckets))
        assert prediction.score == pytest.approx(by_sum, abs=CLOSE)
        products = [math.exp(token.log_prob) * token.share for token in why.tokens]
        assert sum(products) / len(products) == pytest.approx(prediction.probability, rel=CLOSE)


def test_facts_of_a_name():
    model = predictor().model
    facts = facts_of(model, "name 17")
    id_ = model.vocab.id("name 17")
    assert (facts.id, facts.count, facts.digest) == (id_, model.vocab.count(id_), model.bloom.digest(id_).tolist())
    for j, bucket in enumerate(facts.buckets):
        members = (model.bloom.table[:, j] == model.bloom.table[id_, j]).nonzero()[:, 0].tolist()
        assert (bucket.hash, bucket.bucket, bucket.members) == (j, int(model.bloom.table[id_, j]), len(members))
        assert bucket.token == facts.digest[j]
        assert bucket.mates == model.vocab.names(other for other in members if other != id_)
    assert facts_of(model, "name_17") == facts  # as the title it stands for
    assert facts_of(predictor(m=1).model, "name 17").buckets[0].mates == []
    with pytest.raises(UnknownNameError, match="'nobody' is not among the 3,000 names"):
        facts_of(model, "nobody")


def test_what_cannot_be_explained_is_told(monkeypatch):
    asked = predictor()
    monkeypatch.setattr("superbloom.predict.searcher.MAX_QUERIES_TOGETHER", 2)
    monkeypatch.setattr("superbloom.predict.reader.MIN_ROWS", 6)
    assert asked.query(["name 3", "name 5", MASK, MASK], explain=True).rows == 6
    with pytest.raises(
        InputError, match="2 masks and 3 elements to explain given; that takes 8 distributions, up to 6"
    ):
        asked.query(["name 3", "name 4", "name 5", MASK, MASK], explain=True)
    monkeypatch.setattr("superbloom.predict.reader.MAX_EXPLAINED", 20)
    assert asked.query(["name 3", MASK, MASK], 10, explain=True).k == 10
    with pytest.raises(InputError, match="k=11 for 2 masks given; up to 20 answers in all are explained"):
        asked.query(["name 3", MASK, MASK], 11, explain=True)
    with pytest.raises(InputError, match="combine='min' cannot be explained; only the posterior can"):
        asked.query(["name 3"], combine="min", explain=True)


# With a memory


def remembering(mask_as: str = "question", **options) -> Predictor:
    """A model with a memory of random rows of sixty names."""
    model = predictor(mask_as=mask_as).model
    rng = np.random.default_rng(1)
    known = [model.vocab.id(f"name {number}") for number in range(60)]
    rows = [rng.choice(known, size=rng.integers(3, 9)) for _ in range(300)]
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    events = Events(np.concatenate(rows).astype(np.int32), np.arange(len(rows)), starts, NAMES)
    memory = Memory(Pairs.count(events, 64), Rows.keep(events), WEIGHTS)
    return Predictor(replace(model, memory=memory), **options)


@pytest.mark.parametrize("mask_as", ["question", "element", "next"])
@pytest.mark.parametrize("context", [["name 3", "name 5", MASK, "name 8"], ["name 3", MASK, "name 3", MASK], [MASK]])
def test_the_parts_of_a_probability_add_up_to_it(mask_as, context):
    asked = remembering(mask_as)
    query = asked.query(context, k=8, explain=True)
    for mask, found in enumerate(ask(asked, query)):
        network = everyone(asked, query, mask).probability
        beliefs = asked.beliefs(torch.tensor([query.ids]), torch.tensor([query.places]))
        weight = beliefs.log_network[mask].exp().item()
        for prediction, why in zip(found.predictions, found.explanation.why, strict=True):
            assert next(iter(why.parts)) == "network"
            assert set(why.parts) <= set(WEIGHTS)
            assert sum(why.parts.values()) == pytest.approx(prediction.probability, rel=CLOSE)
            id_ = asked.model.vocab.id(prediction.name)
            mean = np.mean([math.exp(token.log_prob) * token.share for token in why.tokens])
            assert mean == pytest.approx(network[id_].item(), rel=CLOSE)
            assert why.parts["network"] == pytest.approx(weight * mean, rel=CLOSE, abs=1e-6)


@pytest.mark.parametrize("mask_as", ["question", "next"])
def test_answers_are_beside_the_elements_that_have_them_as_a_neighbour(mask_as):
    asked = remembering(mask_as)
    pairs = asked.model.memory.pairs
    query = asked.query(["name 3", "name 5", MASK, "name 3"], k=20, explain=True)
    (found,) = ask(asked, query)
    num_found = 0
    for prediction, why in zip(found.predictions, found.explanation.why, strict=True):
        expected = []
        for place in (0, 1) if mask_as == "next" else (0, 1, 3):  # what comes later is not seen
            kept = slice(*pairs.starts[query.ids[place] : query.ids[place] + 2])
            for id_, weight, after in zip(pairs.ids[kept], pairs.weights[kept], pairs.after[kept], strict=True):
                if asked.model.vocab.name(int(id_)) == prediction.name:
                    share = weight.astype(float) / pairs.weights[kept].astype(float).sum()
                    name = asked.model.vocab.name(query.ids[place])
                    expected.append((place, name, *(pytest.approx(v, rel=1e-3) for v in (weight, share, after / 255))))
        assert [(b.place, b.name, b.weight, b.share, b.follows) for b in why.beside] == expected
        num_found += len(expected)
    assert num_found > 5
    alone = remembering(mask_as, network_only=True)
    (found,) = ask(alone, alone.query(["name 3", MASK], explain=True))
    assert all(why.beside == [] and list(why.parts) == ["network"] for why in found.explanation.why)


@pytest.mark.parametrize("beam", [None, 2])
@pytest.mark.parametrize("k", [3, 100])
def test_the_proof_holds_for_every_id_with_a_memory(k, beam):
    """Names that the memory adds to are scored; the bound holds for all other names."""
    asked = remembering()
    query = asked.query(["name 3", "name 5", MASK], k=k, beam=beam, explain=True)
    (found,) = ask(asked, query)
    proof, ids = found.explanation.certificate, torch.arange(NAMES)
    beliefs = asked.beliefs(torch.tensor([query.ids]), torch.tensor([query.places]))
    probability = asked.log_probability(beliefs, ids[None])[0].double().exp()
    weight, network = beliefs.log_network[0].double().exp().item(), everyone(asked, query, 0)
    there = beliefs.remembered.ids[0] >= 0  # the rest is padding
    of_names = beliefs.remembered.ids[0][there], beliefs.remembered.share[0][there]
    memory = torch.zeros(NAMES, dtype=torch.double).scatter(0, *of_names)
    assert torch.allclose(weight * network.probability + memory, probability, rtol=CLOSE)
    for point in proof.points:
        id_ = asked.model.vocab.id(point.name)
        assert point.values == pytest.approx((weight * network.values[id_]).tolist(), rel=CLOSE)
        assert point.memory == pytest.approx(memory[id_].item(), rel=CLOSE)
        assert sum(point.values) + point.memory == pytest.approx(probability[id_].item(), rel=CLOSE)
    assert found.certified
    answered = torch.tensor([asked.model.vocab.id(prediction.name) for prediction in found.predictions])
    others = torch.ones(NAMES, dtype=torch.bool)
    others[answered] = False
    assert (probability[others] <= proof.kth * (1 + CLOSE)).all()
    if proof.bound is not None:
        assert sum(proof.edges) == pytest.approx(proof.bound, rel=CLOSE)
        edges = torch.tensor(proof.edges, dtype=torch.double)
        is_open = (weight * network.buckets / len(edges) > edges * (1 - CLOSE)).any(dim=1)
        assert (probability[~is_open & (memory == 0)] <= proof.bound * (1 + CLOSE)).all()
    assert {point.name for point in proof.points if point.answer} == {p.name for p in found.predictions}
