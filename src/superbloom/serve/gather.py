"""Requests of many clients, gathered into batches: one product with the output weights answers them all.

Whatever waits when a batch is done is the next one, so an idle server answers at once. Clients that ask again as soon
as they are answered would split into two halves that wait for each other; so after a batch, those who were there
together are waited for, a fraction of the time the batch took. Work is done in one thread, off the event loop. Waiting
is bounded in rows and in time: what cannot be done before its deadline is refused when it comes, and what is past it,
or whose client has gone, is not done at all.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

PATIENCE = 0.2  # of the time of the last batch
MARGIN = 1.25  # how much longer than expected things may take
MEMORY = 0.8  # of what was measured before, against the last batch


class BusyError(Exception):
    """Not now: there is too much to do, or it took too long."""

    def __init__(self, reason: str, retry_after: float) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


@dataclass(eq=False)
class _Waiting(Generic[Item, Result]):
    item: Item
    rows: int
    answer: asyncio.Future[Result]
    taken: bool = False


class Gatherer(Generic[Item, Result]):
    """Runs `work` on lists of items, each of so many rows, that come one by one.

    most_rows is the size of a batch (an item may have more, and is then alone), most_waiting that of the queue.
    watch(rows, seconds) is told of every batch.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Sequence[Result]],
        *,
        most_rows: int = 64,
        most_waiting: int = 512,
        watch: Callable[[int, float], None] = lambda _rows, _seconds: None,
    ) -> None:
        self._work, self._watch = work, watch
        self.most_rows, self.most_waiting = most_rows, most_waiting
        self._queue: deque[_Waiting[Item, Result]] = deque()
        self._come = asyncio.Event()  # something came since it was last cleared
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="superbloom-model")
        self.waiting = 0  # rows in the queue; those whose clients have gone do not count
        self._running_rows, self._began = 0, 0.0
        self._rows_a_second: float | None = None
        self._loop = asyncio.create_task(self._run())

    @property
    def busy_for(self) -> float:
        """Seconds that the batch of now has taken so far."""
        return time.monotonic() - self._began if self._running_rows else 0.0

    @property
    def full(self) -> bool:
        return self.waiting >= self.most_waiting

    @property
    def retry_after(self) -> float:
        """Seconds until what waits now is done; one, if no large batch has told yet."""
        return (self._running_rows + self.waiting) / self._rows_a_second if self._rows_a_second else 1.0

    async def ask(self, item: Item, rows: int, deadline: float) -> Result:
        """The result of an item, by a deadline of time.monotonic(); BusyError if that cannot be."""
        if self.waiting and self.waiting + rows > self.most_waiting:
            raise BusyError("too many requests are waiting", self.retry_after)
        left = self.check_time(rows, deadline)
        asked = _Waiting[Item, Result](item, rows, asyncio.get_running_loop().create_future())
        self._queue.append(asked)
        self.waiting += rows
        self._come.set()
        try:
            return await asyncio.wait_for(asked.answer, left)
        except TimeoutError:
            raise BusyError("it took too long", self.retry_after) from None
        finally:
            if not asked.taken and asked in self._queue:  # nobody waits for it any more
                self._queue.remove(asked)
                self.waiting -= rows

    def check_time(self, rows: int, deadline: float) -> float:
        """Seconds left until the deadline; BusyError if so many more rows are not likely to be done by then."""
        left = deadline - time.monotonic()
        ahead = self._running_rows + self.waiting + rows
        many = self.waiting + rows > self.most_rows
        if self._rows_a_second and many and MARGIN * ahead / self._rows_a_second > left:
            raise BusyError("more is waiting than can be done in time", self.retry_after)
        return left

    async def close(self) -> None:
        """Do what waits, then end."""
        while self._queue or self._running_rows:
            await asyncio.sleep(0.01)
        self._loop.cancel()
        self._thread.shutdown()

    async def _run(self) -> None:
        together, until = 0, 0.0  # rows that were there at once, and how long to wait for as many
        while True:
            await self._some()
            while self.waiting < min(together, self.most_rows) and (left := until - time.monotonic()) > 0:
                self._come.clear()
                try:
                    await asyncio.wait_for(self._come.wait(), left)
                except TimeoutError:
                    break
            batch = self._take()
            if not batch:
                continue
            self._running_rows = rows = sum(waiting.rows for waiting in batch)
            self._began = time.monotonic()
            results = await asyncio.get_running_loop().run_in_executor(self._thread, self._try, batch)
            seconds = max(time.monotonic() - self._began, 1e-6)
            self._running_rows = 0
            self._watch(rows, seconds)
            self._learn(rows / seconds, rows)
            together, until = rows + self.waiting, time.monotonic() + PATIENCE * seconds
            for waiting, result in zip(batch, results, strict=True):
                if waiting.answer.done():  # the client has gone, or it took too long
                    continue
                if isinstance(result, BaseException):
                    error = result if isinstance(result, Exception) else RuntimeError(repr(result))
                    waiting.answer.set_exception(error)
                else:
                    waiting.answer.set_result(result)

    def _learn(self, rate: float, rows: int) -> None:
        """Rows a second, of full batches: one row alone takes nearly as long as many, and says little of them."""
        if 2 * rows >= self.most_rows:
            self._rows_a_second = MEMORY * (self._rows_a_second or rate) + (1 - MEMORY) * rate

    async def _some(self) -> None:
        while not self._queue:
            self._come.clear()
            await self._come.wait()

    def _take(self) -> list[_Waiting[Item, Result]]:
        """The next batch, in the order of coming, without those that nobody waits for."""
        batch: list[_Waiting[Item, Result]] = []
        rows = 0
        while self._queue and (not batch or rows + self._queue[0].rows <= self.most_rows):
            waiting = self._queue.popleft()
            self.waiting -= waiting.rows
            if not waiting.answer.done():
                waiting.taken = True
                batch.append(waiting)
                rows += waiting.rows
        return batch

    def _try(self, batch: Sequence[_Waiting[Item, Result]]) -> Sequence[Any]:
        """A result or an exception for each; what fails together is tried alone, so that only the culprit fails."""
        items = [waiting.item for waiting in batch]
        try:
            results = self._work(items)
            assert len(results) == len(items)
            return results
        except BaseException as error:
            return [error] if len(batch) == 1 else [result for waiting in batch for result in self._try([waiting])]
