"""Counts and times for Prometheus, of one server."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Metrics:
    """Metrics with a registry of their own, so that several servers may live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "superbloom_requests",
            "Requests by what was asked and how it ended.",
            ["path", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "superbloom_request_seconds",
            "From the request to its answer.",
            ["path"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.batch_rows = Histogram(
            "superbloom_batch_rows", "Contexts computed together.", buckets=ROWS, registry=self.registry
        )
        self.batch_seconds = Histogram(
            "superbloom_batch_seconds", "Time of a batch.", buckets=SECONDS, registry=self.registry
        )
        self.waiting = Gauge("superbloom_waiting_rows", "Contexts that wait.", registry=self.registry)
        self.in_flight = Gauge("superbloom_requests_in_flight", "Requests not answered yet.", registry=self.registry)
        self.reloads = Counter("superbloom_reloads", "Models put in place while serving.", registry=self.registry)

    def watch_batch(self, rows: int, seconds: float) -> None:
        self.batch_rows.observe(rows)
        self.batch_seconds.observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)
