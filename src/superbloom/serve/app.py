"""`make_app(predictor)`: the HTTP API and the page as one ASGI application (docs/serving.md).

request → guard.py (host, key, size, full queue) → routes.py (names to a query) → gather.py (batches, computed in a
thread) → JSON. handlers.py answers every error with one line.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Match, Mount
from starlette.types import Scope

from superbloom.config import Settings
from superbloom.predict import Predictor
from superbloom.serve import kserve
from superbloom.serve.guard import Guard
from superbloom.serve.handlers import HANDLERS
from superbloom.serve.metrics import Metrics
from superbloom.serve.recommend import router as recommend_router
from superbloom.serve.routes import router
from superbloom.serve.schemas import Json
from superbloom.serve.service import Models, Served
from superbloom.version import __version__

PAGE = Path(__file__).parent / "page"
# Prefixes of the paths of the API.
API_PATHS = ("/v1/", "/v2", "/health", "/livez", "/ready", "/metrics", "/openapi.json")


class Page(Mount):
    """The files of the page. A path of the API never matches, so that a wrong method there is answered with 405."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.NONE, {}) if scope["path"].startswith(API_PATHS) else super().matches(scope)


def make_app(model: Predictor | Callable[[], Served], settings: Settings | None = None) -> FastAPI:
    """An application for a predictor, or for a function that loads one. /ready answers 503 until it has loaded."""
    settings = settings or Settings()
    load = (lambda: Served(model)) if isinstance(model, Predictor) else model
    models = Models(load, settings, Metrics())

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
        description="The best names for a context, from a catalogue too large for a softmax, with a proof.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        default_response_class=Json,
        exception_handlers=HANDLERS,
    )
    app.state.models = models
    app.include_router(router)
    app.include_router(kserve.router)
    app.include_router(recommend_router)
    if PAGE.is_dir():
        app.router.routes.append(Page("/", StaticFiles(directory=PAGE, html=True), name="page"))
    app.add_middleware(Guard, models=models)
    if settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-api-key"],
        )
    return app
