"""A pool of processes that share the work on the pieces of a file.

A worker reads a task and a piece from its standard input and writes the result to its standard output. Workers are
plain child processes, not multiprocessing: a script that calls superbloom needs no `if __name__ == "__main__"`,
nothing is forked while threads run, and a worker whose parent was killed reads the end of its input and ends.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from superbloom.errors import InputError
from superbloom.runtime import available_cores

PARENT_BYTES = 2**29  # memory of the process that starts the workers


class Piece(Protocol):
    """Something to work on. data: bytes that it carries, which take memory while it waits."""

    @property
    def data(self) -> bytes | None: ...

    def _replace(self, *, data: None) -> Any: ...


P_contra = TypeVar("P_contra", bound=Piece, contravariant=True)
R_co = TypeVar("R_co", covariant=True)
P = TypeVar("P", bound=Piece)
R = TypeVar("R")


class Task(Protocol[P_contra, R_co]):
    """What to do with pieces, and everything that is needed for it. It is pickled for the workers."""

    def start(self) -> Callable[[P_contra], R_co]:
        """The function that does it. A worker calls the same function for all pieces of equal tasks."""


class Worker:
    """A process that works on one piece at a time."""

    def __init__(self, remedy: str) -> None:
        self.remedy = remedy
        self.task: Any = None  # the last one that the process got
        command = [sys.executable, "-c", "from superbloom.prepare.workers import work; work()"]
        # Otherwise malloc returns large buffers to the system after each use, which costs a tenth of the time.
        keep = {"MALLOC_TRIM_THRESHOLD_": str(2**28), "MALLOC_MMAP_THRESHOLD_": str(2**28)}
        environment = os.environ | keep | {"ARROW_DEFAULT_MEMORY_POOL": "system"}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)

    def run(self, task: Task[P, R], piece: P) -> R:
        assert self.process.stdin
        assert self.process.stdout
        try:
            # A task may be large, so it is sent once.
            pickle.dump((None if task is self.task else task, piece), self.process.stdin)
            self.task = task
            self.process.stdin.flush()
            result = pickle.load(self.process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            raise InputError(
                f"a worker process ended with code {self.process.wait()}, perhaps out of memory; {self.remedy}"
            ) from None
        if isinstance(result, BaseException):
            raise result
        return result

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def pool_size(workers: int | None, memory: int, worker_bytes: int) -> int:
    """The number of processes: `workers`, or one per core, but no more than fit into `memory` bytes.

    >>> pool_size(8, 2 * 10**9, worker_bytes=600 * 2**20)
    2
    """
    return max(1, min(workers or available_cores(), (memory - PARENT_BYTES) // worker_bytes))


class Pool:
    """Works on pieces in several processes. It starts none for a single piece."""

    def __init__(self, size: int, remedy: str = "run the command again with fewer --workers") -> None:
        self.size, self.remedy = size, remedy
        self.workers: list[Worker] = []
        self.idle: SimpleQueue[Worker] = SimpleQueue()
        self.threads = ThreadPoolExecutor(size)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.close()
        self.threads.shutdown(cancel_futures=True)

    def run(self, task: Task[P, R], pieces: Iterator[P]) -> Iterator[tuple[P, R]]:
        """Yield each piece and its result, in order."""
        first = list(islice(pieces, 2))
        pieces = chain(first, pieces)
        if len(first) < 2 or self.size == 1:
            function = task.start()
            for piece in pieces:
                yield piece, function(piece)
            return
        while len(self.workers) < self.size:
            self.workers.append(Worker(self.remedy))
            self.idle.put(self.workers[-1])
        waiting: deque[tuple[P, Future[R]]] = deque()
        for piece in pieces:
            waiting.append((piece._replace(data=None), self.threads.submit(self._run, task, piece)))
            # Pieces that carry their data take memory while they wait.
            while len(waiting) > (4 if piece.data is None else 1) * self.size:
                yield waiting[0][0], waiting.popleft()[1].result()
        while waiting:
            yield waiting[0][0], waiting.popleft()[1].result()

    def _run(self, task: Task[P, R], piece: P) -> R:
        worker = self.idle.get()
        try:
            return worker.run(task, piece)
        finally:
            self.idle.put(worker)


def work() -> None:
    """Work on pieces until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal; the parent decides
    tasks, results = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # standard output carries results only, so what a library prints goes to standard error
    current: Any = None
    while True:
        try:
            task, piece = pickle.load(tasks)
        except EOFError:
            return
        try:
            if task is not None and task != current:
                current, function = task, task.start()
            result = function(piece)
        except Exception as error:  # the parent raises it
            result = error
        pickle.dump(result, results)
        results.flush()
