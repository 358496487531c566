"""The routes of the HTTP API, each a function from a request to its JSON answer.

`read_query` checks the limits of a query and looks its names up. `answer_query` waits for the batch that computes it.
Predictions and look-ups of names are given up when their client disconnects.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.convertors import PathConvertor, register_url_convertor

from superbloom.answers import NameFacts, Similar
from superbloom.config import Settings
from superbloom.errors import InputError, UnknownNameError
from superbloom.predict import Query as ModelQuery
from superbloom.predict import facts_of, parts
from superbloom.predict.similar import by_network, by_pairs, query_of
from superbloom.serve.errors import (
    GET_PROBLEMS,
    NO_KEY,
    POST_PROBLEMS,
    WRONG_HOST,
    RefusedError,
    described,
    unknown_name,
)
from superbloom.serve.schemas import (
    Answer,
    Answers,
    BatchRequest,
    Card,
    Completions,
    Json,
    PredictRequest,
    Problem,
    Report,
    SimilarNames,
    SimilarRequest,
    State,
    TextRequest,
    context_of,
    mask_of,
)
from superbloom.serve.service import Models, Service
from superbloom.serve.tasks import run_all, run_unless_gone
from superbloom.special import MASK

STUCK_AFTER_SECONDS = 60.0  # a batch that takes longer is not expected to end
MAX_ROWS_PER_TURN = 32  # of one request in the queue, so that other requests get their turn
MAX_INLINE_LOOKUPS = 64  # names that are looked up on the event loop; more are looked up in a thread
MAX_COMPLETIONS = 100
MAX_PREFIX_LENGTH = 200  # characters
log = logging.getLogger("superbloom.serve")
router = APIRouter()


class AnyConvertor(PathConvertor):
    """The rest of a path, line breaks included: names may have them."""

    regex = "(?s:.*)"


register_url_convertor("any", AnyConvertor())


def models_of(request: Request) -> Models:
    models: Models = request.app.state.models
    return models


# The state of the server


@router.get("/health", response_model=State, responses=WRONG_HOST | {503: {"model": State}}, tags=["state"])
@router.get("/livez", response_model=State, responses=WRONG_HOST | {503: {"model": State}}, tags=["state"])
async def health(request: Request) -> Response:
    """Whether the server works. 503: one batch has been computed for more than a minute."""
    is_stuck = models_of(request).busy_seconds() > STUCK_AFTER_SECONDS
    return Json({"status": "stuck" if is_stuck else "ok"}, 503 if is_stuck else 200)


@router.get("/ready", response_model=State, responses=WRONG_HOST | {503: {"model": Problem}}, tags=["state"])
@router.get("/readyz", response_model=State, responses=WRONG_HOST | {503: {"model": Problem}}, tags=["state"])
async def ready(request: Request) -> Response:
    """Whether the server accepts requests: from when a model has answered a first query until the server stops."""
    models_of(request).check_ready()
    return Json({"status": "ready"})


@router.get("/metrics", response_class=Response, responses=NO_KEY | WRONG_HOST, tags=["state"])
async def prometheus(request: Request) -> Response:
    """Counts and times, for Prometheus."""
    models = models_of(request)
    models.metrics.queue_length.set(models.waiting_rows())
    models.metrics.workers.set(models.num_workers)
    return Response(models.metrics.text(), media_type="text/plain; version=0.0.4")


# The model


@router.get("/v1/model", response_model=Card, responses=GET_PROBLEMS, tags=["model"])
async def card(request: Request) -> Response:
    """What the model is, and the limits of a request."""
    return Json(models_of(request).service.card())


@router.get("/v1/report", response_model=Report, responses=GET_PROBLEMS, tags=["model"])
async def report(request: Request) -> Response:
    """What was measured of the model."""
    # A value that could not be measured is NaN in Python and null in JSON.
    measured = json.loads(json.dumps(models_of(request).service.served.metrics), parse_constant=lambda _: None)
    history, test = measured.get("history"), measured.get("test")
    return Json(
        {"history": history if isinstance(history, list) else [], "test": test if isinstance(test, dict) else None}
    )


RELOAD_PROBLEMS = (
    POST_PROBLEMS
    | described(403, "The server was started without a key, or a page of another site sent the request.")
    | described(409, "A model is already being loaded, or the new model cannot be loaded.")
)


@router.post("/v1/reload", response_model=State, responses=RELOAD_PROBLEMS, tags=["model"])
async def reload(request: Request) -> Response:
    """Load the model folder again. The old model answers until the new one is ready; no request is lost."""
    models = models_of(request)
    if models.settings.api_key is None:
        raise RefusedError(
            403, "a model is reloaded with a key only; start the server with --api-key, or send it SIGHUP"
        )
    try:
        await models.load()
    except InputError as error:
        log.error("the model was not reloaded: %s", error)
        raise RefusedError(
            409, "the new model cannot be loaded and the old one stays; the server's log has the reason"
        ) from None
    return Json({"status": "reloaded"})


# Predictions


@router.post("/v1/predict", response_model=Answer, responses=POST_PROBLEMS, tags=["predict"])
async def predict(body: PredictRequest, request: Request) -> Response:
    """Return the k best names for each mask of a context."""
    models = models_of(request)
    with models.use() as service:
        query = await read_query(body, service)
        deadline = models.deadline(request.scope["began"], body.seconds)
        return Json(await run_unless_gone(request, answer_query(query, service, deadline)))


@router.post("/v1/predict/batch", response_model=Answers, responses=POST_PROBLEMS, tags=["predict"])
async def predict_batch(body: BatchRequest, request: Request) -> Response:
    """Return the k best names for each mask of many contexts."""
    models, queries = models_of(request), body.queries
    if len(queries) > (most := models.settings.max_queries):
        raise InputError(f"{len(queries):,} queries given; up to {most:,} are allowed")
    deadline = models.deadline(request.scope["began"], *(query.seconds for query in queries))
    with models.use() as service:
        service.gatherer.check_time(len(queries), deadline)
        answers = await run_unless_gone(request, answer_batch(queries, service, deadline))
        return Json({"model": service.served.name, "answers": answers})


TEXT_PROBLEMS = POST_PROBLEMS | described(404, "The model reads names, not text.")


@router.post("/v1/text", response_model=Answer, responses=TEXT_PROBLEMS, tags=["predict"])
async def text(body: TextRequest, request: Request) -> Response:
    """Fill in each [MASK] of a text."""
    models = models_of(request)
    with models.use() as service:
        if not service.predictor.model.vocab.is_text:
            raise RefusedError(404, "this model reads names, not text; use /v1/predict")
        query = await read_query(body, service)
        deadline = models.deadline(request.scope["began"], body.seconds)
        answer = await run_unless_gone(request, answer_query(query, service, deadline))
        return Json(answer | {"unread": list(query.unread)})


async def read_query(body: PredictRequest | TextRequest, service: Service) -> ModelQuery:
    """The query of a body in ids. Raises InputError for a name that is unknown, and for a limit that is exceeded."""
    settings, options = service.settings, body.options()
    options["k"] = allowed_k(body, options["k"], settings)
    lists = {name: value for name, value in options.items() if isinstance(value, list)}
    num_filtered = sum(map(len, lists.values()))
    if num_filtered > settings.max_filter:
        raise InputError(
            f"{num_filtered:,} names in {' and '.join(lists)} given; up to {settings.max_filter:,} are allowed"
        )
    make_query = service.predictor.query
    if isinstance(body, TextRequest):
        query = await asyncio.to_thread(make_query, body.text, **options)
        if (size := len(query.given)) > service.max_context:
            raise InputError(f"a text of {size:,} entries given; up to {service.max_context} are allowed")
        return query
    if (size := len(body.context)) > service.max_context:
        raise InputError(f"a context of {size:,} given; up to {service.max_context} is allowed")
    context = [MASK if name is None else name for name in body.context]
    if size + num_filtered <= MAX_INLINE_LOOKUPS:
        return make_query(context, **options)
    return await asyncio.to_thread(make_query, context, **options)


def allowed_k(body: BaseModel, k: int, settings: Settings) -> int:
    """The number of names to answer. The default is lowered to the limit; a larger number that was given is refused."""
    if k <= settings.max_k or "k" not in body.model_fields_set:
        return min(k, settings.max_k)
    raise InputError(f"k={k} given; 1 to {settings.max_k:,} is allowed")


async def answer_query(query: ModelQuery, service: Service, deadline: float) -> dict[str, Any]:
    """An Answer as JSON, by a deadline of time.monotonic()."""
    found = await service.gatherer.submit(query, query.rows, deadline)
    num_ids = len(service.predictor.model.target_vocab)
    return {
        "model": service.served.name,
        "context": context_of(service.predictor, query),
        "masks": [mask_of(mask, num_ids) for mask in found],
    }


async def answer_batch(
    bodies: Sequence[PredictRequest | TextRequest], service: Service, deadline: float
) -> list[dict[str, Any]]:
    """The answers of many queries. Only a few of them wait in the queue at a time."""
    answers: list[dict[str, Any]] = []
    most = min(MAX_ROWS_PER_TURN, service.settings.queue)
    for start in range(0, len(bodies), MAX_ROWS_PER_TURN):
        queries = [await read_query(body, service) for body in bodies[start : start + MAX_ROWS_PER_TURN]]
        for few in parts(queries, most):
            answers += await run_all(answer_query(query, service, deadline) for query in few)
    return answers


# Names


@router.post("/v1/similar", response_model=SimilarNames, responses=POST_PROBLEMS, tags=["names"])
async def similar(body: SimilarRequest, request: Request) -> Response:
    """The names that are most similar to some names: their neighbours in training rows."""
    models = models_of(request)
    with models.use() as service:
        if (size := len(body.names)) > service.max_context:
            raise InputError(f"{size:,} names given; up to {service.max_context} are allowed")
        k = allowed_k(body, body.k, models.settings)
        deadline = models.deadline(request.scope["began"], body.seconds)
        found = await run_unless_gone(request, find_similar(body.names, k, service, deadline))
        return Json({"model": service.served.name, **asdict(found)})


async def find_similar(names: Sequence[str], k: int, service: Service, deadline: float) -> Similar:
    """Pairs are looked up as names are. Only names without pairs are predicted."""
    predictor = service.predictor
    found = await service.lookups.submit(lambda: by_pairs(predictor, names, k), 1, deadline)
    if found is not None:
        return found
    query = await asyncio.to_thread(query_of, predictor, names, k)
    answers = await service.gatherer.submit(query, query.rows, deadline)
    return by_network(predictor, names, answers[0])


@router.get("/v1/names", response_model=Completions, responses=GET_PROBLEMS, tags=["names"])
async def names(
    request: Request,
    prefix: Annotated[str, Query(max_length=MAX_PREFIX_LENGTH)] = "",
    k: Annotated[int, Query(ge=1, le=MAX_COMPLETIONS)] = 10,
) -> Response:
    """The most frequent names that start with a prefix, whatever its case, accents and punctuation."""

    def complete(service: Service) -> Response:
        vocab = service.predictor.model.vocab
        found = vocab.completions(prefix, k).tolist()
        return Json({"names": [{"name": vocab.name(id_), "count": vocab.count(id_)} for id_ in found]})

    return await look_up(request, complete)


NAME_PROBLEMS = GET_PROBLEMS | described(404, "The name is unknown; the answer has the closest known names.")


@router.get("/v1/names/{name:any}", response_model=NameFacts, responses=NAME_PROBLEMS, tags=["names"])
async def name_facts(request: Request, name: str) -> Response:
    """A name's id, count and digest, and other names in its buckets."""

    def describe(service: Service) -> Response:
        try:
            return Json(asdict(facts_of(service.predictor.model, name)))
        except UnknownNameError as error:
            return unknown_name(error, 404)

    return await look_up(request, describe)


async def look_up(request: Request, find: Callable[[Service], Response]) -> Response:
    """The answer that `find` makes in the thread for look-ups."""
    models = models_of(request)
    with models.use() as service:
        deadline = models.deadline(request.scope["began"])
        return await run_unless_gone(request, service.lookups.submit(lambda: find(service), 1, deadline))
