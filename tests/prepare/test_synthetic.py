"""`prepare synthetic`: rows follow the world, and the best possible answers are exact."""

from itertools import product

import numpy as np
import pytest

from superbloom.config import SyntheticOptions
from superbloom.corpus import Corpus
from superbloom.errors import InputError
from superbloom.prepare.synthetic import Oracle, World, prepare_synthetic, synthetic_corpus, world_of

TINY = SyntheticOptions(
    countries=3, lists=2, list_size=2, lists_per_row=2, complete=0.6, follows=0.7, noise=1.5, longest=5, rows=60_000
)


def probability_of_row(world: World, row: set[int]) -> float:
    """P(row) as the docstring of world.py tells it: every set of lists, name by name."""
    options, countries, total = world.options, world.countries, 0.0
    for lists, probability in zip(world.sets, world.set_probability, strict=True):
        for name in range(world.num_names):
            absent = 1 - world.noise[name]
            for list_ in lists[lists >= 0]:
                absent *= 1 - options.complete if name in world.members[list_] else 1
            is_capital = countries <= name < 2 * countries
            if is_capital and name - countries in row:
                absent *= 1 - options.follows
            probability *= 1 - absent if name in row else absent
        total += probability
    return total


def by_brute_force(world: World, context: set[int]) -> np.ndarray:
    rows = [0 if name in context else probability_of_row(world, context | {name}) for name in range(world.num_names)]
    return np.array(rows) / sum(rows)


def test_probabilities_of_rows_sum_to_one():
    world = World(TINY)
    every = [{n for n, chosen in enumerate(bits) if chosen} for bits in product([0, 1], repeat=world.num_names)]
    assert sum(probability_of_row(world, row) for row in every) == pytest.approx(1)


@pytest.mark.parametrize("seed", range(3))
def test_the_best_answer_is_that_of_brute_force(seed):
    world = World(SyntheticOptions(**vars(TINY) | {"seed": seed}))
    every = product([0, 1], repeat=world.num_names)
    contexts = [np.flatnonzero(bits) for bits in every if 1 <= sum(bits) < TINY.longest]
    found = Oracle(world).probabilities(contexts)
    expected = [by_brute_force(world, set(context.tolist())) for context in contexts]
    assert found == pytest.approx(np.array(expected), abs=1e-12)


def test_the_best_answer_does_not_depend_on_how_many_are_asked_at_once(monkeypatch):
    world = World(TINY)
    contexts = [np.array([0]), np.array([1, 4]), np.array([7])]
    whole = Oracle(world).probabilities(contexts)
    monkeypatch.setattr("superbloom.prepare.synthetic.oracle.NUMBERS_AT_ONCE", 1)
    assert Oracle(world).probabilities(contexts) == pytest.approx(whole)


def test_rows_occur_as_often_as_their_probability():
    world = World(TINY)
    names, lengths = world.rows(TINY.rows)
    rows = [frozenset(row.tolist()) for row in np.split(names, np.cumsum(lengths)[:-1])]
    assert all(len(row) == length for row, length in zip(rows, lengths, strict=True))  # no name twice
    assert (lengths.min(), lengths.max()) == (2, 5)
    every = [{n for n, chosen in enumerate(bits) if chosen} for bits in product([0, 1], repeat=world.num_names)]
    allowed = {frozenset(row): probability_of_row(world, row) for row in every if 2 <= len(row) <= TINY.longest}
    total = sum(allowed.values())
    expected = np.array([len(rows) * p / total for p in allowed.values()])
    counts = np.array([rows.count(row) if e > 300 else 0 for row, e in zip(allowed, expected, strict=True)])
    frequent = expected > 300
    deviations = (counts - expected)[frequent] / np.sqrt(expected[frequent])
    assert frequent.sum() > 30
    assert np.abs(deviations).max() < 4.5
    assert np.square(deviations).mean() < 1.6


def test_hidden_names_are_found_as_often_as_predicted():
    """Calibration: of the answers that are given 20 to 30 %, 20 to 30 % are right, and so on."""
    options = SyntheticOptions(countries=40, lists=12, list_size=6, rows=20_000, seed=5)
    world = World(options)
    names, lengths = world.rows(options.rows)
    rows = np.split(names, np.cumsum(lengths)[:-1])
    found = Oracle(world).probabilities([row[:-1] for row in rows])
    right = np.zeros_like(found, dtype=bool)
    right[np.arange(len(rows)), [row[-1] for row in rows]] = True
    tenth = np.minimum((10 * found).astype(int), 9)
    for level in range(10):
        there = tenth == level
        expected, error = found[there].mean(), np.sqrt((found * (1 - found))[there].sum()) / there.sum()
        assert right[there].mean() == pytest.approx(expected, abs=4.5 * error)


def test_lists_hold_each_country_equally_often():
    world = World(SyntheticOptions(countries=50, lists=20, list_size=5))
    lists = world.members[:, :-1]
    assert np.bincount(lists.ravel()).tolist() == [2] * 50
    assert all(len(set(members)) == 5 for members in lists)


def test_the_order_of_a_row_says_nothing():
    names, lengths = World(SyntheticOptions(countries=20, lists=6, list_size=5)).rows(20_000)
    first = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    shares = [(names[places] >= 40).mean() for places in (first, first + lengths - 1)]
    assert shares[0] == pytest.approx(shares[1], abs=0.02)


def test_a_corpus_remembers_its_world(tmp_path):
    report = prepare_synthetic(tmp_path / "corpus", countries=20, lists=6, list_size=4, rows=500, seed=3)
    assert report.counts["rows"] == 500
    assert 0 < report.best["1"] < report.best["10"] < report.best["20"] <= 1
    assert report.document()["best_recall"] == report.best
    assert [name for _, name in report.table()][-1] == "best possible recall@20"
    corpus = Corpus.open(tmp_path / "corpus")
    world = world_of(corpus)
    assert world is not None
    assert world.members.tolist() == World(world.options).members.tolist()
    assert {*corpus.vocab.names(range(corpus.num_ids))} == {*world.names}
    assert world_of(Corpus.from_sequences([["a", "b"]])) is None


def test_the_same_seed_draws_the_same_rows():
    one, same, other = (synthetic_corpus(SyntheticOptions(rows=50, seed=seed)) for seed in (1, 1, 2))
    assert one.checksums == same.checksums != other.checksums


def test_only_training_rows_are_left_out():
    every, some = (synthetic_corpus(SyntheticOptions(rows=2000, train_rows=n)) for n in (None, 100))
    assert len(some.rows("train")) == 100
    for split in ("valid", "test"):
        rows = [[corpus.row(row).tolist() for row in corpus.rows(split)] for corpus in (every, some)]
        assert rows[0] == rows[1]


def test_a_corpus_with_a_foreign_world_is_refused():
    corpus = Corpus.from_sequences([["a", "b"]])
    corpus.info["world"] = {"countries": 0}
    with pytest.raises(InputError, match="a made-up world that cannot be made again: countries=0: 2 or more"):
        world_of(corpus)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"list_size": 9, "countries": 8}, "list_size=9 with countries=8"),
        ({"lists_per_row": 3, "lists": 2}, "lists_per_row=3 with lists=2"),
        ({"lists_per_row": 3, "lists": 300}, "4,500,250 sets of lists .* up to 1,000,000 are allowed"),
        ({"complete": 1.0}, "complete=1.0: between 0 and 1 is allowed"),
        ({"noise": 0.0}, "noise=0.0: more than 0 is allowed"),
    ],
)
def test_a_world_that_cannot_be_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        SyntheticOptions(**options)


def test_rows_that_are_hardly_ever_short_enough_are_refused():
    options = SyntheticOptions(countries=100, lists=4, list_size=50, complete=0.9, longest=3)
    with pytest.raises(InputError, match="longest=3: 0 of 1,000 rows have 2 to 3 names, .* raise longest"):
        World(options).rows(10)
