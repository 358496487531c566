"""Clients of a server, for tools/load.py: many at once over loopback, each answer checked.

A closed client asks again as soon as it is answered; open arrivals come at a rate whatever the server does. Plain
sockets, so that the clients take little of the processor that the server needs. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

CLOSE = 1e-4  # scores of the same query, in another batch
HANGS = 60.0  # seconds after which no answer is expected any more


class Connection:
    """One client's keep-alive connection."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.reader: asyncio.StreamReader | None = None

    async def ask(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body; status 0 if there was no answer. A connection that idled too long is made again."""
        idle = self.reader is not None
        try:
            async with asyncio.timeout(HANGS):
                answer = await self._ask(request)
                return await self._ask(request) if idle and not answer[0] else answer
        except TimeoutError:
            self.close()
            return 0, {}, b""

    async def _ask(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        try:
            if self.reader is None:
                self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
            self.writer.write(request)
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
            if headers.get("connection") == "close":
                self.close()
            return int(head[0].split()[1]), headers, body
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            return 0, {}, b""

    def close(self) -> None:
        if self.reader is not None:
            self.writer.close()
            self.reader = None


class Tally:
    """What came back: latencies of right answers, statuses, wrong answers."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.refused: list[float] = []
        self.statuses: Counter[int] = Counter()
        self.wrong = self.no_retry_after = self.late = self.in_time = 0

    def add(self, query: dict[str, Any], began: float, status: int, headers: dict[str, str], body: bytes) -> None:
        took = time.perf_counter() - began
        self.statuses[status] += 1
        if status == 200:
            self.seconds.append(took)
            self.wrong += not right(query, json.loads(body))
            self.in_time += took <= query["seconds"]
        else:
            self.refused.append(took)
            self.no_retry_after += status == 503 and "retry-after" not in headers
        self.late += took > query["seconds"]

    def figures(self, seconds: float) -> dict[str, Any]:
        return {
            "rate": len(self.seconds) / seconds,
            **{f"p{q}": quantile(self.seconds, q / 100) for q in (50, 95, 99)},
            "p99 refused": quantile(self.refused, 0.99),
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            "wrong": self.wrong,
            "in time": self.in_time,
            "503 without Retry-After": self.no_retry_after,
            "later than its deadline": self.late,
        }


def right(query: dict[str, Any], answer: dict[str, Any]) -> bool:
    found = answer["masks"][0]["predictions"]
    same = [prediction["name"] for prediction in found] == query["names"]
    scores = zip((prediction["score"] for prediction in found), query["scores"], strict=False)
    return same and all(abs(score - expected) < CLOSE for score, expected in scores)


def quantile(values: list[float], share: float) -> float | None:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


def requests_of(path: Path) -> list[tuple[dict[str, Any], bytes]]:
    made = []
    for query in json.loads(path.read_text(encoding="utf-8")):
        body = json.dumps(query["body"]).encode()
        head = ("POST /v1/predict HTTP/1.1", "host: localhost", "content-type: application/json")
        made.append((query, "\r\n".join((*head, f"content-length: {len(body)}", "", "")).encode() + body))
    return made


async def closed(port: int, asked: list[tuple[dict[str, Any], bytes]], clients: int, seconds: float) -> Tally:
    tally, end = Tally(), time.perf_counter() + seconds

    async def client(number: int) -> None:
        connection, draw = Connection(port), random.Random(number)
        while time.perf_counter() < end:
            query, request = draw.choice(asked)
            began = time.perf_counter()
            tally.add(query, began, *await connection.ask(request))
        connection.close()

    await asyncio.gather(*map(client, range(clients)))
    return tally


async def arriving(port: int, asked: list[tuple[dict[str, Any], bytes]], rate: float, seconds: float) -> Tally:
    tally, draw, free, tasks = Tally(), random.Random(0), [], set()
    start = due = time.perf_counter()

    async def one(query: dict[str, Any], request: bytes, began: float) -> None:
        connection = free.pop() if free else Connection(port)
        tally.add(query, began, *await connection.ask(request))
        free.append(connection)

    while due < start + seconds:
        due += draw.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        task = asyncio.create_task(one(*draw.choice(asked), time.perf_counter()))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    for connection in free:
        connection.close()
    return tally


async def health(port: int, every: float, seconds: list[float]) -> None:
    connection = Connection(port)
    while True:
        began = time.perf_counter()
        await connection.ask(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        seconds.append(time.perf_counter() - began)
        await asyncio.sleep(every)


async def run(given: argparse.Namespace) -> dict[str, Any]:
    asked, checks = requests_of(given.queries), []
    checking = asyncio.create_task(health(given.port, given.every, checks)) if given.health else None
    began = time.perf_counter()
    if given.rate:
        tally = await arriving(given.port, asked, given.rate, given.seconds)
    else:
        tally = await closed(given.port, asked, given.clients, given.seconds)
    took = time.perf_counter() - began
    if checking is not None:
        checking.cancel()
    return tally.figures(took) | {"seconds": took, "health p99": quantile(checks, 0.99)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--queries", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--rate", type=float, help="arrivals a second, instead of clients that wait for their answers")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--health", action="store_true", help="ask /health meanwhile")
    parser.add_argument("--every", type=float, default=0.2, help="seconds between two questions to /health")
    print(json.dumps(asyncio.run(run(parser.parse_args()))))
