"""Whatever fits the API's own description, or does not, gets an answer that the description allows."""

import http.client
import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import positive_data_acceptance

from superbloom.corpus.vocab import spellings
from superbloom.predict import Predictor
from superbloom.serve import schemas
from superbloom.serve.app import make_app
from superbloom.serve.errors import RefusedError
from tests.support import serving
from tests.support.cases import CASES
from tests.support.serving import live

pytestmark = pytest.mark.system

EXAMPLES = 100 if CASES <= 1000 else 500  # of each operation
# 503: it could not be done in the seconds given.
CONFIG = SchemathesisConfig.from_dict({"checks": {"not_a_server_error": {"expected-statuses": ["2xx", "4xx", "503"]}}})
SCHEMA = schemathesis.openapi.from_dict(make_app(serving.of_names()).openapi(), config=CONFIG)


@pytest.fixture(scope="module")
def names() -> Iterator[str]:
    with live(make_app(serving.of_names())) as url:
        yield url


@pytest.fixture(scope="module")
def text() -> Iterator[str]:
    with live(make_app(serving.of_text())) as url:
        yield url


class Tally:
    """Counts the answers of a test, and tells how many of each status there were so far."""

    def __init__(self, check: Any, of: str) -> None:
        self.check, self.of = check, of
        self.statuses: Counter[int] = Counter()

    def add(self, status: int) -> None:
        self.statuses[status] += 1
        told = ", ".join(f"{count} × {status}" for status, count in sorted(self.statuses.items()))
        self.check.node.user_properties.clear()  # subtle: after the last answer there is no more to be told
        self.check(8, f"{self.of}: {self.statuses.total():,} cases, all as described: {told}")


@pytest.fixture
def tally(check: Any, request: pytest.FixtureRequest) -> Tally:
    return Tally(check, request.node.name.partition("[")[2].rstrip("]") or request.node.name)


def parsed(content: bytes) -> Any:
    """JSON as every language reads it: without NaN."""
    return json.loads(content, parse_constant=pytest.fail)


def validate(case: schemathesis.Case, url: str) -> int:
    """The status of an answer: no error of the server, no status, content type or form that is not described.

    Random names are unknown, so what fits the description may be refused.
    """
    answer = case.call_and_validate(base_url=url, excluded_checks=[positive_data_acceptance], timeout=60)
    if answer.headers["content-type"] == ["application/json"]:
        parsed(answer.content)
    return answer.status_code


@SCHEMA.parametrize()
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
def test_every_answer_of_a_model_of_names_is_described(case, names, tally):
    tally.add(validate(case, names))


@SCHEMA.include(path="/v1/text").parametrize()
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
def test_every_answer_of_a_model_of_text_is_described(case, text, tally):
    tally.add(validate(case, text))


@settings(max_examples=EXAMPLES)
@given(case=SCHEMA["/v1/predict"]["POST"].as_strategy(), rng=st.randoms())
def test_what_fits_the_description_and_names_what_is_known_is_answered(names, case, rng):
    known = serving.of_names().model.vocab.names(range(200))
    for field in ("context", "exclude", "allow"):
        if case.body.get(field):
            case.body[field] = [None if name is None else rng.choice(known) for name in case.body[field][:7]]
    case.body["k"] = (
        int(case.body.get("k", 10)) % (25 if case.body.get("explain") else 1000) + 1
    )  # 8 masks, 200 answers
    if case.body.get("beam"):
        case.body["beam"] = int(case.body["beam"])  # 2.0 is a whole number to JSON, and not here
    case.body.pop("seconds", None)
    if case.body.get("allow") == []:
        case.body["allow"] = None
    answer = case.call_and_validate(base_url=names, timeout=60)
    assert answer.status_code == 200
    for mask in parsed(answer.content)["masks"]:
        assert ("why" in mask) == ("certificate" in mask) == case.body.get("explain", False)


CASE = SCHEMA["/v1/predict"]["POST"].Case(body={"context": ["a"]}, media_type="application/json")


def broken(answer: Any) -> str:
    """The address of a server whose model answers so; only this one query, so that it can warm itself."""
    predictor = Predictor(serving.of_names().model)
    original = predictor.answer
    predictor.answer = lambda queries: answer(original(queries)) if queries[0].ids[0] >= 0 else original(queries)
    return live(make_app(predictor))


def not_a_number(answers: Any) -> Any:
    """The first score of each mask is NaN."""
    return [
        [replace(m, predictions=[replace(m.predictions[0], score=math.nan), *m.predictions[1:]]) for m in masks]
        for masks in answers
    ]


def test_an_answer_that_is_not_described_is_noticed(monkeypatch, check):
    with broken(lambda answers: answers) as url:
        assert validate(CASE, url) == 200
    with broken(lambda _: 1 / 0) as url, pytest.raises(schemathesis.errors.FailureGroup, match="Server error"):
        validate(CASE, url)
    check.twin(8, "a model that fails", "a server error")

    def teapot(_: Any) -> Any:
        raise RefusedError(418, "short and stout")

    with broken(teapot) as url, pytest.raises(schemathesis.errors.FailureGroup, match="Undocumented status code"):
        validate(CASE, url)
    check.twin(8, "a model that refuses with 418", "a status that is not described")
    with broken(not_a_number) as url, pytest.raises(schemathesis.errors.FailureGroup, match="Server error"):
        validate(CASE, url)
    check.twin(8, "a model that scores NaN", "a server error, and no NaN in JSON")
    monkeypatch.setattr(schemas.Json, "render", lambda _, content: json.dumps(content).encode())
    with broken(not_a_number) as url:
        with pytest.raises(schemathesis.errors.FailureGroup, match='null is not of type "number"'):
            validate(CASE, url)
        with pytest.raises(pytest.fail.Exception, match="NaN"):
            ask(url, "POST", "/v1/predict", CASE.body)
    check.twin(8, "a model that scores NaN, and JSON that allows it", "NaN in JSON")


NAMES = st.one_of(
    st.text(st.characters(codec="utf-8")),
    st.text(st.characters()),  # lone surrogates, too
    st.text(st.characters(categories=["Cc", "Cf", "Zl", "Zp", "Zs", "Mn", "Co", "Cn"]), max_size=20),
    st.sampled_from([*serving.ODD, *serving.SHORT]),
    st.builds(lambda text, times: text * times, st.text(min_size=1, max_size=4), st.integers(100, 3000)),
    st.from_regex(r"https?://[a-z/]+(wiki/|index\.php\?title=).*", fullmatch=True),
)


def ask(url: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, {"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.headers["content-type"] == "application/json"
        return answer.status, parsed(answer.read())
    finally:
        connection.close()


@settings(max_examples=EXAMPLES)
@given(name=NAMES)
def test_whatever_a_name_is_it_gets_an_answer(names, name):
    vocab = serving.of_names().model.vocab
    known = any(spelling in vocab for spelling in spellings(name))
    quoted = quote(name, safe="", errors="surrogatepass")
    readable = quoted == quote(name, safe="", errors="replace")
    if len(quoted) < 32_000:  # addresses of 64 KB are refused before they are ours
        status, told = ask(names, "GET", f"/v1/names/{quoted}")
        if readable:
            assert status == (200 if known else 404)
            assert known or list(told["closest"]) == [name]
        assert status in (200, 404)
        status, told = ask(names, "GET", f"/v1/names?prefix={quoted}")
        if readable:
            assert status == (200 if len(name) <= 200 else 422)
            expected = vocab.starting_with(name) if status == 200 else []
            assert [one["name"] for one in told.get("names", [])] == expected
    status, told = ask(names, "POST", "/v1/predict", {"context": [name, None], "k": 2})
    assert status == (200 if known or name == "[MASK]" else 422)
    if status == 422:
        assert list(told["closest"]) == [name]
        assert "\n" not in told["error"]
    else:
        assert len(told["masks"][0]["predictions"]) == 2


@settings(max_examples=EXAMPLES)
@given(before=NAMES, after=NAMES)
def test_whatever_a_text_is_it_gets_an_answer(text, before, after):
    status, told = ask(text, "POST", "/v1/text", {"text": f"{before}[MASK]{after}", "k": 2})
    assert status in (200, 422)
    assert status == 200 or "\n" not in told["error"]
