"""What the API refuses, in one line: unknown names, bodies it cannot use, and more than its limits allow (check 9)."""

import asyncio
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from superbloom.config.serving import Settings
from superbloom.serve import guard
from superbloom.serve.app import make_app
from superbloom.serve.errors import RefusedError
from superbloom.serve.service import Service
from tests.support import serving
from tests.support.asking import JSON, LIMITED, MISSPELT, ONE, TWO, asking, raw

# What it refuses


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/predict", {"context": [MISSPELT, None]}),
        ("/v1/predict", {"context": [ONE], "exclude": [ONE, MISSPELT]}),
        ("/v1/predict", {"context": [ONE], "allow": [MISSPELT]}),
        ("/v1/predict/batch", {"queries": [{"context": [ONE]}, {"context": [MISSPELT]}]}),
        ("/v1/similar", {"names": [ONE, MISSPELT]}),
        ("/v1/predict", {"context": [MISSPELT] + [ONE] * 4, "exclude": [ONE] * 100}),  # looked up in a thread
    ],
)
def test_unknown_names_are_told_with_the_closest(names, path, body):
    answer = names.post(path, json=body)
    assert answer.status_code == 422
    closest = answer.json()["closest"][MISSPELT]
    assert closest[0] == ONE
    *others, last = map(repr, closest)
    line = f"'{MISSPELT}' is not among the 215 names; did you mean {', '.join(others)} or {last}?"
    assert answer.json()["error"] == line


def test_an_unknown_name_to_look_up_is_not_found(names):
    answer = names.get(f"/v1/names/{MISSPELT}")
    assert answer.status_code == 404
    assert answer.json()["closest"][MISSPELT][0] == ONE
    assert answer.json()["error"].startswith(f"'{MISSPELT}' is not among the 215 names; did you mean '{ONE}'")


LIMITS: list[tuple[str, Callable[[int], Any], int, str]] = [
    ("/v1/predict", lambda n: {"context": [ONE], "k": n}, 20, "k=21 given; 1 to 20 is allowed"),
    ("/v1/predict", lambda n: {"context": ["a"] * n}, 6, "a context of 7 given; up to 6 is allowed"),
    (
        "/v1/predict",
        lambda n: {"context": [ONE], "exclude": [ONE] * 2, "allow": [TWO] * (n - 2)},
        4,
        "5 names in exclude and allow given; up to 4 are allowed",
    ),
    ("/v1/similar", lambda n: {"names": [ONE], "k": n}, 20, "k=21 given; 1 to 20 is allowed"),
    ("/v1/similar", lambda n: {"names": [ONE] * n}, 6, "7 names given; up to 6 are allowed"),
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
    wrong, _ = not_kept()  # contexts, and names to find similar ones of
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
    body = asyncio.run(guard._read_body(receive, 2**20, RefusedError(413, "too large")))
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
ALLOWED = "seconds, exact, beam, k, exclude, exclude_context, allow, min_score, explain, context"


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
        assert answer.json() == {"error": "the body is not declared as JSON; send 'content-type: application/json'"}


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
    assert answer.json() == {"error": "this model reads names, not text; use /v1/predict"}


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
