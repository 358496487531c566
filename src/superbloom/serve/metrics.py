"""The metrics of one server, for Prometheus. The HTTP process counts everything, whatever the number of workers."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from superbloom.answers import Found

SECONDS_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SIZE_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
FALLBACKS = ("all_scored", "worker_ended", "batch_failed")


class Metrics:
    """The metrics, in a registry of their own: a process may hold several servers."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "superbloom_requests", "Requests by route and status code.", ["path", "code"], registry=registry
        )
        self.seconds = Histogram(
            "superbloom_request_duration_seconds",
            "Seconds from a request to its answer.",
            ["path"],
            buckets=SECONDS_BOUNDS,
            registry=registry,
        )
        self.in_flight = Gauge("superbloom_requests_in_flight", "Requests not answered yet.", registry=registry)
        self.batch_size = Histogram(
            "superbloom_batch_size", "Contexts computed together.", buckets=SIZE_BOUNDS, registry=registry
        )
        self.batch_seconds = Histogram(
            "superbloom_batch_duration_seconds", "Seconds of a batch.", buckets=SECONDS_BOUNDS, registry=registry
        )
        self.queue_length = Gauge("superbloom_queue_length", "Contexts that wait for a batch.", registry=registry)
        self.certified = Counter(
            "superbloom_certified",
            "Answers, one per mask, by whether no other name can have a higher score.",
            ["certified"],
            registry=registry,
        )
        self.fallback = Counter(
            "superbloom_fallback",
            "all_scored: answers for which every name was scored. worker_ended: batches computed again, because their "
            "worker ended. batch_failed: batches computed query by query, because they failed.",
            ["reason"],
            registry=registry,
        )
        self.workers = Gauge("superbloom_workers", "Processes that can compute.", registry=registry)
        self.worker_restarts = Counter("superbloom_worker_restarts", "Workers that ended.", registry=registry)
        self.reloads = Counter("superbloom_reloads", "Models loaded in place of another.", registry=registry)
        for certified in ("true", "false"):
            self.certified.labels(certified)
        for reason in FALLBACKS:
            self.fallback.labels(reason)

    def watch_batch(self, rows: int, seconds: float) -> None:
        self.batch_size.observe(rows)
        self.batch_seconds.observe(seconds)

    def watch_answers(self, answers: Sequence[Sequence[Found]]) -> None:
        masks = [found for answer in answers for found in answer]
        certified = sum(found.certified for found in masks)
        self.certified.labels("true").inc(certified)
        self.certified.labels("false").inc(len(masks) - certified)
        self.fallback.labels("all_scored").inc(sum(not found.rounds for found in masks))

    def text(self) -> bytes:
        return generate_latest(self.registry)
