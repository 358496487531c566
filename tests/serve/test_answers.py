"""What the API answers: exactly what the predictor says, for names, batches and text.

A neighbour in the same batch never changes an answer (check 3).
"""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from random import Random
from typing import Any
from urllib.parse import quote

import pytest

from superbloom import MASK
from superbloom.config.serving import Settings
from superbloom.predict import Predictor, similar
from superbloom.predict.explain import facts_of
from superbloom.serve.app import make_app
from superbloom.serve.service import Served
from tests.support import serving
from tests.support.asking import ONE, TWO, asking, get, post, same, until
from tests.support.serving import changes, live, mixed

# What it answers


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ({"context": [ONE, None]}, {}),
        ({"context": [ONE]}, {}),
        ({"context": []}, {}),
        ({"context": [ONE, "[MASK]"], "k": 3}, {"k": 3}),
        ({"context": [None, ONE, None, TWO], "k": 2}, {"k": 2}),
        ({"context": [ONE], "k": 1000}, {"k": 1000}),
        ({"context": ["", "0"], "exclude": [ONE, "a/b"]}, {"exclude": [ONE, "a/b"]}),
        ({"context": [ONE], "allow": [TWO, ONE], "exclude": [ONE]}, {"allow": [TWO, ONE], "exclude": [ONE]}),
        ({"context": [ONE], "min_score": -8}, {"min_score": -8.0}),
        ({"context": [ONE], "min_score": 1e308}, {"min_score": 1e308}),
        ({"context": [ONE], "beam": 1, "k": 5}, {"beam": 1, "max_rounds": 1, "k": 5}),
        ({"context": [ONE], "beam": 2, "exact": True}, {"beam": 2}),
        ({"context": [ONE], "exact": False}, {"max_rounds": 1}),
        ({"context": [ONE], "beam": 10**30, "exact": True}, {}),
        ({"context": [ONE], "seconds": 1e300, "explain": False}, {}),
    ],
)
def test_an_answer_is_what_the_predictor_says(names, body, options):
    answer = names.post("/v1/predict", json=body)
    assert answer.status_code == 200, answer.text
    predictor = serving.of_names()
    context = [MASK if name is None else name for name in body["context"]]
    same(answer.json(), predictor, predictor.query(context, **options))
    read = [None if name in (None, "[MASK]") else name for name in body["context"]]
    assert answer.json()["context"] == (read if None in read else [*read, None])
    assert answer.json()["model"] == "model"
    assert "unread" not in answer.json()


def test_a_search_cut_short_says_so(names):
    answer = names.post("/v1/predict", json={"context": [ONE], "beam": 1, "k": 5}).json()
    assert not answer["masks"][0]["certified"]
    assert answer["masks"][0]["search"]["rounds"] == 1


def test_reasons_are_those_of_the_predictor(names):
    body = {"context": [ONE, None, TWO, None], "k": 3, "explain": True}
    answer = names.post("/v1/predict", json=body).json()
    predictor = serving.of_names()
    query = predictor.query([ONE, MASK, TWO, MASK], k=3, explain=True)
    same(answer, predictor, query)
    for mask, found in zip(answer["masks"], predictor.answer([query])[0], strict=True):
        told = {name: mask[name] for name in ("why", "certificate", "similar_rows")}
        assert told == json.loads(json.dumps(asdict(found.explanation)), parse_float=lambda text: close(float(text)))


def close(number: float) -> Any:
    return pytest.approx(number, abs=1e-4)


def test_a_batch_is_answered_one_by_one(names):
    predictor = serving.of_names()
    queries = [{"context": [f"ring {i % 24} name {i % 8}", None], "k": 1 + i % 3} for i in range(100)]
    answer = names.post("/v1/predict/batch", json={"queries": queries}).json()
    assert answer["model"] == "model"
    assert len(answer["answers"]) == 100
    for one, query in zip(answer["answers"], queries, strict=True):
        assert one["context"] == query["context"]
        same(one, predictor, predictor.query(query["context"][:1], k=query["k"]))


@pytest.mark.parametrize("model", [serving.of_names, serving.remembering])
@pytest.mark.parametrize(
    "body",
    [{"names": [ONE]}, {"names": [ONE, TWO, ONE], "k": 3}, {"names": ["a", ONE], "k": 20}, {"names": ["a/b"], "k": 2}],
)
def test_similar_names_are_those_of_the_predictor(model, body):
    with asking(model()) as client:
        answer = client.post("/v1/similar", json=body)
    assert answer.status_code == 200, answer.text
    (expected,) = similar(model(), [body["names"]], body.get("k", 10))
    assert (expected.source == "pairs") == (model is serving.remembering and ONE in body["names"])
    found = json.loads(answer.text, parse_float=lambda text: close(float(text)))
    assert found == {"model": "model", **asdict(expected)}


def test_similar_names_are_counted_and_described(names):
    names.post("/v1/similar", json={"names": [ONE], "k": 1, "seconds": 5})
    assert 'superbloom_requests_total{code="200",path="/v1/similar"}' in names.get("/metrics").text
    operation = names.get("/openapi.json").json()["paths"]["/v1/similar"]["post"]
    assert set(operation["responses"]) == {"200", "400", "401", "403", "408", "413", "421", "422", "503"}


@pytest.mark.parametrize(("settings", "explain"), [(Settings(queue=4), False), (Settings(queue=40), True)])
def test_a_batch_of_more_rows_than_may_wait_is_answered(settings, explain):
    query = {"context": [ONE, TWO, *["a"] * 5, None], "k": 1, "explain": explain}
    with asking(settings=settings) as client:
        answer = client.post("/v1/predict/batch", json={"queries": [query] * 40})
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["answers"]) == 40


def test_a_text_is_filled_in(text):
    predictor = serving.of_text()
    answer = text.post("/v1/text", json={"text": "Miles Davis plays [MASK1] qq [MASK2].", "k": 2}).json()
    with_masks = predictor.query("Miles Davis plays [MASK] qq [MASK].", k=2)
    same(answer, predictor, with_masks)
    assert answer["context"] == ["miles davis", "plays", None, None, "."]
    assert answer["unread"] == ["qq"]
    named = text.post("/v1/predict", json={"context": ["miles davis", None], "k": 3}).json()
    same(named, predictor, predictor.query(["miles davis", MASK], k=3))
    explained = text.post("/v1/text", json={"text": "davis plays [MASK]", "explain": True}).json()
    assert [part["name"] for part in explained["masks"][0]["why"][0]["depends_on"]] == ["davis", "plays"]


def test_texts_that_come_at_once_are_read_as_they_are_alone():
    """A segmenter learns as it reads: in several threads it used to learn wrong, for good."""
    words = ["miles davis", "jazz", "piano", "plays", "john", "john coltrane", "musicians", "pianos", "is", "qq"]
    texts = [" ".join(Random(number).sample(words, 5)) + " [MASK]" for number in range(80)]
    alone = Predictor(serving.sure(serving.text_vocab(), alpha=2, seq_len=16))
    expected = [[id_ for id_ in alone.query(text).ids if id_ >= 0] for text in texts]
    predictor = Predictor(serving.sure(serving.text_vocab(), alpha=2, seq_len=16))
    with live(make_app(predictor)) as url, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda text: post(f"{url}/v1/text", {"text": text, "k": 1})[1], texts))
    for answer, ids in zip(answers, expected, strict=True):
        assert answer["context"] == [*alone.model.vocab.names(ids), None]


def test_names_are_completed_and_told(names):
    vocab = serving.of_names().model.vocab
    for prefix, k in (("", 3), ("ring 1", 20), ("RING 2", 5), ("é", 10), ("zzz", 10), ("two\n", 1), ("\u202e", 100)):
        answer = names.get("/v1/names", params={"prefix": prefix, "k": k}).json()
        expected = vocab.starting_with(prefix, k)
        assert answer["names"] == [{"name": name, "count": vocab.count(vocab.id(name))} for name in expected]
    assert len(names.get("/v1/names").json()["names"]) == 10
    for name in ("ring 1 name 2", "a/b", "/", "", "what?", "日本", "two\nlines"):  # others: serve/test_client.py
        answer = names.get(f"/v1/names/{quote(name, safe='')}")
        assert answer.status_code == 200, answer.text
        assert answer.json() == asdict(facts_of(serving.of_names().model, name))


def test_the_model_is_told():
    history = [{"step": 5, "recall_at_10": 0.5}]
    measured = {"history": history, "test": {"rows": 3, "recall": float("nan")}}
    served = Served(serving.of_names(), "cities", {"steps": 7, "seconds": 1.5}, measured)
    with asking(lambda: served, Settings(max_k=50)) as client:
        until(lambda: client.get("/ready").status_code == 200)
        card = client.get("/v1/model").json()
        assert client.get("/v1/report").json() == {"history": history, "test": {"rows": 3, "recall": None}}
    config = serving.of_names().model.config
    assert (card["name"], card["reads"], card["steps"], card["trained_seconds"]) == ("cities", "names", 7, 1.5)
    assert (card["num_ids"], card["num_buckets"], card["seq_len"]) == (config.num_ids, config.num_buckets, 8)
    assert card["limits"] == {"k": 50, "context": 8, "queries": 256, "body_bytes": 2**20, "seconds": 10.0}
    for example in card["examples"]:
        assert all(name in serving.of_names().model.vocab for name in example)


def test_a_model_that_reads_one_element_can_be_asked():
    predictor = Predictor(serving.sure(serving.names_vocab(), seq_len=1))
    with asking(predictor) as client:
        assert len(client.post("/v1/predict", json={"context": [None], "k": 3}).json()["masks"][0]["predictions"]) == 3


# A neighbour never changes an answer (check 3)


def test_a_neighbour_never_changes_an_answer(monkeypatch, check):
    predictor = serving.of_names()
    queries = mixed(predictor, 1000)
    changed, most = changes(predictor, queries)
    assert changed == 0
    assert most <= 1e-5
    check(3, f"0 of {len(queries):,} answers of a small model change in batches of 64, scores by {most:.1e} at most")
    serving.read_padding_as_a_name(monkeypatch)
    changed, _ = changes(predictor, queries[:64])
    assert changed > 0
    check.twin(3, "padding is read as a name", f"{changed} masks of 64 queries change")


def test_answers_over_http_are_those_given_alone():
    predictor = serving.of_names()
    contexts = [[f"ring {i % 24} name {i % 8}", *["a"] * (i % 5)] for i in range(64)]
    expected = [predictor.answer([predictor.query(context, k=1 + i % 9)])[0][0] for i, context in enumerate(contexts)]
    with live(make_app(predictor)) as url, ThreadPoolExecutor(16) as pool:
        bodies = [{"context": context, "k": 1 + i % 9} for i, context in enumerate(contexts)]
        answers = list(pool.map(lambda body: post(f"{url}/v1/predict", body)[1], bodies))
        lines = get(f"{url}/metrics")[1].splitlines()
    for answer, found in zip(answers, expected, strict=True):
        told = answer["masks"][0]["predictions"]
        assert [p["name"] for p in told] == [p.name for p in found.predictions]
        assert [p["score"] for p in told] == pytest.approx([p.score for p in found.predictions], abs=1e-5)
    assert "superbloom_batch_size_sum 64.0" in lines
