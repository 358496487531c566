"""A reader gets the old folder or the new one while a writer replaces it, never a mixture."""

import shutil
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from superbloom.api import Superbloom
from superbloom.corpus import corpus as corpus_module
from superbloom.corpus.corpus import Corpus
from superbloom.errors import InputError
from superbloom.storage import atomic
from superbloom.storage import folder as folder_module
from superbloom.storage.folder import check_replaceable, read_folder
from superbloom.store import model_folder as store
from tests.support import launch
from tests.support.saved import NEW, OLD


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
    [
        (folder_module, "_check_file"),
        (folder_module, "_digest"),
        (corpus_module, "read_arrow"),
        (corpus_module, "check_sequences"),
    ],
)
def test_a_folder_replaced_while_it_is_opened_is_read_again(saved, monkeypatch, module, function, exchange):
    original = getattr(module, function)

    def replacing(*arguments, **options):
        monkeypatch.undo()
        if not exchange:
            monkeypatch.setattr(atomic, "_exchanged", lambda *_: False)
        NEW.save(saved)
        return original(*arguments, **options)

    monkeypatch.setattr(module, function, replacing)
    assert Corpus.open(saved).fingerprint() == NEW.fingerprint()


@pytest.mark.parametrize("function", ["read_folder", "_load_network", "_load_bloom", "_agree"])
def test_a_model_replaced_while_it_is_loaded_is_read_again(tmp_path, models, monkeypatch, function):
    folder, original = tmp_path / "model", getattr(store, function)
    shutil.copytree(models / "old", folder)
    new = Superbloom.from_pretrained(models / "new")

    def replacing(*arguments, **options):
        monkeypatch.undo()
        new.save_pretrained(folder)
        return original(*arguments, **options)

    monkeypatch.setattr(store, function, replacing)
    assert store.load(folder).model.vocab.name(0) == "Aarhus"


def test_without_reading_again_it_would_have_been_refused(saved, monkeypatch):
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
    """Two writers of one folder. One adds a file, and the other must not mistake it for a stranger's."""
    original = getattr(folder_module, function)
    two = Corpus.from_sequences([["a", "b"]], targets=[["x", "y"]])

    def replacing(*arguments):
        found = original(*arguments)
        monkeypatch.undo()
        two.save(saved)
        return found

    monkeypatch.setattr(folder_module, function, replacing)
    check_replaceable(saved, "corpus", overwrite=True)
    assert Corpus.open(saved).fingerprint() == two.fingerprint()
