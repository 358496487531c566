"""Ask an application, in this process or over a socket, and compare its answers with the predictor's."""

import asyncio
import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.testclient import TestClient

from superbloom.config.serving import Settings
from superbloom.predict import Predictor
from superbloom.predict.query import Query
from superbloom.serve.app import make_app
from tests.support import serving

ONE, TWO, MISSPELT = "ring 1 name 2", "ring 3 name 4", "ring 1 name 22"
JSON = {"content-type": "application/json"}


@contextmanager
def asking(model: Any = None, settings: Settings | None = None) -> Iterator[TestClient]:
    app = make_app(model or serving.of_names(), settings)
    with TestClient(app, base_url="http://localhost") as client:
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
        for part in ("score", "probability"):
            told = [p[part] for p in mask["predictions"]]
            assert told == pytest.approx([getattr(p, part) for p in one.predictions], abs=1e-5)


LIMITED = Settings(max_k=20, max_queries=3, max_filter=4, max_context=6, max_body=2000)


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
    return float(lines["superbloom_requests_in_flight"]) - 1, float(lines["superbloom_queue_length"])
