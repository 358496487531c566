"""One connection of a client, from raw bytes to requests, and the limits on requests that are not complete yet.

uvicorn's parser keeps the request line, headers and trailers of any length, and any number of requests that a client
sends ahead. This module counts their bytes and their number while they arrive. A client that exceeds a limit gets one
line of JSON (431 for headers, 503 for connections, 400 for what is not HTTP); then the connection is closed.
"""

from __future__ import annotations

import http
import json
from collections import Counter
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from superbloom.config import Settings

MAX_HEAD_BYTES = 32 * 2**10  # for the request line and headers; also for trailers and chunk headers
MAX_HEADERS = 100
MAX_PIPELINED = 32  # requests that a client sends before the answer to the first
RETRY_SECONDS = 1  # when to try again after too many connections
HEAD_TOO_LONG = f"more than {MAX_HEAD_BYTES:,} bytes of headers given, the most allowed; send fewer"
LINGER_SECONDS = 1.0  # for a refused client to send its request and read the refusal
MAX_LINGERING = 100  # refused connections that are not closed yet


class Connections:
    """Counts the open connections, in total and per address.

    >>> some = Connections(Settings(max_connections=3, max_connections_per_address=1))
    >>> some.enter("::1")
    >>> some.enter("::1")
    '1 connections of your address are open, the most allowed; close one, or raise --max-connections-per-address'
    >>> some.leave("::1")
    >>> some.enter("::1")
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._open: Counter[str] = Counter()
        self.lingering = 0  # refused connections that are not closed yet

    def enter(self, address: str) -> str | None:
        """Count a new connection. If it is one too many, return the line to refuse it with."""
        most, most_each = self._settings.max_connections, self._settings.max_connections_per_address
        if self._open.total() >= most:
            return f"{most:,} connections are open, the most allowed; close one, or raise --max-connections"
        if self._open[address] >= most_each:
            return (
                f"{most_each:,} connections of your address are open, the most allowed; "
                "close one, or raise --max-connections-per-address"
            )
        self._open[address] += 1
        return None

    def leave(self, address: str) -> None:
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]


class Connection(HttpToolsProtocol):
    """A connection of uvicorn with limits on requests that are not complete yet."""

    def __init__(self, *arguments: Any, connections: Connections, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.arrived = 0  # bytes
        self._counted = connections
        self._address: str | None = None  # None: not counted
        self._is_refused = False
        self._kept_bytes = 0  # received, and perhaps still held by the parser
        self._head_bytes = self._headers = 0  # of this request so far
        self._in_request = self._in_body = False
        self._is_first = True  # whether this piece of data had no other request before
        self._refusal: tuple[int, str] | None = None
        self._unanswered: list[Any] = []  # uvicorn's cycles: one per request

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        if (line := self._counted.enter(address)) is None:
            self._address = address
        else:
            self._linger(line)

    def _linger(self, line: str) -> None:
        """Refuse this connection, and close it later: a client that is still sending would not read the refusal."""
        self._is_refused = True
        self.transport.write(refusal(503, line, f"retry-after: {RETRY_SECONDS}\r\n"))
        if self._counted.lingering >= MAX_LINGERING:
            self.transport.close()
            return
        self._counted.lingering += 1
        self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self._end_lingering)

    def _end_lingering(self) -> None:
        self._counted.lingering -= 1
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget_requests()
        if self._address is not None:
            self._counted.leave(self._address)
            self._address = None

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self.arrived += len(data)
        self._kept_bytes += len(data)
        self._is_first = not self._in_request
        super().data_received(data)
        if self._kept_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431, HEAD_TOO_LONG)

    def on_message_begin(self) -> None:
        if not self._is_first:  # its share of this piece is unknown and not counted: up to 256 KB
            self._kept_bytes = 0
        self._head_bytes = self._headers = 0
        self._in_request, self._in_body, self._is_first = True, False, False
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("too many requests sent ahead")  # ends the parser; the connection is closed
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers += 1
        if self._headers > MAX_HEADERS:
            self._fail(431, f"more than {MAX_HEADERS} headers given, the most allowed; send fewer")
        self._count_head(len(name) + len(value) + 4)  # colon, space and the end of the line
        if not self._in_body:  # trailers are dropped
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._kept_bytes = 0
        super().on_headers_complete()
        self._in_body = True
        self._unanswered = [cycle for cycle in (*self._unanswered, self.cycle) if not cycle.response_complete]

    def on_body(self, body: bytes) -> None:
        self._kept_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._kept_bytes, self._in_request, self._in_body = 0, False, False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002, uvicorn's signature
        """uvicorn calls this when its parser, or one of the methods above, has raised."""
        self._refuse(*(self._refusal or (400, "this is not a request of HTTP/1.1; send one")))

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._fail(431, HEAD_TOO_LONG)

    def _fail(self, status: int, line: str) -> None:
        self._refusal = (status, line)
        raise ValueError(line)  # ends the parser

    def _refuse(self, status: int, line: str) -> None:
        """Send the line, unless the client would take it for the answer to an earlier request; then close."""
        last = self.cycle
        if last is None:
            is_next = True
        elif self._in_body:  # of the last request
            is_next = not last.response_started
        else:
            is_next = last.response_complete
        if is_next and not self.pipeline:
            self.transport.write(refusal(status, line))
        self._close()

    def _close(self) -> None:
        self._forget_requests()
        self.transport.close()

    def _forget_requests(self) -> None:
        """Mark all requests as disconnected: nobody reads their answers. uvicorn itself marks the last one only."""
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()


def refusal(status: int, line: str, headers: str = "") -> bytes:
    """The bytes of a whole answer, after which the connection is closed."""
    body = json.dumps({"error": line}).encode()
    head = (
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n{headers}connection: close\r\n\r\n"
    )
    return head.encode() + body
