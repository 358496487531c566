"""Errors, full disks and kills while a folder is written leave the old one, whole."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from superbloom.corpus.corpus import Corpus
from superbloom.storage import atomic
from tests.support.saved import NEW, OLD, beside, printed, run


@pytest.mark.parametrize("broken", range(1, 6))
def test_an_fsync_that_fails_leaves_the_old_folder(saved, monkeypatch, broken):
    """Three files, the folder, and its parent once it has been swapped: only then the new one is there."""
    calls, fsync = [], os.fsync

    def failing(handle: int) -> None:
        calls.append(handle)
        if len(calls) == broken:
            raise OSError(errno.EIO, "Input/output error")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="Input/output error"):
        NEW.save(saved)
    monkeypatch.undo()
    assert Corpus.open(saved).fingerprint() == [OLD, OLD, OLD, OLD, NEW][broken - 1].fingerprint()
    assert beside(saved) == ["corpus"]


@pytest.mark.parametrize("broken", [1, 2])
def test_a_rename_that_fails_leaves_the_old_folder(saved, monkeypatch, broken):
    """Where names cannot be exchanged: the old folder steps aside, the new one cannot step in."""
    calls, rename = [], Path.rename

    def failing(path: Path, target: Path) -> Path:
        calls.append(path)
        if len(calls) == broken:
            raise OSError(errno.ENOSPC, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(atomic, "_exchanged", lambda *_: False)
    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="No space left"):
        NEW.save(saved)
    assert Corpus.open(saved).fingerprint() == OLD.fingerprint()
    assert beside(saved) == ["corpus"]


FULL_DISK = """
import json, os, resource, shutil, sys
from pathlib import Path
from superbloom import Corpus, InputError, Superbloom
mode, source, shelf = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
kinds = {"corpus": (Corpus.open, Corpus.save), "model": (Superbloom.from_pretrained, Superbloom.save_pretrained)}
for kind, (load, save) in kinds.items():
    new, folder = load(source / kind / "new"), shelf / kind
    sizes = [file.stat().st_size for file in (source / kind / "new").iterdir()]
    shutil.copytree(source / kind / "old", folder)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    pages = sum(-(-size // 4096) * 4096 for size in sizes)  # what a new folder takes of a disk
    everything = pages if mode == "full" else max(sizes)
    for share in (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9):
        room, filler, saved = int(share * everything), shelf / "filler", None
        if mode == "full":
            free = os.statvfs(shelf)
            filler.write_bytes(bytes(max(0, free.f_bavail * free.f_frsize - room)))
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        try:
            save(new, folder)
            saved = "saved"
        except (OSError, InputError) as error:
            saved = f"{type(error).__name__}: {error}"
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            filler.unlink(missing_ok=True)
        load(folder)
        same = before == {file.name: file.read_bytes() for file in folder.iterdir()}
        line = {"kind": kind, "share": share, "saved": saved, "same": same}
        print(json.dumps(line | {"beside": sorted(set(os.listdir(shelf)) - set(kinds))}))
"""


def _check_full_disk(lines: list[dict]) -> None:
    assert len(lines) == 20
    assert [line for line in lines if line["saved"] == "saved" or not line["same"] or line["beside"]] == []
    assert {line["kind"] for line in lines} == {"corpus", "model"}


def test_a_file_that_may_not_grow_leaves_the_old_folder(pairs, tmp_path):
    """RLIMIT_FSIZE stands in for a full disk where nothing can be mounted: writes fail half-way with EFBIG."""
    lines = run(FULL_DISK, "limited", pairs, tmp_path)
    _check_full_disk(lines)
    assert {"File too large" in line["saved"] for line in lines} == {True}


@pytest.mark.system
def test_a_full_disk_leaves_the_old_folder(pairs, tmp_path):
    """A real one: half a megabyte of memory as a file system of its own, seen by this process only."""
    mount = f'mount -t tmpfs -o size=512k tmpfs "{tmp_path}" && exec "$@"'
    prefix = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh")
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("this system lets nobody mount a file system of their own")
    command = [*prefix, sys.executable, "-c", FULL_DISK, "full", str(pairs), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    lines = printed(done)
    _check_full_disk(lines)
    assert {"No space left on device" in line["saved"] for line in lines} == {True}


KILLED = """
import itertools, json, os, shutil, signal, sys
from pathlib import Path
from superbloom import Corpus, Superbloom
source, shelf = Path(sys.argv[1]), Path(sys.argv[2])
kinds = {"corpus": (Corpus.open, Corpus.save), "model": (Superbloom.from_pretrained, Superbloom.save_pretrained)}
load, save = kinds[sys.argv[3]]
old, new = load(source / "old"), load(source / "new")
folder = shelf / "folder"

def name_of(folder):
    vocab = load(folder).vocab if sys.argv[3] == "corpus" else load(folder).model.vocab
    return vocab.name(0)

def kill_at(moment):
    seen = itertools.count()
    def hook(event, arguments):
        if event.split(".")[0] in ("open", "os", "shutil", "tempfile", "ctypes") and next(seen) == moment:
            os.kill(os.getpid(), signal.SIGKILL)
    return hook

for moment in itertools.count():
    shutil.rmtree(shelf)
    save(old, folder)
    child = os.fork()
    if child == 0:
        sys.addaudithook(kill_at(moment))
        save(new, folder)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    found = name_of(folder)
    save(new, folder)  # what the killed one left behind is in nobody's way
    print(json.dumps({"moment": moment, "status": status, "found": found, "then": name_of(folder)}), flush=True)
    if status == 0:
        break
"""


@pytest.mark.system
@pytest.mark.parametrize("kind", ["corpus", "model"])
def test_a_kill_at_any_moment_leaves_a_folder_that_loads(pairs, tmp_path, kind):
    """Killed at every open, rename, chmod, mkdir and remove of a save: the old folder, and from the swap on the new."""
    (tmp_path / "shelf").mkdir()
    lines = run(KILLED, pairs / kind, tmp_path / "shelf", kind)
    assert [line["status"] for line in lines] == [-9] * (len(lines) - 1) + [0]
    found = [line["found"] for line in lines]
    swap = found.index("Aarhus")
    assert found == ["Oslo"] * swap + ["Aarhus"] * (len(lines) - swap)
    assert {line["then"] for line in lines} == {"Aarhus"}
    assert 10 < swap < len(lines) - 3  # moments before and after were met
