"""What `predict --server` does; it needs neither torch nor the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from superbloom.answers import Prediction
from superbloom.client import Client
from superbloom.errors import InputError
from superbloom.prepare.files import open_lines


def ask_server(
    url: str,
    key: str | None,
    context: list[str] | str,
    k: int,
    *,
    allow_file: Path | None,
    combine: str,
    max_rounds: int | None,
    allow: list[str],
    **options: Any,
) -> list[list[Prediction]]:
    """The answers of a server to one query, each option as it is typed."""
    if combine != "sum" or max_rounds not in (None, 1):
        raise InputError(
            "a server combines hashes by their sum, and makes one round or as many as needed; "
            "leave out --combine, and --max-rounds unless it is 1"
        )
    asked = {"allow": allowed(allow, allow_file), "exact": max_rounds is None, **options}
    client = Client(url, key=key)
    if isinstance(context, str):
        return client.fill_in(context, k, **asked)
    return client.predict_all(context, k, **asked)


def allowed(names: list[str], file: Path | None) -> list[str] | None:
    """The only names that may be answered: those given and those of a text file; None if neither is there."""
    listed = [] if file is None else [name for name in open_lines(file) if name.strip()]
    return names + listed if names or file is not None else None
