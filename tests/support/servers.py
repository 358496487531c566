"""`superbloom serve` as a process that tests start, hold, ask and stop."""

import json
import os
import pickle
import re
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from superbloom.predict import Predictor
from superbloom.store import model_folder as store
from tests.support import launch, serving

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

    def __init__(
        self,
        folder: Path,
        *arguments: object,
        before: Callable[[], None] | None = None,
        environment: dict[str, object] | None = None,
    ) -> None:
        self.folder = folder
        (folder / launch.OUTPUT).unlink(missing_ok=True)
        given = environment or {}
        self.process = launch.start(folder, "serve", *arguments, "--no-browser", before=before, **given)

    @property
    def printed(self) -> str:
        file = self.folder / launch.OUTPUT
        return file.read_text() if file.exists() else ""

    def ready(self) -> str:
        """Its address, once it tells it."""
        until(lambda: "serving " in self.printed or not self.process.is_alive())
        found = re.search(r"\bserving \S+ at (http://\S+:\d+)/ ", self.printed)
        assert found, self.printed
        return found[1]

    def workers(self) -> list[int]:
        """The process ids of its model processes: server → keeper → template → workers."""
        keepers = [child for child in children(self.process.pid) if children(child)]
        return [worker for keeper in keepers for template in children(keeper) for worker in children(template)]

    def processes(self) -> list[int]:
        """The process ids of the server and of all processes behind it."""
        found = [self.process.pid]
        for process in found:
            found += children(process)
        return found

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def ended(self) -> int:
        self.process.join(60)
        assert self.process.exitcode is not None
        return self.process.exitcode


def children(process: int) -> list[int]:
    """As Linux tells them; none of a process that has ended."""
    try:
        return list(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))
    except (FileNotFoundError, ProcessLookupError):
        return []


@contextmanager
def serve(
    folder: Path,
    *arguments: object,
    before: Callable[[], None] | None = None,
    environment: dict[str, object] | None = None,
) -> Iterator[Server]:
    server = Server(folder, *arguments, before=before, environment=environment)
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


def memory(process: Any, field: str) -> int:
    """Kilobytes, as Linux tells them."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)[1])
