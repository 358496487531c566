"""A model with a memory: its answers, its folder, its evaluation, new names, and the lines that people see."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from superbloom import MASK, Corpus, Superbloom
from superbloom.cli import app
from superbloom.errors import InputError
from superbloom.evaluate import HeldOut, counting_on_validation, ranks, verdict
from superbloom.evaluate.counting import Scores, best_ranks, counting, ease, nearest_rows, ranks_of, strong_yardsticks
from superbloom.memory import Context, Events, Rows
from superbloom.predict import Beliefs, Predictor
from superbloom.search import log_probability
from superbloom.special import Special

SMALL = {"alpha": 2, "dim": 16, "heads": 2, "ffn_dim": 32, "seq_len": 8}


@pytest.fixture(scope="module")
def superbloom(ring_corpus) -> Superbloom:
    return Superbloom(**SMALL).fit(ring_corpus, steps=20, quiet=True)


def test_an_answer_has_the_probability_of_network_and_memory(superbloom):
    """Every name by hand: the weight of the network times its posterior, and what the memory recalls."""
    model, context = superbloom.model, ["ring 1 name 2", "ring 1 name 3"]
    ids = torch.tensor([[*map(model.vocab.id, context), Special.MASK]])
    recalled = model.memory.recall(ids.numpy(), np.array([2]), len(model.vocab))
    everyone = torch.arange(len(model.vocab))[None]
    network = log_probability(
        model.log_probs(ids, torch.tensor([[2]])), model.bloom, everyone, superbloom.predictor.id_prior
    )
    expected = recalled.network[0] * network[0].double().exp().numpy()
    expected[recalled.ids[0]] += recalled.share[0]
    found = superbloom.predict([*context, MASK], k=len(model.vocab), exclude_context=False)
    assert sum(answer.probability for answer in found) == pytest.approx(1, abs=1e-4)
    for answer in found:
        assert answer.probability == pytest.approx(expected[model.vocab.id(answer.name)], rel=1e-4, abs=1e-9)
        assert answer.certified
    assert [answer.probability for answer in found] == sorted((answer.probability for answer in found), reverse=True)
    least = found[3].probability * 0.999
    likely = superbloom.predict([*context, MASK], k=50, min_score=least, exclude_context=False)
    assert [answer.name for answer in likely] == [answer.name for answer in found[:4]]


def test_what_parts_add_to_an_answer_is_its_probability(superbloom):
    predictor = superbloom.predictor
    (found,) = predictor.answer([predictor.query(["ring 1 name 2", "ring 1 name 3"], 5, explain=True)])[0]
    for answer, why in zip(found.predictions, found.explanation.why, strict=True):
        assert set(why.parts) == set(superbloom.model.memory.parts)
        assert sum(why.parts.values()) == pytest.approx(answer.probability, rel=1e-5)
    certificate = found.explanation.certificate
    best = max(certificate.points, key=lambda point: sum(point.values) + point.memory)
    assert sum(best.values) + best.memory == pytest.approx(found.predictions[0].probability, rel=1e-5)


def test_without_its_memory_a_model_is_its_network(superbloom):
    bare = Predictor(replace(superbloom.model, memory=None))
    alone = Predictor(superbloom.model, network_only=True)
    assert alone.memory is None
    assert alone.predict(["ring 1 name 2"], k=5) == bare.predict(["ring 1 name 2"], k=5)
    assert alone.predict(["ring 1 name 2"], k=5) != superbloom.predictor.predict(["ring 1 name 2"], k=5)


def test_several_masks_and_several_queries_have_memories_of_their_own(superbloom):
    one, two = superbloom.predict([MASK, "ring 1 name 2", "ring 3 name 1", MASK], k=3)
    alone = [
        superbloom.predict(["ring 1 name 2", "ring 3 name 1", MASK], k=3),
        superbloom.predict([MASK, "ring 1 name 2", "ring 3 name 1"], k=3),
    ]
    # The places of a context without the other mask are one further, so only the names of near elements agree.
    assert {p.name[:6] for p in one} | {p.name[:6] for p in two} >= {"ring 1"}
    predictor = superbloom.predictor
    contexts = [["ring 1 name 2"], ["ring 3 name 1", "ring 3 name 2"]]
    together = predictor.answer([predictor.query(context, 3) for context in contexts])
    for context, (found,) in zip(contexts, together, strict=True):
        separate = superbloom.predict(context, k=3)
        assert [p.name for p in found.predictions] == [p.name for p in separate]
        assert [p.score for p in found.predictions] == pytest.approx([p.score for p in separate], rel=1e-4)
    assert all(len(found) == 3 for found in alone)


def test_a_saved_model_remembers_to_the_bit(superbloom, tmp_path):
    superbloom.save_pretrained(tmp_path / "model")
    again = Superbloom.from_pretrained(tmp_path / "model")
    ours, theirs = superbloom.model.memory, again.model.memory
    assert theirs.weights == ours.weights
    for part in ("pairs", "rows"):
        for name, values in vars(getattr(ours, part)).items():
            assert np.array_equal(values, getattr(getattr(theirs, part), name))
    assert again.predict(["ring 1 name 2"], k=5) == superbloom.predict(["ring 1 name 2"], k=5)


@pytest.mark.parametrize("what", ["pairs", "rows", "none"])
def test_a_model_remembers_what_it_is_told_to(ring_corpus, what, tmp_path):
    model = Superbloom(**SMALL).fit(ring_corpus, steps=1, quiet=True, remember=what)
    assert (None if model.model.memory is None else model.model.memory.kind) == (None if what == "none" else what)
    model.save_pretrained(tmp_path / "model")
    assert (tmp_path / "model" / "memory.safetensors").exists() == (what != "none")
    again = Superbloom.from_pretrained(tmp_path / "model")
    ours, theirs = (one.predict(["ring 1 name 2"], k=3) for one in (model, again))
    # Where the weights lie in memory decides the last digit of the network's scores, which the memory alone has not.
    assert [answer.name for answer in theirs] == [answer.name for answer in ours]
    assert [answer.score for answer in theirs] == pytest.approx([answer.score for answer in ours], rel=1e-5)


def test_a_network_that_knows_nothing_answers_from_memory(ring_corpus):
    options = {"steps": 1, "learning_rate": 1e-12, "warm_start": False, "quiet": True}
    figures = Superbloom(**SMALL).fit(ring_corpus, **options).evaluate(ring_corpus)
    assert figures["network"]["10"]["value"] < 0.2
    assert figures["memory"]["10"]["value"] > 0.7
    best = max(found["10"]["value"] for found in figures["yardsticks"].values())
    assert figures["recall"]["10"]["value"] >= best - 0.05
    assert sum(figures["weights"].values()) == pytest.approx(1)


def test_the_first_line_of_training_is_what_the_memory_knows(ring_corpus, capsys):
    model = Superbloom(**SMALL).fit(ring_corpus, steps=2, quiet=False)
    shown = capsys.readouterr().err
    assert "counted pairs and rows in " in shown
    assert "s: validation recall@10 " in shown
    # What a user sees in training is the recall of the answers, not of the network alone.
    held_out = HeldOut.of(ring_corpus, "valid", 8, draws=1000)
    alone = ranks(Predictor(model.model, network_only=True), held_out, filter_seen=True).rank
    assert model.metrics["history"][-1]["recall_at_10"] > float((alone < 10).mean())


def test_validation_rows_are_no_part_of_the_memory_that_is_asked_about_them(ring_corpus, monkeypatch):
    """Each validation row holds a pair that no other row has: a memory of the row itself would know it."""
    rows = [ring_corpus.vocab.names(ring_corpus.row(i).tolist()) for i in range(len(ring_corpus))]
    splits = ring_corpus.splits
    for number in np.flatnonzero(splits == 1).tolist():
        rows[number] = [f"only here {number}", f"and there {number}"]
    keys = ring_corpus.sequences["key"].to_pylist()
    corpus = Corpus.from_keyed(zip(keys, rows, strict=True))
    assert np.array_equal(corpus.splits, splits)
    model = Superbloom(**SMALL).fit(corpus, steps=1, quiet=True, valid_rows=50)
    weights = dict.fromkeys(model.model.memory.parts, 1 / 7)
    model._use(replace(model.model, memory=replace(model.model.memory, weights=weights)))
    name = model.predict([f"only here {np.flatnonzero(splits == 1)[0]}"], k=2, exclude_context=True)[0].name
    assert name.startswith("and there")  # it joined the memory,
    assert model.evaluate(corpus, split="valid", yardsticks=False)["memory"]["10"]["value"] == 0  # but does not help


def test_new_names_of_a_newer_log_are_answered_before_any_training(ring_corpus, tmp_path):
    model = Superbloom(**SMALL).fit(ring_corpus, steps=5, quiet=True)
    rows = [["ring 1 name 2", "a new name", "ring 1 name 3"]] * 30
    newer = Corpus.from_sequences([*rows, *(["ring 2 name 1", "ring 2 name 2"],) * 30])
    assert "a new name" not in model.model.vocab
    model.remember(newer)
    found = model.predict(["ring 1 name 2", MASK, "ring 1 name 3"], k=1)
    assert found[0].name == "a new name"
    folder, corpus = tmp_path / "model", tmp_path / "corpus"
    Superbloom(**SMALL).fit(ring_corpus, steps=5, quiet=True).save_pretrained(folder)
    newer.save(corpus)
    out = tmp_path / "extended"
    done = CliRunner().invoke(app, ["extend", str(folder), "--corpus", str(corpus), "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["new"] == 1
    again = Superbloom.from_pretrained(out)
    assert again.predict(["ring 1 name 2", MASK, "ring 1 name 3"], k=1)[0].name == "a new name"


def test_a_model_without_a_memory_can_get_one(ring_corpus):
    model = Superbloom(**SMALL).fit(ring_corpus, steps=5, quiet=True, remember="none")
    assert model.remember(ring_corpus).model.memory.weights


def test_extending_by_nothing_is_refused(superbloom, tmp_path):
    superbloom.save_pretrained(tmp_path / "model")
    done = CliRunner().invoke(app, ["extend", str(tmp_path / "model"), "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, InputError | SystemExit)
    assert done.exit_code


def test_a_memory_is_given_on_when_a_model_is_extended(superbloom):
    from superbloom.model.extend import extend

    larger = extend(superbloom.model, ["one more"])
    assert larger.memory is superbloom.model.memory
    assert Predictor(larger).predict(["one more"], k=2)


# Yardsticks


def plain_ranks(scores: Scores, held_out: HeldOut, num_ids: int) -> list[int]:
    """The rank of each hidden id by a dense sort."""
    found = []
    for ids, place, target in zip(held_out.ids, held_out.places, held_out.targets, strict=True):
        dense = scores(Context.of(ids[None], np.array([place]), num_ids)).toarray()[0]
        order = sorted(np.flatnonzero(dense), key=lambda id_: (-dense[id_], id_))
        found.append(order.index(target) if target in order else 20)
    return [min(20, rank) for rank in found]


@pytest.mark.parametrize("which", ["counting", "rows", "ease"])
def test_yardsticks_rank_as_a_plain_sort_does(ring_corpus, which):
    events = Events.of(ring_corpus)
    kinds = {"counting": counting, "rows": lambda counted: nearest_rows(Rows.keep(counted)), "ease": ease}
    made = kinds[which]
    held_out = HeldOut.of(ring_corpus, "test", 8, draws=40)
    for scores in list(made(events))[::3]:
        found = ranks_of(scores, held_out, ring_corpus.num_ids, filter_seen=False)
        assert found.tolist() == plain_ranks(scores, held_out, ring_corpus.num_ids)
    tuned = best_ranks(made, events, held_out, events, held_out)
    each = [float((ranks_of(scores, held_out, ring_corpus.num_ids, False) < 10).mean()) for scores in made(events)]
    assert float((tuned < 10).mean()) >= max(each) > 0.5


def test_ease_is_the_closed_form():
    rows = [["a", "b"], ["a", "b"], ["b", "c"], ["c"], ["a", "c"]] * 4
    events = Events.of(Corpus.from_sequences(rows), ("train", "valid", "test"))
    seen = np.zeros((20, 3))
    for number, (begin, end) in enumerate(zip(events.starts[:-1], events.starts[1:], strict=True)):
        seen[number, events.ids[begin:end]] = 1
    inverse = np.linalg.inv(seen.T @ seen + 100 * np.eye(3))
    expected = np.where(np.eye(3, dtype=bool), 0, -inverse / np.diag(inverse))
    context = Context.of(np.array([[0, -2], [2, -2]]), np.array([1, 1]), 3)
    assert next(ease(events))(context).toarray() == pytest.approx(expected[[0, 2]], rel=1e-5)


def test_the_verdict_says_who_is_ahead(ring_corpus):
    figures = Superbloom(**SMALL).fit(ring_corpus, steps=60, quiet=True).evaluate(ring_corpus)
    assert verdict(figures).startswith(("ahead of every yardstick: recall@10", "behind "))
    worse = {"recall": {"10": {"value": 0.1}}, "yardsticks": {"counting": {"10": {"value": 0.4}}}}
    assert verdict(worse).startswith("behind counting: recall@10 0.100, counting 0.400; train longer")
    assert verdict({"recall": {}}) is None
    assert counting_on_validation(ring_corpus, 8, 200) > 0.5
    assert counting_on_validation(Corpus.from_sequences([["a", "b"]] * 5, targets=[["x", "y"]] * 5), 8, 9) is None


def test_beliefs_of_some_queries_are_those_of_all(superbloom):
    ids = torch.tensor([[3, 5, Special.MASK], [8, Special.MASK, Special.PAD]])
    beliefs = superbloom.predictor.beliefs(ids, torch.tensor([[2], [1]]))
    second = beliefs.rows([1])
    assert torch.equal(second.log_probs[0], beliefs.log_probs[1])
    score = superbloom.predictor.log_probability
    everyone = torch.arange(192)[None]
    assert torch.equal(score(second, everyone)[0], score(beliefs, everyone.expand(2, -1))[1])
    assert Beliefs(beliefs.log_probs).given() is None


@pytest.fixture(scope="module")
def unrepeated() -> Corpus:
    """Rows of twenty of the thirty names of a group, none twice."""
    rng = np.random.default_rng(0)
    rows = [[f"{number % 6} {i}" for i in rng.permutation(30)[:20]] for number in range(1500)]
    return Corpus.from_sequences(rows)


def test_yardsticks_may_leave_out_the_context(unrepeated):
    """Where rows never repeat a name, an opponent that answers with the context would be beaten by anything."""
    held_out = HeldOut.of(unrepeated, "test", 32)
    found = strong_yardsticks(unrepeated, "test", held_out, 32, filter_seen=False)
    events = Events.of(unrepeated)
    as_it_is = ranks_of(next(nearest_rows(Rows.keep(events))), held_out, unrepeated.num_ids, False)
    assert float((found["similar rows"] < 10).mean()) > float((as_it_is < 10).mean()) + 0.2
    assert float((found["counting"] < 10).mean()) > 0.7


def test_yardsticks_of_test_rows_count_validation_rows_as_a_model_does():
    """A pair that only validation rows have: both the memory and counting know it in the end."""
    corpus = Corpus.from_sequences([["a", "b"]] * 400)
    valid, test = (set(np.flatnonzero(corpus.splits == code).tolist()) for code in (1, 2))
    rows = [["c", "d"] if number in valid | test else ["a", "b"] for number in range(400)]
    corpus = Corpus.from_sequences(rows)
    found = strong_yardsticks(corpus, "test", HeldOut.of(corpus, "test", 8), 8, filter_seen=False)
    assert float((found["counting"] < 1).mean()) > 0.9


def test_a_memory_of_a_newer_log_does_not_help_with_an_older_one(unrepeated):
    """The newer corpus holds the test rows of the older one among its training rows."""
    model = Superbloom(**SMALL).fit(unrepeated, steps=1, quiet=True)
    before = model.evaluate(unrepeated, yardsticks=False)["memory"]
    rows = [unrepeated.vocab.names(unrepeated.row(i).tolist()) for i in range(len(unrepeated))]
    model.remember(Corpus.from_sequences(rows, keys=[f"another {i}" for i in range(len(rows))]))
    assert model.evaluate(unrepeated, yardsticks=False)["memory"] == before


def test_the_number_of_neighbours_stays_as_it_was_chosen(ring_corpus, tmp_path):
    model = Superbloom(**SMALL).fit(ring_corpus, steps=1, quiet=True, neighbours=40)
    model.remember(Corpus.from_sequences([["ring 1 name 2", "ring 1 name 3"]] * 50))
    model.save_pretrained(tmp_path / "model")
    assert Superbloom.from_pretrained(tmp_path / "model").model.memory.neighbours == 40


def test_an_answer_is_not_lost_at_its_own_probability(superbloom):
    for name in range(8):
        found = superbloom.predict([f"ring {name} name 2", f"ring {name} name 3"], k=12)
        for number, answer in enumerate(found, 1):
            floor = answer.probability * (1 - 1e-6)
            again = superbloom.predict([f"ring {name} name 2", f"ring {name} name 3"], k=12, min_score=floor)
            assert len(again) >= number
