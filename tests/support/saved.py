"""Corpora, old and new, and what lies in a folder."""

import json
import subprocess
from pathlib import Path

from superbloom.corpus.corpus import Corpus
from tests.support import launch

OLD = Corpus.from_sequences([["Oslo", "Bergen"], ["Oslo", "Narvik"]] * 50)
NEW = Corpus.from_sequences([["Aarhus", "Odense"], ["Aarhus", "Ribe"]] * 80)
CONTENT = {"counts": {}, "info": {}, "split": ""}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def beside(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.parent.iterdir())


def run(script: str, *arguments: object) -> list[dict]:
    """The JSON lines a script prints."""
    return printed(launch.python(script, *arguments, timeout=120))


def printed(done: subprocess.CompletedProcess[str]) -> list[dict]:
    """The JSON lines of a script that has to end well."""
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
