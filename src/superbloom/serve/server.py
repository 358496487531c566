"""The process of `superbloom serve`: a socket, a model folder, uvicorn and its signals.

SIGTERM and SIGINT: refuse new requests, answer the others, exit with 0. SIGHUP: load the model folder again.
"""

from __future__ import annotations

import asyncio
import math
import os
import resource
import signal
import socket
import sys
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from superbloom.config import HeadOptions, Settings
from superbloom.errors import InputError
from superbloom.model import Model
from superbloom.predict import Predictor
from superbloom.serve.app import make_app
from superbloom.serve.connection import Connection, Connections
from superbloom.serve.crash import reported_crashes
from superbloom.serve.idle import IdleConnections
from superbloom.serve.logs import configure
from superbloom.serve.service import Models, Served
from superbloom.serve.workers import Keeper
from superbloom.storage import MANIFESTS, OPTIONAL_FILES, REQUIRED_FILES, read_consistently, read_folder, read_json
from superbloom.store import MAX_METRICS_BYTES, Stored
from superbloom.store import load as load_model

LISTEN_BACKLOG = 2048  # connections that may wait to be accepted
OTHER_OPEN_FILES = 200  # files that are not connections
TICKS_PER_SECOND = 10  # of uvicorn
RELOAD_SECONDS = 5  # between attempts to load a model whose process has ended
REPLACED_SECONDS = 60.0  # to load the same files in all processes, while the folder is replaced again and again


def serve(
    folder: Path,
    settings: Settings,
    *,
    precision: str = HeadOptions.precision,
    prior: bool = HeadOptions.prior,
    network_only: bool = HeadOptions.network_only,
    copy: bool = False,
    report: Path | None = None,
    browser: bool = False,
    notice: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve a model folder until a signal ends the process. Raises InputError if the folder cannot be served.

    This process speaks HTTP, reads names and gathers queries. settings.workers other processes compute the batches.
    copy: read all files into memory instead of mapping them. report: a folder that `superbloom evaluate --out` wrote.
    browser: open the page when the model is loaded. notice: called with each line for the person who started it.
    """
    # Only its kind; loading verifies its files. Another process may replace the folder meanwhile.
    read_consistently(folder, lambda: read_folder(folder, "model", verify=False))
    if report is not None and not (report / "metrics.json").is_file():
        raise InputError(f"--report {report} has no metrics.json; give a folder that `superbloom evaluate --out` wrote")
    notice = configure(settings.log_format, notice)

    def predictor_of(model: Model, precision: str) -> Predictor:
        return Predictor(model, precision=precision, prior=prior, network_only=network_only)

    def load_to_compute() -> tuple[Predictor, Any]:
        """For the workers: the whole model, and which files it is."""
        stored, files = _consistent(folder, lambda: load_model(folder, copy=copy))
        return predictor_of(stored.model, precision), files

    def load() -> Served:
        """The model in the workers and, without its weights, in this process: the same files."""
        end = time.monotonic() + REPLACED_SECONDS
        while time.monotonic() < end:
            workers = keeper.start(notice)
            try:
                stored, files = _consistent(folder, lambda: load_model(folder, copy=copy, weights=False))
                model, training, metrics, mapped = stored
                if report is not None:
                    metrics = metrics | {"test": read_json(report / "metrics.json", MAX_METRICS_BYTES)}
                if workers.source() == files:
                    workers.wait()
                    reader = predictor_of(model, "fp32")  # it has no weights to round
                    name = folder.resolve().name
                    return Served(reader, name, training, metrics, mapped, workers, precision)
            except BaseException:
                workers.close()
                raise
            workers.close()
        raise InputError(f"{folder} was replaced again and again while it was loaded; load it again once it stays")

    keeper = Keeper(load_to_compute, settings.workers)  # before this process has threads
    try:
        _serve(folder, settings, keeper, load, browser, notice)
    finally:
        keeper.close()


def _serve(
    folder: Path,
    settings: Settings,
    keeper: Keeper,
    load: Callable[[], Served],
    browser: bool,
    notice: Callable[[str], None],
) -> None:
    app = make_app(load, settings)
    needed = settings.max_connections + OTHER_OPEN_FILES
    if (allowed := _allow_files(needed)) < needed:
        notice(
            f"the system allows {allowed:,} open files, and --max-connections {settings.max_connections:,} needs "
            f"{needed:,}: raise ulimit -n, or give --max-connections {max(1, allowed - OTHER_OPEN_FILES)}"
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
            log_config=None,  # our own, for its records as well
            access_log=False,
            server_header=False,
            backlog=LISTEN_BACKLOG,
            ws="none",
            timeout_graceful_shutdown=math.ceil(settings.seconds) + 1,  # by then every request has its answer
        )
        server = _Server(config, app.state.models, keeper, ready, notice)
        notice(f"loading {folder.resolve().name} …")
        server.run(sockets=[listener])
    if server.failed is not None:
        raise server.failed


class _Server(uvicorn.Server):
    """uvicorn that answers accepted requests before it ends, exits with 0, reloads on SIGHUP and closes idle clients.

    ready: called with the name of the model when it is loaded.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        models: Models,
        keeper: Keeper,
        ready: Callable[[str], None],
        notice: Callable[[str], None],
    ) -> None:
        super().__init__(config)
        self._models, self._keeper, self._ready, self._notice = models, keeper, ready, notice
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = IdleConnections(models.settings.seconds)
        self._change: str | None = None
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
        self._models.is_draining = True  # from now on, /ready answers 503
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS_PER_SECOND == 0:
            self._idle.close(self.server_state.connections)
            self._report_change()
        if counter % (RELOAD_SECONDS * TICKS_PER_SECOND) == 0 and self._models.is_lost and not self._models.is_draining:
            self._recover()
        return await super().on_tick(counter)

    def _recover(self) -> None:
        """Load the model again, because workers that end are no longer replaced; end if that is impossible."""
        if self._keeper.has_ended:
            self.failed = InputError("the processes that hold the model have ended; start the server again")
            self._models.is_draining = self.should_exit = True
        else:
            self._notice("the process that holds the model has ended; the model is loaded again")
            self._spawn(self._reload)

    def _report_change(self) -> None:
        """Print once that requests are refused because a file of the model was changed in place."""
        before, self._change = self._change, self._models.change
        if self._change and not before:
            self._notice(self._change)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._spawn(self._wait_for_model)

    def _spawn(self, work: Callable[[], Any]) -> None:
        task = asyncio.get_running_loop().create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wait_for_model(self) -> None:
        """Call ready when the model is loaded. If it cannot be, end the server and keep the error for `serve`."""
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


def _consistent(folder: Path, load: Callable[[], Stored]) -> tuple[Stored, list[list[Any]]]:
    """What is loaded from a folder, and which files it was. Loads again if the folder is replaced meanwhile."""
    while True:
        files, stored = _versions(folder), load()
        if files == _versions(folder):
            return stored, files


def _versions(folder: Path) -> list[list[Any]]:
    """Which files a folder holds. Two processes that see the same have loaded the same model."""
    found = []
    for name in (MANIFESTS["model"], *REQUIRED_FILES["model"], *OPTIONAL_FILES["model"]):
        with suppress(OSError):  # a model need not have all of them
            status = (folder / name).stat()
            found.append([name, status.st_ino, status.st_size, status.st_mtime_ns])
    return found


@contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    """The socket of a server, closed at the end of the block."""
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=LISTEN_BACKLOG)
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", None) or 0
        reason = os.strerror(number) if number > 0 else str(error)
        raise InputError(
            f"cannot listen on {settings.host}:{settings.port}: {reason}; choose another --port (0: any that is free)"
        ) from None
    with listener:
        yield listener


def _allow_files(number: int) -> int:
    """Allow this process this number of open files, if the system does; returns the number that it may open now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return number
    wanted = number if hard == resource.RLIM_INFINITY else min(number, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)


def _has_screen() -> bool:
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
