"""Run coroutines for a client: until it disconnects, and several at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from fastapi import Request

from superbloom.serve.errors import RefusedError

Result = TypeVar("Result")


async def run_unless_gone(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of some work, which is cancelled if the client disconnects first."""

    async def wait_until_gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, waiting = asyncio.create_task(work), asyncio.create_task(wait_until_gone())
    try:
        await asyncio.wait([working, waiting], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise RefusedError(499, "the client has gone")
    finally:
        working.cancel()
        waiting.cancel()


async def run_all(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """The results of all. The first failure cancels the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]
