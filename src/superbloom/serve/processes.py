"""The processes behind the HTTP process. Each is a fork, and forks only from processes that have a single thread.

    HTTP process (uvicorn; no weights)
     └ keeper      forked before any thread starts; forks a template for each load of the model
        └ template loads the model, answers one query, forks the workers, forks another when one ends
           └ worker   computes batches with its own threads of torch

Workers are forked after loading, so weights, tables and names are one copy in memory. A template computes with one
thread: a fork does not copy the threads of OpenMP (runtime/fork.py). A process ends when the socket to the HTTP process
closes. It ignores SIGINT, SIGTERM and SIGHUP, which supervisors and terminals send to all processes of a group.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch

from superbloom.errors import InputError
from superbloom.predict import Predictor, Query
from superbloom.serve.wire import answers_to_bytes, error_to_bytes, queries_from_bytes
from superbloom.special import MASK_TEXT

IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MIN_PAUSE, MAX_PAUSE = 0.05, 5.0  # seconds before a worker that ended soon after its start is forked again
SOON = 2.0  # seconds
GRACE_SECONDS = 3.0  # for workers to end when the server has ended or has loaded another model
SIZE = struct.Struct("!I")  # the bytes of a message, before it

Load = Callable[[], tuple[Predictor, Any]]  # the model, and a value of JSON that says which files it was loaded from


def send(channel: socket.socket, content: dict[str, Any], *files: int) -> None:
    """Send a message, with open files."""
    data = json.dumps(content).encode()
    socket.send_fds(channel, [SIZE.pack(len(data)) + data], files)


def receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The next message and its files; None once the other side has closed."""
    with suppress(ConnectionError):
        head, files, _, _ = socket.recv_fds(channel, SIZE.size, 1)
        data, size = bytearray(), SIZE.unpack(head)[0] if head else 0
        while head and len(data) < size and (part := channel.recv(size - len(data))):
            data += part
        if data:
            return json.loads(data), files
    return None, []


def fork(run: Callable[[], None]) -> int:
    """Run a function in a new process, which then ends; returns the process id."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or both processes would print what is in the buffer
    if process := os.fork():
        return process
    code = 1
    try:
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)
        faulthandler.disable()  # the HTTP process reports how a worker ended
        run()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def keep(channel: socket.socket, load: Load, workers: int, threads: int) -> None:
    """In the keeper: fork a template for each socket that arrives, until the channel closes."""
    templates: set[int] = set()
    while True:
        message, files = receive(channel)
        if message is None:
            break
        control = socket.socket(fileno=files[0])

        def run(control: socket.socket = control) -> None:
            channel.close()
            _Template(control, threads).run(load, workers)

        templates.add(fork(run))
        control.close()
        while templates and (ended := os.waitpid(-1, os.WNOHANG)[0]):
            templates.discard(ended)
    for process in templates:
        with suppress(ChildProcessError):
            os.waitpid(process, 0)


class _Template:
    """Loads a model, and keeps a number of workers alive until the control socket closes."""

    def __init__(self, control: socket.socket, threads: int) -> None:
        self._control, self._threads = control, threads
        self._began: dict[int, float] = {}  # workers by process id
        self._pause = MIN_PAUSE

    def run(self, load: Load, workers: int) -> None:
        try:
            torch.set_num_threads(1)
            self._predictor, source = load()
            send(self._control, {"loaded": source})
            warm(self._predictor)
        except Exception as error:
            line = str(error) if isinstance(error, InputError) else traceback.format_exc()
            with suppress(OSError):  # the HTTP process has ended
                send(self._control, {"failed": line, "is_input_error": isinstance(error, InputError)})
            return
        self._wakes = os.pipe()
        for file in self._wakes:
            os.set_blocking(file, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakes[1], warn_on_full_buffer=False)
        with suppress(OSError):
            self._keep(workers)
        self._control.close()
        end = time.monotonic() + GRACE_SECONDS
        for process in self._began:
            while not os.waitpid(process, os.WNOHANG)[0]:
                if time.monotonic() > end:
                    os.kill(process, signal.SIGKILL)
                time.sleep(0.005)

    def _keep(self, workers: int) -> None:
        """Fork workers, and others in place of those that end, until the control socket closes."""
        due = time.monotonic()
        while True:
            missing = workers - len(self._began)
            if missing and (left := due - time.monotonic()) <= 0:
                for _ in range(missing):
                    self._fork_worker()
                continue
            control = self._control.fileno()
            ready, _, _ = select.select([control, self._wakes[0]], [], [], left if missing else None)
            if control in ready:  # the HTTP process sends nothing; it has closed
                return
            with suppress(BlockingIOError):
                os.read(self._wakes[0], 4096)
            while self._began and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                due = time.monotonic() + self._bury(*ended)

    def _bury(self, process: int, status: int) -> float:
        """Report a worker that has ended; returns the seconds to wait before the next one starts."""
        lived = time.monotonic() - self._began.pop(process)
        self._pause = min(MAX_PAUSE, 2 * self._pause) if lived < SOON else MIN_PAUSE
        send(self._control, {"ended": process, "exit": os.waitstatus_to_exitcode(status)})
        return self._pause

    def _fork_worker(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:

            def run() -> None:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for other in (ours, self._control):
                    other.close()
                torch.set_num_threads(self._threads)
                _work(self._predictor, Connection(theirs.detach()))

            process = fork(run)
            self._began[process] = time.monotonic()
            send(self._control, {"worker": process}, ours.fileno())


def _work(predictor: Predictor, connection: Connection) -> None:
    """In a worker: answer batches until the HTTP process closes the connection. The first message says it is warm."""
    warm(predictor)
    with suppress(OSError, EOFError):
        connection.send_bytes(b"warm")
        while True:
            connection.send_bytes(_answered(predictor, connection.recv_bytes()))


def _answered(predictor: Predictor, message: bytes) -> bytes:
    try:
        return answers_to_bytes(predictor.answer(queries_from_bytes(message)))
    except InputError as error:
        return error_to_bytes(str(error), True)
    except Exception:
        return error_to_bytes(traceback.format_exc(), False)


def warm(predictor: Predictor) -> None:
    """Answer a query: what is computed on first use, and the mapped files, are then in memory."""
    predictor.answer(warm_queries(predictor))


def warm_queries(predictor: Predictor) -> Sequence[Query]:
    empty: str | list[str] = MASK_TEXT if predictor.model.vocab.is_text else []
    return [predictor.query(empty, k) for k in (1, 10)]
