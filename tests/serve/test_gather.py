"""Requests are gathered into batches: none waits for nothing, none is lost, none is done for nobody."""

import asyncio
import selectors
import statistics
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superbloom.serve import gather
from superbloom.serve.gather import BusyError, Gatherer

LONG = 20.0  # seconds that no test waits for
FIXED, EACH = 0.06, 0.004  # seconds of a batch, and of a row in it
CLIENTS = 8


class Held:
    """Work that waits until it is let go, and tells what it was given."""

    def __init__(self, *culprits: int) -> None:
        self.batches: list[list[int]] = []
        self.go = threading.Event()
        self.culprits = culprits

    def __call__(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        assert self.go.wait(LONG)
        if found := set(self.culprits) & set(items):
            raise ValueError(f"culprit {found}")
        return [-item for item in items]

    @property
    def items(self) -> list[int]:
        return [item for batch in self.batches for item in batch]


def soon() -> float:
    return time.monotonic() + LONG


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(LONG):
        while not condition():
            await asyncio.sleep(0.001)


async def waiting(gatherer: Gatherer, work: Held, items: Sequence[int], rows: int = 1) -> list[asyncio.Task]:
    """Item 0 is being worked on, and these wait behind it."""
    tasks = [asyncio.create_task(gatherer.submit(0, 1, soon()))]
    await until(lambda: work.batches == [[0]])
    tasks += [asyncio.create_task(gatherer.submit(item, rows, soon())) for item in items]
    await until(lambda: gatherer.waiting == rows * len(items))
    return tasks


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, LONG))


class Passing(selectors.DefaultSelector):
    """Where an event loop waits: it waits for nothing that has a time, and counts the seconds instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.now += timeout or 0.0
        return super().select(timeout and 0.0)


class Unhurried(asyncio.SelectorEventLoop):
    """An event loop on which time passes only while everybody waits: how slow the machine is changes nothing."""

    def __init__(self) -> None:
        self._passing = Passing()
        super().__init__(self._passing)

    def time(self) -> float:
        return self._passing.now


class Lasting:
    """In place of the thread: what it is given lasts as long on the clock of the loop as in the thread."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def submit(self, work: Callable[[Any], Any], batch: Sequence[Any]) -> Future[Any]:
        done: Future[Any] = Future()
        asyncio.get_running_loop().call_later(FIXED + EACH * len(batch), done.set_result, work(batch))
        return done

    def shutdown(self) -> None:
        pass


class Clock(NamedTuple):
    """Of the tests: one that only they move, or, where no other test runs beside them, the real one."""

    name: str
    sleep: Callable[[float], None]
    loop: Callable[[], asyncio.AbstractEventLoop] | None
    tries: int

    def run(self, measure: Coroutine[Any, Any, float]) -> float:
        with asyncio.Runner(loop_factory=self.loop) as runner:
            return runner.run(measure)


@pytest.fixture(params=["a clock of its own", pytest.param("real time", marks=pytest.mark.alone)])
def clock(request, monkeypatch) -> Clock:
    if request.param == "real time":
        return Clock(request.param, time.sleep, None, 5)  # the machine may be at something else for a moment
    monkeypatch.setattr(gather, "time", SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time()))
    monkeypatch.setattr(gather, "ThreadPoolExecutor", Lasting)
    return Clock(request.param, lambda _: None, Unhurried, 1)


def efficiency(clock: Clock) -> float:
    """The share of the time in which eight clients, who take a moment to ask again, could have been answered."""
    rng, times = Random(0), 10

    def work(items: Sequence[int]) -> Sequence[int]:
        clock.sleep(FIXED + EACH * len(items))
        return items

    async def measure() -> float:
        now = asyncio.get_running_loop().time

        async def client() -> None:
            for _ in range(times):
                await asyncio.sleep(rng.uniform(0.0, 0.0025))
                await gatherer.submit(1, 1, now() + LONG)

        gatherer: Gatherer = Gatherer(work)
        began = now()
        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        seconds = now() - began
        await gatherer.close()
        return times * (FIXED + CLIENTS * EACH) / seconds

    return clock.run(measure())


def idle_wait(clock: Clock) -> float:
    """Seconds from a question to the beginning of its work, the middle of twenty that come while nothing is done."""

    async def measure() -> float:
        now = asyncio.get_running_loop().time
        began: list[float] = []
        gatherer: Gatherer = Gatherer(lambda items: began.append(now()) or items)
        waits = []
        for item in range(20):
            await asyncio.sleep(0.002)
            asked = now()
            await gatherer.submit(item, 1, asked + LONG)
            waits.append(began[-1] - asked)
        await gatherer.close()
        return statistics.median(waits)

    return clock.run(measure())


ENOUGH = 0.8  # of the ideal rate
IDLE = 0.002  # seconds that a request to an idle server may wait


def test_eight_clients_share_batches(clock, check):
    best = max(efficiency(clock) for _ in range(clock.tries))
    assert best >= ENOUGH
    check(1, f"eight clients are answered in {best:.2f} of the ideal rate, by {clock.name}")


def test_without_patience_clients_split_into_groups_that_wait_for_each_other(clock, monkeypatch, check):
    monkeypatch.setattr(gather, "WAIT_SHARE", 0.0)
    share = efficiency(clock)
    assert share < ENOUGH
    check.twin(1, "nobody is waited for", f"{share:.2f} of the ideal rate, by {clock.name}")


def test_an_idle_request_does_not_wait(clock, check):
    wait = min(idle_wait(clock) for _ in range(clock.tries))
    assert wait <= IDLE
    check(1, f"an idle request waits {1000 * wait:.2f} ms, by {clock.name}")


def test_a_gatherer_that_always_waits_is_noticed(clock, monkeypatch, check):
    some = Gatherer._wait_for_items

    async def and_more(self: Gatherer) -> None:
        await some(self)
        await asyncio.sleep(0.005)

    monkeypatch.setattr(Gatherer, "_wait_for_items", and_more)
    wait = min(idle_wait(clock) for _ in range(clock.tries))
    assert wait > IDLE
    check.twin(1, "every batch is waited for, 5 ms", f"an idle request waits {1000 * wait:.2f} ms, by {clock.name}")


def test_who_is_alone_is_never_waited_with(monkeypatch):
    """With patience without end, one client gets its answers; two that were together wait for each other."""
    monkeypatch.setattr(gather, "WAIT_SHARE", 1e9)

    async def test() -> None:
        work = Held()
        work.go.set()
        gatherer: Gatherer = Gatherer(work)
        assert [await gatherer.submit(item, 1, soon()) for item in range(5)] == [0, -1, -2, -3, -4]
        assert work.batches == [[0], [1], [2], [3], [4]]
        await asyncio.gather(gatherer.submit(5, 1, soon()), gatherer.submit(6, 1, soon()))
        one = asyncio.create_task(gatherer.submit(7, 1, soon()))
        await asyncio.sleep(0.02)
        assert work.batches[-1] == [5, 6]
        assert await gatherer.submit(8, 1, soon()) == -8
        assert await one == -7
        assert work.batches[-1] == [7, 8]
        await gatherer.close()

    run(test())


def test_what_waits_is_the_next_batch_in_the_order_of_coming():
    async def test() -> None:
        work = Held()
        gatherer: Gatherer = Gatherer(work, max_rows=4)
        tasks = await waiting(gatherer, work, range(1, 11))
        work.go.set()
        assert await asyncio.gather(*tasks) == [-item for item in range(11)]
        assert work.batches == [[0], [1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
        assert gatherer.waiting == gatherer.busy_seconds == 0
        await gatherer.close()

    run(test())


def test_an_item_larger_than_a_batch_goes_alone():
    async def test() -> None:
        work = Held()
        gatherer: Gatherer = Gatherer(work, max_rows=4, max_waiting=8)
        tasks = await waiting(gatherer, work, [1, 2])
        tasks.append(asyncio.create_task(gatherer.submit(3, 5, soon())))
        await until(lambda: gatherer.waiting == 7)
        tasks.append(asyncio.create_task(gatherer.submit(4, 1, soon())))
        await until(lambda: gatherer.waiting == 8)
        work.go.set()
        await asyncio.gather(*tasks)
        assert work.batches == [[0], [1, 2], [3], [4]]
        assert await gatherer.submit(5, 100, soon()) == -5  # larger than the queue: taken when that is empty
        await gatherer.close()

    run(test())


def test_a_full_queue_refuses_and_tells_when_to_come_again():
    async def test() -> None:
        work, told = Held(), []
        work.go.set()
        gatherer: Gatherer = Gatherer(work, max_rows=2, max_waiting=4, watch=lambda *seen: told.append(seen))
        began = time.monotonic()
        await gatherer.submit(9, 1, soon())
        assert told[0][1] <= time.monotonic() - began
        work.go.clear()
        work.batches.clear()
        tasks = await waiting(gatherer, work, [1, 2, 3])
        assert not gatherer.is_full
        tasks.append(asyncio.create_task(gatherer.submit(4, 1, soon())))
        await until(lambda: gatherer.is_full)
        with pytest.raises(BusyError, match="too many requests are waiting") as refused:
            await gatherer.submit(5, 1, soon())
        ((rows, seconds),) = told
        assert refused.value.retry_after == pytest.approx((1 + 4) * seconds / rows)
        tasks[1].cancel()  # one leaves: its place is free
        await until(lambda: not gatherer.is_full)
        with pytest.raises(BusyError):
            await gatherer.submit(6, 2, soon())
        tasks.append(asyncio.create_task(gatherer.submit(7, 1, soon())))
        await until(lambda: gatherer.is_full)
        work.go.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(answers.pop(1), asyncio.CancelledError)
        assert answers == [0, -2, -3, -4, -7]
        assert set(work.items) == {0, 2, 3, 4, 7}
        assert [rows for rows, _ in told] == [1, 1, 2, 2]
        await gatherer.close()

    run(test())


def test_what_is_too_late_is_refused_and_never_done():
    async def test() -> None:
        work = Held()
        gatherer: Gatherer = Gatherer(work)
        tasks = await waiting(gatherer, work, [1])
        for left in (0.02, 0.0, -1.0):
            with pytest.raises(BusyError, match="it took too long"):
                await gatherer.submit(2, 1, time.monotonic() + left)
        assert gatherer.waiting == 1
        work.go.set()
        assert await asyncio.gather(*tasks) == [0, -1]
        assert work.batches == [[0], [1]]
        await gatherer.close()

    run(test())


def test_a_batch_that_took_too_long_harms_no_other():
    async def test() -> None:
        work = Held()
        gatherer: Gatherer = Gatherer(work)
        with pytest.raises(BusyError, match="it took too long"):
            await gatherer.submit(0, 1, time.monotonic() + 0.02)
        assert gatherer.busy_seconds > 0.0
        work.go.set()
        assert await gatherer.submit(1, 1, soon()) == -1
        assert gatherer.busy_seconds == 0.0
        await gatherer.close()

    run(test())


def test_what_cannot_be_done_in_time_is_refused_when_it_comes():
    async def test() -> None:
        work = Held()
        gatherer: Gatherer = Gatherer(work, max_rows=2)
        first = asyncio.create_task(gatherer.submit(0, 1, soon()))
        await asyncio.sleep(0.05)
        work.go.set()
        await first  # so a row takes 50 ms or more
        work.go.clear()
        work.batches.clear()
        tasks = await waiting(gatherer, work, [1, 2])
        with pytest.raises(BusyError, match="more is waiting than can be done in time"):
            await gatherer.submit(3, 1, time.monotonic() + 4 * 0.05)
        tasks.append(asyncio.create_task(gatherer.submit(4, 1, soon())))
        await until(lambda: gatherer.waiting == 3)
        work.go.set()
        assert await asyncio.gather(*tasks) == [0, -1, -2, -4]
        await gatherer.close()

    run(test())


def test_clients_that_vanish_are_not_answered():
    """Check 7: of a thousand that leave while they wait, hardly one reaches the model."""

    async def test() -> None:
        work = Held()
        gatherer: Gatherer = Gatherer(work, max_rows=64, max_waiting=2000)
        first, *gone = await waiting(gatherer, work, range(1, 1001))
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        assert gatherer.waiting == 0
        assert not gatherer.is_full
        last = asyncio.create_task(gatherer.submit(1001, 1, soon()))
        work.go.set()
        assert await asyncio.gather(first, last) == [0, -1001]
        assert work.items == [0, 1001]
        await gatherer.close()

    run(test())


def test_what_fails_together_is_tried_alone_so_that_only_the_culprit_fails():
    async def test() -> None:
        work = Held(3, 5)
        gatherer: Gatherer = Gatherer(work)
        tasks = await waiting(gatherer, work, range(1, 7))
        work.go.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [str(answer) for answer in answers] == ["0", "-1", "-2", "culprit {3}", "-4", "culprit {5}", "-6"]
        assert work.batches == [[0], [1, 2, 3, 4, 5, 6], [1], [2], [3], [4], [5], [6]]
        assert await gatherer.submit(7, 1, soon()) == -7
        await gatherer.close()

    run(test())


def test_closing_answers_what_waits():
    async def test() -> None:
        work = Held()
        gatherer: Gatherer = Gatherer(work, max_rows=3)
        tasks = await waiting(gatherer, work, range(1, 11))
        closing = asyncio.create_task(gatherer.close())
        await asyncio.sleep(0.02)
        assert not closing.done()
        work.go.set()
        await closing
        assert [task.result() for task in tasks] == [-item for item in range(11)]

    run(test())


@settings(max_examples=50)
@given(
    max_rows=st.integers(1, 8),
    sizes=st.lists(st.integers(1, 10), min_size=1, max_size=60),
    leaves=st.sets(st.integers(0, 59)),
    seed=st.integers(0, 99),
)
def test_everyone_gets_the_answer_to_what_they_asked(max_rows, sizes, leaves, seed):
    rng, batches = Random(seed), []

    def work(items: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        batches.append(list(items))
        return [(-number, rows) for number, rows in items]

    async def test() -> None:
        gatherer: Gatherer = Gatherer(work, max_rows=max_rows, max_waiting=1000)
        tasks = []
        for number, rows in enumerate(sizes):
            tasks.append(asyncio.create_task(gatherer.submit((number, rows), rows, soon())))
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            if number in leaves:
                tasks[-1].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        for number, (rows, answer) in enumerate(zip(sizes, answers, strict=True)):
            if number in leaves and isinstance(answer, asyncio.CancelledError):
                continue
            assert answer == (-number, rows)
        await gatherer.close()

    run(test())
    done = [number for batch in batches for number, _ in batch]
    assert done == sorted(set(done))
    assert set(range(len(sizes))) - leaves <= set(done)
    assert all(len(batch) == 1 or sum(rows for _, rows in batch) <= max_rows for batch in batches)


def test_lanes_take_from_one_queue_at_the_same_time():
    async def test() -> None:
        work = Held()
        gatherer: Gatherer = Gatherer(work, max_rows=2, lanes=2)
        tasks = [asyncio.create_task(gatherer.submit(item, 1, soon())) for item in (1, 2, 3)]
        await until(lambda: len(work.batches) == 2)
        tasks += [asyncio.create_task(gatherer.submit(item, 1, soon())) for item in (4, 5)]
        await until(lambda: gatherer.waiting == 2)
        assert work.batches == [[1, 2], [3]]
        assert 0 < gatherer.busy_seconds < LONG
        work.go.set()
        assert await asyncio.gather(*tasks) == [-1, -2, -3, -4, -5]
        assert sorted(work.items) == [1, 2, 3, 4, 5]
        await gatherer.close()
        assert gatherer.busy_seconds == 0

    run(test())


def test_two_lanes_are_expected_to_take_half_as_long():
    async def test() -> None:
        for lanes, expected in ((1, 10.0), (2, 5.0)):
            gatherer: Gatherer = Gatherer(lambda items: items, max_rows=2, lanes=lanes)
            gatherer._rows_per_second = 2.0
            gatherer.waiting = 19
            with pytest.raises(BusyError) as busy:
                gatherer.check_time(1, time.monotonic() + 1.25 * expected - 0.1)
            assert busy.value.retry_after == pytest.approx(19 / 2 / lanes)
            gatherer.check_time(1, time.monotonic() + 1.25 * expected + 5)
            gatherer.waiting = 0
            await gatherer.close()

    run(test())
