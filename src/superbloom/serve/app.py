"""The HTTP API, and the page: `make_app(predictor)` is an ASGI application (docs/playground.md).

request  →  guard (key, size, queue)  →  names to ids  →  gathered with others, computed in a thread  →  names, JSON
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Match, Mount
from starlette.types import Scope

from superbloom.answers import NameFacts
from superbloom.config import Settings
from superbloom.errors import InputError, UnknownNameError
from superbloom.predict import Predictor, facts_of, parts
from superbloom.predict import Query as Asked
from superbloom.serve.gather import BusyError
from superbloom.serve.guard import Guard, RefusedError
from superbloom.serve.metrics import Metrics
from superbloom.serve.schemas import (
    Answer,
    Answers,
    BatchRequest,
    Card,
    Completions,
    PredictRequest,
    Problem,
    Report,
    State,
    TextRequest,
    context_of,
    mask_of,
)
from superbloom.serve.service import Models, Served, Service
from superbloom.special import MASK
from superbloom.version import __version__

PAGE = Path(__file__).parent / "page"
STUCK = 60.0  # seconds after which a batch is not expected to end
IN_TIME = 0.95  # of the seconds given: what was not done by then is refused, and the refusal comes in time, too
AT_ONCE = 32  # rows of one request that wait together, so that others get their turn
LOOKED_UP_AT_ONCE = 64  # names; more are looked up in a thread
NOT_JSON = 'the body cannot be read as JSON; send an object like {"context": ["a name", null]}'
log = logging.getLogger("superbloom.serve")

Problems = dict[int | str, dict[str, Any]]

PROBLEMS: Problems = {
    400: {"model": Problem, "description": "The body is not JSON."},
    401: {"model": Problem, "description": "The API key is missing or wrong."},
    408: {"model": Problem, "description": "The body came too slowly."},
    413: {"model": Problem, "description": "The body is too large."},
    403: {"model": Problem, "description": "A page of another site asks."},
    421: {"model": Problem, "description": "Asked by another name than localhost, without a key."},
    422: {"model": Problem, "description": "Something given cannot be used; unknown names come with the closest ones."},
    503: {"model": Problem, "description": "Loading, stopping, changed in place, or too much to do; see Retry-After."},
}
READ: Problems = {status: PROBLEMS[status] for status in (401, 403, 421, 422, 503)}


class AnyConvertor(PathConvertor):
    """Any end of a path; names may have several lines."""

    regex = "(?s:.*)"


register_url_convertor("any", AnyConvertor())


class Page(Mount):
    """The files of the page, but not in place of the API: a wrong method there is told to be one."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        of_the_api = scope["path"].startswith(("/v1/", "/health", "/ready", "/metrics", "/openapi.json"))
        return (Match.NONE, {}) if of_the_api else super().matches(scope)


class Json(JSONResponse):
    """JSON in UTF-8; halves of surrogate pairs, which a client may send, go back escaped."""

    def render(self, content: Any) -> bytes:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "backslashreplace")


def make_app(model: Predictor | Callable[[], Served], settings: Settings | None = None) -> FastAPI:
    """The application for a predictor, or for what a function loads: while it does, /ready answers 503."""
    settings = settings or Settings()
    metrics = Metrics()
    load = (lambda: Served(model)) if isinstance(model, Predictor) else model
    models = Models(load, settings, metrics)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.loading = asyncio.create_task(models.load())
        if isinstance(model, Predictor):
            await app.state.loading
        yield
        app.state.loading.cancel()
        await models.close()

    app = FastAPI(
        title="Superbloom",
        version=__version__,
        description="The best names for a context, of a catalogue too large for a softmax, and the proof.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        default_response_class=Json,
    )
    app.state.models = models
    app.state.metrics = metrics
    _answer_errors(app, models)
    _state_routes(app, models, metrics)
    _predict_routes(app, models, settings)
    _name_routes(app, models)
    if PAGE.is_dir():
        app.router.routes.append(Page("/", StaticFiles(directory=PAGE, html=True), name="page"))
    app.add_middleware(Guard, settings=settings, metrics=metrics, shed=models.shed, give_way=models.give_way)
    if settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-api-key"],
        )
    return app


def _answer_errors(app: FastAPI, models: Models) -> None:
    """Every problem is one line, and nothing of the machine."""

    @app.exception_handler(RefusedError)
    async def _refused(_: Request, refused: RefusedError) -> Response:
        return Json({"error": refused.line}, refused.status, refused.headers)

    @app.exception_handler(BusyError)
    async def _busy(_: Request, busy: BusyError) -> Response:
        refused = RefusedError.busy(f"{busy}; ask again in a moment", busy.retry_after)
        return Json({"error": refused.line}, refused.status, refused.headers)

    @app.exception_handler(InputError)
    async def _input(request: Request, error: InputError) -> Response:
        if not isinstance(error, UnknownNameError):
            return Json({"error": str(error)}, 422)
        with models.service.use() as service:
            try:
                await service.lookups.ask(partial(getattr, error, "closest"), 1, deadline_of(request, models))
            except BusyError:  # the name is unknown all the same
                error.closest = []
        line = str(error)
        return Json({"error": line, "closest": {error.name: error.closest}}, 422)

    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return Json({"error": NOT_JSON}, 400)
        if isinstance(first.get("input"), bytes):
            return Json({"error": "the body is not said to be JSON; send 'content-type: application/json'"}, 422)
        where = repr(".".join(str(part) for part in first["loc"][1:]))[1:-1][:200] or "the body"
        clear = first["type"] in ("missing", "extra_forbidden", "too_many_fields")
        given = "" if clear else f"{first.get('input')!r:.80} given; "
        return Json({"error": f"{where}: {given}{first['msg'][:1].lower()}{first['msg'][1:]}"}, 422)

    @app.exception_handler(HTTPException)
    async def _http(_: Request, error: HTTPException) -> Response:
        lines = {400: NOT_JSON, 404: "there is nothing here; /openapi.json lists what can be asked"}
        return Json({"error": lines.get(error.status_code, error.detail)}, error.status_code, error.headers)


def _state_routes(app: FastAPI, models: Models, metrics: Metrics) -> None:
    @app.get("/health", response_model=State, responses={503: {"model": State}, 421: PROBLEMS[421]}, tags=["state"])
    async def health() -> Response:
        """Whether the server lives: 503 if its model has been at one batch for a minute."""
        stuck = models.busy_for() > STUCK
        return Json({"status": "stuck" if stuck else "ok"}, 503 if stuck else 200)

    @app.get("/ready", response_model=State, responses={503: {"model": Problem}, 421: PROBLEMS[421]}, tags=["state"])
    async def ready() -> Response:
        """Whether it takes requests: not before a model is loaded and warm, nor once it is stopping."""
        models.check_taking()
        return Json({"status": "ready"})

    @app.get("/metrics", response_class=Response, responses={401: PROBLEMS[401], 421: PROBLEMS[421]}, tags=["state"])
    async def prometheus() -> Response:
        """Counts and times, for Prometheus."""
        metrics.waiting.set(models.waiting())
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/v1/model", response_model=Card, responses=READ, tags=["model"])
    async def card() -> Response:
        """What the model is, and what may be asked of it."""
        return Json(models.service.card())

    @app.get("/v1/report", response_model=Report, responses=READ, tags=["model"])
    async def report() -> Response:
        """What was measured of the model."""
        # What could not be measured is NaN in Python, and null in JSON.
        measured = json.loads(json.dumps(models.service.served.metrics), parse_constant=lambda _: None)
        history, test = measured.get("history"), measured.get("test")
        return Json(
            {"history": history if isinstance(history, list) else [], "test": test if isinstance(test, dict) else None}
        )

    conflicts: Problems = {
        403: {"model": Problem, "description": "The server was started without a key, or a page of another site asks."},
        409: {"model": Problem, "description": "A model is being loaded already, or could not be."},
    }

    @app.post("/v1/reload", response_model=State, responses=PROBLEMS | conflicts, tags=["model"])
    async def reload() -> Response:
        """Load the model folder again and put it in place of the one that answers now; no request is lost."""
        if models.settings.api_key is None:
            raise RefusedError(
                403, "a model is reloaded with a key only; start the server with --api-key, or send it SIGHUP"
            )
        try:
            await models.load()
        except InputError as error:
            log.error("the model was not reloaded: %s", error)
            raise RefusedError(
                409, "the new model cannot be loaded, the server's log tells why; the old one stays"
            ) from None
        return Json({"status": "reloaded"})


def _predict_routes(app: FastAPI, models: Models, settings: Settings) -> None:
    def check(asked: PredictRequest | TextRequest, service: Service) -> None:
        if "k" not in asked.model_fields_set:
            asked.k = min(asked.k, settings.max_k)
        if asked.k > settings.max_k:
            raise InputError(f"k={asked.k} given; 1 to {settings.max_k:,} is allowed")
        named = len(asked.exclude) + len(asked.allow or ())
        if named > settings.max_filter:
            raise InputError(f"{named:,} names in exclude and allow given; up to {settings.max_filter:,} are allowed")
        if isinstance(asked, PredictRequest) and len(asked.context) > service.max_context:
            raise InputError(f"a context of {len(asked.context):,} given; up to {service.max_context} is allowed")

    async def query_of(asked: PredictRequest | TextRequest, service: Service) -> Asked:
        check(asked, service)
        if isinstance(asked, TextRequest):
            query = await asyncio.to_thread(service.predictor.query, asked.text, **asked.options())
            if (read := len(query.given)) > service.max_context:
                raise InputError(f"a text of {read:,} entries given; up to {service.max_context} are allowed")
            return query
        context = [MASK if name is None else name for name in asked.context]
        few = len(context) + len(asked.exclude) + len(asked.allow or ()) <= LOOKED_UP_AT_ONCE
        if few:
            return service.predictor.query(context, **asked.options())
        return await asyncio.to_thread(service.predictor.query, context, **asked.options())

    async def answer(query: Asked, service: Service, deadline: float) -> dict[str, Any]:
        found = await service.gatherer.ask(query, query.rows, deadline)
        predictor = service.predictor
        num_ids = len(predictor.model.target_vocab)
        return {
            "model": service.served.name,
            "context": context_of(predictor, query),
            "masks": [mask_of(mask, num_ids) for mask in found],
        }

    async def answer_one(asked: PredictRequest | TextRequest, service: Service, request: Request) -> dict[str, Any]:
        deadline = deadline_of(request, models, asked.seconds)
        query = await query_of(asked, service)
        told = {"unread": list(query.unread)} if isinstance(asked, TextRequest) else {}
        return await answer(query, service, deadline) | told

    @app.post("/v1/predict", response_model=Answer, responses=PROBLEMS, tags=["predict"])
    async def predict(asked: PredictRequest, request: Request) -> Response:
        """The k best names for each mask of a context."""
        with models.service.use() as service:
            return Json(await _unless_gone(request, answer_one(asked, service, request)))

    @app.post("/v1/predict/batch", response_model=Answers, responses=PROBLEMS, tags=["predict"])
    async def predict_batch(asked: BatchRequest, request: Request) -> Response:
        """The same for many contexts."""
        queries = asked.queries
        if len(queries) > settings.max_queries:
            raise InputError(f"{len(queries):,} queries given; up to {settings.max_queries:,} are allowed")
        deadline = deadline_of(request, models, *(one.seconds for one in queries))

        async def all_of_them(service: Service) -> list[dict[str, Any]]:
            answers: list[dict[str, Any]] = []
            for start in range(0, len(queries), AT_ONCE):
                part = [await query_of(one, service) for one in queries[start : start + AT_ONCE]]
                for few in parts(part, min(AT_ONCE, settings.queue)):
                    answers += await _all(answer(one, service, deadline) for one in few)
            return answers

        with models.service.use() as service:
            service.gatherer.check_time(len(queries), deadline)
            answers = await _unless_gone(request, all_of_them(service))
            return Json({"model": service.served.name, "answers": answers})

    no_text: Problems = {404: {"model": Problem, "description": "The model reads names, not text."}}

    @app.post("/v1/text", response_model=Answer, responses=PROBLEMS | no_text, tags=["predict"])
    async def text(asked: TextRequest, request: Request) -> Response:
        """What fills in each [MASK] of a text."""
        with models.service.use() as service:
            if not service.predictor.model.vocab.is_text:
                raise RefusedError(404, "this model reads names, not text; ask /v1/predict")
            return Json(await _unless_gone(request, answer_one(asked, service, request)))


def _name_routes(app: FastAPI, models: Models) -> None:
    unknown: Problems = {404: {"model": Problem, "description": "There is no such name; the closest ones are told."}}

    async def looked_up(request: Request, call: Callable[[Service], Response]) -> Response:
        with models.service.use() as service:
            asked = service.lookups.ask(partial(call, service), 1, deadline_of(request, models))
            return await _unless_gone(request, asked)

    @app.get("/v1/names", response_model=Completions, responses=READ, tags=["names"])
    async def names(
        request: Request,
        prefix: Annotated[str, Query(max_length=200)] = "",
        k: Annotated[int, Query(ge=1, le=100)] = 10,
    ) -> Response:
        """The most frequent names that start with a prefix."""

        def complete(service: Service) -> Response:
            vocab = service.predictor.model.vocab
            found = vocab.completions(prefix, k).tolist()
            return Json({"names": [{"name": vocab.name(id_), "count": vocab.count(id_)} for id_ in found]})

        return await looked_up(request, complete)

    @app.get("/v1/names/{name:any}", response_model=NameFacts, responses=READ | unknown, tags=["names"])
    async def name_facts(request: Request, name: str) -> Response:
        """A name's id, count and digest, and who shares its buckets."""

        def describe(service: Service) -> Response:
            try:
                return Json(asdict(facts_of(service.predictor.model, name)))
            except UnknownNameError as error:
                return Json({"error": str(error), "closest": {error.name: error.closest}}, 404)

        return await looked_up(request, describe)


def deadline_of(request: Request, models: Models, *given: float | None) -> float:
    """When a request has to be answered: by the server's seconds, or by those that the request itself gives."""
    began: float = request.scope["began"]  # before its body came
    return began + IN_TIME * min([models.settings.seconds, *filter(None, given)])


async def _unless_gone(request: Request, work: Any) -> Any:
    """The result of some work, which is given up when the client has gone."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(gone())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            return tasks[0].result()
        raise RefusedError(499, "the client has gone")
    finally:
        for task in tasks:
            task.cancel()


async def _all(work: Any) -> list[Any]:
    """The results of all; the first to fail ends the others."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]
