"""`evaluate` reports what users get: names of the context are left out by the rule of the model."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from superbloom import Corpus, Superbloom
from superbloom.corpus.cooccurrence import similarity
from superbloom.evaluate import DEEPEST, HeldOut, counting_on_validation, evaluate, ranks
from superbloom.evaluate.tables import recall_table
from superbloom.evaluate.yardsticks import cooccurrence, popularity
from superbloom.special import MASK
from tests.support.corpora import casts

RECALLS = ("1", "10", "20")


def as_log(corpus: Corpus) -> Corpus:
    """Rows in order of time: the last element is for the test, the one before it for validation."""
    lengths, table = np.diff(corpus.offsets), corpus.sequences
    table = table.set_column(table.column_names.index("split"), "split", pa.array(np.zeros(len(corpus), np.int8)))
    for name, off in (("valid_from", 2), ("test_from", 1)):
        table = table.append_column(name, pa.array(lengths - off, pa.int32()))
    return Corpus(corpus.vocab, table.combine_chunks())


def fitted(corpus: Corpus, **options: object) -> Superbloom:
    torch.manual_seed(0)
    return Superbloom(alpha=2, dim=16, ffn_dim=16).fit(corpus, steps=2, valid_rows=50, quiet=True, **options)


@pytest.fixture(scope="module")
def kinds() -> dict[str, tuple[Superbloom, Corpus]]:
    corpora = {
        "casts": casts(),
        "repeats": casts(repeated=0.9),
        "log": as_log(casts(90)),
        "log that repeats": as_log(casts(90, repeated=0.9)),
        "second vocabulary": casts(targets=True),
    }
    return {name: (fitted(corpus), corpus) for name, corpus in corpora.items()}


def plain_recall(superbloom: Superbloom, corpus: Corpus, filter_seen: bool) -> list[float]:
    """Every hidden element among all names, each query alone, and what was seen struck out by its name."""
    model, found = superbloom.model, []
    hidden = HeldOut.of(corpus, "test", model.config.seq_len)
    rows = corpus.rows("test")
    for row, ids, place, target in zip(rows, hidden.ids, hidden.places, hidden.targets, strict=True):
        there = [(at, id_) for at, id_ in enumerate(ids) if id_ >= 0 or at == place]
        context = [MASK if at == place else corpus.vocab.name(id_) for at, id_ in there]
        everyone = superbloom.predict(context, k=len(model.target_vocab), exclude_context=False)
        row_so_far = corpus.row(row)[: corpus.cuts["test"][row]] if corpus.is_ordered else ids[ids >= 0]
        seen = set(corpus.vocab.names(row_so_far.tolist())) if filter_seen else set()
        left = [answer.name for answer in everyone if answer.name not in seen]
        name = model.target_vocab.name(target)
        found.append(left.index(name) if name in left else DEEPEST)
    return [float(np.mean(np.array(found) < int(k))) for k in RECALLS]


@pytest.mark.parametrize("filter_seen", [True, False])
@pytest.mark.parametrize("kind", ["casts", "repeats", "log", "log that repeats", "second vocabulary"])
def test_recall_is_that_of_a_plain_ranking(kinds, kind, filter_seen):
    superbloom, corpus = kinds[kind]
    figures = superbloom.evaluate(corpus, filter_seen=filter_seen, yardsticks=False)
    assert figures["filter_seen"] is filter_seen
    assert [figures["recall"][k]["value"] for k in RECALLS] == plain_recall(superbloom, corpus, filter_seen)


@pytest.mark.parametrize(
    ("kind", "leaves_out"),
    [("casts", True), ("repeats", False), ("log", True), ("log that repeats", False), ("second vocabulary", False)],
)
def test_without_a_choice_it_is_the_rule_of_the_model(kinds, kind, leaves_out):
    superbloom, corpus = kinds[kind]
    figures = superbloom.evaluate(corpus)
    assert figures["filter_seen"] is superbloom.model.leaves_out_context is leaves_out
    assert figures == superbloom.evaluate(corpus, filter_seen=leaves_out)
    assert ("repetition" in figures["yardsticks"]) is not leaves_out
    words = "names of the context are left out" if leaves_out else "names of the context are included"
    assert str(recall_table(figures).title).endswith(words)


@pytest.mark.parametrize("kind", ["casts", "repeats", "log that repeats", "second vocabulary"])
def test_yardsticks_obey_the_rule(kinds, kind):
    """Popularity and co-occurrence, each by a plain ranking of all names that were not seen."""
    _, corpus = kinds[kind]
    hidden = HeldOut.of(corpus, "test", 32)
    counts, similar = corpus.id_counts("train"), similarity(corpus).toarray()
    found = {
        "popularity": popularity(corpus, hidden, DEEPEST, filter_seen=True),
        "co-occurrence": cooccurrence(similarity(corpus), hidden, DEEPEST, filter_seen=True),
    }
    expected: dict[str, list[int]] = {name: [] for name in found}
    seen = hidden.seen(slice(None)).tolist()
    for ids, target, left_out in zip(hidden.ids, hidden.targets.tolist(), seen, strict=True):
        votes = np.sum([similar[id_] for id_ in ids if id_ >= 0], axis=0)
        for name, scores in (("popularity", counts), ("co-occurrence", votes)):
            order = [id_ for id_ in np.argsort(-scores, kind="stable").tolist() if id_ not in left_out]
            is_known = target in order and (name == "popularity" or scores[target] > 0)
            expected[name].append(min(DEEPEST, order.index(target)) if is_known else DEEPEST)
    assert {name: rank.tolist() for name, rank in found.items()} == expected


def test_a_hidden_name_of_its_own_context_is_missed_by_everybody(kinds):
    superbloom, corpus = kinds["repeats"]
    figures = superbloom.evaluate(corpus, filter_seen=True)
    hidden = HeldOut.of(corpus, "test", 32)
    again = np.mean([target in ids for ids, target in zip(hidden.ids, hidden.targets, strict=True)])
    assert 0.1 < again < 1
    rows = {name: figures[name] for name in ("recall", "network", "memory")} | figures["yardsticks"]
    assert max(found["20"]["value"] for found in rows.values()) <= 1 - again + 1e-9


def test_unknown_names_are_left_out_of_what_was_seen(kinds):
    """A model of fewer names is asked about a corpus of more, by the rule."""
    superbloom, corpus = kinds["casts"]
    rows = [corpus.vocab.names(corpus.row(number)) for number in range(len(corpus))]
    more = Corpus.from_sequences([[f"new {number % 3}", *row] for number, row in enumerate(rows)])
    for kind in (more, as_log(more)):
        figures = evaluate(superbloom.predictor, kind, yardsticks=False)
        assert figures["filter_seen"] is True
        assert figures["unknown"]["names"] == 3


@pytest.mark.parametrize("repeated", [0.0, 0.9])
def test_validation_asks_for_the_answers_that_users_get(monkeypatch, repeated):
    """In training, and in the comparison with counting at its end."""
    corpus, asked = casts(repeated=repeated), []
    module = "superbloom.training.callback.ranks"
    monkeypatch.setattr(
        module, lambda *given, **options: asked.append(options["filter_seen"]) or ranks(*given, **options)
    )
    superbloom = fitted(corpus)
    assert set(asked) == {not repeated} == {superbloom.model.leaves_out_context}
    hidden = HeldOut.of(corpus, "valid", 32, draws=50)
    again = np.mean([target in ids for ids, target in zip(hidden.ids, hidden.targets, strict=True)])
    found = counting_on_validation(corpus, 32, 50, filter_seen=True)
    assert found <= 1 - again
    assert bool(again) is bool(repeated)
