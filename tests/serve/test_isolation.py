"""What a server process never does (checks 9 and 11).

It reads no pickle, keeps no refused body in memory, and asks no other machine.
"""

import http.client
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from superbloom.serve import guard, server
from tests.support.servers import ONE, PICKLED, memory, no_pickle, request, serve, until

pytestmark = pytest.mark.system


def test_serving_uses_no_pickle(model, tmp_path):
    """Check 17."""
    with serve(tmp_path, model, "--port", 0, "--workers", 2, before=no_pickle) as server:
        url = server.ready()
        assert request(f"{url}/v1/predict", {"context": [ONE], "explain": True})[0] == 200
        assert request(f"{url}/v1/names/nobody")[0] == 404
        server.signal(signal.SIGHUP)
        until(lambda: "the model was reloaded" in server.printed)
        server.signal(signal.SIGTERM)
        assert server.ended() == 0
        lines = (tmp_path / PICKLED).read_text().splitlines()
        assert [line for line in lines if "pathlib" not in line] == []
        assert lines  # the control


def unlimited() -> None:
    """In the process of a server: a body is read however long it is."""
    original = guard._read_body
    guard._read_body = lambda receive, _, too_large: original(receive, 10**12, too_large)


def refused_bodies(
    model: Path, folder: Path, megabytes: int, before: Callable[[], None] | None = None
) -> tuple[list[int], float]:
    """Statuses for a long body in chunks, one with its length, and deep JSON; megabytes more than for short ones."""
    with serve(folder, model, "--port", 0, before=before) as started:
        host = started.ready().removeprefix("http://")

        def send(body: Any) -> int:
            connection = http.client.HTTPConnection(host, timeout=60)
            with suppress(BrokenPipeError, ConnectionResetError):  # it does not want more
                connection.request("POST", "/v1/predict", body, {"content-type": "application/json"})
            try:
                return connection.getresponse().status
            except (http.client.HTTPException, OSError):
                return 413  # as it said before the connection closed
            finally:
                connection.close()

        def send_all(megabytes: int) -> list[int]:
            chunks = (b"x" * 2**20 for _ in range(megabytes))
            return [send(chunks), send(b"x" * megabytes * 2**20), send(b'{"context":' + b"[" * 1_000_000)]

        def peak(megabytes: int) -> tuple[list[int], float]:
            """The statuses, and the most megabytes of memory while the bodies were sent."""
            Path(f"/proc/{started.process.pid}/clear_refs").write_text("5")  # resets the peak
            return send_all(megabytes), memory(started.process, "VmHWM") / 1024

        send_all(2)
        (_, small), (statuses, large) = peak(2), peak(megabytes)
        return statuses, large - small


linux = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="Linux tells how much memory was in use at most"
)


@linux
def test_bodies_that_are_refused_take_no_memory(model, tmp_path, check):
    statuses, grown = refused_bodies(model, tmp_path, 200)
    assert statuses == [413, 413, 400]
    assert grown <= 5
    check(9, f"200 MB in chunks, 200 MB told before, a million brackets: refused, memory {grown:+.1f} MB")


@linux
def test_a_body_that_is_read_without_limit_is_noticed(model, tmp_path, check):
    statuses, grown = refused_bodies(model, tmp_path, 50, before=unlimited)
    assert statuses != [413, 413, 400]
    assert grown > 5
    check.twin(9, "a body is read without limit", f"{statuses[0]} to 50 MB in chunks, memory {grown:+.0f} MB")


OUTSIDE = "outside.txt"  # in the folder of a server: what it asked of others


def watched() -> None:
    """In the process of a server: connections to other machines, and names that are looked up, are written down."""

    def hook(event: str, arguments: Any) -> None:
        if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
            address = arguments[0] if event.startswith("socket.get") else arguments[1][0]
            if isinstance(address, str) and address not in ("127.0.0.1", "localhost", "::1"):
                with Path(OUTSIDE).open("a") as file:
                    file.write(f"{event} {address}\n")

    sys.addaudithook(hook)


def curious() -> None:
    """In the process of a server: it would ask somebody whether there is a newer version."""
    watched()
    original = server.load_model

    def load(folder: Path, **options: Any) -> Any:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, suppress(OSError):
            asking.connect(("192.0.2.1", 80))  # an address of nobody, and nothing is sent
        return original(folder, **options)

    server.load_model = load  # type: ignore[assignment]


def asked_outside(model: Path, folder: Path, before: Callable[[], None]) -> list[str]:
    """What a server asks of others from its start to its end."""
    with serve(folder, model, "--port", 0, before=before) as server:
        url = server.ready()
        assert url.startswith("http://127.0.0.1:")
        for path in ("/", "/main.js", "/v1/model", "/v1/names?prefix=r", "/v1/report", "/metrics", "/openapi.json"):
            assert request(url + path)[0] == 200
        assert request(f"{url}/v1/predict", {"context": [ONE], "explain": True})[0] == 200
        server.signal(signal.SIGHUP)
        until(lambda: "the model was reloaded" in server.printed)
        server.signal(signal.SIGTERM)
        assert server.ended() == 0
    file = folder / OUTSIDE
    return file.read_text().splitlines() if file.exists() else []


def test_a_server_asks_nobody(model, tmp_path, check):
    assert asked_outside(model, tmp_path, watched) == []
    check(11, "a server asks no other machine, from its start over a reload to its end")


def test_a_server_that_asks_others_is_noticed(model, tmp_path, check):
    asked = asked_outside(model, tmp_path, curious)
    assert asked == ["socket.connect 192.0.2.1"] * 4  # two processes load the model, twice
    check.twin(11, "a server that asks for a newer version", f"{len(asked)} times {asked[0]}")
