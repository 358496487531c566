"""The folder OUT.parts, which keeps what was parsed until the corpus is written, so that a killed run can resume."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

from superbloom.errors import InputError
from superbloom.prepare.report import Notice
from superbloom.prepare.wikipedia.dump import PIECE_BYTES
from superbloom.storage import MANIFESTS, read_json, write_atomically
from superbloom.version import __version__

FORMAT = 1  # of the files in the folder
PARSER_FILES = ("parts.py", "wikitext.py", "words.py", "bzip2.py", "dump.py", "reading.py")
TICKET = "parts.json"  # which input files and options the parts belong to


def start_or_resume(folder: Path, files: list[str], drop_disambiguations: bool, notice: Notice) -> None:
    """Make the folder, or keep it if it holds parts of these very files."""
    inputs: list[list[str | float]] = []
    for path in files:
        if Path(path).is_file():
            status = Path(path).stat()
            inputs.append([path, status.st_size, status.st_mtime_ns])
        else:
            inputs.append([path, os.getpid(), os.times().elapsed])  # a stream is never the same again
    ticket = {
        "format": FORMAT,
        "parser": parser_version(),
        "pieces": PIECE_BYTES,
        "disambiguations": not drop_disambiguations,
        "files": inputs,
    }
    content = json.dumps(ticket).encode()
    if folder.exists():
        if (folder / TICKET).is_file() and (folder / TICKET).read_bytes() == content:
            if done := sum(1 for _ in folder.glob("*.done")):
                notice(f"resuming from {folder}: {done:,} pieces are done")
            return
        if any(TICKET not in entry.name for entry in folder.iterdir()) and not (folder / TICKET).is_file():
            raise InputError(f"{folder} is needed for unfinished work, but holds something else; move it away")
        remove_parts(folder)
    folder.mkdir(parents=True)
    write_atomically(folder / TICKET, content)


def parser_version() -> str:
    """A checksum of the code that makes parts: parts of another release are not mixed with new ones."""
    code = hashlib.sha256(__version__.encode())
    for name in PARSER_FILES:
        file = Path(__file__).with_name(name)
        code.update(file.read_bytes() if file.is_file() else b"")  # an installation may hold compiled files only
    return code.hexdigest()[:16]


def is_written(folder: Path, out: Path, source: str) -> bool:
    """Whether a killed run had written its corpus, and only had its parts left to remove."""
    with suppress(OSError):
        folder.rmdir()  # it is empty if the run was killed at the very end: then the corpus is finished
    try:
        manifest = out / MANIFESTS["corpus"]
        is_later = manifest.stat().st_mtime_ns >= (folder / TICKET).stat().st_mtime_ns
        return is_later and bool(read_json(manifest)["info"]["source"] == source)
    except (OSError, InputError, KeyError, TypeError):
        return False


def remove_parts(folder: Path) -> None:
    """Remove the folder, the ticket last: after a kill in between, the folder is still known as ours."""
    for entry in folder.iterdir():
        if TICKET not in entry.name:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    shutil.rmtree(folder)
