"""Folders that are written whole or not at all, and refused when they are not what was written.

A corpus or a model is a folder of plain files with one JSON manifest in it (corpus.json, config.json). The
manifest names the format and its version, carries size and sha256 of every other file, and a sha256 of
itself. Neither Arrow nor safetensors notices a flipped bit on its own (docs/formats.md).
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from superbloom.errors import InputError
from superbloom.runtime import main_process
from superbloom.storage.locks import holds, locked
from superbloom.version import __version__

MANIFESTS = {"corpus": "corpus.json", "model": "config.json"}
# What a manifest has to hold beside format, version and checksums, and the files it has to list.
CONTENTS: dict[str, dict[str, type]] = {
    "corpus": {"counts": dict, "info": dict, "split": str},
    "model": {"model": dict, "training": dict},
}
FILES = {
    "corpus": ("vocab.arrow", "sequences.arrow"),
    "model": ("model.safetensors", "bloom.safetensors", "vocab.arrow", "metrics.json"),
}
VERSION = 1
OPTIONAL = {"corpus": ("targets.arrow",), "model": ("prior.safetensors", "target_bloom.safetensors", "targets.arrow")}
MAX_MANIFEST_BYTES = 2**20  # parsed JSON takes some thirty times its size
MAX_VALUES = 300_000  # of a JSON file that may be larger
HOLLOW = 2**30  # bytes from which on a file that is mostly holes is refused: to read them would take hours
CARD = "README.md"  # for people to edit, so without a checksum

_T = TypeVar("_T")


@contextmanager
def new_folder(path: str | Path, kind: str, content: dict[str, Any]) -> Iterator[Path]:
    """Write a folder under a temporary name beside `path`; seal and rename it once the block ends well.

    An older folder of the same kind is replaced; anything else in its place is left alone and refused.
    """
    path = Path(path).resolve()  # of a link, what it points to is replaced
    with only_writer(path, kind):
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
        try:
            yield temporary
            _seal(temporary, kind, content)
            temporary.chmod(0o755)
            check_replaceable(path, kind)  # again: something else may have come there meanwhile
            _swap(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def only_writer(path: str | Path, kind: str) -> Iterator[None]:
    """Be the only process that makes this folder, from here to the end of the block; InputError if another is at it.

    What takes long begins with it, so that nobody computes for hours what is then refused, or lost to who ends last.
    """
    check_replaceable(Path(path), kind)
    path = Path(path).resolve()  # so that a folder has one lock, whatever link leads to it
    lock = path.with_name(f".{path.name}.lock")
    made = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    if holds(lock) or not main_process():
        yield
        return
    try:
        with locked(lock, f"another process is writing {path}; wait for it, or choose another --out"):
            try:
                yield
            finally:
                with suppress(OSError):  # what is left of it is in nobody's way
                    lock.unlink()
    finally:
        with suppress(OSError):  # only those stay that something was written into
            for folder in made:
                folder.rmdir()


def check_replaceable(path: Path, kind: str) -> None:
    """Raise InputError if writing a folder of this kind at `path` would destroy something else."""
    settled(path, lambda: _check_replaceable(path, kind))


def _check_replaceable(path: Path, kind: str) -> None:
    if path.resolve() in (Path.cwd(), *Path.cwd().parents):
        raise InputError(f"{path} is the current folder or one above it; name a folder to make in it")
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    try:
        manifest = read_json(path / MANIFESTS[kind])
        ours = manifest["format"] == f"superbloom {kind}"  # others have a config.json, too
        strangers = {file.name for file in path.iterdir()} - {MANIFESTS[kind], CARD, *FILES[kind], *OPTIONAL[kind]}
    except (KeyError, InputError):
        ours = False
    if not ours:
        raise InputError(f"{path} exists and is not a {kind} folder; move it away or choose another --out")
    if strangers:
        raise InputError(
            f"{path} also holds {min(strangers)!r}, no part of a {kind}; move it away or choose another --out"
        )


def settled(path: str | Path, read: Callable[[], _T]) -> _T:
    """What `read` makes of the folder at `path`, read again if the folder was replaced meanwhile.

    So the files it opens one after another all belong to the old folder or all to the new one.
    """
    while True:
        try:
            # subtle: held open, so that no newer folder can get the same inode number
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return read()  # there is no folder; it says so
        try:
            result = read()
            if _is_at(handle, path):
                return result
        except (InputError, OSError):
            if _is_at(handle, path):
                raise
        finally:
            os.close(handle)


def _is_at(handle: int, path: str | Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), Path(path).stat())
    except FileNotFoundError:
        return False


def read_folder(path: str | Path, kind: str, verify: bool = True) -> dict[str, Any]:
    """The manifest of a folder whose files are all as they were written; InputError names the one that is not.

    verify=False compares sizes only, for huge folders one trusts.
    """
    path = Path(path)
    manifest = path / MANIFESTS[kind]
    if not manifest.is_file():
        other = next((k for k, name in MANIFESTS.items() if (path / name).is_file()), None)
        found = (
            f"is a {other} folder"
            if other
            else "has none"
            if path.is_dir()
            else "is a file"
            if path.exists()
            else "does not exist"
        )
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
        if name not in FILES[kind] + OPTIONAL[kind]:
            raise InputError(f"{manifest} lists the file {name!r:.80}; no {kind} has that: write it again")
    for name in FILES[kind]:
        if name not in content["files"]:
            raise InputError(f"{manifest} lists no {name}; the folder is not a whole {kind}: write it again")
    with ThreadPoolExecutor() as pool:
        files = content["files"].items()
        checks = [pool.submit(_check_file, path, manifest, name, entry, verify) for name, entry in files]
        for check in checks:
            check.result()
    return content


def read_json(file: Path, most_bytes: int = MAX_MANIFEST_BYTES) -> dict[str, Any]:
    """The JSON object in a file of moderate size and depth."""
    if not file.is_file():  # a pipe would never end
        raise _foreign(file)
    if file.stat().st_size > most_bytes:
        raise InputError(f"{file} has {file.stat().st_size:,} bytes; up to {most_bytes:,} are read: write it again")
    data = file.read_bytes()
    if sum(map(data.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise InputError(f"{file} holds more than {MAX_VALUES:,} values, the most that are read; write it again")
    try:
        content: dict[str, Any] = json.loads(data)
        _digest(content)  # what is nested too deeply to be written is not read either
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
    if size > HOLLOW and _is_hollow(file, size):
        raise InputError(f"{file} has {size:,} bytes, nearly all of them holes; copy it again")
    if verify and sha256(file) != expected:
        raise InputError(f"{file} does not match its checksum: damaged or edited; copy it again")


def _check_place(file: Path) -> None:
    if leads_out(file):
        raise InputError(f"{file} is a link out of its folder; copy the folder with what it points to (cp -rL)")


def leads_out(file: Path) -> bool:
    """Whether a file of a folder lies elsewhere; a download of the hub links from snapshots/x, and below, to blobs."""
    there, folder = file.resolve().parent, file.parent.resolve()
    blobs = [at.parent.parent / "blobs" for at in (folder, *folder.parents) if at.parent.name == "snapshots"]
    return there != folder and there not in blobs


def _is_hollow(file: Path, size: int) -> bool:
    """Whether the disk holds less than a hundredth of a file; where it does not tell, whether the file begins empty."""
    with file.open("rb") as stream:
        if not (blocks := file.stat().st_blocks):
            return stream.read(8) == bytes(8)
        # subtle: ZFS tells the blocks of a new file late, but where its holes are at once.
        return blocks * 512 * 100 < size and os.lseek(stream.fileno(), 0, os.SEEK_HOLE) < size


def _seal(folder: Path, kind: str, content: dict[str, Any]) -> None:
    """Write the manifest and force everything to disk, so that the rename cannot be seen before the data."""
    files = {
        file.name: {"bytes": file.stat().st_size, "sha256": sha256(file)}
        for file in sorted(folder.iterdir())
        if file.name != CARD
    }
    content = {"format": f"superbloom {kind}", "version": VERSION, "superbloom": __version__, **content, "files": files}
    text = json.dumps(content | {"sha256": _digest(content)}, indent=2, ensure_ascii=False) + "\n"
    data = text.encode(errors="backslashreplace")  # a file name that is not UTF-8, as JSON escapes it
    if len(data) > MAX_MANIFEST_BYTES:
        raise InputError(
            f"{MANIFESTS[kind]} would have {len(data):,} bytes; up to {MAX_MANIFEST_BYTES:,} are read: shorten it"
        )
    (folder / MANIFESTS[kind]).write_bytes(data)
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors writes files only their owner can read
        fsync(file)
    fsync(folder)


def _swap(new: Path, path: Path) -> None:
    """Put `new` where `path` is; what was there is left at `new`. A reader sees the old folder or the new one."""
    if not path.exists():
        new.rename(path)
    elif not _exchanged(new, path):
        # Only where names cannot be exchanged: for a moment there is no folder.
        retired = new.with_name(f"{new.name}-old")
        path.rename(retired)
        try:
            new.rename(path)
        except BaseException:
            retired.rename(path)
            raise
        retired.rename(new)
    fsync(path.parent)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two names in one step, which Python cannot; False where the system or its file system cannot either."""
    at_fdcwd, rename_exchange = -100, 2
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    if renameat2(at_fdcwd, os.fsencode(one), at_fdcwd, os.fsencode(other), rename_exchange) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(other))


def write_atomically(path: Path, data: bytes) -> None:
    """One file: temporary name in the same folder, fsync, rename, fsync of the folder."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, 0o644)  # tempfile lets only the owner read
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    fsync(path.parent)


def fsync(path: Path) -> None:
    """Force a file, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _digest(content: dict[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
