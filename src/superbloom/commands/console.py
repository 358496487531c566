"""What commands print: results to standard output, notices to standard error, names without control characters."""

from __future__ import annotations

import json
import re
import reprlib
import shlex
import shutil
import sys
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

MAX_TREE_INDENT = 20  # spaces
MIN_WIDTH = 40  # columns: narrower terminals wrap lines themselves


def print_json(document: Any) -> None:
    """Print one JSON document and nothing else."""
    text = json.dumps(document, ensure_ascii=False, indent=2)
    text = re.sub("[\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", text)  # some terminals obey these
    typer.echo(text.encode(errors="backslashreplace"))


def print_rows(rows: list[tuple[str, str]]) -> None:
    """Print numbers and what they count."""
    for value, name in rows:
        typer.echo(f"{value:>13}  {name}")


def print_tree(found: dict[str, Any], indent: str = "") -> None:
    """Print the names and values of a manifest, which may be anything that JSON can be."""
    for name, value in found.items():
        label = f"{indent}{printable(name)}"
        if isinstance(value, dict) and len(indent) < MAX_TREE_INDENT:
            typer.echo(label)
            print_tree(value, indent + "  ")
        elif isinstance(value, list):
            typer.echo(f"{label}: {', '.join(printable(_short(item)) for item in value)}")
        else:
            shown = f"{value:,}" if type(value) is int else printable(_short(value))
            typer.echo(f"{label}: {shown}")


def print_wrapped(line: str, indent: str = "") -> None:
    """Print a line within the width of the terminal; what does not fit continues below, a little further right."""
    width = max(MIN_WIDTH, shutil.get_terminal_size().columns)
    typer.echo(textwrap.fill(line, width, initial_indent=indent, subsequent_indent=indent + "  "))


def notice(line: str) -> None:
    """Print to standard error."""
    typer.echo("\n".join(map(printable, line.split("\n"))), err=True)


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Print warnings of Python as plain lines."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        notice(str(warning.message))


def command() -> str:
    """How to call this program again from here: by name where the shell finds it, else by its path."""
    if shutil.which("superbloom"):
        return "superbloom"
    return "python -m superbloom" if Path(sys.argv[0]).name == "__main__.py" else sys.argv[0]


def q(path: Path | str) -> str:
    """A path as it can be pasted into a shell."""
    return shlex.quote(str(path))


def printable(name: str) -> str:
    """A name as a terminal can show it: control characters are spelled out.

    >>> printable("two\\nlines"), printable("Malmö")
    ('two\\\\nlines', 'Malmö')
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in name)


def _short(value: Any) -> str:
    return reprlib.repr(value) if isinstance(value, dict | list) else str(value)
