"""The fields of a query over HTTP come from the options of a query."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import get_type_hints

import pytest
from pydantic import ValidationError, create_model

from superbloom.config import QueryOptions, Settings
from superbloom.config.option import BETWEEN_0_AND_1, option, whole
from superbloom.config.serving import PUBLISHED_LIMITS
from superbloom.serve.schemas import NOT_OVER_HTTP, OPTIONS, HttpOptions, Limits, PredictRequest, Strict, field_of


def test_every_option_of_a_query_is_a_field_or_left_out_for_a_reason():
    names = {spec.name for spec in fields(QueryOptions)}
    assert set(OPTIONS) | set(NOT_OVER_HTTP) == names
    assert set(OPTIONS) & set(NOT_OVER_HTTP) == set()
    assert set(PredictRequest.model_fields) == set(OPTIONS) | set(HttpOptions.model_fields) | {"context"}
    assert set(PredictRequest(context=[]).options()) == set(OPTIONS) | {"max_rounds"}


@pytest.mark.parametrize(
    ("given", "max_rounds"),
    [({}, None), ({"beam": 3}, 1), ({"beam": 3, "exact": True}, None), ({"exact": False}, 1), ({"exact": True}, None)],
)
def test_exact_is_until_certified_and_otherwise_one_round(given, max_rounds):
    assert PredictRequest(context=[], **given).options()["max_rounds"] == max_rounds


@dataclass
class Example:
    size: int = option(3, "A size.", whole(2, 5))
    share: float | None = option(None, "A share.", BETWEEN_0_AND_1, shown_default="none")
    names: Iterable[str] = option(("a",), "Names.")
    only: Iterable[str] | None = option(None, "Only these.")


def test_a_new_option_becomes_a_field_with_its_limits_and_its_help():
    hints = get_type_hints(Example)
    body = create_model(
        "Body", __base__=Strict, **{spec.name: field_of(spec, hints[spec.name]) for spec in fields(Example)}
    )
    assert body().model_dump() == {"size": 3, "share": None, "names": ["a"], "only": None}
    described = body.model_json_schema()["properties"]
    assert (described["size"]["minimum"], described["size"]["maximum"]) == (2, 5)
    assert described["size"]["description"] == "A size."
    assert described["share"]["description"] == "A share. Default: none."
    for wrong in (
        {"size": 1},
        {"size": 6},
        {"size": 3.0},
        {"share": 0.0},
        {"share": 1.0},
        {"share": float("nan")},
        {"names": "a"},
        {"names": None},
        {"only": [1]},
        {"other": 1},
    ):
        with pytest.raises(ValidationError):
            body(**wrong)
    with pytest.raises(ValidationError) as refused:
        body(names=[1, 2, 3])
    assert refused.value.error_count() == 1


def test_published_limits_are_settings():
    assert set(PUBLISHED_LIMITS) <= {spec.name for spec in fields(Settings)}
    assert set(Limits.model_fields) == set(PUBLISHED_LIMITS.values())
