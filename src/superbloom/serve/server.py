"""`superbloom serve`: a socket, a model folder, uvicorn, and what signals mean.

SIGTERM and SIGINT: nothing new is taken, what is there is answered, exit 0.  SIGHUP: the model folder is loaded again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import resource
import signal
import socket
import sys
import time
import webbrowser
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import uvicorn

from superbloom.config import Settings
from superbloom.errors import InputError
from superbloom.predict import Predictor
from superbloom.serve.app import make_app
from superbloom.serve.connection import Connection, Connections
from superbloom.serve.crash import reported_crashes
from superbloom.serve.service import Models, Served
from superbloom.storage import read_folder, read_json
from superbloom.store import MAX_METRICS_BYTES
from superbloom.store import load as load_model

BACKLOG = 2048  # connections that may wait to be accepted
OTHER_FILES = 200  # open files that are not connections
SLOW = 60.0  # seconds, at least, for clients that still send something, or have an answer to read
log = logging.getLogger("superbloom.serve")


def serve(
    folder: Path,
    settings: Settings,
    *,
    precision: str = "fp32",
    prior: bool = True,
    copy: bool = False,
    report: Path | None = None,
    browser: bool = False,
    notice: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve a model folder until a signal ends it; InputError if it cannot be. copy=True maps none of its files."""
    read_folder(folder, "model", verify=False)  # what it is; its files are checked when they are loaded
    if report is not None and not (report / "metrics.json").is_file():
        raise InputError(f"--report {report} has no metrics.json; give a folder that `superbloom evaluate --out` wrote")
    logging.basicConfig(format="%(message)s", level=logging.WARNING)

    def load() -> Served:
        model, training, metrics, mapped = load_model(folder, copy=copy)
        if report is not None:
            metrics = metrics | {"test": read_json(report / "metrics.json", MAX_METRICS_BYTES)}
        predictor = Predictor(model, precision=precision, prior=prior)
        return Served(predictor, folder.resolve().name, training, metrics, mapped)

    app = make_app(load, settings)
    needed = settings.max_connections + OTHER_FILES
    if (allowed := _allow_files(needed)) < needed:
        notice(
            f"the system allows {allowed:,} open files, and --max-connections {settings.max_connections:,} needs "
            f"{needed:,}: raise ulimit -n, or give --max-connections {max(1, allowed - OTHER_FILES)}"
        )
    with _listening(settings) as listener, reported_crashes(folder):
        host, port = listener.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}/"

        def ready(name: str) -> None:
            notice(f"serving {name} at {url}  (the page, and the API under {url}v1/; Ctrl-C stops)")
            if browser and _has_screen():
                webbrowser.open(url)

        config = uvicorn.Config(
            app,
            http=partial(Connection, connections=Connections(settings)),  # type: ignore[arg-type]
            log_level="error",  # its warnings are about what clients send
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            ws="none",
            timeout_graceful_shutdown=math.ceil(settings.seconds) + 1,  # all is answered by then, if not read
        )
        server = _Server(config, app.state.models, ready, notice, silence=settings.seconds)
        notice(f"loading {folder.resolve().name} …")
        server.run(sockets=[listener])
    if server.failed is not None:
        raise server.failed


class _Server(uvicorn.Server):
    """uvicorn that answers what it took before it ends, ends with exit code 0, and loads again on SIGHUP.

    Connections that are silent for `silence` seconds are closed; where something still moves, later.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        models: Models,
        ready: Callable[[str], None],
        notice: Callable[[str], None],
        silence: float,
    ) -> None:
        super().__init__(config)
        self._silence = silence
        self._models, self._ready, self._notice = models, ready, notice
        self._tasks: set[asyncio.Task[None]] = set()
        self._still: dict[Any, _Still] = {}
        self._changed: str | None = None
        self.failed: Exception | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        handlers: dict[int, Any] = {signal.SIGTERM: self.handle_exit, signal.SIGINT: self.handle_exit}
        if hasattr(signal, "SIGHUP"):
            loop = asyncio.get_running_loop()
            handlers[signal.SIGHUP] = lambda *_: loop.call_soon_threadsafe(self._spawn, self._reload)
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._models.draining = True  # from now on /ready says so
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # once a second
            self._close_silent()
            self._report_change()
        return await super().on_tick(counter)

    def _report_change(self) -> None:
        """Print once that requests are refused because a file of the model was changed in place."""
        before, self._changed = self._changed, self._models.changed
        if self._changed and not before:
            self._notice(self._changed)

    def _close_silent(self) -> None:
        """End connections that ask nothing, never end their headers, or do not read their answers.

        uvicorn would keep them, with their files and their answers. Who still sends something may have been refused,
        and not know yet; who has an answer to read may be slow at it: both get more time. subtle: a busy connection is
        between two requests, too, now and then; but then the last one is another.
        """
        now, slow, before = time.monotonic(), max(SLOW, self._silence), self._still
        self._still = {}
        for connection in list(self.server_state.connections):
            assert isinstance(connection, Connection)
            last, unsent = connection.cycle, connection.transport.get_write_buffer_size()
            if last is not None and not last.response_complete and not unsent:
                continue  # it waits for us
            unsent += _unacknowledged(connection.transport)
            answers = last, unsent
            still = before.get(connection, _Still(answers, now, connection.arrived, now))
            if still.answers != answers:
                still = _Still(answers, now, connection.arrived, now)
            elif still.arrived != connection.arrived:
                still = still._replace(arrived=connection.arrived, silent=now)
            self._still[connection] = still
            if now - still.since > slow or (not unsent and now - still.silent > self._silence):
                connection.transport.abort()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._spawn(self._first)

    def _spawn(self, work: Callable[[], Any]) -> None:
        task = asyncio.get_running_loop().create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _first(self) -> None:
        """What is wrong with the folder is told as with every other command."""
        try:
            service = await self.config.app.state.loading  # type: ignore[union-attr]
        except Exception as error:
            self.failed = error
            self.should_exit = True
        else:
            self._ready(service.served.name)

    async def _reload(self) -> None:
        try:
            await self._models.load()
        except Exception as error:
            self._notice(f"the model was not reloaded, the old one stays: {error}")
        else:
            self._notice("the model was reloaded")


class _Still(NamedTuple):
    """A connection that does not wait for us, when last looked at."""

    answers: Any  # the last request, and the bytes its client did not take yet
    since: float  # when these became so
    arrived: int
    silent: float  # since when nothing came, either


def _unacknowledged(transport: asyncio.BaseTransport) -> int:
    """Bytes that the system has yet to send, or to hear of; 0 where it does not tell.

    Of those, it takes more from us only when a third is gone: for a slow reader, that is long.
    """
    if sys.platform != "linux":
        return 0
    import fcntl
    import termios

    told = array("i", [0])
    try:
        fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, told)
    except (OSError, ValueError):  # it is closed
        return 0
    return told[0]


@contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", None) or 0
        reason = os.strerror(number) if number > 0 else str(error)
        raise InputError(
            f"cannot listen on {settings.host}:{settings.port}: {reason}; choose another --port (0: any that is free)"
        ) from None
    with listener:
        yield listener


def _allow_files(number: int) -> int:
    """Let this process have so many files open, as far as the system allows; how many it may have then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return number
    wanted = number if hard == resource.RLIM_INFINITY else min(number, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)


def _has_screen() -> bool:
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
