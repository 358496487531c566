"""While a server loads, stops or has too much to do, it says so, and answers everyone else.

Clients that vanish are not computed (check 7).
"""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from superbloom.config.serving import Settings
from superbloom.serve import routes
from superbloom.serve import service as service_module
from superbloom.serve.app import make_app
from superbloom.serve.gather import BusyError
from superbloom.serve.service import Served
from tests.support import serving
from tests.support.asking import JSON, ONE, Gate, asking, gauges, get, post, same, until
from tests.support.serving import live


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
            client.post("/v1/similar", json={"names": [ONE]}),
        ):
            assert answer.status_code == 503
            assert answer.json() == {"error": "the model is being loaded; try again in a moment"}
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
        app.state.models.is_draining = True
        status, answer = post(f"{url}/v1/predict", {"context": [ONE]})
        assert (status, answer["error"]) == (503, "the server is stopping; use another, or try again in a moment")
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
        assert "too many requests are waiting; try again in a moment" in answer
        assert get(f"{url}/health")[0] == 200
        gate.open.set()
        assert [future.result()[0] for future in taken] == [200, 200, 200]
        until(lambda: gauges(url) == (0, 0))
        assert 'superbloom_requests_total{code="503",path="/v1/predict"} 1.0' in get(f"{url}/metrics")[1]


def test_what_takes_too_long_is_told():
    gate = Gate()
    with live(make_app(gate.predictor)) as url:
        gate.open.clear()
        status, answer = post(f"{url}/v1/predict", {"context": [ONE], "seconds": 0.05})
        assert (status, answer) == (503, {"error": "it took too long; try again in a moment"})
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

    monkeypatch.setattr(routes, "run_unless_gone", without_looking)
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

    monkeypatch.setattr(names.app.state.models.service.lookups, "submit", busy)
    answer = names.post("/v1/predict", json={"context": ["rign 1 name 2"]})
    assert answer.status_code == 422
    assert answer.json() == {"error": "'rign 1 name 2' is not among the 215 names", "closest": {"rign 1 name 2": []}}
    answer = names.get("/v1/names", params={"prefix": "r"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


def test_health_tells_of_a_batch_that_does_not_end(monkeypatch):
    gate = Gate()
    with live(make_app(gate.predictor)) as url, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(routes, "STUCK_AFTER_SECONDS", 0.02)
        assert get(f"{url}/health") == (200, '{"status":"ok"}')
        gate.open.clear()
        future = pool.submit(post, f"{url}/v1/predict", {"context": [ONE]})
        until(lambda: get(f"{url}/health") == (503, '{"status":"stuck"}'))
        gate.open.set()
        assert future.result()[0] == 200
        assert get(f"{url}/health") == (200, '{"status":"ok"}')
