"""Forgetting by age: what is old counts less, in pairs and in rows, and only where rows have an order of time."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

from superbloom import MASK, Corpus, Superbloom
from superbloom.errors import InputError
from superbloom.memory import Context, Events, Memory, Pairs, Rows, add, remember
from superbloom.memory import events as events_module
from superbloom.memory.events import MIN_FRESHNESS
from superbloom.memory.pairs import WINDOW_IDS
from superbloom.store import load
from tests.support.folders import TEXTS
from tests.support.launch import command as run

SMALL = {"alpha": 2, "dim": 16, "heads": 2, "ffn_dim": 16, "layers": 1}
SPLITS = ("train", "valid")


def log(*histories: list[str]) -> Corpus:
    """A corpus as `prepare interactions` makes it: each row is a user's history, cut before its last two events."""
    rows = Corpus.from_sequences(histories, [f"user {number}" for number in range(len(histories))])
    lengths = np.diff(rows.offsets)
    table = rows.sequences.set_column(2, "split", pa.array(np.zeros(len(rows)), pa.int8()))
    for name, back in (("valid_from", 2), ("test_from", 1)):
        table = table.append_column(name, pa.array(lengths - back, pa.int32()))
    return Corpus(rows.vocab, table)


# Everybody took b after a six times, and then, lately, c after a three times. The last event is for testing.
HABITS = ["a", "b", "x", "y"] * 6 + ["a", "c", "x", "y"] * 3


@pytest.fixture
def habits() -> Corpus:
    return log(*[[*HABITS, f"u{number}"] for number in range(30)])


def plain_weights(corpus: Corpus, half_life: float) -> dict[tuple[int, int], float]:
    both, counts = defaultdict(float), defaultdict(int)
    for number in range(len(corpus)):
        row = corpus.row(number).tolist()[: corpus.cuts["valid"][number]]
        for i, first in enumerate(row):
            counts[first] += 1
            for j, second in enumerate(row):
                if i != j and abs(i - j) <= WINDOW_IDS:
                    both[first, second] += 0.5 ** ((len(row) - 1 - max(i, j)) / half_life) / abs(i - j)
    return {(first, second): weight / counts[first] for (first, second), weight in both.items()}


@pytest.mark.parametrize("half_life", [3, 12.5])
def test_pairs_fade_as_a_plain_recount_does(half_life):
    rng = np.random.default_rng(0)
    corpus = log(*[rng.choice([f"n{i}" for i in range(12)], size=rng.integers(4, 40)).tolist() for _ in range(30)])
    pairs = Pairs.count(Events.of(corpus).fading(half_life), 99)
    of = np.repeat(np.arange(corpus.num_ids), np.diff(pairs.starts))
    found = dict(zip(zip(of.tolist(), pairs.ids.tolist(), strict=True), pairs.weights.astype(float), strict=True))
    assert found == pytest.approx(plain_weights(corpus, half_life), rel=3e-3, abs=1e-5)


def test_what_is_very_old_is_not_quite_forgotten():
    corpus = log(["old", "older", *["new"] * 2000])
    pairs = Pairs.count(Events.of(corpus).fading(1), 99)
    _, ids, weights, after = pairs.of(np.array([corpus.vocab.id("old")]), corpus.num_ids)
    assert corpus.vocab.id("older") in ids
    assert np.isfinite(after).all()
    at = ids.tolist().index(corpus.vocab.id("older"))
    assert 0 < weights[at] <= 1.1 * MIN_FRESHNESS


@pytest.mark.parametrize("piece", [4, 64])
def test_older_pieces_are_less_similar(piece, monkeypatch):
    monkeypatch.setattr(events_module, "MAX_PIECE_IDS", piece)
    corpus = log(["a", "b", "a", "c", *"uvwxyz", "end", "test"], ["a", "d", "end", "test"])
    rows = Rows.keep(Events.of(corpus))
    ages = [len_ - end for end, len_ in zip(rows.starts[1:], [10, 10, 10, 12] if piece == 4 else [10, 12], strict=True)]
    assert rows.fading(2).freshness == pytest.approx([0.5 ** (age / 2) for age in ages])
    context = Context.of(np.array([[corpus.vocab.id("a"), -2]]), np.array([1]), corpus.num_ids)
    plain, fading = (one.similar(context.query, context.names, context.distance, 1) for one in (rows, rows.fading(2)))
    before = dict(zip(plain.row.tolist(), plain.similarity, strict=True))
    assert dict(zip(fading.row.tolist(), fading.similarity, strict=True)) == pytest.approx(
        {row: similarity * 0.5 ** (ages[row] / 2) for row, similarity in before.items()}
    )


def best(memory: Memory, corpus: Corpus, context: list[str], part: str) -> str:
    weights = dict.fromkeys(memory.parts, 0.0) | {"network": 0.5, part: 0.5}
    ids = np.array([[*map(corpus.vocab.id, context), -2]])
    recalled = replace(memory, weights=weights).recall(ids, np.array([len(context)]), corpus.num_ids)
    share = np.where(np.isin(recalled.ids[0], ids), 0, recalled.share[0])
    return corpus.vocab.name(int(recalled.ids[0, share.argmax()]))


@pytest.mark.parametrize("part", ["pairs", "pairs squared", "places"])
def test_a_newer_habit_outranks_an_older_one_that_is_more_frequent(habits, part, monkeypatch):
    monkeypatch.setattr(events_module, "MAX_PIECE_IDS", 4)
    context = ["x", "y", "a"]
    assert best(remember(habits, "both", SPLITS), habits, context, part) == "b"
    assert best(remember(habits, "both", SPLITS, half_life=8), habits, context, part) == "c"
    assert best(remember(habits, "both", SPLITS, half_life=1e6), habits, context, part) == "b"


def test_a_model_keeps_its_half_life(habits, tmp_path):
    model = Superbloom(**SMALL).fit(habits, steps=2, quiet=True, half_life=8.1)
    weights = dict.fromkeys(model.model.memory.parts, 0.0) | {"network": 0.125, "pairs": 0.875}  # exact in float32
    model._use(replace(model.model, memory=replace(model.model.memory, weights=weights)))
    asked = ["x", "y", "a", MASK]
    before = model.predict(asked, k=3, exclude_context=True)
    assert before[0].name == "c"
    model.save_pretrained(tmp_path / "model")
    again = Superbloom.from_pretrained(tmp_path / "model")
    after = again.predict(asked, k=3, exclude_context=True)
    assert [answer.name for answer in after] == [answer.name for answer in before]
    probabilities = [answer.probability for answer in before]
    assert [answer.probability for answer in after] == pytest.approx(probabilities, rel=1e-5)
    assert again.model.memory.half_life == pytest.approx(8.1)
    assert np.array_equal(again.model.memory.rows.freshness, model.model.memory.rows.freshness)
    assert "8.1 events" in (tmp_path / "model" / "README.md").read_text()
    again.remember(log(*[[*HABITS, "a", "d", "x", f"u{number}"] for number in range(30)]), replace=True)
    assert again.model.memory.half_life == pytest.approx(8.1)
    assert again.evaluate(habits, yardsticks=False)["memory"]  # counted again with the same half-life
    plain = Superbloom(**SMALL).fit(habits, steps=2, quiet=True)
    assert plain.model.memory.half_life is None
    plain.save_pretrained(tmp_path / "plain")
    assert "half_life" not in load_file(tmp_path / "plain" / "memory.safetensors")


def test_nothing_is_added_to_a_memory_that_fades(habits):
    memory = remember(habits, "both", SPLITS, half_life=8)
    line = "this memory has a half-life of 8 events, .* give the whole newer log, to be counted again: --replace"
    with pytest.raises(InputError, match=line):
        add(memory, log(*[["a", "b", "c", "x"]] * 3), SPLITS, "0" * 64)


ORDER = "half_life=9 given, but the rows of this corpus are not in the order of time"


@pytest.mark.parametrize("corpus", [Corpus.from_sequences([["a", "b", "c"]] * 50), TEXTS])
def test_rows_without_time_are_refused(corpus):
    with pytest.raises(InputError, match=ORDER):
        remember(corpus, "both", half_life=9)
    with pytest.raises(InputError, match=ORDER):
        Superbloom(**SMALL).fit(corpus, steps=1, quiet=True, half_life=9)


def test_the_command_takes_a_half_life(habits, tmp_path):
    habits.save(tmp_path / "log")
    Corpus.from_sequences([["a", "b", "c"]] * 50).save(tmp_path / "sets")
    options = ["--steps", 1, "--alpha", 2, "--dim", 16, "--out", "model", "--overwrite", "--half-life"]
    run("train", "log", *options, 9, cwd=tmp_path)
    assert load(tmp_path / "model").model.memory.half_life == 9
    done = run("train", "sets", *options, 9, cwd=tmp_path, code=2)
    assert done.stderr.startswith(f"error: {ORDER}")
    assert done.stderr.count("\n") == 1
    for wrong in (0, -1, "nan"):
        assert "half_life" in run("train", "log", *options, wrong, cwd=tmp_path, code=2).stderr


@pytest.mark.parametrize("half_life", [[0.0], [-1.0], [float("nan")], [float("inf")], [1.0, 2.0], []])
def test_a_half_life_that_is_none_is_refused(habits, tmp_path, half_life):
    from tests.store.test_memory_file import changed

    model = Superbloom(**SMALL).fit(habits, steps=1, quiet=True)
    model.save_pretrained(tmp_path / "model")
    folder = changed(tmp_path / "model", tmp_path / "wrong", lambda t: t.update(half_life=torch.tensor(half_life)))
    with pytest.raises(InputError, match="is not one, or rows lack it; save the model again"):
        load(folder)
    for missing in ("row", "key_starts", "key_text"):
        folder = changed(folder, tmp_path / missing, lambda t, missing=missing: t.pop(f"rows.{missing}"))
    older = changed(folder, tmp_path / "older", lambda t: t.update(half_life=torch.tensor([9.0])))
    with pytest.raises(InputError, match="is not one, or rows lack it; save the model again"):
        load(older)
