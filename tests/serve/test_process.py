"""A server process is ready once its model is loaded (check 5); when it stops, all it took is answered (check 6)."""

import http.client
import signal
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import pytest

from superbloom.serve.server import _Server
from superbloom.serve.service import Models
from tests.support import serving
from tests.support.servers import HOLD, MANY, ONE, free_port, held, in_flight, refused, request, serve, until

pytestmark = pytest.mark.system


def test_it_is_ready_once_its_model_is_loaded(model, tmp_path):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    (tmp_path / HOLD).touch()
    with serve(tmp_path, model, "--port", port, before=held) as server:
        until(lambda: not refused(url))
        assert request(f"{url}/ready") == (503, {"error": "the model is being loaded; try again in a moment"})
        assert request(f"{url}/health") == (200, {"status": "ok"})
        assert request(f"{url}/v1/predict", {"context": [ONE]})[0] == 503
        assert server.printed.splitlines() == ["loading model …"]
        (tmp_path / HOLD).unlink()
        assert server.ready() == url
        assert request(f"{url}/ready") == (200, {"status": "ready"})
        assert request(f"{url}/v1/predict", {"context": [ONE]})[0] == 200
        server.signal(signal.SIGINT)
        assert server.ended() == 0
        assert len(server.printed.splitlines()) == 2


def early() -> None:
    """In the process of a server: it says that it is ready whatever it is at."""
    held()
    Models.check_ready = lambda _: None  # type: ignore[method-assign]


def readiness(model: Path, folder: Path, before: Callable[[], None] = held) -> list[int]:
    """What /ready says while the model is loaded, then, and after SIGTERM with a request in flight.

    0 if nobody answers any more.
    """
    url = f"http://127.0.0.1:{free_port()}"
    (folder / HOLD).touch()
    with (
        serve(folder, model, "--port", url.rsplit(":", 1)[1], before=before) as server,
        ThreadPoolExecutor(1) as pool,
        closing(http.client.HTTPConnection(url.removeprefix("http://"))) as other,
    ):
        until(lambda: not refused(url))
        said = [request(f"{url}/ready")[0]]
        (folder / HOLD).unlink()
        server.ready()
        (folder / HOLD).touch()
        taken = pool.submit(request, f"{url}/v1/predict", {"context": [ONE]})
        until(lambda: in_flight(url) == 1)
        for number in (0, signal.SIGTERM):
            if number:
                server.signal(number)
            try:
                other.request("GET", "/ready")
                answer = other.getresponse()
                answer.read()
                said.append(answer.status)
            except (http.client.HTTPException, OSError):
                said.append(0)
        (folder / HOLD).unlink()
        assert taken.result()[0] == 200
        assert server.ended() == 0
    return said


def test_ready_is_said_when_it_is(model, tmp_path, check):
    loading, loaded, stopping = readiness(model, tmp_path)
    assert (loading, loaded) == (503, 200)
    assert stopping in (503, 0)
    check(5, f"/ready says {loading} while loading, {loaded} then, {stopping or 'nothing'} from SIGTERM on")


def test_ready_that_is_said_too_early_is_noticed(model, tmp_path, check):
    loading, *_ = readiness(model, tmp_path, before=early)
    assert loading == 200
    check.twin(5, "whether there is a model is not asked", f"/ready says {loading} while loading")


def hasty() -> None:
    """In the process of a server: it does not wait for what it took."""
    held()
    original = _Server.handle_exit

    def handle_exit(self: _Server, number: int, frame: Any) -> None:
        original(self, number, frame)
        self.force_exit = True

    _Server.handle_exit = handle_exit  # type: ignore[method-assign]


def drained(
    model: Path, folder: Path, number: int = 32, before: Callable[[], None] = held, workers: int = 1
) -> tuple[int, int, float, str]:
    """SIGTERM with so many requests in flight, after which no other is taken.

    How many of them get the right answer, the exit code, the seconds from when they can be answered to the end, and
    what was printed.
    """
    contexts = [[f"ring {i % 24} name {i % 8}", *["a"] * (i % 4)] for i in range(number)]
    predictor = serving.of_names()

    def right(taken: Future[tuple[int, Any]], context: list[str]) -> bool:
        try:
            status, answer = taken.result()
        except (http.client.HTTPException, OSError):
            return False
        told = answer["masks"][0]["predictions"] if status == 200 else []
        expected = predictor.predict(context, 3)[0]
        close = pytest.approx([p.score for p in expected], abs=1e-5)
        return [p["name"] for p in told] == [p.name for p in expected] and [p["score"] for p in told] == close

    options = ("--port", 0, "--workers", workers)
    with serve(folder, model, *options, before=before) as server, ThreadPoolExecutor(number) as pool:
        url = server.ready()
        (folder / HOLD).touch()
        taken = [pool.submit(request, f"{url}/v1/predict", {"context": context, "k": 3}) for context in contexts]
        until(lambda: in_flight(url) == number)
        server.signal(signal.SIGTERM)
        until(lambda: refused(url))
        time.sleep(0.2)  # in which a server that does not wait would go
        (folder / HOLD).unlink()
        began = time.monotonic()
        answered = sum(right(future, context) for future, context in zip(taken, contexts, strict=True))
        return answered, server.ended(), time.monotonic() - began, server.printed


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_in_flight_when_it_is_told_to_stop_is_answered(model, tmp_path, check, workers):
    answered, code, seconds, printed = drained(model, tmp_path, workers=workers)
    assert (answered, code) == (32, 0)
    assert len(printed.splitlines()) == 2, printed
    check(
        6,
        f"{answered} of 32 in flight answered after SIGTERM by {workers} worker{'s' * (workers > 1)}, "
        f"exit {code} after {seconds:.1f} s",
    )


def test_a_server_that_does_not_wait_for_what_it_took_is_noticed(model, tmp_path, check):
    answered, code, _, _ = drained(model, tmp_path, before=hasty)
    assert answered < 32
    check.twin(6, "what was taken is not waited for", f"{answered} of 32 answered, exit {code}")


@pytest.mark.slow
def test_what_is_in_flight_is_answered_twenty_times(model, tmp_path, check):
    rounds = []
    for number in range(20):
        (tmp_path / str(number)).mkdir()
        rounds.append(drained(model, tmp_path / str(number)))
    answered, codes, seconds, _ = zip(*rounds, strict=True)
    assert sum(answered) == 640
    assert set(codes) == {0}
    assert max(seconds) <= 10
    check(6, f"{sum(answered)} of 640 in flight answered after 20 SIGTERMs, exit 0 after {max(seconds):.1f} s at most")


def test_between_the_signal_and_the_end_nothing_new_is_taken(model, tmp_path):
    """A connection that is there already may still ask: it is refused, and what it asked before is answered."""
    with serve(tmp_path, model, "--port", 0, before=held) as server, ThreadPoolExecutor(1) as pool:
        url = server.ready()
        (tmp_path / HOLD).touch()
        taken = pool.submit(request, f"{url}/v1/predict", {"context": [ONE]})
        until(lambda: in_flight(url) == 1)
        with closing(http.client.HTTPConnection(url.removeprefix("http://"))) as other:
            other.request("GET", "/ready")
            assert other.getresponse().read() == b'{"status":"ready"}'
            server.signal(signal.SIGTERM)
            with suppress(http.client.HTTPException, OSError):  # it may be closed already
                other.request("POST", "/v1/predict", b'{"context": []}', {"content-type": "application/json"})
                answer = other.getresponse()
                assert answer.status == 503
                assert b"the server is stopping" in answer.read()
        (tmp_path / HOLD).unlink()
        assert taken.result()[0] == 200
        assert server.ended() == 0


def test_a_client_that_does_not_read_its_answer_does_not_keep_it_from_ending(model, tmp_path):
    with serve(tmp_path, model, "--port", 0, "--seconds", 0.5) as server:
        url = server.ready()
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(MANY)
            assert client.recv(15) == b"HTTP/1.1 200 OK"
            server.signal(signal.SIGTERM)
            assert server.ended() == 0


class Slow(MetaPathFinder):
    """Imports of the server take long; the file says that one has begun."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        if name == "superbloom.serve.server":
            Path(HOLD).touch()
            time.sleep(60)


def starting() -> None:
    del sys.modules["superbloom.serve.server"]
    sys.meta_path.insert(0, Slow())


def test_a_server_that_is_stopped_while_it_starts_ends_well(model, tmp_path):
    with serve(tmp_path, model, "--port", 0, before=starting) as server:
        until(lambda: (tmp_path / HOLD).exists())
        server.signal(signal.SIGTERM)
        assert server.ended() == 0
