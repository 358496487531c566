"""Gather the queries of many clients into batches: one product with the output weights answers a whole batch.

Whatever waits when a batch ends is the next batch, so an idle server answers immediately. By that rule alone, clients
that send a new request after each answer split into two halves that wait for each other. So after a batch, the server
waits a fraction of the batch's time until the same number of rows is there again.

Each lane computes one batch at a time in a thread, off the event loop. All lanes take from one queue. Waiting is
bounded in rows and in time. A request that cannot be computed before its deadline is refused when it arrives. A request
that is past its deadline, or whose client has gone, is not computed.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from superbloom.config import Settings

Item = TypeVar("Item")
Result = TypeVar("Result")

WAIT_SHARE = 0.2  # of the last batch's time: how long to wait for the clients that were there together
TIME_MARGIN = 1.25  # how many times the expected time a computation may take
RATE_MEMORY = 0.8  # weight of the rate that was measured before, against that of the last batch


class BusyError(Exception):
    """There is too much to compute, or it took too long."""

    def __init__(self, reason: str, retry_after: float) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


@dataclass(eq=False)
class _Waiting(Generic[Item, Result]):
    item: Item
    rows: int
    answer: asyncio.Future[Result]
    is_taken: bool = False


class Gatherer(Generic[Item, Result]):
    """Runs `work` on batches of items that arrive one by one. An item takes a number of rows.

    max_rows: most rows of a batch (a larger item is a batch of its own). max_waiting: most rows in the queue.
    lanes: batches computed at the same time. watch(rows, seconds): called after each batch.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Sequence[Result]],
        *,
        max_rows: int = Settings.batch,
        max_waiting: int = Settings.queue,
        lanes: int = 1,
        watch: Callable[[int, float], None] = lambda _rows, _seconds: None,
    ) -> None:
        self._work, self._watch = work, watch
        self.max_rows, self.max_waiting = max_rows, max_waiting
        self._queue: deque[_Waiting[Item, Result]] = deque()
        self._has_arrived = asyncio.Event()  # an item, since the event was last cleared
        self._threads = ThreadPoolExecutor(lanes, thread_name_prefix="superbloom-model")
        self.waiting = 0  # rows in the queue, without those whose clients have gone
        self._running: dict[int, tuple[int, float]] = {}  # by lane: rows of its batch, and when it began
        self._rows_per_second: float | None = None  # of one lane
        self._num_lanes = lanes
        self._loops = [asyncio.create_task(self._run(lane)) for lane in range(lanes)]

    @property
    def busy_seconds(self) -> float:
        """How long the oldest of the current batches has been computed; 0 if there is none."""
        return time.monotonic() - min(began for _, began in self._running.values()) if self._running else 0.0

    @property
    def _running_rows(self) -> int:
        return sum(rows for rows, _ in self._running.values())

    @property
    def is_full(self) -> bool:
        return self.waiting >= self.max_waiting

    @property
    def retry_after(self) -> float:
        """Expected seconds until all that waits now is computed; 1 before the first large batch."""
        return self._seconds_for(0) if self._rows_per_second else 1.0

    def _seconds_for(self, rows: int) -> float:
        """Expected seconds until all that waits now, and this number of rows, is computed; 0 if unknown."""
        rows += self._running_rows + self.waiting
        return rows / (self._num_lanes * self._rows_per_second) if self._rows_per_second else 0.0

    async def submit(self, item: Item, rows: int, deadline: float) -> Result:
        """The result for an item, by a deadline of time.monotonic(). Raises BusyError if that is not possible."""
        if self.waiting and self.waiting + rows > self.max_waiting:
            raise BusyError("too many requests are waiting", self.retry_after)
        seconds_left = self.check_time(rows, deadline)
        waiting = _Waiting[Item, Result](item, rows, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self.waiting += rows
        self._has_arrived.set()
        try:
            return await asyncio.wait_for(waiting.answer, seconds_left)
        except TimeoutError:
            raise BusyError("it took too long", self.retry_after) from None
        finally:
            if not waiting.is_taken and waiting in self._queue:  # its client has gone
                self._queue.remove(waiting)
                self.waiting -= rows

    def check_time(self, rows: int, deadline: float) -> float:
        """Seconds left until the deadline. Raises BusyError if this number of rows will probably take longer."""
        seconds_left = deadline - time.monotonic()
        is_more_than_a_batch = self.waiting + rows > self.max_rows
        if is_more_than_a_batch and TIME_MARGIN * self._seconds_for(rows) > max(seconds_left, 0.0):
            raise BusyError("more is waiting than can be done in time", self.retry_after)
        return seconds_left

    async def close(self) -> None:
        """Compute what waits, then end."""
        while self._queue or self._running:
            await asyncio.sleep(0.01)
        for loop in self._loops:
            loop.cancel()
        self._threads.shutdown()

    async def _run(self, lane: int) -> None:
        rows_together, wait_until = 0, 0.0  # wait for the same number of rows, but not longer
        while True:
            await self._wait_for_items()
            while self.waiting < min(rows_together, self.max_rows) and (left := wait_until - time.monotonic()) > 0:
                self._has_arrived.clear()
                try:
                    await asyncio.wait_for(self._has_arrived.wait(), left)
                except TimeoutError:
                    break
            batch = self._take_batch()
            if not batch:
                continue
            rows, began = sum(waiting.rows for waiting in batch), time.monotonic()
            self._running[lane] = rows, began
            results = await asyncio.get_running_loop().run_in_executor(self._threads, self._compute, batch)
            seconds = max(time.monotonic() - began, 1e-6)
            del self._running[lane]
            self._watch(rows, seconds)
            self._update_rate(rows / seconds, rows)
            rows_together, wait_until = rows + self.waiting, time.monotonic() + WAIT_SHARE * seconds
            for waiting, result in zip(batch, results, strict=True):
                if waiting.answer.done():  # the client has gone, or the deadline has passed
                    continue
                if isinstance(result, BaseException):
                    error = result if isinstance(result, Exception) else RuntimeError(repr(result))
                    waiting.answer.set_exception(error)
                else:
                    waiting.answer.set_result(result)

    def _update_rate(self, rate: float, rows: int) -> None:
        """Learn the rate from large batches only: a single row takes nearly as long as many."""
        if 2 * rows >= self.max_rows:
            self._rows_per_second = RATE_MEMORY * (self._rows_per_second or rate) + (1 - RATE_MEMORY) * rate

    async def _wait_for_items(self) -> None:
        while not self._queue:
            self._has_arrived.clear()
            await self._has_arrived.wait()

    def _take_batch(self) -> list[_Waiting[Item, Result]]:
        """The next batch, in order of arrival, without the items whose clients have gone."""
        batch: list[_Waiting[Item, Result]] = []
        rows = 0
        while self._queue and (not batch or rows + self._queue[0].rows <= self.max_rows):
            waiting = self._queue.popleft()
            self.waiting -= waiting.rows
            if not waiting.answer.done():
                waiting.is_taken = True
                batch.append(waiting)
                rows += waiting.rows
        return batch

    def _compute(self, batch: Sequence[_Waiting[Item, Result]]) -> Sequence[Any]:
        """A result or an exception per item. If a batch fails, each item is computed alone: only the culprit fails."""
        items = [waiting.item for waiting in batch]
        try:
            results = self._work(items)
            assert len(results) == len(items)
            return results
        except BaseException as error:
            return [error] if len(batch) == 1 else [result for waiting in batch for result in self._compute([waiting])]
