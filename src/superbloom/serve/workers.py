"""The model processes as the HTTP process sees them: a batch of queries in, answers out.

`Keeper` starts the tree of processes.py, once per server. `Workers` are the processes of one loaded model. A batch goes
to a worker that is idle. If the worker ends meanwhile, another computes the batch.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from superbloom.answers import Found
from superbloom.errors import InputError
from superbloom.predict import Query
from superbloom.serve import processes
from superbloom.serve.errors import RefusedError
from superbloom.serve.wire import answers_from_bytes, queries_to_bytes

ATTEMPTS = 2  # to compute a batch, if its worker ends
REPLACE_SECONDS = 5.0  # a batch waits for a worker, if all have ended; less than most deadlines
MAX_EARLY_ENDS = 3  # workers that end before all are warm; then the model cannot be served
MAX_BATCH_SECONDS = 90.0  # then a worker counts as stuck, and is killed
END_SECONDS = 5.0  # for all processes to end after the server


class Keeper:
    """Forks the process that starts all others. Make one before the process has a second thread."""

    def __init__(self, load: processes.Load, workers: int) -> None:
        self.number = workers
        threads = max(1, torch.get_num_threads() // workers)
        self._channel, theirs = socket.socketpair()

        def run() -> None:
            self._channel.close()
            processes.keep(theirs, load, workers, threads)

        self._process = processes.fork(run)
        theirs.close()

    def start(self, notice: Callable[[str], None] = lambda _: None) -> Workers:
        """Workers for the model as its folder is now; they are usable after `wait`."""
        control, theirs = socket.socketpair()
        with theirs:
            try:
                processes.send(self._channel, {}, theirs.fileno())
            except OSError:
                control.close()
                raise InputError("the process that starts model processes has ended; start the server again") from None
        return Workers(control, self.number, notice)

    @property
    def has_ended(self) -> bool:
        with suppress(ChildProcessError):
            return bool(os.waitpid(self._process, os.WNOHANG)[0])
        return True

    def close(self) -> None:
        """End all processes, at the latest after a few seconds."""
        self._channel.close()
        end = time.monotonic() + END_SECONDS
        while not self.has_ended:
            if time.monotonic() > end:
                os.kill(self._process, signal.SIGKILL)
            time.sleep(0.005)


@dataclass(frozen=True)
class _Worker:
    process: int
    connection: Connection


class Workers:
    """The processes that compute with one loaded model. Threads may share it."""

    def __init__(self, control: socket.socket, number: int, notice: Callable[[str], None]) -> None:
        self.number, self._control, self._notice = number, control, notice
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._alive: set[int] = set()
        self._warm = threading.Semaphore(0)
        self._loaded: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.restarts = 0
        # Called when the worker of a batch ends, and when any worker ends.
        self.watch_retry: Callable[[], None] = lambda: None
        self.watch_end: Callable[[], None] = lambda: None
        self.is_lost = False  # whether the template has ended, so that no worker will be replaced
        self._is_closed = False
        threading.Thread(target=self._listen, daemon=True, name="superbloom-workers").start()

    def source(self) -> Any:
        """Which files the model was loaded from; raises why it was not loaded."""
        message = self._loaded.get()
        self._raise_failure(message)
        return message["loaded"]

    def wait(self) -> None:
        """Wait until all workers are warm."""
        for _ in range(self.number):
            self._warm.acquire()
            with suppress(queue.Empty):
                self._raise_failure(self._loaded.get_nowait())
            if self.is_lost or self.restarts >= MAX_EARLY_ENDS:
                raise InputError(
                    "the model processes end while they start; the system's log may have the reason (memory?)"
                )

    @staticmethod
    def _raise_failure(message: dict[str, Any]) -> None:
        if "failed" in message:
            raise (InputError if message["is_input_error"] else RuntimeError)(message["failed"])

    @property
    def num_alive(self) -> int:
        return len(self._alive)

    def answer(self, queries: Sequence[Query]) -> list[list[Found]]:
        """The answers to many queries by one worker. RefusedError if the worker ends, and the next one as well."""
        message = queries_to_bytes(queries)
        for _ in range(ATTEMPTS):
            try:
                worker = self._take()
            except queue.Empty:
                break
            try:
                reply = _ask(worker, message)
            except (OSError, EOFError):
                worker.connection.close()
                self.watch_retry()
            else:
                self._put(worker)
                return answers_from_bytes(reply)
        raise RefusedError.busy("the process that computed this ended; try again in a moment", 1)

    def close(self) -> None:
        """End the processes. No batch may be computed any more."""
        self._is_closed = True
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        with suppress(queue.Empty):
            while True:
                self._idle.get_nowait().connection.close()

    def _take(self) -> _Worker:
        """An idle worker that is alive. Raises queue.Empty if there is none for some seconds."""
        while True:
            worker = self._idle.get(timeout=REPLACE_SECONDS)
            if worker.process in self._alive:
                return worker
            worker.connection.close()  # it ended while it was idle

    def _put(self, worker: _Worker) -> None:
        if self._is_closed:
            worker.connection.close()
        else:
            self._idle.put(worker)

    def _listen(self) -> None:
        """In a thread: what the template reports."""
        with self._control:
            while True:
                message, files = processes.receive(self._control)
                if message is None:
                    break
                if "worker" in message:
                    self._alive.add(message["worker"])
                    worker = _Worker(message["worker"], Connection(files[0]))
                    threading.Thread(target=self._adopt, args=(worker,), daemon=True).start()
                elif "ended" in message:
                    self._alive.discard(message["ended"])
                    self.restarts += 1
                    self.watch_end()
                    self._notice(f"a model process {_how(message['exit'])}; another takes its place")
                    if self.restarts >= MAX_EARLY_ENDS:
                        self._warm.release()
                else:
                    self._loaded.put(message)
                    if "failed" in message:
                        self._warm.release()
        self.is_lost = not self._is_closed
        line = "the process that loads the model has ended; the system's log may have the reason (memory?)"
        self._loaded.put({"failed": line, "is_input_error": True})
        for _ in range(self.number):
            self._warm.release()

    def _adopt(self, worker: _Worker) -> None:
        try:
            worker.connection.recv_bytes()  # it is warm
        except (OSError, EOFError):
            worker.connection.close()
            return
        self._put(worker)
        self._warm.release()


def _ask(worker: _Worker, message: bytes) -> bytes:
    worker.connection.send_bytes(message)
    if not worker.connection.poll(MAX_BATCH_SECONDS):
        os.kill(worker.process, signal.SIGKILL)
        raise EOFError
    return worker.connection.recv_bytes()


def _how(code: int) -> str:
    """
    >>> _how(-9), _how(1)
    ('ended with SIGKILL', 'ended with exit code 1')
    """
    if code == -signal.SIGBUS:
        return "ended with SIGBUS (a memory-mapped file of the model was cut short, or its disk failed)"
    return f"ended with {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
