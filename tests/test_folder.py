"""Folders are written whole or not at all: errors, full disks, kills and readers in the middle of it."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import launch
import pytest

from superbloom import corpus as corpus_module
from superbloom import folder as folder_module
from superbloom import store
from superbloom.api import Superbloom
from superbloom.corpus import Corpus
from superbloom.errors import InputError
from superbloom.folder import (
    MAX_MANIFEST_BYTES,
    check_replaceable,
    leads_out,
    new_folder,
    only_writer,
    read_folder,
    write_atomically,
)
from superbloom.processes import locked

OLD = Corpus.from_sequences([["Oslo", "Bergen"], ["Oslo", "Narvik"]] * 50)
NEW = Corpus.from_sequences([["Aarhus", "Odense"], ["Aarhus", "Ribe"]] * 80)
CONTENT = {"counts": {}, "info": {}, "split": ""}


@pytest.fixture
def saved(tmp_path) -> Path:
    """A good corpus folder, alone in its parent."""
    folder = tmp_path / "shelf" / "corpus"
    OLD.save(folder)
    return folder


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> Path:
    """Folders old, new: two models that give different answers."""
    parent = tmp_path_factory.mktemp("models")
    for name, corpus in (("old", OLD), ("new", NEW)):
        model = Superbloom(alpha=1, dim=16, ffn_dim=16, heads=2, layers=1).fit(corpus, steps=2, quiet=True)
        model.save_pretrained(parent / name)
    return parent


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


def test_an_error_while_writing_leaves_the_old_folder_and_nothing_else(saved):
    before = contents(saved)

    def fail(temporary: Path) -> None:
        (temporary / "half").write_text("written")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), new_folder(saved, "corpus", CONTENT) as temporary:
        fail(temporary)
    assert contents(saved) == before
    assert beside(saved) == ["corpus"]


def test_an_error_leaves_no_new_folder(tmp_path):
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "corpus", "corpus", CONTENT):
        _ = 1 / 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_of_the_same_kind_is_replaced(saved, monkeypatch, exchange):
    if not exchange:  # as on a system without renameat2
        monkeypatch.setattr(folder_module, "_exchanged", lambda *_: False)
    (saved / "README.md").write_text("notes")
    NEW.save(saved)
    assert Corpus.open(saved).fingerprint() == NEW.fingerprint()
    assert beside(saved) == ["corpus"]
    assert not (saved / "README.md").exists()


def test_files_can_be_read_by_everyone(tmp_path, models):
    umask = os.umask(0o077)
    try:
        Superbloom.from_pretrained(models / "old").save_pretrained(tmp_path / "model")
    finally:
        os.umask(umask)
    modes = {file.name: oct(file.stat().st_mode & 0o777) for file in (tmp_path / "model").iterdir()}
    assert set(modes.values()) == {"0o644"}
    assert len(modes) == 7
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o755


def test_a_link_to_a_folder_stays_a_link(saved):
    link = saved.parent / "latest"
    link.symlink_to("corpus")
    NEW.save(link)
    assert link.is_symlink()
    assert Corpus.open(saved).fingerprint() == Corpus.open(link).fingerprint() == NEW.fingerprint()
    assert beside(saved) == ["corpus", "latest"]


def test_an_empty_folder_is_filled(tmp_path):
    (tmp_path / "corpus").mkdir()
    NEW.save(tmp_path / "corpus")
    assert Corpus.open(tmp_path / "corpus").fingerprint() == NEW.fingerprint()
    assert [file.name for file in tmp_path.iterdir()] == ["corpus"]


def _put(files: dict[str, str]):
    def put(path: Path) -> None:
        for name, text in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text)

    return put


def _stranger_inside(path: Path) -> None:
    OLD.save(path)
    (path / "thesis.tex").write_text("three years of work")


@pytest.mark.parametrize(
    ("put", "message"),
    [
        (lambda path: path.write_text("a file"), "exists and is not a corpus folder"),
        (_put({"thesis.tex": "three years of work"}), "exists and is not a corpus folder"),
        (_put({".hidden": ""}), "exists and is not a corpus folder"),
        (_put({"config.json": '{"format": "superbloom model"}'}), "exists and is not a corpus folder"),
        (_put({"corpus.json": '{"format": "their corpus", "files": {}}'}), "exists and is not a corpus folder"),
        (_put({"corpus.json": "[]"}), "exists and is not a corpus folder"),
        (_put({"corpus.json": "{"}), "exists and is not a corpus folder"),
        (_put({"corpus.json/x": ""}), "exists and is not a corpus folder"),
        (_stranger_inside, "also holds 'thesis.tex', no part of a corpus"),
    ],
)
def test_what_else_is_there_is_refused_and_untouched(tmp_path, put, message):
    path = tmp_path / "here" / "corpus"
    path.parent.mkdir()
    put(path)
    before = contents(path.parent)
    with pytest.raises(InputError, match=f"{message}.*; move it away or choose another --out"):
        NEW.save(path)
    assert contents(path.parent) == before
    assert beside(path) == ["corpus"]


def test_a_model_of_another_library_is_not_replaced(tmp_path, models):
    bert = tmp_path / "bert"
    _put({"config.json": '{"model_type": "bert"}', "model.safetensors": "weights"})(bert)
    before = contents(bert)
    with pytest.raises(InputError, match="exists and is not a model folder"):
        Superbloom.from_pretrained(models / "old").save_pretrained(bert)
    assert contents(bert) == before


def test_a_folder_that_cannot_be_read_is_not_called_anothers(saved, monkeypatch):
    failing = OSError(errno.EIO, os.strerror(errno.EIO))
    monkeypatch.setattr(Path, "read_bytes", lambda path: (_ for _ in ()).throw(failing))
    with pytest.raises(OSError, match="Input/output error"):
        check_replaceable(saved, "corpus")


def test_what_appears_while_writing_is_not_replaced_either(tmp_path):
    path = tmp_path / "corpus"
    with pytest.raises(InputError, match="is not a corpus folder"), new_folder(path, "corpus", CONTENT):
        _put({"thesis.tex": "three years of work"})(path)
    assert contents(tmp_path) == {"corpus/thesis.tex": b"three years of work"}


def test_a_manifest_too_long_to_be_read_is_not_written(saved):
    with pytest.raises(InputError, match="corpus.json would have 1,[0-9,]+ bytes; up to 1,048,576 are read"):
        Corpus.from_sequences([["a", "b"]], source="x" * MAX_MANIFEST_BYTES).save(saved)
    assert Corpus.open(saved).fingerprint() == OLD.fingerprint()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nothing", "a corpus folder holds corpus.json; .*nothing does not exist"),
        ("shelf", "a corpus folder holds corpus.json; .*shelf has none"),
        ("shelf/corpus/corpus.json", "a corpus folder holds corpus.json; .*corpus.json is a file"),
    ],
)
def test_what_is_no_folder_is_said(saved, path, message):
    with pytest.raises(InputError, match=message):
        Corpus.open(saved.parents[1] / path)


def test_a_folder_of_the_other_kind_is_named(saved, models):
    with pytest.raises(InputError, match=r"a model folder holds config.json; .* is a corpus folder"):
        store.load(saved)
    with pytest.raises(InputError, match=r"a corpus folder holds corpus.json; .* is a model folder"):
        Corpus.open(models / "old")


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

    monkeypatch.setattr(folder_module, "_exchanged", lambda *_: False)
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


@pytest.fixture(scope="session")
def pairs(models, tmp_path_factory) -> Path:
    """Folders corpus/old, corpus/new, model/old, model/new."""
    parent = tmp_path_factory.mktemp("pairs")
    OLD.save(parent / "corpus" / "old")
    NEW.save(parent / "corpus" / "new")
    shutil.copytree(models, parent / "model")
    return parent


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


def write_for_ever(source: Path, folder: Path) -> None:
    """In a process: replace the folder by one of two, over and over."""
    old, new = Corpus.open(source / "old"), Corpus.open(source / "new")
    while True:
        new.save(folder)
        old.save(folder)


@contextmanager
def writing(source: Path, folder: Path, place: Path):
    writer = launch.start(place, before=partial(write_for_ever, source, folder))
    try:
        yield
        assert writer.is_alive()
    finally:
        writer.kill()
        writer.join()


def test_a_reader_beside_a_writer_sees_the_old_or_the_new(pairs, saved, tmp_path):
    seen = [OLD.fingerprint()]
    changes = 0
    with writing(pairs / "corpus", saved, tmp_path):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and changes < 50:
            seen.append(Corpus.open(saved).fingerprint())
            changes += seen[-1] != seen[-2]
    assert set(seen) == {OLD.fingerprint(), NEW.fingerprint()}
    assert changes >= 20


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize(
    ("module", "function"),
    [(folder_module, "_check_file"), (folder_module, "_digest"), (corpus_module, "read_arrow"), (Corpus, "_check")],
)
def test_a_folder_replaced_while_it_is_opened_is_read_anew(saved, monkeypatch, module, function, exchange):
    original = getattr(module, function)

    def replacing(*arguments, **options):
        monkeypatch.undo()
        if not exchange:
            monkeypatch.setattr(folder_module, "_exchanged", lambda *_: False)
        NEW.save(saved)
        return original(*arguments, **options)

    monkeypatch.setattr(module, function, replacing)
    assert Corpus.open(saved).fingerprint() == NEW.fingerprint()


@pytest.mark.parametrize("function", ["read_folder", "_load_network", "_load_bloom", "_agree"])
def test_a_model_replaced_while_it_is_loaded_is_read_anew(tmp_path, models, monkeypatch, function):
    folder, original = tmp_path / "model", getattr(store, function)
    shutil.copytree(models / "old", folder)
    new = Superbloom.from_pretrained(models / "new")

    def replacing(*arguments):
        monkeypatch.undo()
        new.save_pretrained(folder)
        return original(*arguments)

    monkeypatch.setattr(store, function, replacing)
    assert store.load(folder).model.vocab.name(0) == "Aarhus"


def test_without_reading_anew_it_would_have_been_refused(saved, monkeypatch):
    """The control of the two above: one reading alone finds the files of the other folder."""
    original = folder_module._check_file

    def replacing(*arguments):
        monkeypatch.undo()
        NEW.save(saved)
        return original(*arguments)

    monkeypatch.setattr(folder_module, "_check_file", replacing)
    with pytest.raises(InputError, match="bytes where|does not match its checksum"):
        read_folder(saved, "corpus")


def test_a_folder_that_vanishes_while_it_is_opened_is_missed(saved, monkeypatch):
    original = corpus_module.read_arrow

    def removing(*arguments, **options):
        shutil.rmtree(saved)
        return original(*arguments, **options)

    monkeypatch.setattr(corpus_module, "read_arrow", removing)
    with pytest.raises(InputError, match="does not exist"):
        Corpus.open(saved)


@pytest.mark.parametrize("function", ["read_json", "_check_replaceable"])
def test_a_folder_replaced_while_it_is_looked_at_can_still_be_replaced(saved, monkeypatch, function):
    """Two writers of one folder, one of which adds a file: the other must not take it for somebody else's."""
    original = getattr(folder_module, function)
    two = Corpus.from_sequences([["a", "b"]], targets=[["x", "y"]])

    def replacing(*arguments):
        found = original(*arguments)
        monkeypatch.undo()
        two.save(saved)
        return found

    monkeypatch.setattr(folder_module, function, replacing)
    check_replaceable(saved, "corpus")
    assert Corpus.open(saved).fingerprint() == two.fingerprint()


def test_a_folder_can_be_saved_over_itself(saved, tmp_path, models):
    """What was opened is a memory map of the files that are replaced."""
    corpus = Corpus.open(saved)
    corpus.save(saved)
    assert Corpus.open(saved).fingerprint() == corpus.fingerprint() == OLD.fingerprint()
    shutil.copytree(models / "old", tmp_path / "model")
    model = Superbloom.from_pretrained(tmp_path / "model")
    before = model.predict(["Oslo"], k=3)
    model.save_pretrained(tmp_path / "model")
    assert (
        Superbloom.from_pretrained(tmp_path / "model").predict(["Oslo"], k=3) == before == model.predict(["Oslo"], k=3)
    )


def full(handle: int) -> None:
    raise OSError(errno.ENOSPC, "full")


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "state"
    write_atomically(file, b"old")
    write_atomically(file, b"new")
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"new", 0o644)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        write_atomically(file, b"newer")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("state", b"new")]


def test_what_fails_leaves_no_empty_folders(tmp_path):
    with pytest.raises(KeyError), only_writer(tmp_path / "a" / "b" / "corpus", "corpus"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_every_task_of_a_job_makes_the_folders_above_its_own(tmp_path, monkeypatch):
    """Of a corpus each task prepares for itself; a lock is the first one's alone."""
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_NTASKS", "2")
    Corpus.from_sequences([["a", "b"]] * 9).save(tmp_path / "new" / "corpus")
    assert len(Corpus.open(tmp_path / "new" / "corpus")) == 9


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become somebody else")
def test_a_lock_left_by_another_user_is_free():
    with tempfile.TemporaryDirectory() as shared:
        Path(shared).chmod(0o777)
        lock = Path(shared) / ".model.lock"
        lock.touch(0o644)
        child = os.fork()
        if not child:
            try:
                os.setuid(65534)
                with locked(lock, "busy"):
                    os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_download_of_several_models_links_to_its_blobs(tmp_path):
    model, blobs = tmp_path / "snapshots" / "rev" / "small", tmp_path / "blobs"
    for folder in (model, blobs, tmp_path / "elsewhere"):
        folder.mkdir(parents=True)
        (folder / "1").touch()
    (model / "config.json").symlink_to("../../../blobs/1")
    (model / "vocab.arrow").symlink_to("../../../elsewhere/1")
    assert not leads_out(model / "config.json")
    assert leads_out(model / "vocab.arrow")
