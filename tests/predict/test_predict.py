"""Names in, names out: answers are the exhaustive ranking; bad queries are one line."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from superbloom import MASK, Corpus, Superbloom
from superbloom.errors import InputError
from superbloom.evaluate.ghosts import ghost_share
from superbloom.evaluate.held_out import HeldOut
from superbloom.evaluate.metrics import recall
from superbloom.evaluate.recall import evaluate, ranks
from superbloom.hashing.bloom import BloomHash
from superbloom.predict import Predictor
from superbloom.search.certified import exhaustive
from superbloom.special import Special


@pytest.fixture(scope="module")
def superbloom(ring_corpus):
    """A network without a memory."""
    small = Superbloom(alpha=2, dim=32, heads=2, ffn_dim=64, seq_len=8)
    return small.fit(ring_corpus, steps=60, quiet=True, remember="none")


def test_an_answer_is_the_exhaustive_ranking_of_the_catalogue(superbloom):
    model = superbloom.model
    context = ["ring 1 name 2", "ring 1 name 3"]
    ids = torch.tensor([[*map(model.vocab.id, context), Special.MASK]])
    prior = model.prior.of_ids(model.bloom)
    whole = exhaustive(model.log_probs(ids, torch.tensor([[2]])), model.bloom, 10, prior=prior)
    found = superbloom.predict([*context, MASK], k=10, exclude_context=False)
    assert [prediction.name for prediction in found] == model.vocab.names(whole.ids[0].tolist())
    assert [prediction.score for prediction in found] == pytest.approx(whole.scores[0].tolist())
    assert all(prediction.certified for prediction in found)


def test_the_mask_may_be_a_text_a_constant_or_left_out(superbloom):
    context = ["ring 1 name 2", "ring 1 name 3"]
    found = superbloom.predict([*context, MASK], k=4)
    assert superbloom.predict([*context, "[MASK]"], k=4) == found
    assert superbloom.predict(context, k=4) == found


def test_several_masks_get_a_list_each(superbloom):
    one, two = superbloom.predict([MASK, "ring 1 name 2", MASK], k=3)
    assert len(one) == len(two) == 3
    # A set: both masks see the same, up to rounding.
    assert [prediction.name for prediction in one] == [prediction.name for prediction in two]


def test_a_name_that_looks_like_the_mask_is_an_ordinary_name():
    corpus = Corpus.from_sequences([["[MASK]", "[PAD]", "a", "b"]] * 20)
    superbloom = Superbloom(alpha=1, dim=16, heads=2).fit(corpus, steps=1, quiet=True)
    assert {prediction.name for prediction in superbloom.predict(["[MASK]"], k=4)} == {"[PAD]", "a", "b"}
    assert len(superbloom.predict(["[MASK]"], k=4, exclude_context=False)) == 4
    names = list(superbloom.predictor.query(["[MASK]", MASK]).ids)
    assert names == [corpus.vocab.id("[MASK]"), Special.MASK]


def test_excluded_names_are_never_answered(superbloom):
    context = ["ring 1 name 2"]
    best = [prediction.name for prediction in superbloom.predict(context, k=5)]
    found = [prediction.name for prediction in superbloom.predict(context, k=5, exclude=best[:2])]
    assert found[:3] == best[2:]


def test_only_allowed_names_are_answered_in_the_order_of_all(superbloom):
    context = ["ring 1 name 2"]
    allow = [f"ring {r} name 5" for r in range(24)]
    expected = [p for p in superbloom.predict(context, k=192) if p.name in allow]

    def check(found, wanted):
        assert [p.name for p in found] == [p.name for p in wanted]
        # Sums over other names are added in another order, so the last bit may differ.
        assert [p.score for p in found] == pytest.approx([p.score for p in wanted], rel=1e-6)

    check(superbloom.predict(context, k=192, allow=allow), expected)
    check(superbloom.predict(context, k=3, allow=iter(allow * 2)), expected[:3])
    rest = superbloom.predict(context, k=192, allow=allow, exclude=[expected[0].name, "ring 1 name 2"])
    check(rest, expected[1:])


def test_no_name_less_likely_than_asked_is_answered(superbloom):
    best = superbloom.predict(["ring 1 name 2"], k=6)
    between = (best[3].probability + best[4].probability) / 2
    found = superbloom.predict(["ring 1 name 2"], k=6, min_score=between)
    assert [p.name for p in found] == [p.name for p in best[:4]]
    by_sum = superbloom.predict(["ring 1 name 2"], k=6, combine="sum")
    found = superbloom.predict(["ring 1 name 2"], k=6, combine="sum", min_score=by_sum[3].score)
    assert found == by_sum[:4]
    assert superbloom.predict(["ring 1 name 2"], k=6, min_score=0) == best
    assert superbloom.predict(["ring 1 name 2"], k=6, min_score=1e6) == []


def test_hashes_may_be_weighed_or_combined_by_a_function(superbloom):
    """Such scores leave the prior out; the probability beside them is the posterior's."""
    model = superbloom.model
    log_probs = model.log_probs(torch.tensor([[model.vocab.id("ring 1 name 2"), Special.MASK]]), torch.tensor([[1]]))
    first, second = (log_probs[0, j].double()[model.bloom.table[:, j].long()] for j in range(2))
    for combine, expected in (
        ([0.7, 0.3], 0.7 * first + 0.3 * second),
        ((1, 1), first + second),
        (lambda x: 0.2 * x[..., 0] + x[..., 1].clamp(min=-5.0), 0.2 * first + second.clamp(min=-5.0)),
        ("min", torch.minimum(first, second)),
    ):
        found = superbloom.predict(["ring 1 name 2"], k=10, combine=combine, exclude_context=False)
        assert [p.score for p in found] == pytest.approx(expected.topk(10).values.tolist(), abs=1e-5)
        scores = expected[[model.vocab.id(p.name) for p in found]].tolist()
        assert [p.score for p in found] == pytest.approx(scores, abs=1e-5)


def test_weights_may_be_an_array(superbloom):
    weights = [0.7, 0.3]
    expected = superbloom.predict(["ring 1 name 2"], k=3, combine=weights)
    assert superbloom.predict(["ring 1 name 2"], k=3, combine=np.array(weights)) == expected


def test_without_its_prior_a_model_ranks_by_its_tokens_alone(superbloom):
    model = superbloom.model
    ids, places = torch.tensor([[model.vocab.id("ring 1 name 2"), Special.MASK]]), torch.tensor([[1]])
    whole = exhaustive(model.log_probs(ids, places), model.bloom, 10)  # all ids are equally likely before
    (plain,) = Predictor(model, prior=False).predict(["ring 1 name 2"], exclude_context=False)
    assert [p.name for p in plain] == model.vocab.names(whole.ids[0].tolist())
    assert [p.score for p in plain] == whole.scores[0].tolist()
    assert [p.score for p in plain] != [p.score for p in superbloom.predict(["ring 1 name 2"], exclude_context=False)]


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_a_lower_precision_answers_nearly_the_same(superbloom, precision):
    predictor = Predictor(superbloom.model, precision=precision)
    (found,) = predictor.predict(["ring 1 name 2", "ring 1 name 3"], k=192)
    expected = {p.name: p.score for p in superbloom.predict(["ring 1 name 2", "ring 1 name 3"], k=192)}
    assert {p.name: p.score for p in found} == pytest.approx(expected, abs=0.25)
    assert [p.score for p in found] != list(expected.values())
    assert {p.name for p in found[:10]} & {*list(expected)[:3]} == {*list(expected)[:3]}


def test_figures_by_sum_are_those_of_a_search_by_sum(superbloom, ring_corpus):
    held_out = HeldOut.of(ring_corpus, "test", seq_len=8)
    both = ranks(Predictor(superbloom.model), held_out, apart=True)
    by_sum = replace(superbloom.model, network=_scored_by_sum(superbloom.model.network))
    assert both.by_sum.tolist() == ranks(Predictor(by_sum), held_out).rank.tolist()
    assert both.rank.tolist() != both.by_sum.tolist()
    figures = evaluate(Predictor(superbloom.model), ring_corpus, yardsticks=False, filter_seen=False)
    assert figures["recall"] == recall(both.rank)
    assert figures["by sum"] == recall(both.by_sum)
    assert "by sum" not in evaluate(Predictor(by_sum), ring_corpus, yardsticks=False)


def _scored_by_sum(network):
    """The same network in a model that scores by the paper's sum."""
    twin = copy.deepcopy(network)
    twin.config = replace(network.config, score="sum")
    return twin


def test_a_likely_name_is_no_ghost_and_a_bucket_mate_is(ring_corpus, superbloom):
    """An answer is a ghost if it shares a bucket with the context and never stood beside it."""
    bloom, vocab = superbloom.model.bloom, ring_corpus.vocab
    context = vocab.id("ring 1 name 2")
    mates = [int(i) for i in bloom.members[0][int(bloom.buckets(context)[0])] if i != context]
    stranger = next(i for i in mates if not vocab.name(i).startswith("ring 1 "))
    friend = vocab.id("ring 1 name 3")
    contexts = np.array([[context]])
    assert ghost_share(ring_corpus, bloom, contexts, np.array([[friend, stranger]])) == 0.5
    assert ghost_share(ring_corpus, bloom, contexts, np.array([[friend, -1]])) == 0.0


def test_an_approximate_answer_says_whether_it_is_certain(superbloom):
    found = superbloom.predict(["ring 1 name 2"], k=5, beam=1, max_rounds=1)
    assert len(found) <= 5
    assert not found[0].certified


def test_more_names_than_there_are_gives_all(superbloom):
    assert len(superbloom.predict(["ring 1 name 2"], k=1000)) == 191
    assert len(superbloom.predict(["ring 1 name 2"], k=1000, exclude_context=False)) == 192


@pytest.mark.parametrize(
    ("context", "options", "message"),
    [
        (["ring 1 name 22"], {}, "'ring 1 name 22' is not among the 192 names; did you mean "),
        (["ring 1 name 2"], {"exclude": ["nobody"]}, "'nobody' is not among the 192 names"),
        (["ring 1 name 2"], {"exclude": "nobody"}, "the text 'nobody' given as exclude; give a list of names"),
        (["ring 1 name 2"], {"allow": ["ring 1 name 3", "nobody"]}, "'nobody' is not among the 192 names"),
        (["ring 1 name 2"], {"allow": "ring 1 name 3"}, "the text 'ring 1 name 3' given as allow; give a list"),
        (["ring 1 name 2"], {"allow": []}, "allow holds no name; give at least one, or leave it out"),
        (["ring 1 name 2"], {"min_score": float("nan")}, "min_score=nan given; a number"),
        (["ring 1 name 2"], {"combine": [1.0]}, r"combine=\[1.0\] given; a positive weight for each of the 2 hashes"),
        (
            ["ring 1 name 2"],
            {"combine": "mean"},
            "combine='mean' given; posterior, sum, min, max, a weight for each hash",
        ),
        (["ring 1 name 2"], {"beam": 0}, "beam=0 given"),
        (["ring 1 name 2"] * 8, {}, "9 elements given; this model reads up to 8"),
        ("ring 1 name 2", {}, "the text 'ring 1 name 2' given, but this model reads names; give a list"),
    ],
)
def test_bad_queries_get_one_clear_line(superbloom, context, options, message):
    with pytest.raises(InputError, match=message):
        superbloom.predict(context, **options)


@pytest.mark.parametrize("k", ["3", True, 3.0, 2.5, 0, -1, None])
def test_every_call_refuses_a_k_that_is_no_whole_number_with_the_same_line(superbloom, ring_corpus, k):
    for call in (
        lambda: superbloom.predict(["ring 1 name 2"], k=k),
        lambda: superbloom.recommend(k=k, corpus=ring_corpus),
        lambda: superbloom.recommend_for([["ring 1 name 2"]], k=k),
        lambda: superbloom.similar_items(["ring 1 name 2"], k=k),
        lambda: exhaustive(torch.zeros(1, 2, 5), BloomHash.random(10, 2, 2), k),
    ):
        with pytest.raises(InputError) as error:
            call()
        assert str(error.value) == f"k={k!r} given; whole numbers from 1 are allowed"


def test_a_k_of_numpy_is_a_whole_number(superbloom):
    assert len(superbloom.predict(["ring 1 name 2"], k=np.int64(3))) == 3
    assert len(superbloom.similar_items(["ring 1 name 2"], k=np.int64(3))) == 3


def test_asking_before_learning_is_refused():
    with pytest.raises(InputError, match=r"call fit\(corpus\) or from_pretrained"):
        Superbloom().predict(["a"])
