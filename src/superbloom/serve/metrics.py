"""The metrics of one server, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
ROWS_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Metrics:
    """The metrics, in a registry of their own: a process may hold several servers."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "superbloom_requests",
            "Requests by route and status.",
            ["path", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "superbloom_request_seconds",
            "Seconds from a request to its answer.",
            ["path"],
            buckets=SECONDS_BOUNDS,
            registry=self.registry,
        )
        self.batch_rows = Histogram(
            "superbloom_batch_rows", "Contexts of a batch.", buckets=ROWS_BOUNDS, registry=self.registry
        )
        self.batch_seconds = Histogram(
            "superbloom_batch_seconds", "Seconds of a batch.", buckets=SECONDS_BOUNDS, registry=self.registry
        )
        self.waiting = Gauge("superbloom_waiting_rows", "Contexts in the queue.", registry=self.registry)
        self.in_flight = Gauge("superbloom_requests_in_flight", "Requests not answered yet.", registry=self.registry)
        self.reloads = Counter("superbloom_reloads", "Models loaded in place of another.", registry=self.registry)

    def watch_batch(self, rows: int, seconds: float) -> None:
        self.batch_rows.observe(rows)
        self.batch_seconds.observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)
