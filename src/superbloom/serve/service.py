"""The model that is served: loaded off the event loop, warmed before it is asked, replaced without losing a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from superbloom.answers import Found
from superbloom.config import Settings
from superbloom.predict import Predictor, Query
from superbloom.serve.gather import Gatherer
from superbloom.serve.guard import RefusedError
from superbloom.serve.metrics import Metrics
from superbloom.special import MASK_TEXT
from superbloom.storage import Mapped
from superbloom.version import __version__

TURN_SECONDS = 0.001
MAX_TURN_SECONDS = 0.1  # that an answer is held back
LOOKUPS_TOGETHER = 8  # after so many, those that were looked up are answered
CHANGED = (
    "{} was changed in place while it was served; reload the model (SIGHUP or POST /v1/reload). To replace a model, "
    "copy it to a new folder and rename that, or serve with --copy"
)


@dataclass(frozen=True)
class Served:
    """A predictor with what is told of it: its name, how it was trained, what was measured; and its mapped files."""

    predictor: Predictor
    name: str = "model"
    training: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    mapped: Mapped = field(default_factory=Mapped)

    @property
    def changed(self) -> str | None:
        """One line if a mapped file was changed in place, so that the model is no longer the one that was verified."""
        name = self.mapped.changed()
        return None if name is None else CHANGED.format(name)

    def check_unchanged(self) -> None:
        if line := self.changed:
            raise RefusedError.busy(line, 5)

    def answer(self, queries: Sequence[Query]) -> list[list[Found]]:
        with self._unchanged():
            return self.predictor.answer(queries)

    def look_up(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        with self._unchanged():
            return [call() for call in calls]

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Answer from the verified model alone; 503 if it was changed, also while the answer was computed."""
        self.check_unchanged()  # to read what was cut short would end the process
        try:
            yield
        finally:
            self.check_unchanged()


class Service:
    """A model and the queue before it."""

    def __init__(self, served: Served, settings: Settings, metrics: Metrics) -> None:
        self.served, self.settings = served, settings
        self.predictor = served.predictor
        rows = min(settings.batch, self.predictor.chunk)
        self.gatherer: Gatherer[Query, list[Found]] = Gatherer(
            served.answer, most_rows=rows, most_waiting=settings.queue, watch=metrics.watch_batch
        )
        # Looking up names takes turns in one thread of its own, so that many who do it leave time for predictions.
        self.lookups: Gatherer[Callable[[], Any], Any] = Gatherer(
            served.look_up, most_rows=LOOKUPS_TOGETHER, most_waiting=settings.queue
        )
        self._users = 0

    @contextmanager
    def use(self) -> Iterator[Service]:
        """Whoever uses it is waited for before it goes."""
        self._users += 1
        try:
            yield self
        finally:
            self._users -= 1

    async def retire(self) -> None:
        while self._users:
            await asyncio.sleep(0.01)
        await self.gatherer.close()
        await self.lookups.close()

    @property
    def max_context(self) -> int:
        model = self.predictor.model
        reads = model.config.seq_len - (2 if model.vocab.is_text else 0)
        return min(reads, self.settings.max_context or reads)

    def card(self) -> dict[str, Any]:
        model, settings, training = self.predictor.model, self.settings, self.served.training
        config, text = model.config, model.vocab.is_text
        return {
            "name": self.served.name,
            "version": __version__,
            "reads": "text" if text else "names",
            "num_ids": len(model.target_vocab),
            "num_hashes": config.num_hashes,
            "num_buckets": config.output_buckets,
            "alpha": config.alpha,
            "dim": config.dim,
            "layers": config.layers,
            "seq_len": config.seq_len,
            "parameters": model.network.num_parameters(),
            "precision": self.predictor.head.precision,
            "prior": self.predictor.bonus is not None,
            "separate_targets": model.vocab is not model.target_vocab,
            "steps": training.get("steps"),
            "trained_seconds": training.get("seconds"),
            "examples": _examples(self.predictor),
            "limits": {
                "k": min(settings.max_k, len(model.target_vocab)),
                "context": self.max_context,
                "queries": settings.max_queries,
                "body_bytes": settings.max_body,
                "seconds": settings.seconds,
            },
        }


def _examples(predictor: Predictor) -> list[str] | list[list[str]]:
    """Something to begin with: frequent names, of which one can hope that they were learned."""
    vocab = predictor.model.vocab
    if vocab.is_text:
        return ["The capital of Denmark is [MASK].", "He was born in [MASK] and died in [MASK]."]
    ids = [(0, 1), (5,), (20, 30), (100,)]
    return [vocab.names(some) for some in ids if max(some) < len(vocab)]


class Models:
    """The service of now, None until the first is loaded."""

    def __init__(self, load: Callable[[], Served], settings: Settings, metrics: Metrics) -> None:
        self._load, self.settings, self.metrics = load, settings, metrics
        self._service: Service | None = None
        self._loading = False
        self._retiring: set[asyncio.Task[None]] = set()
        self.draining = False

    @property
    def service(self) -> Service:
        """For those that were taken, also while the server is stopping."""
        if self._service is None:
            raise RefusedError.busy("the model is being loaded; ask again in a moment", 1)
        self._service.served.check_unchanged()
        return self._service

    @property
    def changed(self) -> str | None:
        """The line to refuse everything with if a mapped file was changed in place, else None."""
        return None if self._service is None else self._service.served.changed

    def waiting(self) -> int:
        return 0 if self._service is None else self._service.gatherer.waiting

    def busy_for(self) -> float:
        """Seconds that the batch of now has taken so far."""
        return 0.0 if self._service is None else self._service.gatherer.busy_for

    def check_taking(self) -> None:
        """Refuse what is new, unless there is a model that can answer it."""
        if self.draining:
            raise RefusedError.busy("the server is stopping; ask another, or again in a moment", 5)
        assert self.service

    def shed(self) -> None:
        """Refuse what would only be refused later, before its body is read."""
        self.check_taking()
        gatherer = self.service.gatherer
        if gatherer.full:
            raise RefusedError.busy("too many requests are waiting; ask again in a moment", gatherer.retry_after)

    async def give_way(self) -> None:
        """While a batch is computed, let one caller after the other pass, TURN_SECONDS apart; none waits for long.

        subtle: an event loop that is never idle lets go of Python's lock and takes it back before the thread of the
        batch wakes up. Two clients that asked for /health without pause made a prediction take 100 times as long.
        """
        if not self.busy_for():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_TURN_SECONDS), self._turn:
                if self.busy_for():
                    await asyncio.sleep(TURN_SECONDS)

    async def load(self) -> Service:
        """Load the model, anew if there is one; the old one answers until the new one can."""
        if self._loading:
            raise RefusedError(409, "a model is being loaded already; wait until it is")
        self._loading = True
        self._turn = asyncio.Lock()  # here, because it belongs to the event loop that runs now
        try:
            served = await asyncio.to_thread(self._load_warm)
        finally:
            self._loading = False
        old, self._service = self._service, Service(served, self.settings, self.metrics)
        if old is not None:
            self.metrics.reloads.inc()
            retiring = asyncio.create_task(old.retire())
            self._retiring.add(retiring)
            retiring.add_done_callback(self._retiring.discard)
        return self._service

    def _load_warm(self) -> Served:
        """A model that has answered: what is computed on first use, and the pages of its files, are in memory."""
        served = self._load()
        predictor = served.predictor
        nothing: str | list[str] = MASK_TEXT if predictor.model.vocab.is_text else []
        predictor.answer([predictor.query(nothing, k) for k in (1, 10)])
        return served

    async def close(self) -> None:
        await asyncio.gather(*self._retiring, *([] if self._service is None else [self._service.retire()]))
