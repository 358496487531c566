"""Folders that are written whole or not at all, and refused when they are not what was written.

A corpus or a model is a folder of plain files with one JSON manifest in it (corpus.json, config.json). The
manifest names the format and its version, carries size and sha256 of every other file, and a sha256 of
itself. Neither Arrow nor safetensors notices a flipped bit on its own (docs/formats.md).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from superbloom.errors import InputError

MANIFESTS = {"corpus": "corpus.json", "model": "config.json"}
VERSION = 1


@contextmanager
def new_folder(path: str | Path, kind: str, content: dict[str, Any]) -> Iterator[Path]:
    """Write a folder under a temporary name beside `path`; seal and rename it once the block ends well.

    An older folder of the same kind is replaced; anything else in its place is left alone and refused.
    """
    path = Path(path)
    check_replaceable(path, kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        yield temporary
        _seal(temporary, kind, content)
        temporary.chmod(0o755)
        _swap(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_replaceable(path: Path, kind: str) -> None:
    """Raise InputError if writing a folder of this kind at `path` would destroy something else."""
    if path.exists() and not (path.is_dir() and (not any(path.iterdir()) or (path / MANIFESTS[kind]).exists())):
        raise InputError(f"{path} exists and is not a {kind} folder; move it away or choose another --out")


def read_folder(path: str | Path, kind: str, verify: bool = True) -> dict[str, Any]:
    """The manifest of a folder whose files are all as they were written; InputError names the one that is not.

    verify=False compares sizes only, for huge folders one trusts.
    """
    path = Path(path)
    manifest = path / MANIFESTS[kind]
    if not manifest.is_file():
        other = next((k for k, name in MANIFESTS.items() if (path / name).is_file()), None)
        found = f"is a {other} folder" if other else "has none" if path.is_dir() else "does not exist"
        raise InputError(f"a {kind} folder holds {manifest.name}; {path} {found}")
    try:
        content = json.loads(manifest.read_bytes())
        stated = content.pop("sha256")
        files = {name: (entry["bytes"], entry["sha256"]) for name, entry in content["files"].items()}
        format_, version = content["format"], content["version"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(f"{manifest} is not a superbloom manifest: damaged or foreign; write it again") from None
    if format_ != f"superbloom {kind}" or type(version) is not int or version > VERSION:
        raise InputError(
            f"{manifest} has format {format_!r} version {version!r}; this release reads "
            f"'superbloom {kind}' up to version {VERSION}: upgrade superbloom"
        )
    if stated != _digest(content):
        raise InputError(f"{manifest} does not match its own checksum: it was edited; write the {kind} again")
    for name, (size, sha256) in files.items():
        _check_file(path, name, size, sha256 if verify else None)
    return content


def _check_file(folder: Path, name: str, size: int, sha256: str | None) -> None:
    file = folder / name
    if Path(name).name != name or not file.is_file():
        raise InputError(f"{file} is missing; the folder is incomplete: copy it again")
    if file.stat().st_size != size:
        raise InputError(f"{file} has {file.stat().st_size:,} bytes where {size:,} were written; copy it again")
    if sha256 is not None and _sha256(file) != sha256:
        raise InputError(f"{file} does not match its checksum {sha256[:12]}…: damaged or edited; copy it again")


def _seal(folder: Path, kind: str, content: dict[str, Any]) -> None:
    """Write the manifest and force everything to disk, so that the rename cannot be seen before the data."""
    files = {
        file.name: {"bytes": file.stat().st_size, "sha256": _sha256(file)}
        for file in sorted(folder.iterdir())
        if file.name != "README.md"  # a model card is for people to edit
    }
    content = {"format": f"superbloom {kind}", "version": VERSION, **content, "files": files}
    text = json.dumps(content | {"sha256": _digest(content)}, indent=2, ensure_ascii=False)
    (folder / MANIFESTS[kind]).write_text(text + "\n", encoding="utf-8")
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors writes files only their owner can read
        _fsync(file)
    _fsync(folder)


def _swap(new: Path, path: Path) -> None:
    """Put `new` where `path` is; a reader sees the old folder or the new one."""
    if path.exists():
        retired = Path(tempfile.mkdtemp(prefix=f".{path.name}-old-", dir=path.parent)) / path.name
        path.rename(retired)
        try:
            new.rename(path)
        except OSError:
            retired.rename(path)
            raise
        finally:
            shutil.rmtree(retired.parent, ignore_errors=True)
    else:
        new.rename(path)
    _fsync(path.parent)


def write_atomically(path: Path, data: bytes) -> None:
    """One file: temporary name in the same folder, fsync, rename, fsync of the folder."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    _fsync(path.parent)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _digest(content: dict[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
