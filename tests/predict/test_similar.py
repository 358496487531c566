"""Similar names: neighbours by counted pairs where there are any, else the answers to a context of the names."""

import json
import math
from dataclasses import replace

import pytest

from superbloom import Corpus, Superbloom
from superbloom.config.serving import Settings
from superbloom.errors import InputError, UnknownNameError
from superbloom.predict import Predictor, similar
from superbloom.serve.app import make_app
from superbloom.serve.service import Served
from tests.support.launch import command as run
from tests.support.serving import live

ROWS = [[f"n{i}", f"n{i + 1}", f"n{i + 2}"] for i in range(0, 60, 3)] * 8 + [["alone"]] * 3
KEY = "a-key-of-16-characters"
SMALL = {"alpha": 2, "dim": 16, "heads": 2, "ffn_dim": 16}
NO_PAIRS = "this model remembers no pairs; these are the model's answers to a context of it"


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus.from_sequences(ROWS)


@pytest.fixture(scope="module")
def fitted(corpus) -> Superbloom:
    return Superbloom(**SMALL).fit(corpus, steps=2, quiet=True)


def test_neighbours_come_from_pairs_and_not_from_the_network(fitted):
    found = fitted.similar(["n10"], k=5)
    assert [one.name for one in found.neighbours] in (["n9", "n11"], ["n11", "n9"])  # all that ever stood near it
    assert (found.source, found.note, found.names) == ("pairs", None, ["n10"])
    assert all(0 < one.score < 1 for one in found.neighbours)
    several = fitted.similar(["n9", "n10", "n9"], k=5)
    assert (several.names, [one.name for one in several.neighbours]) == (["n9", "n10"], ["n11"])
    total = sum(one.score for name in ("n9", "n10") for one in fitted.similar([name]).neighbours if one.name == "n11")
    assert several.neighbours[0].score == pytest.approx(total)
    assert len(fitted.similar(["n10"], k=1).neighbours) == 1


def test_without_pairs_the_network_answers_and_says_so(fitted):
    predictor = fitted.predictor
    for memory in (None, replace(predictor.model.memory, pairs=None)):
        model = replace(predictor.model, memory=memory)
        (found,) = similar(Predictor(model), [["n10"]], 4)
        assert (found.source, found.note) == ("network", NO_PAIRS)
        assert len(found.neighbours) == 4
    (chosen,) = similar(Predictor(predictor.model, network_only=True), [["n10"]], 4)
    assert (chosen.source, chosen.note) == ("network", None)
    assert chosen.neighbours[0].score < 0
    assert "n10" not in [one.name for one in chosen.neighbours]
    (alone,) = similar(predictor, [["alone"]], 3)
    assert alone.source == "network"
    note = "no pairs of 'alone' were counted in training; these are the model's answers to a context of it"
    assert alone.note == note
    answers = predictor.predict(["alone"], 3, exclude_context=True)[0]
    assert [(one.name, one.score) for one in alone.neighbours] == [(p.name, pytest.approx(p.score)) for p in answers]


def test_names_without_pairs_are_left_out_beside_names_with_pairs(fitted):
    found = fitted.similar(["alone", "n10"])
    assert {one.name for one in found.neighbours} == {"n9", "n11"}
    assert found.note == "no pairs of 'alone' were counted in training; left out"


def test_a_name_that_was_added_later_is_answered_by_the_network(corpus):
    later = Superbloom(**SMALL).fit(corpus, steps=2, quiet=True).extend(["new"])
    found = later.similar(["new"], k=3)
    assert found.source == "network"
    assert found.note.startswith("no pairs of 'new' were counted in training")
    assert later.similar(["n10"]).source == "pairs"
    assert len(later.similar(["new", *(f"n{i}" for i in range(5))]).note) < 200


def test_many_lists_are_answered_as_one_by_one(fitted):
    lists = [["n10"], ["alone"], ["n4", "n5"], ["alone", "n3"]]
    for one, other in zip(similar(fitted.predictor, lists, 3), lists, strict=True):
        alone = fitted.similar(other, k=3)
        assert (one.names, one.source, one.note) == (alone.names, alone.source, alone.note)
        assert [n.name for n in one.neighbours] == [n.name for n in alone.neighbours]
        scores = [n.score for n in alone.neighbours]
        assert [n.score for n in one.neighbours] == pytest.approx(scores, abs=1e-5)


def test_the_table_has_a_row_for_each_neighbour(fitted):
    found = fitted.similar_items(["n10", "alone"], k=2)
    assert list(found.columns) == ["similar_to", "item", "score", "rank", "source"]
    assert found["similar_to"].tolist() == ["n10", "n10", "alone", "alone"]
    assert found["rank"].tolist() == [1, 2, 1, 2]
    assert found["source"].tolist() == ["pairs", "pairs", "network", "network"]
    assert all(math.isfinite(score) for score in found["score"])


def test_what_cannot_be_used_is_refused_in_one_line(fitted):
    with pytest.raises(UnknownNameError, match="'alon' is not among the 61 names; did you mean 'alone'"):
        fitted.similar(["n10", "alon"])
    with pytest.raises(UnknownNameError):
        fitted.similar_items(["n999"])
    for names in ("n10", []):
        with pytest.raises(InputError, match="given; give a list of at least one name"):
            fitted.similar(names)
    with pytest.raises(InputError, match="k=0 given; whole numbers from 1 are allowed"):
        fitted.similar(["n10"], k=0)


def test_the_command_prints_neighbours_and_where_they_come_from(fitted, tmp_path):
    fitted.save_pretrained(tmp_path / "model")
    done = run("similar", "model", "n10", "-k", 2, cwd=tmp_path)
    assert {line.split()[2] for line in done.stdout.splitlines()} == {"n9", "n11"}
    assert done.stderr == ""
    document = json.loads(run("similar", "model", "n9", "n10", "--json", cwd=tmp_path).stdout)
    assert document["names"] == ["n9", "n10"]
    assert document["source"] == "pairs"
    assert [one["name"] for one in document["neighbours"]] == ["n11"]
    done = run("similar", "model", "alone", cwd=tmp_path)
    assert done.stderr.startswith("no pairs of 'alone' were counted in training; these are the model's answers")
    assert len(done.stdout.splitlines()) == 10
    done = run("similar", "model", "n10", "--network-only", cwd=tmp_path)
    assert len(done.stdout.splitlines()) == 10
    done = run("similar", "model", "alon", cwd=tmp_path, code=2)
    assert done.stderr == "error: 'alon' is not among the 61 names; did you mean 'alone'?\n"


def test_a_server_finds_the_names_that_the_folder_finds(fitted, tmp_path):
    fitted.save_pretrained(tmp_path / "model")
    app = make_app(lambda: Served(Superbloom.from_pretrained(tmp_path / "model").predictor), Settings(api_key=KEY))
    with live(app) as url:
        for asked in (["n10", "-k", 2], ["n9", "n10", "--json"], ["alone", "n10"]):
            there = run("similar", *asked, "--server", url, "--api-key", KEY, cwd=tmp_path)
            here = run("similar", "model", *asked, cwd=tmp_path)
            assert (there.stdout, there.stderr) == (here.stdout, here.stderr)
        wrong = run("similar", "alon", "--server", url, "--api-key", KEY, cwd=tmp_path, code=2)
        assert wrong.stderr == "error: 'alon' is not among the 61 names; did you mean 'alone'?\n"
        assert run("similar", "n10", "--server", url, cwd=tmp_path, code=2).stderr.startswith("error: ")
        chosen = run("similar", "n10", "--network-only", "--server", url, "--api-key", KEY, cwd=tmp_path, code=2)
        assert "the server's to choose; leave them out with --server" in chosen.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "give a model folder, or --server with the address of one"),
        (["model"], "no names given; give one name or more"),
        (["--server", "http://127.0.0.1:1"], "no names given; give one name or more"),
        (["n10", "--server", "http://127.0.0.1:1"], "no answer from http://127.0.0.1:1: "),
    ],
)
def test_a_command_without_names_or_model_is_refused(tmp_path, arguments, line):
    done = run("similar", *arguments, cwd=tmp_path, code=2)
    assert done.stderr.startswith(f"error: {line}")
    assert done.stderr.count("\n") == 1
