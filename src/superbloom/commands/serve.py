"""`superbloom serve`: a model over HTTP, and a page to play with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from superbloom.commands.console import notice
from superbloom.commands.options import ApiKey, given, options_of
from superbloom.config import HeadOptions, Settings, environment_name, make
from superbloom.errors import InputError


@options_of(Settings, HeadOptions, environment=True)
def serve(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="A model folder.", envvar=environment_name("model"), show_envvar=False),
    ],
    api_key: ApiKey = None,
    report: Annotated[
        Path | None,
        typer.Option(
            help="Folder that `evaluate --out` wrote: for the page's report.",
            envvar=environment_name("report"),
            show_envvar=False,
        ),
    ] = None,
    copy: Annotated[
        bool,
        typer.Option(
            "--copy",
            help="Read all files into memory, so that they may be changed while it serves.",
            envvar=environment_name("copy"),
            show_envvar=False,
        ),
    ] = False,
    browser: Annotated[
        bool,
        typer.Option(
            help="Open the page once the model is loaded.", envvar=environment_name("browser"), show_envvar=False
        ),
    ] = True,
    **options: Any,
) -> None:
    """A model over HTTP, and a page to play with it.

    Ctrl-C or SIGTERM answers the requests that came, then ends. SIGHUP reloads the model.

    Every option is also an environment variable, such as SUPERBLOOM_MAX_K for --max-k.

    SUPERBLOOM_MODEL names the folder. A switch takes 1 or 0; spaces separate several values.
    """
    chosen = given(Settings, options)
    settings = make(Settings, {**chosen, "cors": tuple(chosen.get("cors", ())), "api_key": api_key})
    head = vars(make(HeadOptions, given(HeadOptions, options)))
    with _stopped_by_sigterm():
        try:
            from superbloom.serve.server import serve
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("superbloom"):
                raise
            raise InputError(f"{error.name} is not installed; pip install 'superbloom[serve]'") from None

        serve(model, settings, **head, copy=copy, report=report, browser=browser, notice=notice)


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Until the server handles signals itself, SIGTERM ends it with 0: nothing was asked yet, so nothing is lost."""
    before = signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
