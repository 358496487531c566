"""Folders of earlier releases are read as they were meant; those of later ones are refused with what can read them."""

import json
from pathlib import Path

import pytest

from superbloom import Corpus, Superbloom
from superbloom.errors import InputError
from superbloom.storage.folder import MANIFESTS, _digest

FIRST = Path(__file__).parents[1] / "fixtures" / "first-release"
# What the first release answered to Oslo, Bergen, [MASK] with this model.
ANSWERS = {"Stockholm": -3.5302, "Tampere": -3.7151, "Oslo": -3.8453, "Århus": -3.8833, "Helsinki": -3.8946}


def test_a_model_of_the_first_release_answers_as_it_did():
    model = Superbloom.from_pretrained(FIRST / "model")
    found = model.predict(["Oslo", "Bergen"], k=5, combine="sum")
    assert [answer.name for answer in found] == list(ANSWERS)
    assert [answer.score for answer in found] == pytest.approx(list(ANSWERS.values()), abs=1e-3)
    assert all(answer.certified for answer in found)


def test_a_corpus_of_the_first_release_is_read_and_trained_on(tmp_path):
    corpus = Corpus.open(FIRST / "corpus")
    assert corpus.counts()["rows"] == 60
    assert corpus.vocab.id("København") < 8  # cities are more frequent than pages
    model = Superbloom().fit(corpus, from_model=FIRST / "model", steps=2, quiet=True)
    assert model.model.config.mask_as == "element"  # what the first release did, not today's default


def test_a_model_of_the_first_release_can_be_written_again(tmp_path):
    model = Superbloom.from_pretrained(FIRST / "model")
    model.save_pretrained(tmp_path / "again")
    again = Superbloom.from_pretrained(tmp_path / "again")
    assert again.model.config == model.model.config
    assert [answer.name for answer in again.predict(["Oslo", "Bergen"], k=5, combine="sum")] == list(ANSWERS)


@pytest.mark.parametrize("kind", ["corpus", "model"])
def test_a_folder_of_a_later_format_is_refused_with_the_release_that_wrote_it(tmp_path, kind):
    folder = tmp_path / kind
    folder.mkdir()
    for file in (FIRST / kind).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    manifest = folder / MANIFESTS[kind]
    content = json.loads(manifest.read_text())
    del content["sha256"]
    content |= {"version": 2, "superbloom": "7.8.9"}
    manifest.write_text(json.dumps(content | {"sha256": _digest(content)}))
    with pytest.raises(InputError, match=rf"'superbloom {kind}' version 2 of superbloom 7\.8\.9.*up to version 1"):
        (Corpus.open if kind == "corpus" else Superbloom.from_pretrained)(folder)
