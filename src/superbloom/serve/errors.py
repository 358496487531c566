"""How a request is refused, and how the OpenAPI document describes the problems.

Every problem is one line, {"error": "…"}. No line shows a path, a stack or anything else of the machine.
"""

from __future__ import annotations

import math
from typing import Any

from superbloom.errors import UnknownNameError
from superbloom.serve.schemas import Json, Problem

MAX_RETRY_SECONDS = 60

Problems = dict[int | str, dict[str, Any]]


def described(status: int, description: str) -> Problems:
    return {status: {"model": Problem, "description": description}}


NO_KEY = described(401, "The API key is missing or wrong.")
WRONG_HOST = described(421, "The request names another host than localhost, and the server has no key.")
# Problems of every GET request, and of every POST request.
GET_PROBLEMS: Problems = (
    NO_KEY
    | described(403, "A page of another site sent the request.")
    | WRONG_HOST
    | described(422, "A value cannot be used. Unknown names come with the closest known names.")
    | described(503, "Loading, stopping, too busy, or the model was changed in place; see Retry-After.")
)
POST_PROBLEMS: Problems = (
    GET_PROBLEMS
    | described(400, "The body is not JSON.")
    | described(408, "The body arrived too slowly.")
    | described(413, "The body is too large.")
)


class RefusedError(Exception):
    """The request is refused with a status and one line."""

    def __init__(self, status: int, line: str, **headers: str) -> None:
        super().__init__(line)
        self.status, self.line = status, line
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    @classmethod
    def busy(cls, line: str, retry_after: float) -> RefusedError:
        """A refusal for now; the client may try again after this number of seconds."""
        return cls(503, line, retry_after=str(max(1, math.ceil(min(retry_after, MAX_RETRY_SECONDS)))))

    def answer(self) -> Json:
        return Json({"error": self.line}, self.status, self.headers)


def unknown_name(error: UnknownNameError, status: int) -> Json:
    return Json({"error": str(error), "closest": {error.name: error.closest}}, status)
