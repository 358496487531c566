"""Corpus and model folders: written whole or not at all, and refused when they are not what was written.

A corpus or a model is a folder of plain files with one JSON manifest (corpus.json, config.json). The manifest names
the format and its version, lists size and sha256 of every other file, and carries a sha256 of itself. Neither Arrow
nor safetensors notices a flipped bit on its own (docs/formats.md).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from superbloom.errors import InputError
from superbloom.runtime import is_main_process
from superbloom.storage.atomic import fsync, read_consistently, swap
from superbloom.storage.locks import holds, locked
from superbloom.storage.temporary import remove_dead, temporary_prefix
from superbloom.version import __version__

VERSION = 1  # of the format
MANIFESTS = {"corpus": "corpus.json", "model": "config.json"}
# Keys that a manifest must have in addition to format, version and checksums.
CONTENTS: dict[str, dict[str, type]] = {
    "corpus": {"counts": dict, "info": dict, "split": str},
    "model": {"model": dict, "training": dict},
}
REQUIRED_FILES = {
    "corpus": ("vocab.arrow", "sequences.arrow"),
    "model": ("model.safetensors", "bloom.safetensors", "vocab.arrow", "metrics.json"),
}
OPTIONAL_FILES = {
    "corpus": ("targets.arrow",),
    "model": (
        "prior.safetensors",
        "repetition.safetensors",
        "memory.safetensors",
        "target_bloom.safetensors",
        "targets.arrow",
    ),
}
CARD_FILE = "README.md"  # people edit it, so it has no checksum
MAX_MANIFEST_BYTES = 2**20  # parsed JSON takes about thirty times its size
MAX_JSON_VALUES = 300_000  # of a JSON file that may be larger
MIN_SPARSE_BYTES = 2**30  # larger files that are mostly holes are refused: reading them would take hours


@contextmanager
def new_folder(path: str | Path, kind: str, content: dict[str, Any], overwrite: bool) -> Iterator[Path]:
    """Write a folder: the block fills the temporary folder it gets, which then becomes `path`.

    overwrite: replace an older folder of the same kind. Anything else at `path` is refused and stays. If the block
    raises, nothing changes.
    """
    path = Path(path).resolve()  # a link stays; the folder it points to is replaced
    with only_writer(path, kind, overwrite):
        temporary = Path(tempfile.mkdtemp(prefix=temporary_prefix(path.name), dir=path.parent))
        try:
            yield temporary
            _seal(temporary, kind, content)
            temporary.chmod(0o755)
            check_replaceable(path, kind, overwrite)  # again: something else may have appeared there meanwhile
            swap(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def only_writer(path: str | Path, kind: str, overwrite: bool) -> Iterator[None]:
    """Be the only process that writes this folder during the block; InputError if another process already is.

    overwrite: a finished folder of this kind may be there; InputError if it is and may not be.
    What killed writers of this folder left beside it is removed.
    Long commands take this lock first. Otherwise a process could compute for hours and then be refused, or lose its
    result to another one.
    """
    check_replaceable(Path(path), kind, overwrite)
    path = Path(path).resolve()  # a folder has one lock, whatever link leads to it
    lock = path.with_name(f".{path.name}.lock")
    created = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    if holds(lock) or not is_main_process():
        yield
        return
    try:
        with locked(lock, f"another process is writing {path}; wait for it, or choose another --out"):
            remove_dead(path.parent, path.name)
            try:
                yield
            finally:
                with suppress(OSError):  # a lock file that stays does no harm
                    lock.unlink()
    finally:
        with suppress(OSError):  # folders that are not empty stay
            for folder in created:
                folder.rmdir()


def check_replaceable(path: Path, kind: str, overwrite: bool) -> None:
    """Raise InputError if a folder of this kind at `path` would destroy something that may not be overwritten."""
    read_consistently(path, lambda: _check_replaceable(path, kind, overwrite))


def _check_replaceable(path: Path, kind: str, overwrite: bool) -> None:
    if path.resolve() in (Path.cwd(), *Path.cwd().parents):
        raise InputError(f"{path} is the current folder or one above it; name a folder inside it")
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    try:
        manifest = read_json(path / MANIFESTS[kind])
        is_ours = manifest["format"] == f"superbloom {kind}"  # other programs also write a config.json
        known = {MANIFESTS[kind], CARD_FILE, *REQUIRED_FILES[kind], *OPTIONAL_FILES[kind]}
        strangers = {file.name for file in path.iterdir()} - known
    except (KeyError, InputError):
        is_ours = False
    if not is_ours:
        raise InputError(f"{path} exists and is not a {kind} folder; move it away or choose another --out")
    if strangers:
        raise InputError(
            f"{path} also holds {min(strangers)!r}, no part of a {kind}; move it away or choose another --out"
        )
    if not overwrite:
        raise already_there(path, f"holds a {kind}")


def already_there(path: Path, state: str) -> InputError:
    """The error that refuses to replace something without being asked to.

    >>> print(already_there(Path("shop"), "holds a corpus"))
    shop already holds a corpus; --overwrite (overwrite=True in Python) replaces it, or choose another --out
    """
    return InputError(
        f"{path} already {state}; --overwrite (overwrite=True in Python) replaces it, or choose another --out"
    )


def read_folder(path: str | Path, kind: str, verify: bool = True, unread: Collection[str] = ()) -> dict[str, Any]:
    """The manifest of a folder. InputError names the file that is missing, damaged or not ours.

    verify=False compares sizes but not checksums, for huge folders that you trust. unread: the same for these files.
    """
    path = Path(path)
    manifest = path / MANIFESTS[kind]
    if not manifest.is_file():
        other = next((k for k, name in MANIFESTS.items() if (path / name).is_file()), None)
        if other:
            found = f"is a {other} folder"
        elif path.is_dir():
            found = "has none"
        else:
            found = "is a file" if path.exists() else "does not exist"
        raise InputError(f"a {kind} folder holds {manifest.name}; {path} {found}")
    _check_place(manifest)
    content = read_json(manifest)
    format_, version = content.get("format"), content.get("version")
    if type(format_) is not str or type(version) is not int:
        raise _foreign(manifest)
    if format_ != f"superbloom {kind}" or not 1 <= version <= VERSION:
        release = str(content.get("superbloom", ""))[:20]
        writer = f" of superbloom {release if release.isprintable() else repr(release)}" if release else ""
        raise InputError(
            f"{manifest} has format {format_!r:.40} version {version!r:.40}{writer}; superbloom {__version__} reads "
            f"'superbloom {kind}' up to version {VERSION}: install the release that wrote it, or a later one"
        )
    if content.pop("sha256", None) != _digest(content):
        raise InputError(f"{manifest} does not match its own checksum: it was edited; write the {kind} again")
    for name, type_ in (CONTENTS[kind] | {"files": dict}).items():
        if type(content.get(name)) is not type_:
            raise InputError(f"{manifest} has no {name!r} of type {type_.__name__}; write the {kind} again")
    for name in content["files"]:
        if name not in REQUIRED_FILES[kind] + OPTIONAL_FILES[kind]:
            raise InputError(f"{manifest} lists the file {name!r:.80}; no {kind} has that: write it again")
    for name in REQUIRED_FILES[kind]:
        if name not in content["files"]:
            raise InputError(f"{manifest} lists no {name}; the folder is not a whole {kind}: write it again")
    with ThreadPoolExecutor() as pool:
        files = content["files"].items()
        checks = [
            pool.submit(_check_file, path, manifest, name, entry, verify and name not in unread)
            for name, entry in files
        ]
        for check in checks:
            check.result()
    return content


def read_json(file: Path, max_bytes: int = MAX_MANIFEST_BYTES) -> dict[str, Any]:
    """The JSON object in a file. InputError if the file is too large, too deeply nested, or no JSON object."""
    if not file.is_file():  # a pipe would never end
        raise _foreign(file)
    if file.stat().st_size > max_bytes:
        raise InputError(f"{file} has {file.stat().st_size:,} bytes; up to {max_bytes:,} are read: write it again")
    data = file.read_bytes()
    if sum(map(data.count, (b",", b"[", b"{"))) > MAX_JSON_VALUES:
        raise InputError(f"{file} holds more than {MAX_JSON_VALUES:,} values, the most that are read; write it again")
    try:
        content: dict[str, Any] = json.loads(data)
        _digest(content)  # raises RecursionError if it is nested too deeply to be written again
    except (ValueError, RecursionError):
        raise _foreign(file) from None
    if type(content) is not dict:
        raise _foreign(file)
    return content


def _foreign(manifest: Path) -> InputError:
    return InputError(f"{manifest} was not written by superbloom, or is damaged; write it again")


def _check_file(folder: Path, manifest: Path, name: str, entry: Any, verify: bool) -> None:
    size, expected = (entry.get("bytes"), entry.get("sha256")) if type(entry) is dict else (None, None)
    if type(size) is not int or not 0 <= size < 2**63 or type(expected) is not str:
        raise InputError(f"{manifest} gives no size and sha256 of {name!r:.80}; write it again")
    file = folder / name
    if not file.is_file():
        raise InputError(f"{file} is missing; the folder is incomplete: copy it again")
    _check_place(file)
    if file.stat().st_size != size:
        raise InputError(f"{file} has {file.stat().st_size:,} bytes where {size:,} were written; copy it again")
    if size > MIN_SPARSE_BYTES and _is_hollow(file, size):
        raise InputError(f"{file} has {size:,} bytes, nearly all of them holes; copy it again")
    if verify and sha256(file) != expected:
        raise InputError(f"{file} does not match its checksum: damaged or edited; copy it again")


def _check_place(file: Path) -> None:
    if leads_out(file):
        raise InputError(f"{file} is a link out of its folder; copy the folder with what it points to (cp -rL)")


def leads_out(file: Path) -> bool:
    """Whether a file is a link out of its folder. Links to `blobs` are not: downloads from the hub consist of them."""
    there, folder = file.resolve().parent, file.parent.resolve()
    blobs = [at.parent.parent / "blobs" for at in (folder, *folder.parents) if at.parent.name == "snapshots"]
    return there != folder and there not in blobs


def _is_hollow(file: Path, size: int) -> bool:
    """Whether the disk holds less than 1 % of a file. If it does not say, whether the file begins with zeros."""
    with file.open("rb") as stream:
        if not (blocks := file.stat().st_blocks):
            return stream.read(8) == bytes(8)
        # subtle: ZFS reports the blocks of a new file late, but its holes at once.
        return blocks * 512 * 100 < size and os.lseek(stream.fileno(), 0, os.SEEK_HOLE) < size


def _seal(folder: Path, kind: str, content: dict[str, Any]) -> None:
    """Write the manifest and force everything to disk, so that the rename cannot become visible before the data."""
    files = {
        file.name: {"bytes": file.stat().st_size, "sha256": sha256(file)}
        for file in sorted(folder.iterdir())
        if file.name != CARD_FILE
    }
    content = {"format": f"superbloom {kind}", "version": VERSION, "superbloom": __version__, **content, "files": files}
    text = json.dumps(content | {"sha256": _digest(content)}, indent=2, ensure_ascii=False) + "\n"
    data = text.encode(errors="backslashreplace")  # file names that are not UTF-8 are escaped
    if len(data) > MAX_MANIFEST_BYTES:
        raise InputError(
            f"{MANIFESTS[kind]} would have {len(data):,} bytes; up to {MAX_MANIFEST_BYTES:,} are read: shorten it"
        )
    (folder / MANIFESTS[kind]).write_bytes(data)
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors lets only the owner read its files
        fsync(file)
    fsync(folder)


def sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _digest(content: dict[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
