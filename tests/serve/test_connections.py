"""Connections that are silent, read slowly or send too much, by a clock that the test moves (checks 7 and 9)."""

import asyncio
import http.client
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

from superbloom.serve import idle
from superbloom.serve.connection import Connection
from superbloom.serve.server import _Server
from tests.support.servers import ANSWERS, CLOCK, LOOKS, MANY, Server, serve, until

pytestmark = pytest.mark.system


def sockets(process: Any) -> int:
    """Open ones of a process, as Linux tells them."""
    found = 0
    for file in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since the folder was read
            found += str(file.readlink()).startswith("socket:")
    return found


def told_the_time() -> None:
    """In the process of a server: silence is measured by a clock in a file, and looked for often.

    So that it does not matter how slow the machine is; nor does uvicorn close what is idle for five seconds. It tells
    of each time when it looked, had nothing to do, and all connections were as they had been the time before.
    """
    idle.time = SimpleNamespace(monotonic=lambda: float(Path(CLOCK).read_text()))  # type: ignore[assignment]
    init = _Server.__init__

    def kept(self: _Server, config: Any, *given: Any, **named: Any) -> None:
        config.timeout_keep_alive = 600
        init(self, config, *given, **named)

    unacknowledged = idle.unacknowledged_bytes

    async def main_loop(self: _Server) -> None:
        before = None
        while not await uvicorn.Server.on_tick(self, 0):
            self._idle.close(self.server_state.connections)
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
    idle.IdleConnections.close = lambda *_: None  # type: ignore[method-assign]


def hurried() -> None:
    """In the process of a server: what the system has yet to send is not asked."""
    told_the_time()
    idle.unacknowledged_bytes = lambda _: 0


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
