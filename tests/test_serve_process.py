"""`superbloom serve` as a process: ready when it is, signals, refusals in one line, and what it never does."""

import asyncio
import http.client
import json
import os
import pickle
import re
import shutil
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import launch
import pytest
import serving
import uvicorn
from typer.testing import CliRunner

from superbloom import store
from superbloom.cli import app
from superbloom.predict import Predictor
from superbloom.serve import command, guard
from superbloom.serve.command import _Server
from superbloom.serve.connection import Connection
from superbloom.serve.service import Models

pytestmark = pytest.mark.system

ONE = "ring 1 name 2"
HOLD, PICKLED = "hold", "pickled.txt"  # files in the folder of a server: while the first is there, it does not answer
CLOCK, LOOKS = "clock", "looks"  # the seconds it is told to live in, and a dot for each time it looked in vain

ANSWERS = 30  # that a client asks for at once, 300 KB each
LARGE = json.dumps({"queries": [{"context": [ONE], "k": 200}] * 20}).encode()
ASK = b"POST /v1/predict/batch HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
MANY = (ASK + b"content-length: %d\r\n\r\n" % len(LARGE) + LARGE) * ANSWERS


def save(folder: Path, seed: int = 0, text: bool = False) -> None:
    predictor = serving.of_text() if text else serving.of_names(seed)
    store.save(predictor.model, folder, training={"steps": seed}, metrics={"history": []})


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("serve") / "model"
    save(folder)
    return folder


def held() -> None:
    """In the process of a server: nothing is answered while the file is there."""
    original = Predictor.answer

    def answer(self: Predictor, queries: Any) -> Any:
        while Path(HOLD).exists():
            time.sleep(0.005)
        return original(self, queries)

    Predictor.answer = answer  # type: ignore[method-assign]


def no_pickle() -> None:
    """In the process of a server: pickles and torch.load are written down, the first one for control."""
    import torch

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("torch.load was called")

    def hook(event: str, arguments: Any) -> None:
        if event.startswith("pickle."):
            with Path(PICKLED).open("a") as file:
                file.write(f"{event} {arguments}\n")

    torch.load = refuse
    sys.addaudithook(hook)
    pickle.loads(pickle.dumps(Path()))


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError("it did not come to pass")


class Server:
    """A process that serves, and the file that has what it prints."""

    def __init__(self, folder: Path, *arguments: object, before: Callable[[], None] | None = None) -> None:
        self.folder = folder
        (folder / launch.OUTPUT).unlink(missing_ok=True)
        self.process = launch.start(folder, "serve", *arguments, "--no-browser", before=before)

    @property
    def printed(self) -> str:
        file = self.folder / launch.OUTPUT
        return file.read_text() if file.exists() else ""

    def ready(self) -> str:
        """Its address, once it tells it."""
        until(lambda: "serving " in self.printed or not self.process.is_alive())
        found = re.search(r"^serving \S+ at (http://\S+:\d+)/ ", self.printed, re.MULTILINE)
        assert found, self.printed
        return found[1]

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def ended(self) -> int:
        self.process.join(60)
        assert self.process.exitcode is not None
        return self.process.exitcode


@contextmanager
def serve(folder: Path, *arguments: object, before: Callable[[], None] | None = None) -> Iterator[Server]:
    server = Server(folder, *arguments, before=before)
    try:
        yield server
    finally:
        (folder / HOLD).unlink(missing_ok=True)
        if server.process.is_alive():
            server.process.kill()
        server.process.join()


def request(url: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            text = answer.read()
            status = answer.status
    except urllib.error.HTTPError as error:
        with error:
            text, status = error.read(), error.code
    return status, json.loads(text) if text[:1] == b"{" else text.decode()


def in_flight(url: str) -> int:
    """Requests not answered yet, but for this one."""
    lines = request(f"{url}/metrics")[1].splitlines()
    return int(float(next(line for line in lines if line.startswith("superbloom_requests_in_flight ")).split()[1])) - 1


def refused(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except ConnectionRefusedError:
        return True
    return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def test_it_is_ready_once_its_model_is_loaded(model, tmp_path):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    (tmp_path / HOLD).touch()
    with serve(tmp_path, model, "--port", port, before=held) as server:
        until(lambda: not refused(url))
        assert request(f"{url}/ready") == (503, {"error": "the model is being loaded; ask again in a moment"})
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
    Models.check_taking = lambda _: None  # type: ignore[method-assign]


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
    model: Path, folder: Path, number: int = 32, before: Callable[[], None] = held
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

    with serve(folder, model, "--port", 0, before=before) as server, ThreadPoolExecutor(number) as pool:
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


def test_what_is_in_flight_when_it_is_told_to_stop_is_answered(model, tmp_path, check):
    answered, code, seconds, printed = drained(model, tmp_path)
    assert (answered, code) == (32, 0)
    assert len(printed.splitlines()) == 2, printed
    check(6, f"{answered} of 32 in flight answered after SIGTERM, exit {code} after {seconds:.1f} s")


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
        if name == "superbloom.serve.command":
            Path(HOLD).touch()
            time.sleep(60)


def starting() -> None:
    del sys.modules["superbloom.serve.command"]
    sys.meta_path.insert(0, Slow())


def test_a_server_that_is_stopped_while_it_starts_ends_well(model, tmp_path):
    with serve(tmp_path, model, "--port", 0, before=starting) as server:
        until(lambda: (tmp_path / HOLD).exists())
        server.signal(signal.SIGTERM)
        assert server.ended() == 0


def sockets(process: Any) -> int:
    """Open ones of a process, as Linux tells them."""
    return sum(str(file.readlink()).startswith("socket:") for file in Path(f"/proc/{process.pid}/fd").iterdir())


def told_the_time() -> None:
    """In the process of a server: silence is measured by a clock in a file, and looked for often.

    So that it does not matter how slow the machine is; nor does uvicorn close what is idle for five seconds. It tells
    of each time when it looked, had nothing to do, and all connections were as they had been the time before.
    """
    command.time = SimpleNamespace(monotonic=lambda: float(Path(CLOCK).read_text()))  # type: ignore[assignment]
    init = _Server.__init__

    def kept(self: _Server, config: Any, *given: Any, **named: Any) -> None:
        config.timeout_keep_alive = 600
        init(self, config, *given, **named)

    unacknowledged = command._unacknowledged

    async def main_loop(self: _Server) -> None:
        before = None
        while not await uvicorn.Server.on_tick(self, 0):
            self._close_silent()
            now, busy = [], False
            for connection in self.server_state.connections:
                buffer, last = connection.transport.get_write_buffer_size(), connection.cycle
                now.append((last, connection.arrived, buffer, unacknowledged(connection.transport)))
                busy |= last is not None and not last.response_complete and not buffer
            if now == before and not busy:
                with Path(LOOKS).open("a") as file:
                    file.write(".")
            before = now
            await asyncio.sleep(0.02)

    _Server.__init__, _Server.main_loop = kept, main_loop  # type: ignore[method-assign]


def patient() -> None:
    """In the process of a server: connections stay as long as their clients want."""
    told_the_time()
    _Server._close_silent = lambda _: None  # type: ignore[method-assign]


def hurried() -> None:
    """In the process of a server: what the system has yet to send is not asked."""
    told_the_time()
    command._unacknowledged = lambda _: 0


class Clocked:
    """A server that closes what is silent for 20 seconds, by a clock that the test moves, and a client that stays."""

    def __init__(self, server: Server, stack: ExitStack) -> None:
        self.server, self._stack, self._now = server, stack, 0.0
        self.host, port = server.ready().removeprefix("http://").split(":")
        self.port = int(port)
        self._busy = stack.enter_context(closing(http.client.HTTPConnection(self.host, self.port)))
        self._busy.connect()
        self._first = self._busy.sock
        self._others = 0
        self._others = self.open()

    def open(self) -> int:
        """Open connections, but for the one of a client that asks and asks."""
        self._busy.request("GET", "/health")
        assert self._busy.getresponse().read() == b'{"status":"ok"}'
        assert self._busy.sock is self._first
        return sockets(self.server.process) - self._others

    def connect(self, said: bytes) -> socket.socket:
        """A client with a small buffer that says something, once the server has it."""
        client = self._stack.enter_context(socket.socket())
        client.settimeout(60)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((self.host, self.port))
        client.sendall(said)
        return client

    def wait(self, seconds: float) -> int:
        """Move the clock; how many connections are open when the server has looked at it."""
        self._looked()
        self._now += seconds
        put(self.server.folder / CLOCK, str(self._now))
        self._looked()
        return self.open()

    def _looked(self) -> None:
        """Twice, so that what came before the first look was read at the second. Nothing moves then."""
        file = self.server.folder / LOOKS
        before = file.stat().st_size
        until(lambda: file.stat().st_size >= before + 2)


def put(path: Path, text: str) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.replace(path)


@contextmanager
def clocked(model: Path, folder: Path, before: Callable[[], None] = told_the_time) -> Iterator[Clocked]:
    put(folder / CLOCK, "0")
    (folder / LOOKS).touch()
    with serve(folder, model, "--port", 0, "--seconds", 20, before=before) as server, ExitStack() as stack:
        yield Clocked(server, stack)


def staying(model: Path, folder: Path, before: Callable[[], None] = told_the_time) -> tuple[int, int]:
    """How many of four connections stay open for 45 and for 90 seconds that say nothing, never end their headers,
    begin a second request and stop, or do not read their answers, while another one asks and asks."""
    whole, half = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n", b"GET /health HTTP/1.1\r\nhost: loc"
    with clocked(model, folder, before) as server:
        for said in (b"", half, whole + half, MANY):
            server.connect(said)
        until(lambda: server.open() == 4)
        left = [server.wait(15) for _ in range(6)]
        return left[2], left[5]


with_files = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="Linux tells which files are open")


@with_files
def test_connections_that_are_silent_are_closed_and_others_are_not(model, tmp_path, check):
    assert staying(model, tmp_path) == (1, 0)  # who has an answer to read gets more time
    check(7, "0 of 4 connections that are silent, in four ways, stay open")


@with_files
def test_connections_that_stay_are_noticed(model, tmp_path, check):
    _, left = staying(model, tmp_path, before=patient)
    assert left == 4
    check.twin(7, "silent connections are not looked for", f"{left} of 4 stay open")


def read_slowly(model: Path, folder: Path, before: Callable[[], None] = told_the_time) -> int:
    """How many of its answers a client gets that reads a little every 15 seconds for two minutes, then the rest."""
    with clocked(model, folder, before) as server:
        client = server.connect(MANY + b"GET /nothing HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        text = bytearray()
        with suppress(ConnectionResetError):
            for _ in range(8):
                for _ in range(4):
                    text += client.recv(4096)
                server.wait(15)
            while part := client.recv(2**20):
                text += part
        return text.count(b"HTTP/1.1 200 OK")


@with_files
def test_a_client_that_reads_slowly_gets_all_of_its_answers(model, tmp_path, check):
    answers = read_slowly(model, tmp_path)
    assert answers == ANSWERS
    check(7, f"a client that reads slowly gets {answers} of {ANSWERS} answers")


@with_files
def test_a_slow_reader_that_is_cut_off_is_noticed(model, tmp_path, check):
    answers = read_slowly(model, tmp_path, before=hurried)
    assert answers < ANSWERS
    check.twin(7, "what the system has yet to send is not asked", f"a slow reader gets {answers} of {ANSWERS} answers")


def deaf() -> None:
    """In the process of a server: what comes is not counted."""
    told_the_time()
    del Connection.data_received


def sending_on(model: Path, folder: Path, before: Callable[[], None] = told_the_time) -> tuple[int, bytes, int]:
    """Whether a client that sends on is still there 45 seconds after its body was refused, what it reads then, and
    whether it is there after 60 more."""
    head = b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000000\r\n\r\n"
    with clocked(model, folder, before) as server:
        client = server.connect(head)
        until(lambda: server.open() == 1)
        left, read = [], b""
        for step in range(7):
            with suppress(BrokenPipeError, ConnectionResetError):
                client.sendall(b"x" * 1000)
            left.append(server.wait(15))
            with suppress(ConnectionResetError):
                read += client.recv(12) if step == 2 else b""
        return left[2], read, server.open()


@with_files
def test_who_is_refused_while_sending_can_read_why_but_not_send_for_ever(model, tmp_path, check):
    assert sending_on(model, tmp_path) == (1, b"HTTP/1.1 413", 0)
    check(9, "who is refused and sends on for 45 s can still read 413, and is closed after 60 s")


@with_files
def test_who_is_refused_and_cut_off_is_noticed(model, tmp_path, check):
    left, _, _ = sending_on(model, tmp_path, before=deaf)
    assert left == 0
    check.twin(9, "what still comes after a refusal is not counted", "closed while it sends")


def test_a_replaced_folder_is_loaded_on_sighup_and_a_damaged_one_is_not(tmp_path):
    folder = tmp_path / "model"
    save(folder)
    with serve(tmp_path, folder, "--port", 0) as server:
        url = server.ready()

        def best() -> list[str]:
            _, answer = request(f"{url}/v1/predict", {"context": [ONE], "k": 3})
            return [prediction["name"] for prediction in answer["masks"][0]["predictions"]]

        def expected(seed: int) -> list[str]:
            return [prediction.name for prediction in serving.of_names(seed).predict([ONE], 3)[0]]

        assert best() == expected(0)
        save(folder, seed=1)
        assert best() == expected(0)
        server.signal(signal.SIGHUP)
        until(lambda: "the model was reloaded" in server.printed)
        assert best() == expected(1) != expected(0)
        assert request(f"{url}/v1/model")[1]["steps"] == 1
        damage(folder)
        server.signal(signal.SIGHUP)
        line = until(lambda: re.search(r"the model was not reloaded, the old one stays: .*\n", server.printed))[0]
        assert "model.safetensors" in line
        assert best() == expected(1)
        server.signal(signal.SIGTERM)
        assert server.ended() == 0
        assert len(server.printed.splitlines()) == 4


def damage(folder: Path) -> None:
    """Another file in place of one, as a copy that went wrong leaves it."""
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-100] ^= 1
    (folder / "damaged").write_bytes(content)
    (folder / "damaged").replace(folder / "model.safetensors")


def test_what_cannot_be_served_is_told_in_one_line(model, tmp_path):
    shutil.copytree(model, tmp_path / "damaged")
    damage(tmp_path / "damaged")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for number, (arguments, line) in enumerate(
            [
                ((tmp_path / "damaged", "--port", 0), "model.safetensors"),
                ((tmp_path / "nothing", "--port", 0), "nothing"),
                ((model, "--port", port), f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another"),
                ((model, "--host", "0.0.0.0"), "--host 0.0.0.0 lets other machines ask; give an --api-key"),
                ((model, "--host", "a..b", "--api-key", "x" * 16), "cannot listen on a..b:8000"),
                ((model, "--api-key", ""), "the API key is empty"),
                ((model, "--cors", "*"), "--cors * given; an origin like https://example.org is allowed"),
                ((model, "--seconds", "0"), "seconds=0.0 given; a number above 0 is allowed"),
                ((model, "--report", tmp_path), "has no metrics.json; give a folder that `superbloom evaluate --out`"),
            ]
        ):
            (tmp_path / str(number)).mkdir()
            with serve(tmp_path / str(number), *arguments) as server:
                assert server.ended() == 2
                printed = [text for text in server.printed.splitlines() if not text.startswith("loading ")]
                assert len(printed) == 1, printed
                assert printed[0].startswith("error: ")
                assert line in printed[0]


def test_a_model_that_fails_to_load_in_any_way_ends_the_server(model, tmp_path):
    with serve(tmp_path, model, "--port", 0, before=broken) as server:
        assert server.ended() != 0
        assert "not what anyone expected" in server.printed


def broken() -> None:
    def load(_: Path, **__: Any) -> None:
        raise KeyError("not what anyone expected")

    store.load = load  # type: ignore[assignment]


@contextmanager
def asked(tmp_path: Path, *, text: bool = False) -> Iterator[tuple[Path, str]]:
    save(tmp_path / "model", text=text)
    with serve(tmp_path, tmp_path / "model", "--port", 0) as server:
        yield tmp_path / "model", server.ready()


def told(*words: object) -> str:
    done = CliRunner().invoke(app, ["predict", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_a_server_is_asked_from_the_command_line_as_a_folder_is(tmp_path):
    (tmp_path / "allowed.txt").write_text(f"{ONE}\na\nb\n")
    with asked(tmp_path) as (model, url):
        for words in (
            [ONE],
            [ONE, "[MASK]", "a", "-k", 3],
            ["[MASK]", ONE, "[MASK]", "-k", 2],
            [ONE, "--exclude-context", "--exclude", "a"],
            [ONE, "--allow", "a", "--allow-file", tmp_path / "allowed.txt"],
            [ONE, "--min-score", "-4"],
            [ONE, "--min-score", "100"],
            [ONE, "--beam", 1, "--max-rounds", 1, "-k", 5],
            [ONE, "--beam", 3],
            ["日本", "two\nlines", "-k", 1],
        ):
            assert told("--server", url, *words) == told(model, *words)
            here, there = (json.loads(told(*place, *words, "--json")) for place in ([model], ["--server", url]))
            assert here["context"] == there["context"]
            for one, other in zip(here["predictions"], there["predictions"], strict=True):
                for p, q in zip(one, other, strict=True):
                    assert [p.pop(part) for part in ("name", "certified")] == [q.pop("name"), q.pop("certified")]
                    assert q == pytest.approx(p)


def test_a_server_is_asked_to_fill_in_a_text(tmp_path):
    with asked(tmp_path, text=True) as (model, url):
        for words in (["Miles Davis plays [MASK]."], ["[MASK1] is a [MASK2] qq.", "-k", 2]):
            assert told("--server", url, "--text", *words) == told(model, "--text", *words)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([ONE, "--server", "http://127.0.0.1:1"], "no answer from http://127.0.0.1:1: [Errno 111] Connection refused"),
        ([ONE, "--server", "ftp://x"], "'ftp://x' given; an address like http://127.0.0.1:8000 is allowed"),
        ([ONE, "--server", "http://x", "--combine", "min"], "a server combines hashes by their sum"),
        ([ONE, "--server", "http://x", "--precision", "int8"], "--precision and --prior are the server's to choose"),
        (["--server", "http://x"], "give the names of a context, or a --text with [MASK], and not both"),
    ],
)
def test_what_cannot_be_asked_is_told_in_one_line(words, line):
    done = launch.command("predict", *words, code=2)
    assert done.stderr.startswith(f"error: {line}")
    assert len(done.stderr.splitlines()) == 1


def test_serving_uses_no_pickle(model, tmp_path):
    """Check 17."""
    with serve(tmp_path, model, "--port", 0, before=no_pickle) as server:
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


def memory(process: Any, field: str) -> int:
    """Kilobytes, as Linux tells them."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)[1])


def unlimited() -> None:
    """In the process of a server: a body is read however long it is."""
    original = guard._read
    guard._read = lambda receive, _, too_large: original(receive, 10**12, too_large)


def refused_bodies(
    model: Path, folder: Path, megabytes: int, before: Callable[[], None] | None = None
) -> tuple[list[int], float]:
    """What is said to a long body in chunks, to one that tells its length, and to deep JSON; megabytes they take."""
    with serve(folder, model, "--port", 0, before=before) as server:
        host = server.ready().removeprefix("http://")

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

        send_all(2)
        Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")  # forgets how much it was at most
        grown = -memory(server.process, "VmRSS")
        statuses = send_all(megabytes)
        return statuses, (grown + memory(server.process, "VmHWM")) / 1024


linux = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="Linux tells how much memory was in use at most"
)


@linux
def test_bodies_that_are_refused_take_no_memory(model, tmp_path, check):
    statuses, grown = refused_bodies(model, tmp_path, 200)
    assert statuses == [413, 413, 400]
    assert grown <= 5
    check(9, f"200 MB in chunks, 200 MB told before, a million brackets: refused, memory +{grown:.1f} MB")


@linux
def test_a_body_that_is_read_without_limit_is_noticed(model, tmp_path, check):
    statuses, grown = refused_bodies(model, tmp_path, 50, before=unlimited)
    assert statuses != [413, 413, 400]
    assert grown > 5
    check.twin(9, "a body is read without limit", f"{statuses[0]} to 50 MB in chunks, memory +{grown:.0f} MB")


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
    original = store.load

    def load(folder: Path, **options: Any) -> Any:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, suppress(OSError):
            asking.connect(("192.0.2.1", 80))  # an address of nobody, and nothing is sent
        return original(folder, **options)

    store.load = load  # type: ignore[assignment]


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
    assert asked == ["socket.connect 192.0.2.1"] * 2
    check.twin(11, "a server that asks for a newer version", f"{len(asked)} times {asked[0]}")
