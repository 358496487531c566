"""The memory against plain recounts: pairs, similar rows, parts, weights; and its file."""

import math
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from superbloom.corpus import Corpus
from superbloom.memory import Context, Events, Memory, Pairs, Ranker, Rows, fit_weights, names_of_rows, remember
from superbloom.memory import events as events_module
from superbloom.memory import memory as memory_module
from superbloom.memory import pairs as pairs_module
from superbloom.memory.evidence import DISTANCES, OTHER_SIDE, Evidence
from superbloom.memory.pairs import AFTER_SCALE, SHRINKAGE, WINDOW_IDS
from superbloom.memory.parts import parts_of


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    rng = np.random.default_rng(0)
    names = [f"n{i}" for i in range(60)]
    weights = 1 / np.arange(1, 61)
    rows = [rng.choice(names, size=rng.integers(1, 40), p=weights / weights.sum()).tolist() for _ in range(200)]
    return Corpus.from_sequences(rows)


def plain_pairs(corpus: Corpus, splits=("train",)) -> tuple[dict, dict, dict]:
    """Σ 1/distance of each pair, of the pairs that follow, and the count of each name, by three loops."""
    both, following, counts = defaultdict(Fraction), defaultdict(Fraction), defaultdict(int)
    codes = {"train": 0, "valid": 1, "test": 2}
    for number, split in enumerate(corpus.splits.tolist()):
        if split not in [codes[name] for name in splits]:
            continue
        row = corpus.row(number).tolist()
        for i, first in enumerate(row):
            counts[first] += 1
            for j, second in enumerate(row):
                if i != j and abs(i - j) <= WINDOW_IDS:
                    both[first, second] += Fraction(1, abs(i - j))
                    following[first, second] += Fraction(j > i, abs(i - j))
    return both, following, counts


@pytest.mark.parametrize("chunk", [50, 10**6])
@pytest.mark.parametrize("most", [3, 1000])
def test_pairs_equal_a_plain_recount(corpus, chunk, most, monkeypatch):
    monkeypatch.setattr(pairs_module, "MAX_CHUNK_EVENTS", chunk)
    pairs = Pairs.count(Events.of(corpus), most)
    both, following, counts = plain_pairs(corpus)
    for name in range(corpus.num_ids):
        own = {second: weight / counts[name] for (first, second), weight in both.items() if first == name}
        kept = slice(pairs.starts[name], pairs.starts[name + 1])
        assert len(pairs.ids[kept]) == min(most, len(own))
        assert pairs.ids[kept].tolist() == sorted(own, key=lambda second: (-own[second], second))[:most]
        for id_, weight, after in zip(pairs.ids[kept], pairs.weights[kept], pairs.after[kept], strict=True):
            assert weight == pytest.approx(own[id_], rel=2e-3)
            assert after / AFTER_SCALE == pytest.approx(following[name, id_] / both[name, id_], abs=3e-3)
    assert pairs.is_sound(corpus.num_ids)


@pytest.mark.parametrize("names", [[7], [7, 3, 41]])
def test_similar_names_are_ranked_by_a_plain_cosine(corpus, names):
    pairs = Pairs.count(Events.of(corpus), 99)
    both, _, plain_counts = plain_pairs(corpus)
    expected = defaultdict(float)
    for (first, second), weight in both.items():
        if first in names and second not in names:
            roots = math.sqrt((plain_counts[first] + SHRINKAGE) * (plain_counts[second] + SHRINKAGE))
            expected[second] += weight / roots
    ids, scores = pairs.similar(np.array(names), corpus.num_ids)
    assert dict(zip(ids.tolist(), scores.tolist(), strict=True)) == pytest.approx(expected, rel=2e-3)
    assert scores.tolist() == sorted(scores, reverse=True)


def test_similarity_is_symmetric_and_does_not_follow_popularity():
    """a is always beside b; the popular p is beside everything, and beside a no more often than b is."""
    rows = [["a", "b", "p"], ["p", "a", "b"]] * 20 + [["p", f"x{i}"] for i in range(400)] + [["once", "a"]]
    corpus = Corpus.from_sequences(rows)
    pairs = Pairs.count(Events.of(corpus, ("train", "valid", "test")), 64)
    a, b = corpus.vocab.id("a"), corpus.vocab.id("b")
    ids, scores = pairs.similar(np.array([a]), corpus.num_ids)
    assert corpus.vocab.names(ids.tolist()) == ["b", "p", "once"]
    back, back_scores = pairs.similar(np.array([b]), corpus.num_ids)
    assert corpus.vocab.name(int(back[0])) == "a"
    assert back_scores[0] == pytest.approx(scores[0], rel=2e-3)


def test_names_that_were_added_later_have_no_similar_ones(corpus):
    pairs = Pairs.count(Events.of(corpus), 8)
    ids, scores = pairs.similar(np.array([corpus.num_ids]), corpus.num_ids + 1)
    assert len(ids) == len(scores) == 0


def test_neighbours_of_a_context_count_distance_and_direction(corpus):
    context = [5, -2, 9, 2]
    asked = Context.of(np.array([context]), np.array([1]), corpus.num_ids)
    found = Evidence.of(asked, Pairs.count(Events.of(corpus), 99), None)
    both, following, counts = plain_pairs(corpus)
    expected = defaultdict(float)
    for place, name in enumerate(context):
        if name < 0:
            continue
        for (first, second), weight in both.items():
            if first == name:
                right = following[first, second] if place < 1 else weight - following[first, second]
                nearness = 1 / abs(place - 1)
                expected[second] += nearness * (right + OTHER_SIDE * (weight - right)) / counts[name]
    weights = zip(found.ids.tolist(), found.columns["pairs"].tolist(), strict=True)
    assert {id_: weight for id_, weight in weights if weight} == pytest.approx(expected, rel=5e-3)


def test_similar_rows_share_rare_and_near_names():
    rows = [["a", "b", "c"], ["a", "x", "y"], ["a", "z", "w"], ["q", "r", "s"], ["b", "c", "d"]] * 3
    corpus = Corpus.from_sequences(rows, keys=[f"k{i}" for i in range(15)])
    kept = Rows.keep(Events.of(corpus, ("train", "valid", "test")))
    ids = np.array([[corpus.vocab.id("b"), corpus.vocab.id("c"), -2]])
    context = Context.of(ids, np.array([2]), corpus.num_ids)
    similar = kept.similar(context.query, context.names, context.distance, 1)
    best = similar.similarity.argmax()
    assert {"b", "c"} <= set(corpus.vocab.names(kept.ids[kept.starts[similar.row[best]] :][:3].tolist()))
    _, names, _ = names_of_rows(context, kept, similar)
    assert set(corpus.vocab.names(names.tolist())) == {"a", "b", "c", "d"}
    assert kept.is_sound(corpus.num_ids)


def test_places_point_to_what_followed():
    """After a, b comes c in all rows; rows also hold other names in other places."""
    rows = [["a", "b", "c", f"u{i}", f"v{i}"] for i in range(30)]
    corpus = Corpus.from_sequences(rows)
    a, b, c = (corpus.vocab.id(name) for name in "abc")
    events = Events.of(corpus)
    context = Context.of(np.array([[a, b, -2]]), np.array([2]), corpus.num_ids)
    evidence = Evidence.of(context, Pairs.count(events, 50), Rows.keep(events))
    found = parts_of(evidence)
    for part in ("pairs", "pairs squared", "places"):
        assert evidence.ids[found[part].argmax()] in (a, b, c)
    assert evidence.ids[found["places"].argmax()] == c
    assert not {a, b} & set(evidence.ids[found["rows"] > 0])
    assert set(evidence.ids[found["repeats"] > 0]) == {a, b}
    for values in found.values():
        assert values.sum() == pytest.approx(1) or not values.any()


def plain_evidence(corpus: Corpus, context: list[int], place: int) -> dict[str, dict[int, float]]:
    """The columns of pairs by loops, for a memory that keeps all pairs."""
    both, following, counts = plain_pairs(corpus)
    found = defaultdict(lambda: defaultdict(float))
    for at, name in enumerate(context):
        distance = abs(at - place)
        for (first, second), weight in both.items():
            if name != first:
                continue
            right = following[first, second] if at < place else weight - following[first, second]
            aimed = (right + OTHER_SIDE * (weight - right)) / counts[name]
            column = next(column for column, (low, high) in DISTANCES.items() if low <= distance <= high)
            found[column][second] += aimed
            found["pairs anywhere"][second] += weight / counts[name]
            found["pairs, frequent"][second] += aimed * counts[name] / distance
            found["voters"][second] += 1
    return found


def test_evidence_of_pairs_equals_a_plain_recount(corpus):
    context, place = [5, 9, 2, 5, 1, 0, 7, 8, 3, 12, 4, -2, 6], 11
    asked = Context.of(np.array([context]), np.array([place]), corpus.num_ids)
    found = Evidence.of(asked, Pairs.count(Events.of(corpus), 99), None)
    expected = plain_evidence(corpus, context, place)
    assert set(expected) == {*DISTANCES, "pairs anywhere", "pairs, frequent", "voters"}
    for column, weights in expected.items():
        own = {
            id_: value for id_, value in zip(found.ids.tolist(), found.columns[column].tolist(), strict=True) if value
        }
        assert own == pytest.approx({id_: weight for id_, weight in weights.items() if weight}, rel=5e-3, abs=1e-6)


def test_evidence_of_rows_equals_a_plain_recount(corpus):
    events = Events.of(corpus)
    rows = Rows.keep(events, places_per_name=10**6)
    context = Context.of(np.array([[3, 40, -2]]), np.array([2]), corpus.num_ids)
    similar = rows.similar(context.query, context.names, context.distance, 1)
    levels, counts = defaultdict(float), defaultdict(int)
    for row, similarity in zip(similar.row.tolist(), similar.similarity.tolist(), strict=True):
        for id_ in rows.ids[rows.starts[row] : rows.starts[row + 1]].tolist():
            levels[id_] += similarity
            counts[id_] += 1
    found = Evidence.of(context, None, rows)
    by_id = {
        column: dict(zip(found.ids.tolist(), found.columns[column].tolist(), strict=True)) for column in found.columns
    }
    assert by_id["rows, level"] == pytest.approx(levels)
    assert by_id["row count"] == counts
    assert by_id["frequency"] == {id_: 1 + (events.ids == id_).sum() for id_ in by_id["frequency"]}


def test_long_rows_are_cut_into_pieces_of_about_equal_size(monkeypatch):
    monkeypatch.setattr(events_module, "MAX_PIECE_IDS", 4)
    corpus = Corpus.from_sequences([[f"n{i}" for i in range(10)], ["n0"], [f"n{i}" for i in range(4)]])
    events = Events.of(corpus, ("train", "valid", "test"))
    pieces = events.pieces()
    assert np.diff(pieces.starts).tolist() == [3, 3, 4, 1, 4]
    assert pieces.row.tolist() == [0, 0, 0, 1, 2]
    assert pieces.ids is events.ids


def test_a_sample_keeps_whole_rows_evenly_spaced(corpus):
    events = Events.of(corpus)
    few = events.sample(len(events.ids) // 3)
    assert 0.2 < len(few.ids) / len(events.ids) < 0.5
    for number, row in enumerate(few.row.tolist()):
        assert few.ids[few.starts[number] : few.starts[number + 1]].tolist() == corpus.row(row).tolist()


def test_weights_maximise_the_likelihood_of_hidden_names():
    rng = np.random.default_rng(0)
    probabilities = rng.random((40_000, 3)) ** np.array([1, 3, 8])
    weights = fit_weights(probabilities)
    assert weights.sum() == pytest.approx(1)
    best = np.log(probabilities @ weights).mean()
    for other in rng.dirichlet([1, 1, 1], size=500):
        assert np.log(probabilities @ other).mean() <= best + 1e-5


def test_a_part_without_evidence_gets_no_weight():
    probabilities = np.array([[0.2, 0.0, 0.5]] * 50 + [[0.3, 0.0, 0.1]] * 50)
    assert fit_weights(probabilities)[1] == 0


def test_recalled_probabilities_and_the_network_sum_to_one(corpus):
    memory = remember(corpus, "both")
    rng = np.random.default_rng(1)
    memory = memory.weighed(rng.random(50), rng.random((50, 6)), rows=50)
    contexts = np.full((4, 6), -1)
    contexts[0, :4], contexts[1, :2], contexts[2, 0] = [3, 1, 4, 1], [5, 9], 7
    recalled = memory.recall(contexts, np.array([4, 2, 1, 0]), corpus.num_ids)
    assert recalled.share.sum(axis=1) + recalled.network == pytest.approx(np.ones(4))
    assert recalled.network[3] == pytest.approx(1)  # nothing is known, so the network answers alone
    assert (np.diff(recalled.share, axis=1) <= 0).all()  # the largest share first


def test_scores_of_recalled_names_and_the_rest_sum_to_one(corpus):
    """With any ranker, and whatever the network says."""
    rng = np.random.default_rng(3)
    memory = remember(corpus, "both").weighed(rng.random(50), rng.random((50, 6)), rows=50)
    contexts, places = np.array([[3, 1, -2, 4], [-2, -1, -1, -1], [9, 9, 9, -2]]), np.array([2, 0, 3])
    network = rng.dirichlet(np.ones(corpus.num_ids), size=3)
    numbers = [rng.normal(size=n) / 9 for n in (memory.num_features, 4 * memory.num_features, 4, 4, 1)]
    for ranker in (None, Ranker(*numbers, np.array([50]))):
        ranked = replace(memory, ranker=ranker)
        recalled = ranked.recall(contexts, places, corpus.num_ids)
        is_name = recalled.ids >= 0
        own = np.where(is_name, np.log(network[np.arange(3)[:, None], recalled.ids.clip(0)]), -np.inf)
        scores, log_network = ranked.scores(recalled, own)
        others = network.sum(axis=1) - np.exp(own).sum(axis=1)
        assert np.exp(scores).sum(axis=1) + np.exp(log_network) * others == pytest.approx(np.ones(3))
        assert (scores[~is_name] == -np.inf).all()
        assert log_network[1] == pytest.approx(0)  # nothing is known


def test_only_the_names_with_the_largest_share_are_recalled(corpus, monkeypatch):
    memory = remember(corpus, "both").weighed(np.full(9, 0.1), np.full((9, 6), 0.2), rows=9)
    asked = np.array([[3, 1, -2]]), np.array([2]), corpus.num_ids
    everything = memory.recall(*asked)
    monkeypatch.setattr(memory_module, "MAX_NAMES", 5)
    few = memory.recall(*asked)
    assert few.ids.tolist() == everything.ids[:, :5].tolist()
    assert few.share.tolist() == everything.share[:, :5].tolist()


def test_what_each_part_gives_an_answer_sums_to_the_whole(corpus):
    memory = remember(corpus, "both").weighed(np.full(9, 0.1), np.full((9, 6), 0.2), rows=9)
    context, place = np.array([3, 1, -2, 4]), 2
    recalled = memory.recall(context[None], np.array([place]), corpus.num_ids)
    network, shares = memory.shares(context, place, recalled.ids[0, :10], corpus.num_ids)
    assert sum(shares.values()) == pytest.approx(recalled.share[0, :10])
    assert network == recalled.network[0]


def test_a_hidden_name_has_the_probability_that_the_parts_recall(corpus):
    memory = remember(corpus, "both")
    contexts, places, targets = np.array([[3, 1, -2], [8, 2, -2]]), np.array([2, 2]), np.array([0, 5])
    found = memory.probabilities_of(targets, contexts, places, corpus.num_ids)
    evidence = memory.evidence(contexts, places, corpus.num_ids)
    parts = parts_of(evidence)
    for column, part in enumerate(memory.parts[1:]):
        for row, target in enumerate(targets):
            own = evidence.query == row
            expected = parts[part][own & (evidence.ids == target)].sum() if parts[part][own].any() else math.nan
            assert found[row, column] == pytest.approx(expected, nan_ok=True)


def test_names_that_were_added_later_have_no_memory(corpus):
    memory = remember(corpus, "both").weighed(np.full(9, 0.1), np.full((9, 6), 0.2), rows=9)
    more = corpus.num_ids + 5
    recalled = memory.recall(np.array([[corpus.num_ids + 2, -2]]), np.array([1]), more)
    assert recalled.ids[recalled.ids >= 0].tolist() == [corpus.num_ids + 2]  # only the repetition of the context
    assert recalled.evidence[0, 0, memory.columns.index("frequency")] == 1


@pytest.mark.parametrize(("what", "parts"), [("pairs", 4), ("rows", 5), ("both", 7)])
def test_the_parts_follow_from_what_is_remembered(corpus, what, parts):
    memory = remember(corpus, what)
    assert isinstance(memory, Memory)
    assert memory.kind == what
    assert len(memory.parts) == parts
    found = memory.probabilities_of(np.array([1]), np.array([[2, -2]]), np.array([1]), corpus.num_ids)
    assert found.shape == (1, parts - 1)


def test_nothing_is_remembered_where_a_model_predicts_other_names():
    corpus = Corpus.from_sequences([["a", "b"]] * 9, targets=[["x", "y"]] * 9)
    assert remember(corpus, "both") is None
    assert remember(Corpus.from_sequences([["a", "b"]] * 9), "none") is None


def test_validation_rows_join_the_memory_only_when_asked(corpus):
    train, whole = Events.of(corpus), Events.of(corpus, ("train", "valid"))
    assert set(train.row) < set(whole.row)
    assert not set(whole.row) & set(np.flatnonzero(corpus.splits == 2))


def test_many_rows_and_queries_overflow_nothing():
    """The number of a query times that of a row is beyond 32 bits for the last queries of this batch."""
    rows, queries = 800_000, 3000
    ids = np.full(2 * rows, 2, np.int32)
    ids[:2] = [0, 1]
    kept = Rows.keep(Events(ids, np.arange(rows), np.arange(0, 2 * rows + 1, 2), 3))
    context = Context.of(np.tile([0, -2], (queries, 1)), np.ones(queries, int), 3)
    similar = kept.similar(context.query, context.names, context.distance, queries)
    assert np.bincount(similar.matches.query, minlength=queries).tolist() == [1] * queries


def test_a_name_that_occurs_more_often_than_a_chunk_is_counted_in_slices(corpus, monkeypatch):
    whole = Pairs.count(Events.of(corpus), 50)
    monkeypatch.setattr(pairs_module, "MAX_CHUNK_EVENTS", 7)
    sliced = Pairs.count(Events.of(corpus), 50)
    for one, other in zip(vars(whole).values(), vars(sliced).values(), strict=True):
        assert np.array_equal(one, other)


def test_few_rows_prove_little():
    """Twenty draws from one row that a part explains: the network keeps most of its weight."""
    probabilities = np.array([[0.1, 0.3]] * 20)
    assert fit_weights(probabilities, rows=1)[0] > 0.7
    assert fit_weights(np.array([[0.1, 0.3]] * 2000))[0] < 0.02
