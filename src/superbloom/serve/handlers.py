"""Exception handlers: the answer to each kind of error that a route raises, always one line."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from superbloom.errors import InputError, UnknownNameError
from superbloom.serve.errors import RefusedError, unknown_name
from superbloom.serve.gather import BusyError
from superbloom.serve.schemas import Json
from superbloom.serve.service import Models

INVALID_JSON = 'the body cannot be read as JSON; send an object like {"context": ["a name", null]}'
NOT_DECLARED_JSON = "the body is not declared as JSON; send 'content-type: application/json'"
NOT_FOUND = "there is nothing here; /openapi.json lists all paths"
SELF_EXPLANATORY = ("missing", "extra_forbidden", "too_many_fields")  # faults whose message needs no value


async def _answer_refused(_: Request, refused: RefusedError) -> Json:
    return refused.answer()


async def _answer_busy(_: Request, busy: BusyError) -> Json:
    return RefusedError.busy(f"{busy}; try again in a moment", busy.retry_after).answer()


async def _answer_input_error(request: Request, error: InputError) -> Json:
    if not isinstance(error, UnknownNameError):
        return Json({"error": str(error)}, 422)
    models: Models = request.app.state.models
    await models.find_closest(error, models.deadline(request.scope["began"]))
    return unknown_name(error, 422)


async def _answer_invalid(_: Request, error: RequestValidationError) -> Json:
    """Report the first fault, with the field and the value."""
    fault = error.errors()[0]
    if fault["type"] == "json_invalid":
        return Json({"error": INVALID_JSON}, 400)
    value, message = fault.get("input"), fault["msg"]
    if isinstance(value, bytes):
        return Json({"error": NOT_DECLARED_JSON}, 422)
    field = repr(".".join(str(part) for part in fault["loc"][1:]))[1:-1][:200] or "the body"
    given = "" if fault["type"] in SELF_EXPLANATORY else f"{value!r:.80} given; "
    return Json({"error": f"{field}: {given}{message[:1].lower()}{message[1:]}"}, 422)


async def _answer_http_error(_: Request, error: HTTPException) -> Json:
    lines = {400: INVALID_JSON, 404: NOT_FOUND}
    return Json({"error": lines.get(error.status_code, error.detail)}, error.status_code, error.headers)


HANDLERS: dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
    RefusedError: _answer_refused,
    BusyError: _answer_busy,
    InputError: _answer_input_error,
    RequestValidationError: _answer_invalid,
    HTTPException: _answer_http_error,
}
