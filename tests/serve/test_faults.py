"""When something fails, the answer says nothing about the machine, only the culprit fails, and metrics count it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from superbloom.predict import Predictor
from superbloom.predict.query import Query
from superbloom.serve.app import make_app
from superbloom.serve.guard import SECURITY_HEADERS
from tests.support import serving
from tests.support.asking import JSON, LIMITED, MISSPELT, ONE, Gate, asking, post
from tests.support.serving import live

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
        for name, value in SECURITY_HEADERS.items():
            assert answer.headers[name] == value
        assert "cache-control" in answer.headers
        assert "server" not in answer.headers
        for secret in ("Traceback", ".py", str(Path.cwd()), "RuntimeError", "broken"):
            assert secret not in answer.text
    for answer in answers[-2:]:
        assert answer.json() == {"error": "something went wrong here; the server's log has the details"}
    assert 'superbloom_requests_total{code="500",path="/v1/predict"} 1.0' in told
    assert 'superbloom_requests_total{code="413",path="/v1/predict"} 1.0' in told
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
        'superbloom_requests_total{code="200",path="/v1/predict"} 3.0',
        'superbloom_requests_total{code="422",path="/v1/predict"} 1.0',
        'superbloom_requests_total{code="404",path="/v1/names/{name:any}"} 1.0',
        'superbloom_request_duration_seconds_count{path="/v1/predict"} 4.0',
        "superbloom_batch_size_count 3.0",
        "superbloom_batch_duration_seconds_count 3.0",
        "superbloom_queue_length 0.0",
        "superbloom_requests_in_flight 1.0",
        "superbloom_reloads_total 0.0",
        'superbloom_certified_total{certified="true"} 3.0',
        'superbloom_certified_total{certified="false"} 0.0',
        'superbloom_fallback_total{reason="all_scored"} 3.0',
        'superbloom_fallback_total{reason="worker_ended"} 0.0',
        "superbloom_workers 1.0",
        "superbloom_worker_restarts_total 0.0",
    ):
        assert line in lines
    assert "made" not in answer.text
