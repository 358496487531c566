"""Close idle connections: those that send no request, never end their headers, or do not read their answers.

uvicorn would keep them, with their files and their answers. Two kinds of clients get more time: one that still sends
may not know yet that it was refused, and one that has an answer to read may be slow.
"""

from __future__ import annotations

import asyncio
import sys
import time
from array import array
from collections.abc import Iterable
from typing import Any, NamedTuple

from superbloom.serve.connection import Connection

MIN_SLOW_SECONDS = 60.0  # for clients that still send, or have an answer to read


class IdleState(NamedTuple):
    """A connection that waits for no answer of ours, as it was when last inspected."""

    progress: Any  # the last request, and the number of bytes that its client has not received
    unchanged_since: float  # when `progress` became so
    arrived: int  # bytes from the client
    silent_since: float  # when `progress` or `arrived` last changed


class IdleConnections:
    """Closes connections that are idle for max_idle_seconds, and slow ones after at least a minute."""

    def __init__(self, max_idle_seconds: float) -> None:
        self._max_idle_seconds = max_idle_seconds
        self._max_slow_seconds = max(MIN_SLOW_SECONDS, max_idle_seconds)
        self._states: dict[Any, IdleState] = {}

    def close(self, connections: Iterable[Any]) -> None:
        """Inspect all connections, and close those that have been idle for too long. Call it about once a second.

        subtle: a busy connection is also between two requests now and then. It is not idle, because its last request
        is another one at each inspection.
        """
        now, before = time.monotonic(), self._states
        self._states = {}
        for connection in list(connections):
            assert isinstance(connection, Connection)
            last, unsent = connection.cycle, connection.transport.get_write_buffer_size()
            if last is not None and not last.response_complete and not unsent:
                continue  # the client waits for us
            unsent += unacknowledged_bytes(connection.transport)
            progress, arrived = (last, unsent), connection.arrived
            state = before.get(connection)
            if state is None or state.progress != progress:
                state = IdleState(progress, now, arrived, now)
            elif state.arrived != arrived:
                state = state._replace(arrived=arrived, silent_since=now)
            self._states[connection] = state
            is_slow = now - state.unchanged_since > self._max_slow_seconds
            is_silent = not unsent and now - state.silent_since > self._max_idle_seconds
            if is_slow or is_silent:
                connection.transport.abort()


def unacknowledged_bytes(transport: asyncio.BaseTransport) -> int:
    """Bytes that the system has not sent, or whose receipt is not confirmed; 0 on systems other than Linux.

    The write buffer alone does not show a slow reader: the system takes more from it only when a third of its own
    buffer is free, which takes a slow reader long.
    """
    if sys.platform != "linux":
        return 0
    import fcntl
    import termios

    size = array("i", [0])
    try:
        fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, size)
    except (OSError, ValueError):  # it is closed
        return 0
    return size[0]
