"""The API over HTTP: what the predictor says, within limits, to those who may ask, whatever goes wrong."""

import asyncio
import hmac
import json
import socket
import threading
import time
import tracemalloc
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import pytest
import serving
from serving import changes, live, mixed
from starlette.testclient import TestClient

from superbloom import MASK
from superbloom.errors import InputError
from superbloom.explain import facts_of
from superbloom.predict import Predictor, Query
from superbloom.serve import app as app_module
from superbloom.serve import guard
from superbloom.serve import service as service_module
from superbloom.serve.app import make_app
from superbloom.serve.gather import BusyError
from superbloom.serve.guard import SECURITY, RefusedError
from superbloom.serve.service import Served, Service
from superbloom.serve.settings import Settings

ONE, TWO, MISSPELT = "ring 1 name 2", "ring 3 name 4", "ring 1 name 22"
JSON = {"content-type": "application/json"}


@contextmanager
def asking(model: Any = None, settings: Settings | None = None) -> Iterator[TestClient]:
    app = make_app(model or serving.of_names(), settings)
    with TestClient(app, base_url="http://localhost") as client:
        yield client


@pytest.fixture(scope="module")
def names() -> Iterator[TestClient]:
    with asking() as client:
        yield client


@pytest.fixture(scope="module")
def text() -> Iterator[TestClient]:
    with asking(serving.of_text()) as client:
        yield client


class Gate:
    """A predictor that answers when it is let, and tells what it was asked."""

    def __init__(self) -> None:
        self.predictor = Predictor(serving.of_names().model)
        self.open, self.asked = threading.Event(), []
        self.open.set()
        original = self.predictor.answer

        def answer(queries: list[Query]) -> Any:
            self.asked.append(list(queries))
            assert self.open.wait(30)
            return original(queries)

        self.predictor.answer = answer  # type: ignore[method-assign]


def until(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.002)


def same(answer: dict[str, Any], predictor: Predictor, query: Query) -> None:
    """An answer of the server is what the predictor finds."""
    (found,) = predictor.answer([query])
    assert len(answer["masks"]) == len(found)
    for mask, one in zip(answer["masks"], found, strict=True):
        assert mask["certified"] == one.certified
        assert mask["search"] == {
            "rounds": one.rounds,
            "scored": one.scored,
            "num_ids": len(predictor.model.target_vocab),
        }
        assert [p["name"] for p in mask["predictions"]] == [p.name for p in one.predictions]
        for part in ("score", "probability", "at_least"):
            told = [p[part] for p in mask["predictions"]]
            assert told == pytest.approx([getattr(p, part) for p in one.predictions], abs=1e-5)


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
        told = {"why": mask["why"], "certificate": mask["certificate"]}
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
    for name in ("ring 1 name 2", "a/b", "/", "", "what?", "日本", "two\nlines"):  # others: test_client.py
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


# What it refuses


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/predict", {"context": [MISSPELT, None]}),
        ("/v1/predict", {"context": [ONE], "exclude": [ONE, MISSPELT]}),
        ("/v1/predict", {"context": [ONE], "allow": [MISSPELT]}),
        ("/v1/predict/batch", {"queries": [{"context": [ONE]}, {"context": [MISSPELT]}]}),
        ("/v1/predict", {"context": [MISSPELT] + [ONE] * 4, "exclude": [ONE] * 100}),  # looked up in a thread
    ],
)
def test_unknown_names_are_told_with_the_closest(names, path, body):
    answer = names.post(path, json=body)
    assert answer.status_code == 422
    closest = answer.json()["closest"][MISSPELT]
    assert closest[0] == ONE
    line = f"'{MISSPELT}' is not among the 215 names; closest: " + ", ".join(map(repr, closest))
    assert answer.json()["error"] == line


def test_an_unknown_name_to_look_up_is_not_found(names):
    answer = names.get(f"/v1/names/{MISSPELT}")
    assert answer.status_code == 404
    assert answer.json()["closest"][MISSPELT][0] == ONE
    assert answer.json()["error"].startswith(f"'{MISSPELT}' is not among the 215 names; closest: '{ONE}'")


LIMITED = Settings(max_k=20, max_queries=3, max_filter=4, max_context=6, max_body=2000)


LIMITS: list[tuple[str, Callable[[int], Any], int, str]] = [
    ("/v1/predict", lambda n: {"context": [ONE], "k": n}, 20, "k=21 given; 1 to 20 is allowed"),
    ("/v1/predict", lambda n: {"context": ["a"] * n}, 6, "a context of 7 given; up to 6 is allowed"),
    (
        "/v1/predict",
        lambda n: {"context": [ONE], "exclude": [ONE] * 2, "allow": [TWO] * (n - 2)},
        4,
        "5 names in exclude and allow given; up to 4 are allowed",
    ),
    ("/v1/predict/batch", lambda n: {"queries": [{"context": [ONE]}] * n}, 3, "4 queries given; up to 3 are allowed"),
    ("/v1/predict/batch", lambda n: {"queries": [{"context": [ONE], "k": n}]}, 20, "k=21 given; 1 to 20 is allowed"),
]


def not_kept() -> list[str]:
    """What is refused at a limit or one below it, and what is not refused one above it, with a line that tells it."""
    wrong = []
    with asking(settings=LIMITED) as client:
        for path, of, limit, line in LIMITS:
            for n in (limit - 1, limit, limit + 1):
                answer = client.post(path, json=of(n))
                told = answer.json().get("error", "")
                if (answer.status_code, told[: len(line)]) != ((422, line) if n > limit else (200, "")):
                    wrong.append(f"{path}, {n} where {limit} is allowed: {answer.status_code} {told}".strip())
    return wrong


def test_limits_are_kept_and_told(monkeypatch, check):
    assert not_kept() == []
    check(9, f"{len(LIMITS)} limits at −1, 0, +1: answered, answered, refused with the limit in the line")
    original = Service.max_context.fget
    monkeypatch.setattr(Service, "max_context", property(lambda self: original(self) + 1))
    (wrong,) = not_kept()
    check.twin(9, "contexts may be one longer", wrong)


def test_what_the_model_reads_is_a_limit(names, text):
    assert names.post("/v1/predict", json={"context": ["a"] * 7 + [None]}).status_code == 200
    answer = names.post("/v1/predict", json={"context": ["a"] * 8})
    assert answer.status_code == 422
    assert answer.json()["error"] == "9 elements given; this model reads up to 8: shorten the context"
    assert text.post("/v1/text", json={"text": "jazz " * 13 + "[MASK]"}).status_code == 200
    answer = text.post("/v1/text", json={"text": "jazz " * 14 + "[MASK]"})
    assert answer.status_code == 422
    assert answer.json()["error"] == "17 elements given; this model reads up to 16: shorten the context"
    with asking(serving.of_text(), LIMITED) as client:
        assert client.post("/v1/text", json={"text": "jazz " * 5 + "[MASK]", "k": 1}).status_code == 200
        answer = client.post("/v1/text", json={"text": "jazz " * 6 + "[MASK]", "k": 1})
        assert (answer.status_code, answer.json()) == (422, {"error": "a text of 7 entries given; up to 6 are allowed"})


def padded(size: int) -> bytes:
    body = json.dumps({"context": [ONE], "k": 1}).encode()
    return body + b" " * (size - len(body))


def test_a_body_has_a_largest_size():
    line = "the body is larger than 2,000 bytes; send less at a time, or start the server with --max-body"
    with asking(settings=LIMITED) as client:
        for size, status in ((1999, 200), (2000, 200), (2001, 413)):
            assert client.post("/v1/predict", content=padded(size), headers=JSON).status_code == status
            chunks = iter([padded(size)[:1000], padded(size)[1000:]])
            answer = client.post("/v1/predict", content=chunks, headers=JSON)
            assert "content-length" not in answer.request.headers
            assert answer.status_code == status
        assert answer.json() == {"error": line}


def raw(app: Any, receive: Any, path: str = "/v1/predict", **headers: str) -> list[dict[str, Any]]:
    """What an application sends to a request whose body comes from `receive`."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def call() -> None:
        async with app.router.lifespan_context(app):
            given = [(b"host", b"localhost"), *((k.encode(), v.encode()) for k, v in headers.items())]
            scope = {"type": "http", "method": "POST", "path": path, "headers": given, "query_string": b""}
            await app(scope | {"http_version": "1.1", "scheme": "http", "root_path": ""}, receive, send)

    asyncio.run(asyncio.wait_for(call(), 30))
    return sent


def test_no_more_of_a_body_is_read_than_is_allowed():
    read = 0

    async def endless() -> dict[str, Any]:
        nonlocal read
        read += 1
        return {"type": "http.request", "body": b"x" * 1000, "more_body": True}

    sent = raw(make_app(serving.of_names(), LIMITED), endless)
    assert sent[0]["status"] == 413
    assert read == 3
    read = 0
    sent = raw(make_app(serving.of_names(), LIMITED), endless, **{"content-length": "2001"})
    assert (sent[0]["status"], read) == (413, 0)
    assert raw(make_app(serving.of_names(), LIMITED), endless, **{"content-length": "many"})[0]["status"] == 413


def test_a_body_in_tiny_parts_takes_no_more_memory_than_in_one():
    parts = 100_000

    async def receive() -> dict[str, Any]:
        nonlocal parts
        parts -= 1
        return {"type": "http.request", "body": b"%02d" % (parts % 100), "more_body": parts > 0}

    tracemalloc.start()
    body = asyncio.run(guard._read(receive, 2**20, RefusedError(413, "too large")))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(body) == 200_000
    assert most < 5 * len(body)


def test_a_body_that_does_not_come_is_not_waited_for():
    async def never() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    sent = raw(make_app(serving.of_names(), Settings(seconds=0.05)), never)
    assert sent[0]["status"] == 408
    assert json.loads(sent[1]["body"]) == {"error": "the body did not arrive within 0.05 seconds"}

    async def left() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    assert raw(make_app(serving.of_names()), left)[0]["status"] == 400


NOT_JSON = 'the body cannot be read as JSON; send an object like {"context": ["a name", null]}'
ALLOWED = "k, exact, beam, exclude, exclude_context, allow, min_score, explain, seconds, context"


@pytest.mark.parametrize(
    ("body", "status", "line"),
    [
        (b"", 422, "the body: field required"),
        (b"{", 400, NOT_JSON),
        (b"[" * 100_000, 400, NOT_JSON),
        (b'{"context":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, NOT_JSON),
        (b'{"context":["\xff"]}', 400, NOT_JSON),
        (b'{"context":["a"],"k":1' + b"0" * 5000 + b"}", 400, NOT_JSON),
        (b"[]", 422, "the body: [] given; input should be a valid dictionary or object to extract fields from"),
        (b"null", 422, "the body: None given; input should be a valid dictionary or object to extract fields from"),
        (b"{}", 422, "context: field required"),
        (b'{"context":"a"}', 422, "context: 'a' given; input should be a valid list"),
        (b'{"context":[1]}', 422, "context.0: 1 given; input should be a valid string"),
        (b'{"context":["\\ud800"]}', 422, "'\\ud800' is not among the 215 names"),
        (b'{"context":["\\u0000"]}', 422, "'\\x00' is not among the 215 names"),
        (b'{"context":["' + b"n" * 1_000_000 + b'"]}', 422, "'" + "n" * 200 + "'… is not among the 215 names"),
        (b'{"context":["a"],"k":true}', 422, "k: True given; input should be a valid integer"),
        (b'{"context":["a"],"k":"3"}', 422, "k: '3' given; input should be a valid integer"),
        (b'{"context":["a"],"k":0}', 422, "k: 0 given; input should be greater than or equal to 1"),
        (b'{"context":["a"],"k":NaN}', 422, "k: nan given; input should be a valid integer"),
        (b'{"context":["a"],"min_score":NaN}', 422, "min_score: nan given; input should be a finite number"),
        (b'{"context":["a"],"min_score":-Infinity}', 422, "min_score: -inf given; input should be a finite number"),
        (b'{"context":["a"],"min_score":1e999}', 422, "min_score: inf given; input should be a finite number"),
        (b'{"context":["a"],"min_score":1' + b"0" * 400 + b"}", 422, "min_score: 1"),
        (b'{"context":["a"],"seconds":0}', 422, "seconds: 0 given; input should be greater than 0"),
        (b'{"context":["a"],"beam":0}', 422, "beam: 0 given; input should be greater than or equal to 1"),
        (b'{"context":["a"],"allow":[]}', 422, "allow"),
        (b'{"context":["a"],"two\\nlines":1}', 422, "two\\nlines: extra inputs are not permitted"),
        (b'{"context":["a"],' + b",".join(b'"%d":1' % i for i in range(50_000)) + b"}", 422, f"the body: 50,001 fields given; allowed are {ALLOWED}"),  # noqa: E501
    ],
)  # fmt: skip
def test_a_body_that_cannot_be_used_is_told_in_one_line(names, body, status, line):
    answer = names.post("/v1/predict", content=body, headers=JSON)
    assert answer.status_code == status
    assert answer.json()["error"].startswith(line)
    assert "\n" not in answer.json()["error"]
    assert len(answer.json()["error"]) < 500


def test_of_a_body_with_many_faults_the_first_is_told(names, monkeypatch):
    """A fault costs more than the byte that makes it: half a million of them took seconds and half a gigabyte."""
    from fastapi.exceptions import RequestValidationError

    counts = []
    original = RequestValidationError.errors
    monkeypatch.setattr(
        RequestValidationError, "errors", lambda self: counts.append(len(original(self))) or original(self)
    )
    many = b"[" + b"1," * 100_000 + b"1]"
    for body in (
        b'{"context":' + many + b"}",
        b'{"context":["a"],"exclude":' + many + b"}",
        b'{"context":["a"],"allow":' + many + b"}",
    ):
        assert names.post("/v1/predict", content=body, headers=JSON).status_code == 422
    assert names.post("/v1/predict/batch", content=b'{"queries":' + many + b"}", headers=JSON).status_code == 422
    assert counts == [1, 1, 1, 1]


def test_a_body_that_is_not_said_to_be_json_is_told_so(names):
    body = json.dumps({"context": [ONE]}).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        answer = names.post("/v1/predict", content=body, headers={"content-type": kind})
        assert answer.status_code == 422
        assert answer.json() == {"error": "the body is not said to be JSON; send 'content-type: application/json'"}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/predict", 405),
        ("DELETE", "/v1/model", 405),
        ("POST", "/health", 405),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/%2e%2e/%2e%2e/app.py", 404),
        ("GET", "/docs", 404),
        ("GET", "/redoc", 404),
        ("GET", "/v1/names?k=0", 422),
        ("GET", "/v1/names?k=101", 422),
        ("GET", "/v1/names?k=x", 422),
        ("GET", "/v1/names?prefix=" + "x" * 201, 422),
        ("POST", "/v1/reload", 403),
    ],
)
def test_other_requests_are_refused_in_one_line(names, method, path, status):
    answer = names.request(method, path)
    assert answer.status_code == status
    assert set(answer.json()) == {"error"}
    assert "\n" not in answer.json()["error"]


def test_a_model_of_names_reads_no_text(names):
    answer = names.post("/v1/text", json={"text": "a [MASK]"})
    assert answer.status_code == 404
    assert answer.json() == {"error": "this model reads names, not text; ask /v1/predict"}


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ({"text": "no mask"}, "'no mask' has no [MASK]; put one where something is to be filled in"),
        ({"text": "a \ud800 [MASK]"}, "the text holds a lone surrogate at 2; give Unicode text"),
        ({"text": ""}, "'' has no [MASK]; put one where something is to be filled in"),
    ],
)
def test_a_text_that_cannot_be_read_is_told(text, body, line):
    answer = text.post("/v1/text", content=json.dumps(body).encode(), headers=JSON)
    assert (answer.status_code, answer.json()) == (422, {"error": line})


# Who may ask


@pytest.mark.parametrize(
    "path", ["/v1/model", "/v1/names", "/v1/report", f"/v1/names/{ONE}", "/metrics", "/openapi.json"]
)
def test_with_a_key_the_model_is_told_to_those_who_have_it(path, monkeypatch):
    compared = []
    monkeypatch.setattr(
        hmac, "compare_digest", lambda one, other: compared.append((one, other)) or one == other
    )  # constant time is its promise
    with asking(settings=Settings(api_key="secret-of-16-chars", host="0.0.0.0")) as client:
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "Bearer secret-of-16-chars2"},
            {"authorization": "Basic secret-of-16-chars"},
            {"authorization": "secret-of-16-chars"},
            {"authorization": "Bearer"},
            {"authorization": "Bearer \xe9"},
            {"x-api-key": "wrong"},
            {"x-api-key": ""},
            {"authorization": "Bearer wrong", "x-api-key": "secret-of-16-chars"},
        ):
            answer = client.get(path, headers={name: value.encode("latin-1") for name, value in headers.items()})
            assert answer.status_code == 401, headers
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json() == {"error": "an API key is needed: send it as 'Authorization: Bearer KEY'"}
        assert len(compared) == 10
        for headers in (
            {"authorization": "Bearer secret-of-16-chars"},
            {"authorization": "bearer secret-of-16-chars"},
            {"x-api-key": "secret-of-16-chars"},
            {"authorization": "Bearer secret-of-16-chars", "x-api-key": "wrong"},
        ):
            assert client.get(path, headers=headers | {"host": "any.example"}).status_code == 200
        assert all(b"secret-of-16-chars" in pair for pair in compared)


def test_with_a_key_predictions_need_it_before_their_body_is_read():
    read = []

    async def never() -> dict[str, Any]:
        read.append(1)
        raise AssertionError

    app = make_app(serving.of_names(), Settings(api_key="secret-of-16-chars"))
    for path in ("/v1/predict", "/v1/predict/batch", "/v1/text", "/v1/reload"):
        assert raw(app, never, path)[0]["status"] == 401
    assert not read
    with asking(settings=Settings(api_key="secret-of-16-chars")) as client:
        assert client.get("/health").status_code == client.get("/ready").status_code == 200
        answer = client.post("/v1/predict", json={"context": [ONE]}, headers={"x-api-key": "secret-of-16-chars"})
        assert answer.status_code == 200


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("localhost:8000", True),
        ("127.0.0.1:1", True),
        ("127.8.9.1", True),
        ("[::1]:8000", True),
        ("[::1]", True),
        ("LocalHost:8000", True),
        ("localhost.", True),
        ("localhost.:8000", True),
        ("[::1%evil]", False),
        ("::1%evil", False),
        ("localhost..", False),
        ("[::1", False),
        ("evil.example", False),
        ("evil.example:8000", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("10.0.0.1", False),
        ("[2001:db8::1]:80", False),
        ("localhost@evil.example", False),
        ("evil.example#localhost", False),
        ("", False),
        ("[", False),
    ],
)
def test_without_a_key_no_page_of_another_site_can_ask_through_a_browser(names, host, allowed):
    """DNS rebinding: the page's own name is made to point here."""
    for path in ("/v1/model", "/health", "/ready", "/metrics", "/openapi.json", "/"):
        answer = names.get(path, headers={"host": host})
        assert (answer.status_code != 421) == allowed
        if not allowed:
            assert answer.json()["error"].startswith("this server answers to localhost alone")


def test_what_a_browser_asks_for_another_site_is_not_answered(names):
    asked = {"sec-fetch-site": "cross-site", "origin": "https://example.org"}
    for path in ("/v1/model", "/v1/names/nobody"):
        answer = names.get(path, headers=asked)
        assert (answer.status_code, answer.json()["error"]) == (
            403,
            "pages of other sites may not ask this server; --cors ORIGIN allows one",
        )
    assert names.get("/", headers=asked).status_code == 200  # a link to the page may stand anywhere
    assert names.get("/v1/model", headers={"sec-fetch-site": "same-origin"}).status_code == 200
    with asking(settings=Settings(cors=("https://example.org",))) as client:
        assert client.get("/v1/model", headers=asked).status_code == 200


def test_pages_of_other_sites_may_not_ask_unless_told(names):
    asked = {"origin": "https://example.org"}
    assert not any(name.startswith("access-control") for name in names.get("/v1/model", headers=asked).headers)
    preflight = {**asked, "access-control-request-method": "POST", "access-control-request-headers": "x-api-key"}
    assert names.options("/v1/predict", headers=preflight).status_code in (404, 405)
    with asking(settings=Settings(cors=("https://example.org",), api_key="secret-of-16-chars")) as client:
        answer = client.get("/v1/model", headers=asked | {"x-api-key": "secret-of-16-chars"})
        assert answer.headers["access-control-allow-origin"] == "https://example.org"
        assert "access-control-allow-credentials" not in answer.headers
        assert client.options("/v1/predict", headers=preflight).status_code == 200
        other = client.get("/v1/model", headers={"origin": "https://evil.example", "x-api-key": "secret-of-16-chars"})
        assert "access-control-allow-origin" not in other.headers
        refused = client.get("/v1/model", headers=asked)  # what is refused can be read there, too
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, "https://example.org")


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"host": "0.0.0.0"}, "--host 0.0.0.0 lets other machines ask; give an --api-key"),
        ({"host": "::"}, "--host :: lets other machines ask"),
        ({"host": ""}, "--host  lets other machines ask"),
        ({"host": "192.168.1.5"}, "lets other machines ask"),
        ({"host": "example.org"}, "lets other machines ask"),
        ({"api_key": ""}, "the API key is empty"),
        ({"host": "0.0.0.0", "api_key": "x" * 15}, "an API key of 15 characters given; .* at least 16 are needed"),
        ({"api_key": "a\nb"}, "the API key holds what cannot be sent"),
        ({"api_key": "ключ"}, "the API key holds what cannot be sent"),
        ({"cors": ("*",)}, r"--cors \* given; an origin like https://example.org is allowed"),
        ({"cors": ("https://*.example.org",)}, "an origin like"),
        ({"cors": ("example.org",)}, "an origin like"),
        ({"cors": ("https://example.org/page",)}, "an origin like"),
        ({"max_k": 0}, "max_k=0 given; a number above 0 is allowed"),
        ({"seconds": float("nan")}, "seconds=nan given"),
        ({"seconds": float("inf")}, "seconds=inf given"),
        ({"queue": -1}, "queue=-1 given"),
    ],
)
def test_settings_that_are_not_safe_are_refused(settings, line):
    with pytest.raises(InputError, match=line):
        Settings(**settings)


def test_settings_listen_to_this_machine():
    assert Settings().host == "127.0.0.1"
    assert (Settings().api_key, Settings().cors) == (None, ())
    for host in ("localhost", "127.0.0.1", "127.1.2.3", "::1"):
        assert Settings(host=host).is_local
    assert not Settings(host="0.0.0.0", api_key="secret-of-16-chars").is_local


EVIL = {"host": "evil.example"}
ELSEWHERE = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
OF_THE_MODEL = ("/v1/model", "/v1/names", "/v1/report", "/metrics", "/openapi.json")


def unsafe(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a stranger could do with a server that is started as it is by default, or with a key."""
    found, compared = [], []
    for given in ({"host": "0.0.0.0"}, {"host": "::"}, {"host": "192.168.1.5"}, {"api_key": ""}, {"cors": ("*",)}):
        with suppress(InputError):
            Settings(**given)
            found.append(f"it starts with {given}")
    if not Settings().is_local:
        found.append("others can reach it by default")
    with asking() as client:
        answered = [path for path in OF_THE_MODEL if client.get(path, headers=EVIL).is_success]
        found += [f"{path} answers to another host" for path in answered]
        asked = client.get("/v1/model", headers=ELSEWHERE)
        if asked.is_success:
            found.append("a page of another site is answered")
        preflight = client.options("/v1/predict", headers=ELSEWHERE | {"access-control-request-method": "POST"})
        headers = [*asked.headers.items(), *preflight.headers.items()]
        found += [f"{name}: {value}" for name, value in headers if name.startswith("access-control")]
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda *both: compared.append(both) or compare(*both))
    with asking(settings=Settings(api_key="secret-of-16-chars", host="0.0.0.0")) as client:
        for path in OF_THE_MODEL:
            for key in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "secre"}):
                if client.get(path, headers=key).is_success:
                    found.append(f"{path} is told without the key")
        if len(compared) != 3 * len(OF_THE_MODEL):
            found.append("keys are not compared in constant time")
    monkeypatch.setattr(hmac, "compare_digest", compare)
    return found


def test_by_default_it_is_safe(monkeypatch, check):
    assert unsafe(monkeypatch) == []
    check(11, "loopback; no other host, site or origin, and nothing without the key, compared in constant time")


def compared_plainly(headers: Any, key: str) -> None:
    if headers.get("authorization") != f"Bearer {key}":
        raise RefusedError(401, "an API key is needed")


@pytest.mark.parametrize(
    ("what", "place", "name", "instead", "noticed"),
    [
        ("the Host is not looked at", guard, "_check_host", lambda _: None, 5),
        ("the site is not looked at", guard, "_check_site", lambda *_: None, 1),
        ("the key is not looked at", guard, "_check_key", lambda *_: None, 16),
        ("keys are compared by ==", guard, "_check_key", compared_plainly, 1),
        ("settings are not looked at", Settings, "__post_init__", lambda _: None, 5),
    ],
)
def test_what_is_not_safe_is_noticed(monkeypatch, check, what, place, name, instead, noticed):
    monkeypatch.setattr(place, name, instead)
    found = unsafe(monkeypatch)
    assert len(found) == noticed, found
    check.twin(11, what, f"{found[0]}" + (f" and {noticed - 1} more" if noticed > 1 else ""))


# Whatever goes wrong


def test_every_answer_is_guarded_and_none_tells_of_the_machine(caplog):
    """Also that of a defect of ours, which goes to the log."""
    gate = Gate()
    with asking(gate.predictor, LIMITED) as client:

        def broken(queries: Any) -> Any:
            raise RuntimeError(f"{Path(__file__)} is broken")

        client.app.state.models.service.gatherer._work = broken
        answers = [
            client.get("/"),
            client.get("/health"),
            client.get("/v1/model"),
            client.get("/openapi.json"),
            client.get("/metrics"),
            client.get("/nothing"),
            client.get("/health", headers={"host": "evil.example"}),
            client.delete("/v1/model"),
            client.get("/v1/names/nobody"),
            client.post("/v1/predict", content=b"{", headers=JSON),
            client.post("/v1/predict", content=b" " * 2001, headers=JSON),
            client.post("/v1/predict", json={"context": [MISSPELT]}),
            client.post("/v1/predict", json={"context": [ONE], "k": 1}),
            client.post("/v1/predict/batch", json={"queries": [{"context": [ONE], "k": 1}] * 2}),
        ]
        told = client.get("/metrics").text
    statuses = [answer.status_code for answer in answers]
    assert statuses[1:] == [200, 200, 200, 200, 404, 421, 405, 404, 400, 413, 422, 500, 500]
    for answer in answers:
        for name, value in SECURITY.items():
            assert answer.headers[name] == value
        assert "cache-control" in answer.headers
        assert "server" not in answer.headers
        for secret in ("Traceback", ".py", str(Path.cwd()), "RuntimeError", "broken"):
            assert secret not in answer.text
    for answer in answers[-2:]:
        assert answer.json() == {"error": "something went wrong here; the server's log tells what"}
    assert 'superbloom_requests_total{path="/v1/predict",status="500"} 1.0' in told
    assert 'superbloom_requests_total{path="/v1/predict",status="413"} 1.0' in told
    assert "is broken" in caplog.text


def test_a_culprit_among_neighbours_fails_alone():
    predictor = Predictor(serving.of_names().model)
    original = predictor.answer

    def answer(queries: list[Query]) -> Any:
        if any(query.k == 7 for query in queries):
            raise RuntimeError("seven")
        return original(queries)

    predictor.answer = answer  # type: ignore[method-assign]
    with live(make_app(predictor)) as url, ThreadPoolExecutor(16) as pool:
        bodies = [{"context": [ONE], "k": 7 if number == 9 else 3} for number in range(16)]
        found = list(pool.map(lambda body: post(f"{url}/v1/predict", body)[0], bodies))
    assert found == [500 if number == 9 else 200 for number in range(16)]


def post(url: str, body: Any, **headers: str) -> tuple[int, Any]:
    """Status and body of an answer, by the standard library."""
    request = urllib.request.Request(url, json.dumps(body).encode(), JSON | headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def gauges(url: str) -> tuple[float, float]:
    """Requests in flight, but for this one, and rows that wait."""
    lines = dict(line.rsplit(" ", 1) for line in get(f"{url}/metrics")[1].splitlines() if not line.startswith("#"))
    return float(lines["superbloom_requests_in_flight"]) - 1, float(lines["superbloom_waiting_rows"])


def test_while_a_model_is_loaded_it_says_so():
    may = threading.Event()

    def load() -> Served:
        assert may.wait(30)
        return Served(serving.of_names())

    with asking(load) as client:
        for answer in (
            client.get("/ready"),
            client.get("/v1/model"),
            client.get("/v1/names"),
            client.get(f"/v1/names/{ONE}"),
            client.post("/v1/predict", json={"context": [ONE]}),
            client.post("/v1/predict", content=b"{", headers=JSON),
        ):
            assert answer.status_code == 503
            assert answer.json() == {"error": "the model is being loaded; ask again in a moment"}
            assert answer.headers["retry-after"] == "1"
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/metrics").status_code == 200
        may.set()
        until(lambda: client.get("/ready").status_code == 200)
        assert client.get("/ready").json() == {"status": "ready"}
        assert client.post("/v1/predict", json={"context": [ONE]}).status_code == 200


def test_while_stopping_what_was_taken_is_answered_and_nothing_new_is_taken():
    gate = Gate()
    app = make_app(gate.predictor)
    with live(app) as url, ThreadPoolExecutor(8) as pool:
        gate.open.clear()
        before = [pool.submit(post, f"{url}/v1/predict", {"context": [ONE], "k": 1 + i}) for i in range(8)]
        until(lambda: gauges(url)[0] == 8)
        app.state.models.draining = True
        status, answer = post(f"{url}/v1/predict", {"context": [ONE]})
        assert (status, answer["error"]) == (503, "the server is stopping; ask another, or again in a moment")
        assert get(f"{url}/ready")[0] == 503
        assert get(f"{url}/health")[0] == 200
        gate.open.set()
        for k, future in enumerate(before, 1):
            status, answer = future.result()
            assert status == 200
            same(answer, serving.of_names(), serving.of_names().query([ONE], k=k))


def test_a_full_queue_is_told_before_the_body_is_read():
    gate = Gate()
    app = make_app(gate.predictor, Settings(queue=2, batch=1))
    with live(app) as url, ThreadPoolExecutor(3) as pool:
        gate.open.clear()
        taken = []
        for number in range(3):
            taken.append(pool.submit(post, f"{url}/v1/predict", {"context": [ONE], "k": 3}))
            until(lambda number=number: gauges(url) == (number + 1, number))
        with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1]))) as client:
            client.sendall(b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n")  # no body
            with client.makefile("rb") as reader:
                answer = b"".join(iter(lambda: reader.read(1), b"}")).decode()
        assert answer.startswith("HTTP/1.1 503")
        assert "\nretry-after: " in answer.lower()
        assert "too many requests are waiting; ask again in a moment" in answer
        assert get(f"{url}/health")[0] == 200
        gate.open.set()
        assert [future.result()[0] for future in taken] == [200, 200, 200]
        until(lambda: gauges(url) == (0, 0))
        assert 'superbloom_requests_total{path="/v1/predict",status="503"} 1.0' in get(f"{url}/metrics")[1]


def test_what_takes_too_long_is_told():
    gate = Gate()
    with live(make_app(gate.predictor)) as url:
        gate.open.clear()
        status, answer = post(f"{url}/v1/predict", {"context": [ONE], "seconds": 0.05})
        assert (status, answer) == (503, {"error": "it took too long; ask again in a moment"})
        gate.open.set()
        assert post(f"{url}/v1/predict", {"context": [ONE]})[0] == 200


def open_files() -> int:
    """Of this process, where Linux tells them."""
    return len([*Path("/proc/self/fd").iterdir()]) if Path("/proc/self/fd").is_dir() else 0


def vanished(number: int, patience: float = 30.0) -> tuple[int, tuple[float, float], int]:
    """Clients close their connections while they wait: for how many the model works all the same, and what is left.

    That is requests in flight, rows that wait, and open files.
    """
    gate = Gate()
    body = json.dumps({"context": [ONE], "k": 4}).encode()
    request = b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    request += b"content-length: %d\r\n\r\n" % len(body) + body
    with live(make_app(gate.predictor, Settings(queue=2 * number, seconds=60))) as url:
        gate.open.clear()
        gate.asked.clear()
        before = open_files()
        clients = []
        for _ in range(number):
            clients.append(socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1]))))
            clients[-1].sendall(request)
        until(lambda: gauges(url)[0] == number)
        for client in clients:
            client.close()
        with suppress(AssertionError):
            until(lambda: gauges(url) == (0, 0), patience)
        left = gauges(url)
        gate.open.set()
        assert post(f"{url}/v1/predict", {"context": [ONE], "k": 5})[0] == 200
        with suppress(AssertionError):
            until(lambda: open_files() <= before, patience)
        asked = [query.k for batch in gate.asked for query in batch]
        assert 5 in asked
        return asked.count(4), left, open_files() - before


def test_clients_that_vanish_are_not_computed(monkeypatch, check):
    reached, left, files = vanished(200)
    assert reached <= 10  # those of the batch that had begun
    assert (left, max(files, 0)) == ((0, 0), 0)
    check(7, f"{reached} of 200 clients that vanished reached the model; 0 requests and 0 files stay open")

    async def without_looking(_: Any, work: Any) -> Any:
        return await work

    monkeypatch.setattr(app_module, "_unless_gone", without_looking)
    reached, left, files = vanished(100, patience=0.5)
    assert reached > 5
    assert left != (0, 0)
    noticed = f"{reached} of 100 reached the model, {left[0]:.0f} requests stayed open"
    check.twin(7, "nobody looks whether a client has gone", noticed)


@pytest.mark.slow
def test_a_thousand_clients_that_vanish_are_not_computed(check):
    resource = pytest.importorskip("resource")
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 4096  # two for each client, and others
    if most != resource.RLIM_INFINITY and most < needed:
        pytest.skip(f"{most} files may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), most))
    reached, left, files = vanished(1000)
    assert reached <= 50
    assert (left, max(files, 0)) == ((0, 0), 0)
    check(7, f"{reached} of 1,000 clients that vanished reached the model; 0 requests and 0 files stay open")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [("/health", None, 200), ("/v1/names?prefix=r", None, 200), ("/v1/predict", {"context": 3}, 422)],
)
def test_while_a_batch_is_computed_other_answers_take_turns(monkeypatch, path, body, status):
    """A flood of them would keep the batch from Python's lock; the shortest time they can take is theirs to wait."""
    monkeypatch.setattr(service_module, "TURN_SECONDS", 0.1)
    monkeypatch.setattr(service_module, "MAX_TURN_SECONDS", 100)
    gate = Gate()

    def ask(_: int) -> int:
        return (get(url + path) if body is None else post(url + path, body))[0]

    def seconds_of_six() -> float:
        began = time.monotonic()
        assert list(several.map(ask, range(6))) == [status] * 6
        return time.monotonic() - began

    with live(make_app(gate.predictor)) as url, ThreadPoolExecutor(1) as one, ThreadPoolExecutor(6) as several:
        gate.open.clear()
        gate.asked.clear()  # what warmed it up
        future = one.submit(post, f"{url}/v1/predict", {"context": [ONE]})
        until(lambda: gate.asked)
        assert seconds_of_six() >= 0.6
        gate.open.set()
        assert future.result()[0] == 200
        assert min(seconds_of_six() for _ in range(5)) < 0.6


def test_no_answer_is_held_back_for_long(monkeypatch):
    monkeypatch.setattr(service_module, "TURN_SECONDS", 1000)
    gate = Gate()
    with live(make_app(gate.predictor)) as url, ThreadPoolExecutor(1) as one, ThreadPoolExecutor(6) as several:
        gate.open.clear()
        gate.asked.clear()
        future = one.submit(post, f"{url}/v1/predict", {"context": [ONE]})
        until(lambda: gate.asked)
        assert list(several.map(get, [f"{url}/health"] * 6)) == [(200, '{"status":"ok"}')] * 6
        gate.open.set()
        assert future.result()[0] == 200


def test_an_unknown_name_is_unknown_also_while_nobody_has_time_to_look_for_close_ones(names, monkeypatch):
    async def busy(*_: Any) -> None:
        raise BusyError("too many requests are waiting", 1)

    monkeypatch.setattr(names.app.state.models.service.lookups, "ask", busy)
    answer = names.post("/v1/predict", json={"context": ["rign 1 name 2"]})
    assert answer.status_code == 422
    assert answer.json() == {"error": "'rign 1 name 2' is not among the 215 names", "closest": {"rign 1 name 2": []}}
    answer = names.get("/v1/names", params={"prefix": "r"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


def test_health_tells_of_a_batch_that_does_not_end(monkeypatch):
    gate = Gate()
    with live(make_app(gate.predictor)) as url, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(app_module, "STUCK", 0.02)
        assert get(f"{url}/health") == (200, '{"status":"ok"}')
        gate.open.clear()
        future = pool.submit(post, f"{url}/v1/predict", {"context": [ONE]})
        until(lambda: get(f"{url}/health") == (503, '{"status":"stuck"}'))
        gate.open.set()
        assert future.result()[0] == 200
        assert get(f"{url}/health") == (200, '{"status":"ok"}')


def test_a_model_is_replaced_without_losing_a_request():
    """Old answers before, new ones after, nothing else in between."""
    number = 0

    def load() -> Served:
        nonlocal number
        number += 1
        return Served(serving.of_names(seed=number % 2), f"model {number}")

    expected = [[p.name for p in serving.of_names(seed).predict([ONE], k=3)[0]] for seed in (0, 1)]
    assert expected[0] != expected[1]
    app = make_app(load, Settings(api_key="secret"))
    with live(app) as url, ThreadPoolExecutor(6) as pool:
        until(lambda: get(f"{url}/ready")[0] == 200)
        stop = threading.Event()

        def client() -> list[str]:
            seen = []
            while not stop.is_set():
                status, answer = post(f"{url}/v1/predict", {"context": [ONE], "k": 3}, authorization="Bearer secret")
                assert status == 200
                seed = int(answer["model"].split()[1]) % 2
                assert [p["name"] for p in answer["masks"][0]["predictions"]] == expected[seed]
                seen.append(answer["model"])
            return seen

        clients = [pool.submit(client) for _ in range(6)]
        for _ in range(5):
            assert post(f"{url}/v1/reload", {}, authorization="Bearer secret") == (200, {"status": "reloaded"})
        stop.set()
        seen = [future.result() for future in clients]
        assert all(seen)
        assert post(f"{url}/v1/predict", {"context": [ONE]}, authorization="Bearer secret")[1]["model"] == "model 6"
        request = urllib.request.Request(f"{url}/metrics", headers={"x-api-key": "secret"})
        with urllib.request.urlopen(request) as told:
            assert "superbloom_reloads_total 5.0" in told.read().decode()
        until(lambda: not app.state.models._retiring)


def test_a_model_that_cannot_be_loaded_changes_nothing(caplog):
    wrong: list[Exception] = []
    may = threading.Event()
    may.set()

    def load() -> Served:
        assert may.wait(30)
        if wrong:
            raise wrong[0]
        return Served(serving.of_names(), "cities")

    key = {"x-api-key": "secret"}
    with asking(load, Settings(api_key="secret")) as client, ThreadPoolExecutor(1) as pool:
        until(lambda: client.get("/ready").status_code == 200)
        wrong.append(InputError("/home/me/model is damaged"))
        answer = client.post("/v1/reload", headers=key)
        assert answer.status_code == 409
        line = "the new model cannot be loaded, the server's log tells why; the old one stays"
        assert answer.json() == {"error": line}
        assert "/home/me/model is damaged" in caplog.text
        wrong[0] = RuntimeError("a defect")
        assert client.post("/v1/reload", headers=key).status_code == 500
        assert client.get("/v1/model", headers=key).json()["name"] == "cities"
        assert client.post("/v1/predict", json={"context": [ONE]}, headers=key).status_code == 200
        wrong.clear()
        may.clear()
        first = pool.submit(client.post, "/v1/reload", headers=key)
        until(lambda: client.app.state.models._loading)
        second = client.post("/v1/reload", headers=key)
        assert (second.status_code, second.json()["error"]) == (
            409,
            "a model is being loaded already; wait until it is",
        )
        may.set()
        assert first.result().status_code == 200


def test_metrics_count_what_happened():
    with asking() as client:
        for _ in range(3):
            client.post("/v1/predict", json={"context": [ONE]})
        client.post("/v1/predict", json={"context": [MISSPELT]})
        client.get("/v1/names/nobody")
        client.get("/made/up/by/a/client")
        answer = client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        lines = answer.text.splitlines()
    for line in (
        'superbloom_requests_total{path="/v1/predict",status="200"} 3.0',
        'superbloom_requests_total{path="/v1/predict",status="422"} 1.0',
        'superbloom_requests_total{path="/v1/names/{name:any}",status="404"} 1.0',
        'superbloom_request_seconds_count{path="/v1/predict"} 4.0',
        "superbloom_batch_rows_count 3.0",
        "superbloom_batch_seconds_count 3.0",
        "superbloom_waiting_rows 0.0",
        "superbloom_requests_in_flight 1.0",
        "superbloom_reloads_total 0.0",
    ):
        assert line in lines
    assert "made" not in answer.text


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
    assert "superbloom_batch_rows_sum 64.0" in lines
