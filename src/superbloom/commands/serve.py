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
from superbloom.commands.options import ApiKey, ModelFolder, given, options_of
from superbloom.config import HeadOptions, Settings, make
from superbloom.errors import InputError


@options_of(Settings, HeadOptions)
def serve(
    model: ModelFolder,
    api_key: ApiKey = None,
    report: Annotated[
        Path | None, typer.Option(help="Folder that `evaluate --out` wrote: for the page's report.")
    ] = None,
    copy: Annotated[
        bool, typer.Option("--copy", help="Read all files into memory, so that they may be changed while it serves.")
    ] = False,
    browser: Annotated[bool, typer.Option(help="Open the page once the model is loaded.")] = True,
    **options: Any,
) -> None:
    """A model over HTTP, and a page to play with it.

    Ctrl-C or SIGTERM answers the requests that came, then ends. SIGHUP reloads the model.
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
