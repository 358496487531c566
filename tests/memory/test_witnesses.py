"""Evidence for answers: counts of rows against plain loops, similar rows by key, and the lines that people read."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from superbloom import Corpus, Superbloom
from superbloom.config.serving import Settings
from superbloom.errors import InputError
from superbloom.memory import Context, Events, Rows, most_similar, remember, together
from superbloom.memory import events as events_module
from superbloom.memory import keys as keys_module
from superbloom.memory import witnesses as witnesses_module
from superbloom.memory.keys import key_at, packed
from superbloom.memory.pairs import WINDOW_IDS
from superbloom.predict import Predictor
from superbloom.serve.app import make_app
from superbloom.serve.service import Served
from tests.support.launch import command as run
from tests.support.serving import live

ALL = ("train", "valid", "test")
OF_PAIRS = {"network": 0.5, "pairs": 0.5, "pairs squared": 0.0, "repeats": 0.0}
SMALL = {"alpha": 2, "dim": 16, "heads": 2, "ffn_dim": 16}


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    rng = np.random.default_rng(3)
    rows = [rng.choice([f"n{i}" for i in range(40)], size=rng.integers(1, 50)).tolist() for _ in range(80)]
    return Corpus.from_sequences(rows, keys=[f"page {number}" for number in range(80)])


def plain_together(corpus: Corpus, name: int, answer: int) -> tuple[int, int]:
    """Rows with both at most WINDOW_IDS apart, and the smallest distance, by loops; 0 if there are none."""
    count, nearest = 0, 0
    for number in range(len(corpus)):
        row = corpus.row(number).tolist()
        distances = [
            abs(i - j) for i, a in enumerate(row) for j, b in enumerate(row) if i != j and (a, b) == (name, answer)
        ]
        near = [distance for distance in distances if distance <= WINDOW_IDS]
        count += bool(near)
        nearest = min([*near, *([nearest] if nearest else [])], default=0)
    return count, nearest


@pytest.mark.parametrize("piece", [5, 64])
@pytest.mark.parametrize("scan", [7, 10**6])
def test_rows_are_counted_as_plain_loops_count_them(corpus, piece, scan, monkeypatch):
    """Rows are cut into pieces and read in stretches; neither hides a pair or counts a row twice."""
    monkeypatch.setattr(events_module, "MAX_PIECE_IDS", piece)
    monkeypatch.setattr(witnesses_module, "MAX_SCAN_IDS", scan)
    rows = Rows.keep(Events.of(corpus, ALL))
    assert (np.diff(rows.row) == 0).any() == (piece == 5)
    names, answers = np.array([3, 17, 39]), np.array([17, 0, 39, 5])
    found = together(rows, names, answers, corpus.num_ids)
    for i, answer in enumerate(answers):
        for j, name in enumerate(names):
            assert (found.rows[i, j], found.nearest[i, j]) == plain_together(corpus, name, answer)


def test_names_that_never_met_have_no_evidence():
    corpus = Corpus.from_sequences([["a", "b"], ["c", *"defghijklmn", "a"]])
    a, b, c = map(corpus.vocab.id, "abc")
    found = together(Rows.keep(Events.of(corpus, ALL)), np.array([a]), np.array([b, c]), corpus.num_ids)
    assert found.rows.tolist() == [[1], [0]]  # c and a are 12 apart
    assert found.nearest.tolist() == [[1], [0]]


def test_without_numbers_of_rows_pieces_are_counted(corpus):
    rows = replace(Rows.keep(Events.of(corpus, ALL)), row=None)
    counted = together(rows, np.array([3]), np.array([5]), corpus.num_ids)
    assert counted.rows[0, 0] == plain_together(corpus, 3, 5)[0]  # no row is longer than a piece here


@pytest.fixture
def cities() -> Corpus:
    rows = [["Oslo", "Norway"], ["Copenhagen", "Oslo", "Bergen"], ["Rome", "Italy"], ["Oslo", "Rome", "Paris", "Bonn"]]
    return Corpus.from_sequences(rows, keys=["Norway", "Nordic capitals", "Italy", "Capitals"])


def alike(corpus: Corpus, rows: Rows, names: list[str], answers: list[str]) -> list[tuple]:
    context = Context.of(np.array([[*map(corpus.vocab.id, names), -2]]), np.array([len(names)]), corpus.num_ids)
    found = most_similar(rows, context, np.array([corpus.vocab.id(name) for name in answers]))
    of = corpus.vocab.names
    return [(rows.key(one.row), of(one.shared.tolist()), of(one.held.tolist())) for one in found]


def test_similar_rows_have_keys_shared_names_and_the_answers_they_hold(cities):
    rows = remember(cities, "rows", ALL).rows
    found = alike(cities, rows, ["Copenhagen", "Oslo"], ["Norway", "Bergen"])
    assert found[0] == ("Nordic capitals", ["Copenhagen", "Oslo"], ["Bergen"])
    assert set(map(repr, found[1:])) == {
        repr(("Norway", ["Oslo"], ["Norway"])),
        repr(("Capitals", ["Oslo"], [])),
    }


def test_a_row_of_the_context_alone_has_the_similarity_1(cities):
    rows = remember(cities, "rows", ALL).rows
    ids = np.array([[*map(cities.vocab.id, ["Rome", "Italy"]), -2]])
    found = most_similar(rows, Context.of(ids, np.array([2]), cities.num_ids), np.array([0]))
    assert [rows.key(one.row) for one in found] == ["Italy", "Capitals"]
    assert found[0].similarity == pytest.approx(1)
    assert 0 < found[1].similarity < 0.6


def test_a_name_that_was_added_later_makes_rows_less_similar(cities):
    rows = remember(cities, "rows", ALL).rows
    later = cities.num_ids + 3
    ids = np.array([[later, cities.vocab.id("Rome"), cities.vocab.id("Italy"), -2]])
    found = most_similar(rows, Context.of(ids, np.array([3]), later + 1), np.array([0]))
    assert found[0].similarity < 0.95


def test_a_row_of_many_pieces_is_listed_once(monkeypatch):
    monkeypatch.setattr(events_module, "MAX_PIECE_IDS", 2)
    corpus = Corpus.from_sequences([["a", "b", "a", "c", "a", "d"], ["e", "f"]], keys=["long", "short"])
    rows = remember(corpus, "rows", ALL).rows
    assert rows.row.tolist() == [0, 0, 0, 1]
    assert alike(corpus, rows, ["a", "c"], ["d"]) == [("long", ["a", "c"], [])]  # the piece that has both


def test_rows_keep_their_own_keys_when_only_some_are_kept(corpus):
    events = Events.of(corpus)
    rows = Rows.keep(events, most=len(events.ids) // 4, keys=corpus.sequences["key"].chunk(0))
    assert 1 < rows.row[-1] + 1 < len(events.row)
    for piece, row in enumerate(rows.row.tolist()):
        number = int(rows.key(row).removeprefix("page "))
        assert rows.ids[rows.starts[piece] : rows.starts[piece + 1]].tolist() == corpus.row(number).tolist()


def test_keys_are_bounded(monkeypatch):
    keys = pa.array(["å" * 100, "ø" * 101, "", "\N{SNOWMAN}"], pa.large_string())
    starts, text = packed(keys)
    assert [key_at(starts, text, row) for row in range(4)] == ["å" * 100, "ø" * 99 + "…", "", "\N{SNOWMAN}"]
    sliced = packed(keys[2:])
    assert [key_at(*sliced, row) for row in range(2)] == ["", "\N{SNOWMAN}"]
    monkeypatch.setattr(keys_module, "MAX_KEYS_BYTES", len(text) - 1)
    assert packed(keys) is None


def test_rows_without_room_for_keys_have_none(cities, monkeypatch):
    monkeypatch.setattr(keys_module, "MAX_KEYS_BYTES", 3)
    rows = remember(cities, "rows", ALL).rows
    assert rows.is_sound(cities.num_ids)
    assert rows.key(0) is None
    assert rows.row.tolist() == [0, 1, 2, 3]


# Answers


@pytest.fixture(scope="module")
def fitted() -> Superbloom:
    """Rows of users; the last names of a row follow from the first ones."""
    rows = [["Copenhagen", "Oslo", "Norway"]] * 12 + [["Oslo", "Norway", "Bergen"]] * 40 + [["Rome", "Italy"]] * 40
    keys = [f"user {number}" for number in range(len(rows))]
    return Superbloom(**SMALL).fit(Corpus.from_sequences(rows, keys=keys), steps=2, quiet=True)


def reasons(model: Superbloom, answer: str) -> tuple:
    (found,) = model.predictor.ask(["Copenhagen", "Oslo"], 5, explain=True)
    names = [prediction.name for prediction in found.predictions]
    return found.explanation, found.explanation.why[names.index(answer)]


def test_an_answer_is_explained_by_the_rows_it_was_seen_in(fitted):
    explanation, why = reasons(fitted, "Norway")
    rows = fitted.model.memory.rows
    ids = [rows.ids[begin:end].tolist() for begin, end in zip(rows.starts[:-1], rows.starts[1:], strict=True)]
    vocab = fitted.model.vocab
    with_both = {
        name: sum({vocab.id(name), vocab.id("Norway")} <= set(row) for row in ids) for name in ("Copenhagen", "Oslo")
    }
    assert [(one.name, one.rows, one.nearest) for one in why.beside] == [
        ("Copenhagen", with_both["Copenhagen"], 2),
        ("Oslo", with_both["Oslo"], 1),
    ]
    assert with_both["Oslo"] > with_both["Copenhagen"] > 5
    assert all(row.key.startswith("user ") and row.shared == ["Copenhagen", "Oslo"] for row in why.similar_rows)
    assert len(why.similar_rows) == 3
    assert len(explanation.similar_rows) == 5


def test_what_is_not_remembered_is_not_claimed(fitted):
    model, memory = fitted.model, fitted.model.memory
    for changed in (replace(memory, rows=None, weights=OF_PAIRS), replace(memory, pairs=None)):
        (found,) = Predictor(replace(model, memory=changed)).ask(["Oslo"], 3, explain=True)
        why = found.explanation.why[0]
        assert why.beside
        for one in why.beside:
            assert (one.rows is None) == (one.nearest is None) == (changed.rows is None)
            assert (one.weight is None) == (one.share is None) == (one.follows is None) == (changed.pairs is None)
        assert bool(found.explanation.similar_rows) == (changed.rows is not None)


def test_evidence_is_counted_for_explanations_only(fitted, monkeypatch):
    def refuse(*_):
        raise AssertionError("counted")

    monkeypatch.setattr("superbloom.predict.explain.together", refuse)
    monkeypatch.setattr("superbloom.predict.explain.most_similar", refuse)
    assert fitted.predictor.predict(["Oslo"], 3)
    with pytest.raises(AssertionError, match="counted"):
        fitted.predictor.predict(["Oslo"], 3, explain=True)


def test_a_damaged_row_is_refused_when_it_is_counted(fitted):
    rows = fitted.model.memory.rows
    damaged = replace(rows, ids=np.full_like(rows.ids, 10**6))
    with pytest.raises(InputError, match="the memory of the model holds"):
        together(damaged, np.array([0]), np.array([1]), 6)


def test_keys_may_be_left_out():
    rows = [["a", "b", "c"]] * 60
    model = Superbloom(**SMALL).fit(Corpus.from_sequences(rows), steps=1, quiet=True, row_keys=False)
    assert model.model.memory.rows.key_text is None
    (found,) = model.predictor.ask(["a", "b"], 1, explain=True)
    assert found.explanation.similar_rows[0].key is None
    assert found.explanation.similar_rows[0].shared == ["a", "b"]
    again = model.model.memory.again(Corpus.from_sequences(rows), ("train",))
    assert again.rows.key_text is None  # the choice stays


@pytest.mark.parametrize("columns", [80, 60])
def test_the_command_explains_within_the_width(fitted, tmp_path, columns):
    fitted.save_pretrained(tmp_path / "model")
    asked = ["Copenhagen", "Oslo", "-k", 2, "--explain", "--exclude-context"]
    done = run("predict", "model", *asked, cwd=tmp_path, environment={"COLUMNS": str(columns)})
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= columns
    first = next(number for number, line in enumerate(lines) if line.endswith("  Norway"))
    _, why = reasons(fitted, "Norway")
    counts = {one.name: one.rows for one in why.beside}
    assert lines[first + 1] == f"      beside Oslo in {counts['Oslo']} rows, nearest distance 1"
    assert lines[first + 2] == f"      beside Copenhagen in {counts['Copenhagen']} rows, nearest distance 2"
    text = " ".join(done.stdout.split())
    row = why.similar_rows[0]
    assert f"in {row.key}, similarity {row.similarity:.2f}: shares Copenhagen, Oslo" in text
    assert "probability: " in text
    assert "depends on: " in text
    assert f"most similar rows: {row.key}, similarity" in text


def test_a_server_explains_as_the_folder_does(fitted, tmp_path):
    fitted.save_pretrained(tmp_path / "model")
    app = make_app(lambda: Served(Superbloom.from_pretrained(tmp_path / "model").predictor), Settings())
    asked = ["Copenhagen", "Oslo", "-k", 3, "--explain"]
    with live(app) as url:
        there = run("predict", *asked, "--server", url, cwd=tmp_path).stdout
        document = json.loads(run("predict", *asked, "--json", "--server", url, cwd=tmp_path).stdout)
    assert there == run("predict", "model", *asked, cwd=tmp_path).stdout
    here = json.loads(run("predict", "model", *asked, "--json", cwd=tmp_path).stdout)
    assert here["explanations"][0].keys() == document["explanations"][0].keys()
    for name in ("beside", "similar_rows"):
        assert here["explanations"][0]["why"][0][name] == document["explanations"][0]["why"][0][name]
    assert here["explanations"][0]["similar_rows"] == document["explanations"][0]["similar_rows"]


def test_a_model_without_rows_says_how_strong_a_pair_is(fitted, tmp_path):
    model = Superbloom(**SMALL)
    model._use(replace(fitted.model, memory=replace(fitted.model.memory, rows=None, weights=OF_PAIRS)))
    model.save_pretrained(tmp_path / "model")
    text = run("predict", "model", "Oslo", "-k", 1, "--explain", "--exclude-context", cwd=tmp_path).stdout
    assert "      beside Oslo: " in text
    assert "similar" not in text
