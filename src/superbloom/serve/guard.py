"""ASGI middleware around the application: every request and every answer passes the guard.

It refuses, at little cost: a Host that is not this machine (DNS rebinding), pages of other sites, a missing key,
predictions while the queue is full, and bodies that are too large or too slow. It adds security headers and the id of
the request to every answer. It counts and logs every request.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from superbloom.serve.errors import RefusedError
from superbloom.serve.logs import id_of, log_request, request_id
from superbloom.serve.service import Models

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
MAX_LENGTH_DIGITS = 20  # of a Content-Length; int() raises above 4,300 digits
PREDICTION_PATHS = ("/v1/predict", "/v1/predict/batch", "/v1/text")
KEYED_PATHS = ("/v1/", "/v2/models/")  # prefixes of the paths that need the key
HOST_PATTERN = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]%]+)(:\d*)?")  # a name or an address, and a port
log = logging.getLogger("superbloom.serve")


class Guard:
    """ASGI middleware around the whole application.

    Every answer except a prediction passes Models.give_way, which waits while a batch needs the processor: a flood of
    cheap requests must not keep predictions from being computed.
    """

    def __init__(self, app: ASGIApp, models: Models) -> None:
        self.app, self.models, self.settings, self.metrics = app, models, models.settings, models.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        began, status, metrics = time.monotonic(), 0, self.metrics
        scope["began"] = began
        id_ = id_of(Headers(scope=scope).get("x-request-id", ""))
        request_id.set(id_)

        async def send_secured(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if status >= 400 or not _is_prediction(scope["path"]):
                    await self.models.give_way()
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
                headers["x-request-id"] = id_
            await send(message)

        metrics.in_flight.inc()
        try:
            try:
                body = await self._read_allowed(scope, receive)
                await self.app(scope, _replay(body, receive), send_secured)
            except RefusedError as refused:
                await refused.answer()(scope, receive, send_secured)
            except Exception as error:
                log.error("a defect", exc_info=error)
                if status:
                    raise  # a part of the answer was sent, so the connection is closed
                defect = RefusedError(500, "something went wrong here; the server's log has the details")
                await defect.answer()(scope, receive, send_secured)
        finally:
            metrics.in_flight.dec()
            path, code, seconds = _route_path(scope), status or 499, time.monotonic() - began
            metrics.requests.labels(path, str(code)).inc()  # 499: the client left without an answer
            metrics.seconds.labels(path).observe(seconds)
            log_request(scope["method"], scope["path"], code, seconds)

    async def _read_allowed(self, scope: Scope, receive: Receive) -> bytes:
        """The body of a request that is allowed; RefusedError if it is not."""
        headers, path = Headers(scope=scope), scope["path"]
        if len(headers.getlist("host")) > 1:
            raise RefusedError(400, "several Host headers given; send one")
        if self.settings.api_key is None:
            _check_host(headers.get("host", ""))
            if path.startswith(KEYED_PATHS):
                _check_site(headers, self.settings.cors)
        elif path.startswith(KEYED_PATHS) or path in ("/metrics", "/openapi.json"):
            _check_key(headers, self.settings.api_key)
        if scope["method"] != "POST":
            return b""
        if _is_prediction(path):
            self.models.check_room()
        limit = self.settings.max_body
        too_large = RefusedError(
            413, f"the body is larger than {limit:,} bytes; send less at a time, or start the server with --max-body"
        )
        length = headers.get("content-length", "").lstrip("0")
        if length.isdecimal() and (len(length) > MAX_LENGTH_DIGITS or int(length) > limit):
            raise too_large
        try:
            return await asyncio.wait_for(_read_body(receive, limit, too_large), self.settings.seconds)
        except TimeoutError:
            raise RefusedError(408, f"the body did not arrive within {self.settings.seconds:g} seconds") from None


def _is_prediction(path: str) -> bool:
    return path in PREDICTION_PATHS or (path.startswith("/v2/models/") and path.endswith("/infer"))


def _check_host(host: str) -> None:
    """Without a key, refuse other machines, and pages of other sites that point their own name at this machine."""
    found = HOST_PATTERN.fullmatch(host.lower())
    try:
        name = found[1] if found else ""
        is_local = name in ("localhost", "localhost.") or ip_address(name.strip("[]")).is_loopback
    except ValueError:
        is_local = False
    if not is_local:
        raise RefusedError(
            421, "this server answers requests to localhost only; for another host name, start it with --api-key"
        )


def _check_site(headers: Headers, allowed: Sequence[str]) -> None:
    """Refuse a request that a page of another site sends. Browsers mark it, and the page could not read the answer."""
    if headers.get("sec-fetch-site") in ("cross-site", "same-site") and headers.get("origin") not in allowed:
        raise RefusedError(403, "pages of other sites may not use this server; --cors ORIGIN allows one")


def _check_key(headers: Headers, key: str) -> None:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    given = given if scheme.lower() == "bearer" else headers.get("x-api-key", "")
    if not hmac.compare_digest(given.encode(), key.encode()):
        raise RefusedError(
            401, "an API key is needed: send it as 'Authorization: Bearer KEY'", www_authenticate="Bearer"
        )


async def _read_body(receive: Receive, limit: int, too_large: RefusedError) -> bytes:
    body = bytearray()  # a list of parts of two bytes would take twenty times as much
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
    """A `receive` that returns a body that was already read, then what follows it: the disconnect."""
    is_given = False

    async def replay() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _route_path(scope: Scope) -> str:
    """The path of the route, without what a client made up, so that the metrics have few labels."""
    route: Any = scope.get("route")  # None if the guard refused the request
    path = scope["path"]
    return getattr(route, "path", None) or (path if path in PREDICTION_PATHS else "other")
