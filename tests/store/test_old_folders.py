"""Folders written when modules lay flat hold the same rows, and their models give the same answers."""

import json
import sys
from pathlib import Path

import pytest

from superbloom import Corpus, Superbloom
from superbloom.cli import main

FIXTURE = Path(__file__).parents[1] / "fixtures" / "flat-modules"
EXPECTED = json.loads((FIXTURE / "expected.json").read_text(encoding="utf-8"))
TOLERANCE = 1e-4  # the expected scores have four digits


def check_answers(model: Superbloom, query: dict) -> None:
    """For each mask, by the sum over hashes: the same names in the same order, the same scores and certificates."""
    found = model.predict(query["context"], **{"combine": "sum"} | query["options"])
    masks = found if isinstance(found[0], list) else [found]
    for mask, wanted in zip(masks, query["answers"], strict=True):
        names, scores, certified = map(list, zip(*wanted, strict=True))
        assert [answer.name for answer in mask] == names, query
        assert [answer.score for answer in mask] == pytest.approx(scores, rel=0, abs=TOLERANCE), query
        assert [answer.certified for answer in mask] == certified, query


@pytest.mark.parametrize("folder", EXPECTED["models"])
def test_an_old_model_gives_the_same_answers(folder):
    """Whatever is asked: several masks, filters, text, or a search that is cut short."""
    model = Superbloom.from_pretrained(FIXTURE / folder)
    for query in EXPECTED["models"][folder]:
        check_answers(model, query)


@pytest.mark.parametrize("folder", EXPECTED["models"])
def test_an_old_model_can_be_saved_again(folder, tmp_path):
    """A copy that today's code writes gives the same answers."""
    Superbloom.from_pretrained(FIXTURE / folder).save_pretrained(tmp_path / "again")
    for query in EXPECTED["models"][folder]:
        check_answers(Superbloom.from_pretrained(tmp_path / "again"), query)


@pytest.mark.parametrize("folder", EXPECTED["corpora"])
def test_an_old_corpus_has_the_same_rows(folder):
    """Keys, ids, splits and all other columns of the first rows are the same, and so are the names of their ids."""
    corpus, expected = Corpus.open(FIXTURE / folder), EXPECTED["corpora"][folder]
    assert repr(corpus) == expected["repr"]
    assert corpus.counts() == expected["inspect"]["counts"]
    assert corpus.info == expected["inspect"]["info"]
    rows = corpus.sequences.slice(0, len(expected["rows"])).to_pylist()
    for number, (row, wanted) in enumerate(zip(rows, expected["rows"], strict=True)):
        assert row | {"names": corpus.vocab.names(corpus.row(number))} == wanted


@pytest.mark.parametrize("folder", EXPECTED["corpora"])
def test_inspect_prints_the_same_about_an_old_corpus(folder, monkeypatch, capsys):
    """`superbloom inspect FOLDER --json` prints the same document."""
    monkeypatch.setattr(sys, "argv", ["superbloom", "inspect", str(FIXTURE / folder), "--json"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 0
    assert json.loads(capsys.readouterr().out) == EXPECTED["corpora"][folder]["inspect"]


def test_every_old_folder_is_tested():
    """No folder is kept that expected.json does not name."""
    folders = {path.parent.relative_to(FIXTURE).as_posix() for path in FIXTURE.glob("*/*/vocab.arrow")}
    assert folders == {*EXPECTED["corpora"], *EXPECTED["models"]}
