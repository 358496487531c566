"""POST /v1/recommend: the best next names of many histories, under rules; the same lists as `superbloom recommend`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

import numpy as np
import pyarrow as pa
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field, create_model

from superbloom.answers import Prediction
from superbloom.config import QueryOptions, RecommendOptions
from superbloom.errors import InputError
from superbloom.predict import Query, parts
from superbloom.predict.recommend import FIRST_WIDTH, WIDTH_GROWTH, leaves_out_seen
from superbloom.predict.rules import NO_CATEGORY, check_categories, within_categories
from superbloom.serve.errors import POST_PROBLEMS, RefusedError, described
from superbloom.serve.routes import MAX_ROWS_PER_TURN, allowed_k, models_of
from superbloom.serve.schemas import Json, Named, Timed, field_of
from superbloom.serve.service import Service
from superbloom.serve.tasks import run_all, run_unless_gone
from superbloom.special import Special

router = APIRouter()

if TYPE_CHECKING:

    class _RecommendRequest(Timed):
        k: int
        filter_seen: bool | None
        max_per_category: int | None
else:
    _HINTS = get_type_hints(RecommendOptions)
    _FIELDS = {spec.name: field_of(spec, _HINTS[spec.name]) for spec in fields(RecommendOptions)}
    _RecommendRequest = create_model("_RecommendRequest", __base__=Timed, **_FIELDS)


class RecommendRequest(_RecommendRequest):
    """Histories of users, and rules that hold for all of them."""

    histories: list[list[str]] = Field(
        min_length=1,
        fail_fast=True,
        description="What each user had, in order. Names that the model does not know are left out.",
        examples=[[["Copenhagen", "Denmark"], []]],
    )
    allow: list[str] | None = Field(None, fail_fast=True, description="Return only these names.")
    exclude: list[str] = Field([], fail_fast=True, description="Names never returned.")
    categories: dict[str, str] | None = Field(None, description="The category of names, for max_per_category.")


class Recommended(BaseModel):
    """The best names for one history. source: `history`, or `start` if the model knows no name of it."""

    certified: bool
    source: Literal["history", "start"]
    items: list[Named]


class Recommendations(BaseModel):
    """An answer for each history; unknown: the names of histories that were left out."""

    model: str
    answers: list[Recommended]
    unknown: list[str]


PROBLEMS = POST_PROBLEMS | described(404, "The model reads text, not names.")


@router.post("/v1/recommend", response_model=Recommendations, responses=PROBLEMS, tags=["predict"])
async def recommend(body: RecommendRequest, request: Request) -> Response:
    """The k best next names of each history, under rules."""
    models = models_of(request)
    with models.use() as service:
        if service.predictor.model.vocab.is_text:
            raise RefusedError(404, "this model reads text, not names; use /v1/text")
        _check_size(body, service)
        k = allowed_k(body, body.k, models.settings)
        deadline = models.deadline(request.scope["began"], body.seconds)
        service.gatherer.check_time(len(body.histories), deadline)
        queries, unknown = await asyncio.to_thread(_queries, body, k, service)
        answers = await run_unless_gone(request, _answer_all(queries, body, k, service, deadline))
        return Json({"model": service.served.name, "answers": answers, "unknown": unknown})


def _check_size(body: RecommendRequest, service: Service) -> None:
    settings = service.settings
    if len(body.histories) > settings.max_queries:
        raise InputError(f"{len(body.histories):,} histories given; up to {settings.max_queries:,} are allowed")
    check_categories(body.categories, body.max_per_category)
    named = len(body.allow or []) + len(body.exclude) + len(body.categories or {})
    if named > settings.max_filter:
        raise InputError(f"{named:,} names in rules given; up to {settings.max_filter:,} are allowed")


def _queries(body: RecommendRequest, k: int, service: Service) -> tuple[list[Query], list[str]]:
    """A query for each history, and the names in them that the model does not know."""
    model = service.predictor.model
    filter_seen, targets = leaves_out_seen(model, body.filter_seen), model.target_vocab
    exclude = [targets.id(name) for name in body.exclude]
    allow = None if body.allow is None else tuple(targets.id(name) for name in body.allow)
    if allow == ():
        raise InputError("allow holds no name; give at least one, or leave it out")
    queries, unknown, last = [], dict[str, None](), model.config.seq_len - 1
    for names in body.histories:
        found = model.vocab.find_all(pa.array(names, pa.string()))
        unknown |= dict.fromkeys(name for name, id_ in zip(names, found.tolist(), strict=True) if id_ < 0)
        ids = found[found >= 0].tolist()
        left_out = tuple({*exclude, *ids} if filter_seen else exclude)
        asked = (*ids[len(ids) - min(last, len(ids)) :], int(Special.MASK))
        queries.append(Query(asked, QueryOptions(k=min(k, len(targets))), left_out, allow))
    return queries, list(unknown)


async def _answer_all(
    queries: Sequence[Query], body: RecommendRequest, k: int, service: Service, deadline: float
) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    for few in parts(queries, min(MAX_ROWS_PER_TURN, service.settings.queue)):
        answers += await run_all(_answer(query, body, k, service, deadline) for query in few)
    return answers


async def _answer(query: Query, body: RecommendRequest, k: int, service: Service, deadline: float) -> dict[str, Any]:
    """The best list under the rules; the walk down the ranking is that of Recommender (predict/recommend.py)."""
    categories, most, num_ids = body.categories or {}, body.max_per_category, len(service.predictor.model.target_vocab)
    most_needed = min(num_ids, k + len(categories))
    width = query.k if most is None else min(most_needed, FIRST_WIDTH * k)
    while True:
        wider = Query(query.ids, QueryOptions(k=width), query.exclude, query.allow)
        (found,) = await service.gatherer.submit(wider, 1, deadline)
        taken = found.predictions if most is None else _within(found.predictions, categories, most)[:k]
        if most is None or len(taken) == k or len(found.predictions) < width or width == most_needed:
            break
        width = min(most_needed, WIDTH_GROWTH * width)
    items = [{"name": one.name, "score": one.score, "probability": one.probability} for one in taken]
    return {"certified": found.certified, "source": "history" if len(query.ids) > 1 else "start", "items": items}


def _within(ranked: Sequence[Prediction], categories: dict[str, str], most: int) -> list[Prediction]:
    """What remains of a ranking with at most `most` names of a category."""
    numbers = {category: number for number, category in enumerate(dict.fromkeys(categories.values()))}
    of_name = np.array([numbers.get(categories.get(one.name, ""), NO_CATEGORY) for one in ranked], np.int32)
    remains = within_categories(np.arange(len(ranked))[None], of_name, most)[0]
    return [one for one, stays in zip(ranked, remains, strict=True) if stays]
