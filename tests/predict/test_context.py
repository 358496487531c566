"""Names of the context: left out of answers where rows rarely repeat a name, unless the query says otherwise."""

import pytest
import torch

from superbloom import MASK, Corpus, Superbloom
from superbloom.config import RARELY_REPEATED
from superbloom.errors import InputError
from superbloom.storage import MANIFESTS
from tests.support.corpora import casts
from tests.support.edits import manifest_edit

CAST = ["actor 3 0", "actor 3 1", MASK]


def fitted(corpus: Corpus, **options: object) -> Superbloom:
    torch.manual_seed(0)
    return Superbloom(alpha=2, dim=16, ffn_dim=16, **options).fit(corpus, steps=2, quiet=True)


@pytest.fixture(scope="module")
def cast() -> Superbloom:
    return fitted(casts())


@pytest.fixture(scope="module")
def repeating() -> Superbloom:
    return fitted(casts(repeated=0.7))


def names(superbloom: Superbloom, **options: object) -> list[str]:
    return [answer.name for answer in superbloom.predict(CAST, k=108, **options)]


def test_names_of_the_context_are_no_answers_where_rows_never_repeat_one(cast):
    assert cast.model.repeats == 0
    everyone = names(cast, exclude_context=False)
    assert len(everyone) == 108
    assert names(cast) == names(cast, exclude_context=True) == [name for name in everyone if name not in CAST]


def test_names_of_the_context_are_answers_where_rows_repeat_them(repeating):
    assert repeating.model.repeats == repeating._corpus.repeats == pytest.approx(0.2, abs=0.03)
    everyone = names(repeating)
    assert len(everyone) == 108
    assert everyone == names(repeating, exclude_context=False)
    assert names(repeating, exclude_context=True) == [name for name in everyone if name not in CAST]


def test_users_are_recommended_what_they_had_where_rows_repeat_it(cast, repeating):
    histories = {"guest": CAST[:2]}
    for superbloom, had in ((cast, set()), (repeating, set(CAST[:2]))):
        default, left_out, included = (
            {*superbloom.recommend_for(histories, k=108, **options)["item"]}
            for options in ({}, {"filter_seen": True}, {"filter_seen": False})
        )
        assert included - left_out == set(CAST[:2])
        assert default - left_out == had
        assert {*superbloom.recommend(["7"], k=108)["item"]} <= default | {*superbloom._corpus.vocab.names(range(108))}
    assert {found.name for found in repeating.similar(CAST[:2], k=108).neighbours}.isdisjoint(CAST)


def test_the_share_survives_every_way_to_keep_a_model(cast, tmp_path):
    cast.save_pretrained(tmp_path / "model")
    again = Superbloom.from_pretrained(tmp_path / "model")
    assert again.model.repeats == 0
    assert names(again) == names(cast)
    again.extend(["new one"])
    assert again.model.repeats == 0
    newer = casts(repeated=0.7)
    continued = Superbloom().fit(newer, from_model=tmp_path / "model", steps=1, quiet=True)
    assert continued.model.repeats == newer.repeats > RARELY_REPEATED  # that of the rows it learned from last


def test_a_model_of_an_earlier_release_answers_as_it_did(cast, tmp_path):
    cast.save_pretrained(tmp_path / "model")
    manifest_edit("model", lambda content: content.pop("repeats"))(tmp_path / "model")
    old = Superbloom.from_pretrained(tmp_path / "model")
    assert old.model.repeats is None
    assert names(old) == names(cast, exclude_context=False)
    assert {*old.recommend_for([CAST[:2]], k=108)["item"]}.isdisjoint(CAST)
    assert old.evaluate(cast._corpus, yardsticks=False)["filter_seen"] is False


@pytest.mark.parametrize("value", [-1, 2, float("inf"), "0", False, {"x": 0}])
def test_a_share_that_is_none_is_refused(cast, tmp_path, value):
    cast.save_pretrained(tmp_path / "model")
    manifest_edit("model", lambda content: content.update(repeats=value))(tmp_path / "model")
    assert MANIFESTS["model"] == "config.json"
    with pytest.raises(InputError, match=r"config\.json: repeats=.* is no share; a number from 0 to 1 or null"):
        Superbloom.from_pretrained(tmp_path / "model")


def test_models_that_answer_with_any_name_by_default():
    """Those of the paper's sum, and those that predict another vocabulary."""
    corpus = casts()
    assert fitted(corpus, score="sum").model.repeats is None
    rows = [corpus.vocab.names(corpus.row(number)) for number in range(len(corpus))]
    twofold = fitted(Corpus.from_sequences(rows, targets=rows))
    assert twofold.model.repeats is None
    assert len(names(twofold)) == 108
    assert len(twofold.recommend_for([CAST[:2]], k=108)) == 108
