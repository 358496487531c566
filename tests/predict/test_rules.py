"""Rules of recommendations: the answer is the best list that obeys them, as an exhaustive ranking finds it."""

import numpy as np
import pyarrow as pa
import pytest

from superbloom import Corpus, Superbloom
from superbloom.batch import recommend_arrow
from superbloom.errors import InputError
from superbloom.predict.rules import within_categories

NAMES = 80


@pytest.fixture(scope="module")
def model() -> Superbloom:
    rng = np.random.default_rng(0)
    rows = [[f"n{(start + i * i) % NAMES}" for i in range(9)] for start in rng.integers(0, NAMES, 200)]
    shape = {"mask_as": "next", "alpha": 2, "dim": 16, "heads": 2, "ffn_dim": 16, "seq_len": 6}
    return Superbloom(**shape).fit(Corpus.from_sequences(rows), steps=20, batch_size=32, quiet=True)


def ranking(model: Superbloom, history: list[str]) -> list[str]:
    """All names, best first, without any rule."""
    return model.recommend_for([history], k=NAMES, filter_seen=False)["item"].tolist()


def best(ranked: list[str], k: int, categories: dict[str, str], most: int) -> list[str]:
    """The slow answer: walk down the whole ranking."""
    counts, taken = dict.fromkeys(categories.values(), 0), []
    for name in ranked:
        category = categories.get(name)
        if len(taken) < k and (category is None or counts[category] < most):
            taken.append(name)
            if category is not None:
                counts[category] += 1
    return taken


@pytest.mark.parametrize("seed", range(12))
def test_all_rules_together_give_the_best_list(model, seed):
    rng = np.random.default_rng(seed)
    every = [f"n{i}" for i in range(NAMES)]

    def some(most: int) -> list[str]:
        return rng.choice(every, rng.integers(1, most), replace=False).tolist()

    users = ["a", "b", "c"]
    histories = {user: some(9) for user in users}
    categories = {name: f"c{rng.integers(1 + seed % 4)}" for name in some(NAMES)}
    most, k = int(rng.integers(1, 4)), int(rng.integers(1, 15))
    allow = {user: some(40) for user in users} if seed % 3 else None
    exclude = some(30) if seed % 2 else {user: some(30) for user in users}
    found = model.recommend_for(
        histories,
        k=k,
        filter_seen=bool(seed % 2),
        items_to_recommend=allow,
        exclude=exclude,
        categories=categories,
        max_per_category=most,
    )
    assert found["certified"].all()
    for user in users:
        gone = {*(exclude if isinstance(exclude, list) else exclude[user])}
        if seed % 2:
            gone |= {*histories[user]}
        ranked = [name for name in ranking(model, histories[user]) if name not in gone]
        if allow is not None:
            ranked = [name for name in ranked if name in allow[user]]
        assert found[found["user"] == user]["item"].tolist() == best(ranked, k, categories, most)


def test_one_category_of_nearly_all_names_is_searched_to_the_end(model):
    categories = {f"n{i}": "all" for i in range(NAMES - 3)}
    found = model.recommend_for([["n1", "n2"]], k=10, filter_seen=False, categories=categories, max_per_category=1)
    assert found["item"].tolist() == best(ranking(model, ["n1", "n2"]), 10, categories, 1)
    assert len(found) == 4


def test_a_user_without_an_own_list_gets_what_all_may_get(model):
    lists = {"a": ["n1"], "b": ["n2"]}
    assert model.recommend_for(lists, items_to_recommend={"a": ["n7"]})["item"].tolist() == ["n7"]
    batch = pa.record_batch({"user": ["a", "b"], "history": [["n1"], ["n2"]], "allow": [["n7"], None]})
    (found,) = recommend_arrow([batch], model, items_to_recommend=["n8", "n9"], exclude=["n9"], filter_seen=False)
    by_user = {user: {row["item"] for row in found.to_pylist() if row["user"] == user} for user in ("a", "b")}
    assert by_user == {"a": {"n7", "n8"}, "b": {"n8"}}


def test_rules_that_cannot_hold_are_refused(model):
    for options, message in (
        ({"categories": {"n1": "x"}}, "categories given and max_per_category=None; give both, or neither"),
        ({"max_per_category": 2}, "categories left out and max_per_category=2"),
        ({"categories": ["n1"], "max_per_category": 1}, "given as categories; give a mapping"),
        ({"categories": {"n1": "x"}, "max_per_category": 0}, "max_per_category=0 given"),
        ({"exclude": "n1"}, "'n1' given as exclude; give a list of names"),
        ({"items_to_recommend": ["n1"], "exclude": ["n1"]}, "the rules leave no name to recommend"),
    ):
        with pytest.raises(InputError, match=message):
            model.recommend_for([["n3"]], **options)


def test_rows_of_a_user_do_not_depend_on_the_others(model):
    """To the bit, for any order and number of users, with a memory and without."""
    rng = np.random.default_rng(3)
    users = [f"u{i}" for i in range(150)]
    histories = [[f"n{i}" for i in rng.integers(0, NAMES, size=rng.integers(0, 9))] for _ in users]

    def answers(order: np.ndarray, size: int) -> pa.Table:
        chosen = pa.record_batch({"user": [users[i] for i in order], "history": [histories[i] for i in order]})
        parts = [chosen.slice(start, size) for start in range(0, len(order), size)]
        table = pa.Table.from_batches(recommend_arrow(parts, model, k=5))
        return table.sort_by([("user", "ascending"), ("rank", "ascending")])

    expected = answers(np.arange(150), 150)
    for size in (1, 7, 64):
        assert answers(rng.permutation(150), size).equals(expected)
    assert set(expected["source"].to_pylist()) == {"start", "history"}


def test_columns_of_other_kinds_are_refused(model):
    with pytest.raises(InputError, match=r"columns user \(string\) given; user and history are needed"):
        list(recommend_arrow([pa.record_batch({"user": ["a"]})], model))
    with pytest.raises(InputError, match="history has to be a list of texts"):
        list(recommend_arrow([pa.record_batch({"user": ["a"], "history": ["n1"]})], model))
    (found,) = recommend_arrow([pa.record_batch({"user": [], "history": []})], model)
    assert found.num_rows == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_walk_down_the_ranking_passes_over_full_categories(seed):
    rng = np.random.default_rng(seed)
    categories = rng.integers(-1, 3, 30).astype(np.int32)
    ids = np.stack([rng.permutation(30) for _ in range(4)])
    ids[:, 25:] = -1
    found = within_categories(ids, categories, most=2)
    for row, kept in zip(ids, found, strict=True):
        named = [str(id_) for id_ in row if id_ >= 0]
        of_name = {str(id_): str(category) for id_, category in enumerate(categories) if category >= 0}
        assert [str(id_) for id_ in row[kept]] == best(named, 30, of_name, 2)
