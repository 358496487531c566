"""The log of a server on standard error: plain lines, or one JSON object per line with the id of its request.

A client may choose the id of its request (X-Request-Id); otherwise the server makes one. Every answer carries it.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime

REQUEST_ID_PATTERN = re.compile(r"[!-~]{1,128}")  # printable ASCII without spaces
MAX_LOGGED_PATH = 200  # characters
requests_log = logging.getLogger("superbloom.serve.requests")  # one record per request, level INFO
request_id: ContextVar[str | None] = ContextVar("request_id", default=None)


def id_of(given: str) -> str:
    """The id of a request: the one given, if it can be sent back, else a new one."""
    return given if REQUEST_ID_PATTERN.fullmatch(given) else uuid.uuid4().hex


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON. A dict in `record.fields` adds fields."""

    def format(self, record: logging.LogRecord) -> str:
        content = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        if (id_ := request_id.get()) is not None:
            content["request_id"] = id_
        content |= getattr(record, "fields", {})
        if record.exc_info:
            content["error"] = self.formatException(record.exc_info)
        return json.dumps(content)


def configure(log_format: str, notice: Callable[[str], None]) -> Callable[[str], None]:
    """Set up the log, and return the function for lines to the person who started the server."""
    if log_format == "text":
        logging.basicConfig(format="%(message)s", level=logging.WARNING)
        return notice
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    own = logging.getLogger("superbloom.serve")
    own.setLevel(logging.INFO)
    return own.info


def log_request(method: str, path: str, code: int, seconds: float) -> None:
    fields = {"method": method, "path": path[:MAX_LOGGED_PATH], "code": code, "seconds": round(seconds, 6)}
    requests_log.info("request", extra={"fields": fields})
