"""A server under load: a large model without training, queries with known answers, a server process, its clients.

A folder `work` holds model/ and queries-PRECISION.json. benchmarks/serve.py, benchmarks/neighbour.py and the load tests
use it:

    make_model(work / "model", 5_281_889)
    queries = queries_of(work, "fp32")
    with serving(work, "--batch", "1") as server:
        server.clients(queries, clients=8, seconds=3)["p95"]
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

QUERIES, K, LONGEST = 256, 10, 12
DEADLINE = 10.0  # seconds that a query may take


def make_model(folder: Path, num_ids: int) -> None:
    """Save a model of so many names with random weights, scaled so that logits have a standard deviation of 3."""
    import torch

    from superbloom.config.model import ModelConfig
    from superbloom.corpus.vocab import Vocab
    from superbloom.model.model import Model
    from superbloom.prepare.bundled import LINKS
    from superbloom.prepare.sequences import read_sequences
    from superbloom.store import model_folder as store

    known = sorted({name for _, row in read_sequences([LINKS], keyed=True) for name in row})
    rng = np.random.default_rng(0)
    names = list(known[:num_ids])
    while len(names) < num_ids:  # pairs of real names, numbered so that each is there once
        pairs = rng.integers(len(known), size=(num_ids - len(names), 2))
        names += [f"{known[a]} {known[b]} {len(names) + i}" for i, (a, b) in enumerate(pairs)]
    order = rng.permutation(len(names))
    counts = np.sort(1 + rng.zipf(1.5, len(names)).clip(max=10**6))[::-1].copy()
    vocab, _ = Vocab.from_arrays([names[i] for i in order], counts)
    torch.manual_seed(0)
    model = Model.create(ModelConfig(num_ids=len(vocab), alpha=50, dim=768, heads=12, ffn_dim=3072), vocab)
    ids = torch.randint(len(vocab), (8, 8))
    y = model.encode_only(ids, torch.zeros(8, 1, dtype=torch.long)).flatten(0, 1)
    weight, bias = model.network.output_layer()
    with torch.no_grad():
        model.network.embedding.weight *= 3 / (y @ weight[0, :1000].T).std()
        if bias is not None:
            bias.zero_()
    store.save(model, folder, training={}, metrics={})


def queries_of(work: Path, precision: str) -> Path:
    """A file of queries with the answers they get alone, by the same head; made if it is not there."""
    path = work / f"queries-{precision}.json"
    if path.exists():
        return path
    from superbloom import Predictor
    from superbloom.store import model_folder as store

    predictor = Predictor(store.load(work / "model").model, precision=precision)
    draw, queries = random.Random(1), []
    for _ in range(QUERIES):
        context = predictor.model.vocab.names(
            draw.choices(range(len(predictor.model.vocab)), k=draw.randint(1, LONGEST))
        )
        found = predictor.predict(context, K)[0]
        body = {"context": context, "k": K}
        answers = {"names": [p.name for p in found], "scores": [p.score for p in found]}
        queries.append({"body": body, "seconds": DEADLINE, **answers})
    path.write_text(json.dumps(queries), encoding="utf-8")
    return path


class Server:
    """A process of `superbloom serve`; `before` is Python that it runs first."""

    def __init__(self, model: Path, *options: str, before: str = "") -> None:
        began = time.perf_counter()
        program = f"{before}\nfrom superbloom.cli import main\nmain()"
        command = [sys.executable, "-c", program, "serve", str(model), "--port", "0", "--no-browser"]
        self.process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if found := re.search(r"at http://127\.0\.0\.1:(\d+)/", line):
                self.port = int(found[1])
                break
        else:
            sys.exit("".join(lines))
        self.seconds_to_ready = time.perf_counter() - began
        self.reading = threading.Thread(target=self.process.stderr.read)  # a full pipe would stop it
        self.reading.start()

    def clients(self, queries: Path, **options: Any) -> dict[str, Any]:
        with self.started_clients(queries, **options) as clients:
            return json.loads(clients.stdout.read())  # type: ignore[union-attr]

    def started_clients(self, queries: Path, **options: Any) -> subprocess.Popen[str]:
        flags = [f"--{name}={value}" if value is not True else f"--{name}" for name, value in options.items()]
        command = [
            sys.executable,
            str(Path(__file__).with_name("clients.py")),
            f"--port={self.port}",
            f"--queries={queries}",
            *flags,
        ]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}") as answer:
            return answer.read()

    def memory(self) -> float:
        """Megabytes of the server and the processes behind it; pages that several share are counted once."""
        kilobytes = 0
        for process in self._processes():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                text = Path(f"/proc/{process}/smaps_rollup").read_text()
                kilobytes += int(re.search(r"^Pss:\s+(\d+)", text, re.M)[1])  # type: ignore[index]
        return kilobytes / 1000

    def cpu_seconds(self) -> float:
        """Processor time of the server and the processes behind it."""
        ticks = 0
        for process in self._processes():
            with suppress(FileNotFoundError, ProcessLookupError):
                ticks += sum(map(int, Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def _processes(self) -> list[int]:
        found = [self.process.pid]
        for process in found:
            with suppress(FileNotFoundError, ProcessLookupError):
                found += map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())
        return found

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()
            self.reading.join()
            self.process.stderr.close()  # type: ignore[union-attr]


@contextmanager
def serving(work: Path, *options: str, before: str = "") -> Iterator[Server]:
    server = Server(work / "model", *options, before=before)
    try:
        yield server
    finally:
        code = server.stop()
        if code:
            print(f"the server ended with {code}", file=sys.stderr)


def typed(vocab: Any, number: int) -> list[str]:
    """Prefixes as they are typed: the first letters of names, 1 to 8 of them."""
    draw = random.Random(2)
    return [vocab.name(draw.randrange(len(vocab)))[: 1 + i % 8] for i in range(number)]


def completing(server: Server, prefixes: list[str]) -> list[float]:
    """Seconds that each completion takes."""
    took = []
    for prefix in prefixes:
        began = time.perf_counter()
        server.get(f"/v1/names?prefix={urllib.parse.quote(prefix)}")
        took.append(time.perf_counter() - began)
    return took
