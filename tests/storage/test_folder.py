"""A folder replaces one of its kind, and nothing else; files are written whole or not at all."""

import errno
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from superbloom.api import Superbloom
from superbloom.corpus.corpus import Corpus
from superbloom.errors import InputError
from superbloom.storage import atomic
from superbloom.storage.atomic import write_atomically
from superbloom.storage.folder import (
    MAX_MANIFEST_BYTES,
    check_replaceable,
    leads_out,
    new_folder,
    only_writer,
)
from superbloom.storage.locks import locked
from superbloom.store import model_folder as store
from tests.support.saved import CONTENT, NEW, OLD, beside, contents


def test_an_error_while_writing_leaves_the_old_folder_and_nothing_else(saved):
    before = contents(saved)

    def fail(temporary: Path) -> None:
        (temporary / "half").write_text("written")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), new_folder(saved, "corpus", CONTENT, overwrite=True) as temporary:
        fail(temporary)
    assert contents(saved) == before
    assert beside(saved) == ["corpus"]


def test_an_error_leaves_no_new_folder(tmp_path):
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "corpus", "corpus", CONTENT, overwrite=False):
        _ = 1 / 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_of_the_same_kind_is_replaced(saved, monkeypatch, exchange):
    if not exchange:  # as on a system without renameat2
        monkeypatch.setattr(atomic, "_exchanged", lambda *_: False)
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
    assert len(modes) == 8
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
        check_replaceable(saved, "corpus", overwrite=True)


def test_what_appears_while_writing_is_not_replaced_either(tmp_path):
    path = tmp_path / "corpus"
    with pytest.raises(InputError, match="is not a corpus folder"), new_folder(path, "corpus", CONTENT, overwrite=True):
        _put({"thesis.tex": "three years of work"})(path)
    assert contents(tmp_path) == {"corpus/thesis.tex": b"three years of work"}


def test_a_folder_of_the_same_kind_is_refused_without_overwrite(saved):
    before = contents(saved)
    words = "corpus already holds a corpus; --overwrite .overwrite=True in Python. replaces it, or choose another --out"
    with pytest.raises(InputError, match=words), only_writer(saved, "corpus", overwrite=False):
        pytest.fail("the block must not begin")
    with pytest.raises(InputError, match=words):
        Corpus.from_sequences([["x", "y"]] * 9).save(saved, overwrite=False)
    assert contents(saved) == before


def test_a_folder_that_appears_while_writing_is_refused_without_overwrite(tmp_path):
    path = tmp_path / "corpus"
    with pytest.raises(InputError, match="already holds a corpus"), new_folder(path, "corpus", CONTENT, False):
        shutil.copytree(_saved(tmp_path / "elsewhere"), path)
    assert Corpus.open(path).num_ids == 2


def _saved(folder: Path) -> Path:
    Corpus.from_sequences([["x", "y"]] * 9).save(folder)
    return folder


def test_a_model_is_replaced_by_save_pretrained_unless_that_is_refused(tmp_path, models):
    """Like Hugging Face's: the line that names the folder is the line that writes it (docs/decisions.md)."""
    model = Superbloom.from_pretrained(models / "old")
    model.save_pretrained(tmp_path / "model")
    before = contents(tmp_path / "model")
    with pytest.raises(InputError, match="model already holds a model; --overwrite"):
        model.save_pretrained(tmp_path / "model", overwrite=False)
    assert contents(tmp_path / "model") == before
    model.metrics["history"] = []
    model.save_pretrained(tmp_path / "model")
    assert contents(tmp_path / "model") != before


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
    with pytest.raises(KeyError), only_writer(tmp_path / "a" / "b" / "corpus", "corpus", overwrite=False):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_every_task_of_a_job_makes_the_folders_above_its_own(tmp_path, monkeypatch):
    """Each task prepares a corpus for itself; only the first one takes a lock."""
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
