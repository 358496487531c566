"""The file of a memory: what does not fit is refused with one line, when it is opened or when it is read."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from superbloom.api import Superbloom
from superbloom.errors import InputError
from superbloom.store.model_folder import load
from tests.support.edits import manifest_edit, resealed
from tests.support.folders import PLAIN, fitted

FILE = "memory.safetensors"
KEYS = ("row", "key_starts", "key_text")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory") / "model"
    model = fitted(PLAIN)
    # Every part counts, so that every list is read.
    weights = dict.fromkeys(model.model.memory.parts, float(np.float32(1 / 7)))
    model._use(replace(model.model, memory=replace(model.model.memory, weights=weights)))
    model.save_pretrained(folder)
    return folder


def changed(whole, folder, change):
    """A copy of the model whose memory is changed, with checksums that fit."""

    def edit(folder):
        tensors = {name: tensor.clone() for name, tensor in load_file(folder / FILE).items()}
        change(tensors)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / FILE)

    shutil.copytree(whole, folder)
    resealed("model", edit)(folder)
    return folder


def put(name, at, value):
    return lambda tensors: tensors[name].__setitem__(at, value)


WHEN_OPENED = {
    "no weights": (lambda tensors: tensors.pop("weights"), "is expected: save the model again"),
    "a list of another type": (
        lambda tensors: tensors.update({"pairs.ids": tensors["pairs.ids"].long()}),
        "is expected: save the model again",
    ),
    "a stranger": (lambda tensors: tensors.update(more=torch.zeros(3)), "is expected: save the model again"),
    "half of the pairs": (lambda tensors: tensors.pop("pairs.after"), "is expected: save the model again"),
    "a weight below 0": (put("weights", 1, -0.5), "are not those of 7 parts"),
    "a weight that is none": (put("weights", 1, float("nan")), "are not those of 7 parts"),
    "too few weights": (lambda tensors: tensors.update(weights=torch.ones(1)), "are not those of 7 parts"),
    "a list that begins before the one before": (put("pairs.starts", 3, 0), "begins outside of the file, or out of"),
    "a list that begins beyond the end": (put("pairs.starts", -1, 10**9), "begins outside of the file"),
    "a row that begins below 0": (put("rows.starts", 0, -5), "begins outside of the file"),
    "places of too many names": (
        lambda tensors: tensors.update({"rows.place_starts": torch.arange(10**4)}),
        "begins outside of the file",
    ),
    "fewer weights than pairs": (
        lambda tensors: tensors.update({"pairs.weights": tensors["pairs.weights"][:-1]}),
        "begins outside of the file",
    ),
    "no weight of the network": (put("weights", 0, 0.0), "are not those of 7 parts"),
    "no neighbours": (put("neighbours", 0, 0), "are not those of 7 parts"),
    "counts of other names": (
        lambda tensors: tensors.update({"pairs.counts": tensors["pairs.counts"][:-1]}),
        "begins outside of the file",
    ),
    "a rarity of 0": (put("rows.rarity", 3, 0.0), "begins outside of the file"),
    "a rarity that is none": (put("rows.rarity", 3, float("nan")), "begins outside of the file"),
    "keys without numbers of rows": (lambda tensors: tensors.pop("rows.row"), "begins outside of the file"),
    "keys without text": (lambda tensors: tensors.pop("rows.key_text"), "is expected: save the model again"),
    "text without keys": (lambda tensors: tensors.pop("rows.key_starts"), "is expected: save the model again"),
    "keys of another type": (
        lambda tensors: tensors.update({"rows.key_text": tensors["rows.key_text"].int()}),
        "is expected: save the model again",
    ),
    "a row that no key has": (put("rows.row", -1, 10**6), "begins outside of the file"),
    "a row below 0": (put("rows.row", 0, -1), "begins outside of the file"),
    "a row before the one before": (put("rows.row", 5, 0), "begins outside of the file"),
    "numbers of other rows": (
        lambda tensors: tensors.update({"rows.row": tensors["rows.row"][:-1]}),
        "begins outside of the file",
    ),
    "a key that begins beyond the end": (put("rows.key_starts", -1, 10**9), "begins outside of the file"),
    "a key that begins after its end": (put("rows.key_starts", 2, 10**6), "begins outside of the file"),
    "keys of other rows": (
        lambda tensors: tensors.update({"rows.key_starts": tensors["rows.key_starts"][1:]}),
        "begins outside of the file",
    ),
    "rarity of other names": (
        lambda tensors: tensors.update({"rows.rarity": tensors["rows.rarity"][:-1]}),
        "begins outside of the file",
    ),
}
WHEN_READ = {
    "a neighbour that no name has": put("pairs.ids", slice(None), 10**6),
    "a neighbour below 0": put("pairs.ids", slice(None), -3),
    "a weight that is none": put("pairs.weights", slice(None), float("nan")),
    "a weight without end": put("pairs.weights", slice(None), float("inf")),
    "a weight below 0": put("pairs.weights", slice(None), -1.0),
    "a name of a row that is none": put("rows.ids", slice(None), 10**6),
    "a place beyond the rows": put("rows.places", slice(None), 10**8),
}


@pytest.mark.parametrize("case", WHEN_OPENED)
def test_a_memory_that_does_not_fit_is_refused(whole, tmp_path, case):
    change, message = WHEN_OPENED[case]
    # (a start of 0 after a start of 0 would be right, so the list before must not be empty)
    folder = changed(whole, tmp_path / "model", change)
    with pytest.raises(InputError, match=message):
        load(folder)


@pytest.mark.parametrize("case", WHEN_READ)
def test_ids_of_no_name_are_refused_when_they_are_read(whole, tmp_path, case):
    """A large memory is not read when it is opened, so that a server starts at once."""
    model = Superbloom.from_pretrained(changed(whole, tmp_path / "model", WHEN_READ[case]))
    with pytest.raises(InputError, match="the memory of the model holds .*; below .* is expected"):
        model.predict(["name 1", "name 2"], k=3)


def test_a_memory_that_is_not_listed_is_refused(whole, tmp_path):
    folder = changed(whole, tmp_path / "model", lambda tensors: None)
    manifest_edit("model", lambda manifest: manifest["files"].pop(FILE))(folder)
    with pytest.raises(InputError, match=r"memory.safetensors is not listed in config.json"):
        load(folder)


def test_a_changed_byte_is_noticed(whole, tmp_path):
    folder = changed(whole, tmp_path / "model", lambda tensors: None)
    content = bytearray((folder / FILE).read_bytes())
    content[-3] ^= 1
    (folder / FILE).write_bytes(content)
    with pytest.raises(InputError, match=FILE):
        load(folder)


def test_a_large_memory_is_mapped(whole, monkeypatch):
    monkeypatch.setattr("superbloom.storage.mapped.MAX_COPIED_BYTES", 0)
    stored = load(whole)
    assert not stored.model.memory.pairs.ids.flags.owndata
    assert Superbloom.from_pretrained(whole).predict(["name 1"], k=2)


def first_row(folder):
    (found,) = Superbloom.from_pretrained(folder).predictor.ask(["name 1", "name 2"], 1, explain=True)
    return found.explanation.similar_rows[0]


def test_folders_without_keys_answer_as_before_and_show_none(whole, tmp_path):
    """As written before rows had numbers and keys, and as written with --no-row-keys."""
    before, ours = first_row(whole), Superbloom.from_pretrained(whole).predict(["name 1"], k=3)
    assert before.key in {str(number) for number in range(80)}
    older = changed(whole, tmp_path / "older", lambda tensors: [tensors.pop(f"rows.{name}") for name in KEYS])
    chosen = changed(whole, tmp_path / "chosen", lambda tensors: [tensors.pop(f"rows.{name}") for name in KEYS[1:]])
    for folder in (older, chosen):
        assert first_row(folder) == replace(before, key=None)
        assert Superbloom.from_pretrained(folder).predict(["name 1"], k=3) == ours
        Superbloom.from_pretrained(folder).save_pretrained(tmp_path / "again")
        assert (tmp_path / "again" / FILE).read_bytes() == (folder / FILE).read_bytes()


def test_bytes_that_are_no_text_are_shown_as_such(whole, tmp_path):
    folder = changed(whole, tmp_path / "model", put("rows.key_text", slice(None), 255))
    assert set(first_row(folder).key) == {"\N{REPLACEMENT CHARACTER}"}


def test_keys_survive_in_a_mapped_file(whole, monkeypatch):
    before = first_row(whole)
    monkeypatch.setattr("superbloom.storage.mapped.MAX_COPIED_BYTES", 0)
    assert first_row(whole) == before
    assert not load(whole).model.memory.rows.key_text.flags.owndata
