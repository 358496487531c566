"""What happens to every request before the application sees it, and to every answer before it leaves.

Refused here, at little cost: hosts a browser was tricked into asking, a missing key, predictions while the queue is
full, bodies that are too large or come too slowly. Added here: security headers. Counted here: everything.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from superbloom.config import Settings
from superbloom.serve.metrics import Metrics

SECURITY = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
MAX_LENGTH_DIGITS = 20  # in a Content-Length; int() raises above 4,300
PREDICTIONS = ("/v1/predict", "/v1/predict/batch", "/v1/text")
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]%]+)(:\d*)?")  # a name or an address, and a port
log = logging.getLogger("superbloom.serve")


class RefusedError(Exception):
    """An answer other than the one asked for: a status and one line."""

    def __init__(self, status: int, line: str, **headers: str) -> None:
        super().__init__(line)
        self.status, self.line = status, line
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    @classmethod
    def busy(cls, line: str, retry_after: float) -> RefusedError:
        return cls(503, line, retry_after=str(max(1, math.ceil(min(retry_after, 60)))))


class Guard:
    """ASGI middleware around the whole application.

    shed raises RefusedError if predictions are not taken now. give_way waits while a batch needs the processor: every
    answer but a prediction passes it, so that no flood of cheap requests keeps predictions from being computed.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        metrics: Metrics,
        shed: Callable[[], None],
        give_way: Callable[[], Awaitable[None]],
    ) -> None:
        self.app, self.settings, self.metrics = app, settings, metrics
        self.shed, self.give_way = shed, give_way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        began, status, metrics = time.monotonic(), 0, self.metrics
        scope["began"] = began

        async def send_secured(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if status >= 400 or scope["path"] not in PREDICTIONS:
                    await self.give_way()
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        metrics.in_flight.inc()
        try:
            try:
                body = await self._checked(scope, receive)
                await self.app(scope, _replay(body, receive), send_secured)
            except RefusedError as refused:
                await refuse(send_secured, refused)
            except Exception as error:
                log.error("a defect", exc_info=error)
                if status:
                    raise  # half an answer is out; the connection is closed
                await refuse(send_secured, RefusedError(500, "something went wrong here; the server's log tells what"))
        finally:
            metrics.in_flight.dec()
            path = _template(scope)
            metrics.requests.labels(path, str(status or 499)).inc()  # 499: the client left without an answer
            metrics.seconds.labels(path).observe(time.monotonic() - began)

    async def _checked(self, scope: Scope, receive: Receive) -> bytes:
        """The body of a request that may pass."""
        headers, path = Headers(scope=scope), scope["path"]
        if len(headers.getlist("host")) > 1:
            raise RefusedError(400, "several Host headers given; send one")
        if self.settings.api_key is None:
            _check_host(headers.get("host", ""))
            if path.startswith("/v1/"):
                _check_site(headers, self.settings.cors)
        elif path.startswith("/v1/") or path in ("/metrics", "/openapi.json"):
            _check_key(headers, self.settings.api_key)
        if scope["method"] != "POST":
            return b""
        if path in PREDICTIONS:
            self.shed()
        limit = self.settings.max_body
        too_large = RefusedError(
            413, f"the body is larger than {limit:,} bytes; send less at a time, or start the server with --max-body"
        )
        told = headers.get("content-length", "").lstrip("0")
        if told.isdecimal() and (len(told) > MAX_LENGTH_DIGITS or int(told) > limit):
            raise too_large
        try:
            return await asyncio.wait_for(_read(receive, limit, too_large), self.settings.seconds)
        except TimeoutError:
            raise RefusedError(408, f"the body did not arrive within {self.settings.seconds:g} seconds") from None


def _check_host(host: str) -> None:
    """Without a key, only this machine may ask, also when a page of another site makes its browser do so."""
    found = HOST.fullmatch(host.lower())
    try:
        name = found[1] if found else ""
        local = name in ("localhost", "localhost.") or ip_address(name.strip("[]")).is_loopback
    except ValueError:
        local = False
    if not local:
        raise RefusedError(
            421, "this server answers to localhost alone; to be asked by another name it needs an API key"
        )


def _check_site(headers: Headers, allowed: Sequence[str]) -> None:
    """Browsers tell when a page of another site makes them ask: it could not read the answer, so none is made."""
    if headers.get("sec-fetch-site") in ("cross-site", "same-site") and headers.get("origin") not in allowed:
        raise RefusedError(403, "pages of other sites may not ask this server; --cors ORIGIN allows one")


def _check_key(headers: Headers, key: str) -> None:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    given = given if scheme.lower() == "bearer" else headers.get("x-api-key", "")
    if not hmac.compare_digest(given.encode(), key.encode()):
        raise RefusedError(
            401, "an API key is needed: send it as 'Authorization: Bearer KEY'", www_authenticate="Bearer"
        )


async def _read(receive: Receive, limit: int, too_large: RefusedError) -> bytes:
    body = bytearray()  # not a list of parts: of two bytes each they would take twenty times their size
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RefusedError(400, "the body ended early")
        part = message.get("body", b"")
        if len(body) + len(part) > limit:
            raise too_large
        body += part
        if not message.get("more_body"):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A receive that gives a body that was read already, then what comes after it: that the client has gone."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _template(scope: Scope) -> str:
    """The path without what a client made up, so that there are few of them to count."""
    route: Any = scope.get("route")
    path = scope["path"]
    return getattr(route, "path", None) or (path if path in PREDICTIONS else "other")  # those that are not let in


async def refuse(send: Send, refused: RefusedError) -> None:
    body = json.dumps({"error": refused.line}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **refused.headers}
    await send(
        {
            "type": "http.response.start",
            "status": refused.status,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})
