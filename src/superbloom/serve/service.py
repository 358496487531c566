"""The model that is served. It is loaded off the event loop, warmed before its first request, and replaced by a reload
without losing a request.

Served is a loaded model with its files. Service adds the queues in front of it. Models holds the current Service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from superbloom.answers import Found
from superbloom.config import Settings
from superbloom.config.serving import PUBLISHED_LIMITS
from superbloom.errors import UnknownNameError
from superbloom.predict import Predictor, Query
from superbloom.serve.errors import RefusedError
from superbloom.serve.gather import BusyError, Gatherer
from superbloom.serve.metrics import Metrics
from superbloom.serve.processes import warm_queries
from superbloom.serve.workers import Workers
from superbloom.storage import Mapped
from superbloom.version import __version__

TURN_SECONDS = 0.001
MAX_TURN_SECONDS = 0.1  # the longest time that an answer is held back
MAX_LOOKUPS_PER_BATCH = 8  # then the clients of these look-ups are answered
DEADLINE_SHARE = 0.95  # of the allowed seconds; the rest is for sending the refusal in time
CHANGED_MESSAGE = (
    "{} was changed in place while it was served; reload the model (SIGHUP or POST /v1/reload). To replace a model, "
    "copy it to a new folder and rename that, or serve with --copy"
)


@dataclass(frozen=True)
class Served:
    """A predictor, its name, its training, its measurements, and its memory-mapped files.

    workers: the processes that compute; the predictor then reads names only. None: this process computes.
    """

    predictor: Predictor
    name: str = "model"
    training: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    mapped: Mapped = field(default_factory=Mapped)
    workers: Workers | None = None
    precision: str | None = None  # of the weights in the workers

    @property
    def lanes(self) -> int:
        """Number of batches that are computed at the same time."""
        return 1 if self.workers is None else self.workers.number

    @property
    def change(self) -> str | None:
        """One line if a mapped file was changed in place: the model is no longer the one that was verified."""
        name = self.mapped.changed()
        return None if name is None else CHANGED_MESSAGE.format(name)

    def check_unchanged(self) -> None:
        if line := self.change:
            raise RefusedError.busy(line, 5)

    def answer(self, queries: Sequence[Query]) -> list[list[Found]]:
        with self._unchanged():
            return (self.predictor if self.workers is None else self.workers).answer(queries)

    def look_up(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        with self._unchanged():
            return [call() for call in calls]

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Refuse with 503 if the model was changed before the answer was computed, or meanwhile."""
        self.check_unchanged()  # to read a file that was cut short would kill the process
        try:
            yield
        finally:
            self.check_unchanged()


class Service:
    """A model and the queues in front of it: one for predictions, one for look-ups of names."""

    def __init__(self, served: Served, settings: Settings, metrics: Metrics) -> None:
        self.served, self.settings = served, settings
        self.predictor = served.predictor
        rows = min(settings.batch, self.predictor.chunk)
        self.gatherer: Gatherer[Query, list[Found]] = Gatherer(
            self._answer, max_rows=rows, max_waiting=settings.queue, lanes=served.lanes, watch=metrics.watch_batch
        )
        self._metrics = metrics
        if served.workers is not None:
            served.workers.watch_retry = metrics.fallback.labels("worker_ended").inc
            served.workers.watch_end = metrics.worker_restarts.inc
        # One thread does all look-ups, so that a flood of them leaves time for predictions.
        self.lookups: Gatherer[Callable[[], Any], Any] = Gatherer(
            served.look_up, max_rows=MAX_LOOKUPS_PER_BATCH, max_waiting=settings.queue
        )
        self.num_users = 0  # requests that use it now

    def _answer(self, queries: Sequence[Query]) -> list[list[Found]]:
        try:
            answers = self.served.answer(queries)
        except Exception:
            if len(queries) > 1:  # the gatherer computes them one by one now
                self._metrics.fallback.labels("batch_failed").inc()
            raise
        self._metrics.watch_answers(answers)
        return answers

    async def retire(self) -> None:
        """Answer the requests that use this service, then end its threads."""
        while self.num_users:
            await asyncio.sleep(0.01)
        await self.gatherer.close()
        await self.lookups.close()
        if self.served.workers is not None:
            self.served.workers.close()

    @property
    def max_context(self) -> int:
        """The most names of a context: what the model reads, or less by the settings."""
        model = self.predictor.model
        reads = model.config.seq_len - (2 if model.vocab.is_text else 0)
        return min(reads, self.settings.max_context or reads)

    def limits(self) -> dict[str, Any]:
        """The limits that clients need to know, by their names in GET /v1/model."""
        of_the_model = {
            "max_k": min(self.settings.max_k, len(self.predictor.model.target_vocab)),
            "max_context": self.max_context,
        }
        return {shown: of_the_model.get(name, getattr(self.settings, name)) for name, shown in PUBLISHED_LIMITS.items()}

    def card(self) -> dict[str, Any]:
        """A Card as JSON."""
        model, training = self.predictor.model, self.served.training
        config, is_text = model.config, model.vocab.is_text
        return {
            "name": self.served.name,
            "version": __version__,
            "reads": "text" if is_text else "names",
            "num_ids": len(model.target_vocab),
            "num_hashes": config.num_hashes,
            "num_buckets": config.output_buckets,
            "alpha": config.alpha,
            "dim": config.dim,
            "layers": config.layers,
            "seq_len": config.seq_len,
            "parameters": model.network.num_parameters(),
            "precision": self.served.precision or self.predictor.head.precision,
            "prior": self.predictor.prior and self.predictor.model.prior is not None,
            "memory": None if self.predictor.memory is None else self.predictor.memory.kind,
            "separate_targets": model.vocab is not model.target_vocab,
            "leaves_out_context": model.leaves_out_context,
            "steps": training.get("steps"),
            "trained_seconds": training.get("seconds"),
            "examples": _examples(self.predictor),
            "limits": self.limits(),
        }


def _examples(predictor: Predictor) -> list[str] | list[list[str]]:
    """Contexts to start with. Their names are frequent, so the model has probably learned them."""
    vocab = predictor.model.vocab
    if vocab.is_text:
        return ["The capital of Denmark is [MASK].", "He was born in [MASK] and died in [MASK]."]
    ids = [(0, 1), (5,), (20, 30), (100,)]
    return [vocab.names(some) for some in ids if max(some) < len(vocab)]


class Models:
    """The current service; None until the first model is loaded."""

    def __init__(self, load: Callable[[], Served], settings: Settings, metrics: Metrics) -> None:
        self._load, self.settings, self.metrics = load, settings, metrics
        self._service: Service | None = None
        self._is_loading = False
        self._retiring: set[asyncio.Task[None]] = set()
        self.is_draining = False

    @property
    def service(self) -> Service:
        """The current service; it also answers while the server is stopping."""
        if self._service is None:
            raise RefusedError.busy("the model is being loaded; try again in a moment", 1)
        self._service.served.check_unchanged()
        return self._service

    @contextmanager
    def use(self) -> Iterator[Service]:
        """The current service, which stays until the block ends, even if a reload replaces it."""
        service = self.service
        service.num_users += 1
        try:
            yield service
        finally:
            service.num_users -= 1

    @property
    def change(self) -> str | None:
        """The line to refuse everything with if a mapped file was changed in place, else None."""
        return None if self._service is None else self._service.served.change

    @property
    def num_workers(self) -> int:
        """Processes that can compute, which may be this one."""
        if self._service is None:
            return 0
        workers = self._service.served.workers
        return 1 if workers is None else workers.num_alive

    def waiting_rows(self) -> int:
        return 0 if self._service is None else self._service.gatherer.waiting

    def busy_seconds(self) -> float:
        """How long the current batch has been computed; 0 if there is none."""
        return 0.0 if self._service is None else self._service.gatherer.busy_seconds

    def deadline(self, began: float, *seconds: float | None) -> float:
        """When a request that began then must be answered: the least of the server's limit and its own ones."""
        return began + DEADLINE_SHARE * min([self.settings.seconds, *filter(None, seconds)])

    def check_ready(self) -> None:
        """Refuse a new request if the server stops, or if no model can answer."""
        if self.is_draining:
            raise RefusedError.busy("the server is stopping; use another, or try again in a moment", 5)
        assert self.service
        if not self.num_workers:
            raise RefusedError.busy("the model processes are being replaced; try again in a moment", 1)

    @property
    def is_lost(self) -> bool:
        """Whether workers that end are no longer replaced, because the process that holds the model has ended."""
        workers = None if self._service is None else self._service.served.workers
        return workers is not None and workers.is_lost and not self._is_loading

    def check_room(self) -> None:
        """Refuse a prediction that would be refused later anyway, before its body is read."""
        self.check_ready()
        gatherer = self.service.gatherer
        if gatherer.is_full:
            raise RefusedError.busy("too many requests are waiting; try again in a moment", gatherer.retry_after)

    async def give_way(self) -> None:
        """While a batch is computed, let callers pass one by one, TURN_SECONDS apart; none waits for long.

        subtle: an event loop that is never idle releases Python's lock and takes it back before the thread of the
        batch wakes up. Two clients that requested /health without pause made a prediction take 100 times as long.
        """
        if not self.busy_seconds():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_TURN_SECONDS), self._turn:
                if self.busy_seconds():
                    await asyncio.sleep(TURN_SECONDS)

    async def find_closest(self, error: UnknownNameError, deadline: float) -> None:
        """Find the known names that are closest to an unknown one; none if there is no time."""
        with self.use() as service:
            try:
                await service.lookups.submit(lambda: error.closest, 1, deadline)
            except BusyError:
                error.closest = []

    async def load(self) -> Service:
        """Load the model. If there is one already, it answers until the new one can."""
        if self._is_loading:
            raise RefusedError(409, "a model is already being loaded; try again later")
        self._is_loading = True
        self._turn = asyncio.Lock()  # created here, because it belongs to the running event loop
        try:
            served = await asyncio.to_thread(self._load_warm)
        finally:
            self._is_loading = False
        old, self._service = self._service, Service(served, self.settings, self.metrics)
        if old is not None:
            self.metrics.reloads.inc()
            retiring = asyncio.create_task(old.retire())
            self._retiring.add(retiring)
            retiring.add_done_callback(self._retiring.discard)
        return self._service

    def _load_warm(self) -> Served:
        """Load the model and query it once: what is computed on first use, and its mapped files, are then in memory."""
        served = self._load()
        predictor = served.predictor
        try:
            served.answer(warm_queries(predictor))
        except BaseException:
            if served.workers is not None:
                served.workers.close()
            raise
        for vocab in (predictor.model.vocab, predictor.model.target_vocab):
            assert vocab.folded  # otherwise the first name that is not typed exactly takes seconds
        return served

    async def close(self) -> None:
        """Answer all requests, then end the threads of all services."""
        await asyncio.gather(*self._retiring, *([] if self._service is None else [self._service.retire()]))
