"""Why an answer: parts that add up, ranks and mates by plain counting, and a proof that is checked for every id."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from superbloom import MASK
from superbloom.answers import Certificate, Found
from superbloom.config import QueryOptions
from superbloom.corpus.vocab import Vocab
from superbloom.errors import InputError, UnknownNameError
from superbloom.predict import Predictor
from superbloom.predict.explain import BEST_SHOWN, MAX_MATES, SAMPLE_SHOWN, facts_of
from superbloom.predict.query import Query
from tests.support.serving import sure

NAMES, TAGS, WORDS = 3000, 400, 1200
CLOSE = 1e-4


@cache
def predictor(m: int = 2, mask_as: str = "question", weight: float = 0.5, kind: str = "names") -> Predictor:
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
    options = {"num_hashes": m, "alpha": 1 if m == 1 else 4, "mask_as": mask_as, "std": 0.6}
    return Predictor(sure(vocab, targets, weight, seed=m, **options))


def ask(predictor: Predictor, query: Query) -> list[Found]:
    (found,) = predictor.answer([query])
    return found


def everyone(predictor: Predictor, query: Query, mask: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of all ids of the catalogue at a mask: token log-probabilities (n, m), what their buckets promise, and scores."""
    model, bonus = predictor.model, predictor.bonus
    log_probs = model.log_probs(torch.tensor([query.ids]), torch.tensor([query.places]))[mask]
    bloom = model.target_bloom
    parts = torch.stack([log_probs[j][bloom.table[:, j].long()] for j in range(bloom.num_hashes)], dim=1)
    if bonus is None:
        return parts, parts, parts.sum(dim=1)
    most = torch.stack([bonus.of_bucket[j][bloom.table[:, j].long()] for j in range(bloom.num_hashes)], dim=1)
    return parts, parts + most, parts.sum(dim=1) + bonus.of_id


def check_why(predictor: Predictor, query: Query, mask: int, found: Found) -> None:
    """Every part of every answer by plain counting."""
    model, bloom = predictor.model, predictor.model.target_bloom
    log_probs = model.log_probs(torch.tensor([query.ids]), torch.tensor([query.places]))[mask]
    first = 0 if model.vocab.kinds is None else 1
    assert len(found.explanation.why) == len(found.predictions)
    for prediction, why in zip(found.predictions, found.explanation.why, strict=True):
        id_ = model.target_vocab.id(prediction.name.replace("_", " "))
        assert sum(token.log_prob for token in why.tokens) + why.prior == pytest.approx(prediction.score, abs=CLOSE)
        assert why.prior == (0.0 if predictor.bonus is None else predictor.bonus.of_id[id_].item())
        assert [token.token for token in why.tokens] == bloom.digest(id_).tolist()
        assert [token.hash for token in why.tokens] == [*range(bloom.num_hashes)]
        for j, token in enumerate(why.tokens):
            bucket = int(bloom.table[id_, j])
            assert token.bucket == bucket
            assert token.log_prob == pytest.approx(log_probs[j, bucket].item(), abs=CLOSE)
            there = sorted(log_probs[j].tolist(), reverse=True)
            assert abs(there[token.rank - 1] - token.log_prob) < CLOSE
            members = (bloom.table[:, j] == bucket).nonzero()[:, 0].tolist()
            assert token.members == len(members)
            assert token.mates == [predictor.name(other) for other in members if other != id_][:MAX_MATES]
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
    parts, upper, scores = everyone(predictor, query, mask)
    values = parts if predictor.bonus is None else parts + predictor.bonus.of_id[:, None] / bloom.num_hashes
    names = [prediction.name for prediction in found.predictions]
    assert found.certified == (
        certificate.bound is None or (certificate.kth is not None and certificate.bound < certificate.kth)
    )
    if certificate.bound is None:
        assert certificate.edges is None
        unopened = torch.zeros(bloom.num_ids, dtype=torch.bool)
        is_open = ~unopened
        assert certificate.opened == [bloom.num_buckets] * bloom.num_hashes
    else:
        edges = torch.tensor(certificate.edges)
        surely, perhaps = upper > edges + CLOSE, upper > edges - CLOSE
        is_open = surely.any(dim=1)
        unopened = ~perhaps.any(dim=1)
        assert unopened.any()
        assert (values[~is_open] <= edges + CLOSE).all()
        assert (scores[~is_open] <= certificate.bound + CLOSE).all()
        for j, opened in enumerate(certificate.opened):
            table = bloom.table[:, j]
            least, most = (len(table[column[:, j]].unique()) for column in (surely, perhaps))
            assert least <= opened <= most
    barred = set() if query.allow is None else set(range(bloom.num_ids)) - set(query.allow)
    barred |= set(query.exclude)
    if certificate.kth is not None:
        assert certificate.kth == pytest.approx(
            found.predictions[-1].score if len(names) == query.k else query.options.min_score, abs=CLOSE
        )
        if found.certified:
            answered = {predictor.model.target_vocab.id(name.replace("_", " ")) for name in names}
            others = [id_ for id_ in range(bloom.num_ids) if id_ not in answered | barred]
            assert (scores[others] <= certificate.kth + CLOSE).all()
    else:
        assert len(names) < query.k
    assert certificate.num_buckets == bloom.num_buckets
    shown = [point.name for point in certificate.points]
    assert len(set(shown)) == len(shown)
    assert {point.name for point in certificate.points if point.answer} == set(names)
    ids = [predictor.model.target_vocab.id(name.replace("_", " ")) for name in shown]
    told = torch.tensor([point.values for point in certificate.points])
    assert torch.allclose(told, values[ids], atol=CLOSE)
    assert torch.allclose(told.sum(dim=1), scores[ids], atol=CLOSE)
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


@pytest.mark.parametrize("weight", [0.5, 0.0])
@pytest.mark.parametrize("mask_as", ["question", "element", "next"])
@pytest.mark.parametrize("m", [1, 2, 3])
def test_an_answer_is_told_by_its_parts_and_proved(m, mask_as, weight):
    asked = predictor(m, mask_as, weight)
    (certificate,) = check(asked, asked.query(["name 3", "name 5", MASK, "name 8"], k=5, explain=True))
    assert certificate.bound is not None
    assert max(certificate.opened) < certificate.num_buckets


def test_the_points_are_the_answers_the_best_others_and_some_of_the_rest():
    asked = predictor()
    query = asked.query(["name 3", "name 5"], k=5, explain=True)
    (found,) = ask(asked, query)
    points, names = found.explanation.certificate.points, asked.model.target_vocab.names
    _, _, scores = everyone(asked, query, 0)
    best = scores.argsort(descending=True).tolist()
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
    scores = [prediction.score for prediction in asked.predict(["name 3"], k=40)[0]]
    for options in (
        {"exclude": best[:3]},
        {"exclude": best, "k": 1},
        {"allow": best[5:20]},
        {"allow": best[5:20], "exclude": best[6:9]},
        {"min_score": scores[1] - 1e-3},
        {"min_score": scores[20]},
        {"min_score": scores[0] + 1},
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
    with pytest.raises(InputError, match="combine='min' cannot be explained; only the sum, in which parts add up, can"):
        asked.query(["name 3"], combine="min", explain=True)
