"""Processes that parse pieces: each takes pieces by its standard input and gives back what became of them.

They are plain child processes, so a script that calls superbloom needs no `if __name__ == "__main__"`, nothing is
forked while threads run, and a worker whose parent was killed reads the end of its input and ends.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from queue import SimpleQueue

from superbloom.errors import InputError
from superbloom.prepare.wikipedia.parts import Done, Parser, Piece, Rules


class Worker:
    """A process that parses one piece after another."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", "from superbloom.prepare.wikipedia.workers import work; work()"]
        # Otherwise large buffers go back to the system after each use, which clears them again: a tenth of the time.
        keep = {"MALLOC_TRIM_THRESHOLD_": str(2**28), "MALLOC_MMAP_THRESHOLD_": str(2**28)}
        environment = os.environ | keep | {"ARROW_DEFAULT_MEMORY_POOL": "system"}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)

    def piece(self, piece: Piece, rules: Rules, folder: Path) -> Done:
        assert self.process.stdin
        assert self.process.stdout
        try:
            pickle.dump((piece, rules, folder), self.process.stdin)
            self.process.stdin.flush()
            result = pickle.load(self.process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            raise InputError(
                f"a worker process ended with code {self.process.wait()}, perhaps for want of memory; "
                "run the command again with fewer --workers: it goes on where it stopped"
            ) from None
        if isinstance(result, BaseException):
            raise result
        return result

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class Pool:
    """Parses pieces on several processes; none is started for a single piece."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.workers: list[Worker] = []
        self.idle: SimpleQueue[Worker] = SimpleQueue()
        self.threads = ThreadPoolExecutor(size)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.close()
        self.threads.shutdown(cancel_futures=True)

    def parse(self, pieces: Iterator[Piece], rules: Rules, folder: Path) -> Iterator[tuple[Piece, Done]]:
        """Yield each piece and what became of it, in order."""
        first = list(islice(pieces, 2))
        pieces = chain(first, pieces)
        if len(first) < 2 or self.size == 1:
            parser = Parser(rules)
            for piece in pieces:
                yield piece, parser.piece(piece, folder)
            return
        while len(self.workers) < self.size:
            self.workers.append(Worker())
            self.idle.put(self.workers[-1])
        waiting: deque[tuple[Piece, Future[Done]]] = deque()
        for piece in pieces:
            waiting.append((piece._replace(data=None), self.threads.submit(self._run, piece, rules, folder)))
            # Pieces that carry their data take memory while they wait.
            while len(waiting) > (4 if piece.data is None else 1) * self.size:
                yield waiting[0][0], waiting.popleft()[1].result()
        while waiting:
            yield waiting[0][0], waiting.popleft()[1].result()

    def _run(self, piece: Piece, rules: Rules, folder: Path) -> Done:
        worker = self.idle.get()
        try:
            return worker.piece(piece, rules, folder)
        finally:
            self.idle.put(worker)


def work() -> None:
    """Parse pieces until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal; the parent decides
    tasks, results = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no result
    parser: Parser | None = None
    while True:
        try:
            piece, rules, folder = pickle.load(tasks)
        except EOFError:
            return
        if parser is None or parser.rules != rules:
            parser = Parser(rules)
        try:
            result: Done | Exception = parser.piece(piece, folder)
        except Exception as error:  # told by the parent, in one line
            result = error
        pickle.dump(result, results)
        results.flush()
