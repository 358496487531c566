"""POST /v1/recommend: the lists that Superbloom.recommend_for finds, with every rule."""

import pytest

from superbloom import Client
from superbloom.config import Settings
from superbloom.errors import InputError
from superbloom.predict.recommend import Histories, recommend
from superbloom.serve.app import make_app
from tests.support import serving
from tests.support.asking import ONE, TWO, asking
from tests.support.serving import live

HISTORIES = [[ONE, TWO], [], ["a", "ring 5 name 1", "b"] * 4]
NAMES = [f"ring {ring} name {name}" for ring in range(24) for name in range(8)]
CATEGORIES = {name: f"ring {number % 3}" for number, name in enumerate(NAMES)}


def expected(histories: list[list[str]], **options) -> list[list[str]]:
    """The same lists from Python, for models with a memory and without."""
    predictor = serving.of_names()
    found = recommend(predictor, Histories.of_names(histories, predictor.model.vocab, strict=True), **options)
    rows = list(zip(found["user"], found["item"], strict=True))
    return [[item for user, item in rows if user == number] for number in range(len(histories))]


@pytest.mark.parametrize(
    ("rules", "options"),
    [
        ({}, {}),
        ({"filter_seen": False, "k": 50}, {"filter_seen": False, "k": 50}),
        ({"exclude": NAMES[::2], "k": 7}, {"exclude": NAMES[::2], "k": 7}),
        ({"allow": NAMES[5:30], "exclude": NAMES[:9]}, {"items_to_recommend": NAMES[5:30], "exclude": NAMES[:9]}),
        *(({"categories": CATEGORIES, "max_per_category": n, "k": 12},) * 2 for n in (1, 3)),
        *(({"categories": dict.fromkeys(NAMES, "all"), "max_per_category": 2, "k": 30},) * 2,),
    ],
)
def test_lists_are_those_of_python(names, rules, options):
    answer = names.post("/v1/recommend", json={"histories": HISTORIES, **rules}).json()
    assert [[item["name"] for item in one["items"]] for one in answer["answers"]] == expected(HISTORIES, **options)
    assert [one["source"] for one in answer["answers"]] == ["history", "start", "history"]
    assert all(one["certified"] for one in answer["answers"])


def test_unknown_names_of_histories_are_reported(names):
    answer = names.post("/v1/recommend", json={"histories": [["nobody knows", ONE], ["nor this"]], "k": 1}).json()
    assert answer["unknown"] == ["nobody knows", "nor this"]
    assert [one["source"] for one in answer["answers"]] == ["history", "start"]
    known = names.post("/v1/recommend", json={"histories": [[ONE], []], "k": 1}).json()
    assert known["answers"] == answer["answers"]


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ({"histories": []}, "histories: "),
        ({"histories": [[ONE]], "k": 0}, "k: 0 given"),
        ({"histories": [[ONE]] * 4}, "4 histories given; up to 3 are allowed"),
        ({"histories": [[ONE]], "exclude": [ONE] * 9}, "9 names in rules given; up to 8 are allowed"),
        ({"histories": [[ONE]], "allow": []}, "allow holds no name"),
        (
            {"histories": [[ONE]], "max_per_category": 1},
            "categories left out and max_per_category=1; give both, or neither",
        ),
        ({"histories": [[ONE]], "exclude": ["ring 1 name 22"]}, "is not among the 215 names; did you mean "),
        ({"histories": [[ONE]], "colour": 1}, "colour: "),
    ],
)
def test_bad_requests_get_one_line(body, line):
    with asking(settings=Settings(max_queries=3, max_filter=8)) as client:
        answer = client.post("/v1/recommend", json=body)
    assert answer.status_code == 422
    assert line in answer.json()["error"]


def test_a_model_of_text_has_no_users(text):
    answer = text.post("/v1/recommend", json={"histories": [["john"]]})
    assert (answer.status_code, answer.json()["error"]) == (404, "this model reads text, not names; use /v1/text")


def test_the_client_asks_it():
    with live(make_app(serving.of_names())) as url:
        client = Client(url)
        found = client.recommend(HISTORIES, k=4, exclude=iter(NAMES[:30]), categories=CATEGORIES, max_per_category=1)
        assert client.recommend([]) == []
        with pytest.warns(UserWarning, match="1 names of histories are unknown: 'nobody knows' …; left out"):
            assert len(client.recommend([["nobody knows"]], k=2)[0]) == 2
        with pytest.raises(InputError, match="given as a history; give lists of names"):
            client.recommend(["a"])
    rules = {"exclude": NAMES[:30], "categories": CATEGORIES, "max_per_category": 1}
    assert [[one.name for one in masks] for masks in found] == expected(HISTORIES, k=4, **rules)
    assert found[0][0].certified
