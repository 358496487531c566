"""How fast does a server answer over loopback, how much does gathering bring, and what happens when it is too much?

    make       a model folder of 5,281,889 names, d=768, α=50, m=2, with random weights
    queries    queries with the answers each gets alone; the others make them, too
    load       1, 8, 32 and 128 clients, gathered and one by one, fp32, bf16 and int8; every answer checked
    overload   ten times as many arrivals as it can answer
    soak       ten minutes at 80 % of the highest rate: errors and memory
    names      completing names, and the name of a digest
    start      from the command to ready, and what a second server on the same folder takes
    report     the tables into docs/playground.md

Random weights, scaled so that logits have a standard deviation of 3: with weights as they are drawn all names are
equally likely, and no search is needed to say so. Results: benchmarks/results/serve.json.
"""

from __future__ import annotations

import argparse
import json
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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from record import between_marks, keep, markdown

HERE = Path(__file__).parent
RESULTS, DOC = HERE / "results" / "serve.json", HERE.parent / "docs" / "playground.md"
NUM_IDS = 5_281_889
CLIENTS = (1, 8, 32, 128)
PRECISIONS = ("fp32", "bf16", "int8")
QUERIES, K, LONGEST = 256, 10, 12
DEADLINE = 10.0


def make(given: argparse.Namespace, _: dict[str, Any]) -> None:
    """The model folder, and queries with the answers each gets alone."""
    import torch

    from superbloom import store
    from superbloom.config import ModelConfig
    from superbloom.model import Model
    from superbloom.prepare.bundled import LINKS
    from superbloom.prepare.sequences import read_sequences
    from superbloom.vocab import Vocab

    known = sorted({name for _, row in read_sequences([LINKS], keyed=True) for name in row})
    rng = np.random.default_rng(0)
    names = list(known[: given.ids])
    while len(names) < given.ids:  # pairs of real names, numbered so that each is there once
        pairs = rng.integers(len(known), size=(given.ids - len(names), 2))
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
    store.save(model, given.work / "model", training={}, metrics={})


def queries(given: argparse.Namespace, _: dict[str, Any]) -> None:
    for precision in given.precisions:
        queries_of(given, precision)


def queries_of(given: argparse.Namespace, precision: str) -> Path:
    """Queries with the answers they get alone, by the same head."""
    path = given.work / f"queries-{precision}.json"
    if path.exists():
        return path
    from superbloom import Predictor, store

    predictor = Predictor(store.load(given.work / "model").model, precision=precision)
    draw, queries = random.Random(1), []
    for _ in range(QUERIES):
        context = predictor.model.vocab.names(draw.choices(range(given.ids), k=draw.randint(1, LONGEST)))
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
        command = [sys.executable, str(HERE / "serve_client.py"), f"--port={self.port}", f"--queries={queries}", *flags]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}") as answer:
            return answer.read()

    def memory(self, kind: str = "Rss") -> float:
        """Megabytes of this process: Rss, or Pss, in which shared pages are divided among those that share them."""
        text = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        return int(re.search(rf"^{kind}:\s+(\d+)", text, re.M)[1]) / 1000  # type: ignore[index]

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


def load(given: argparse.Namespace, results: dict[str, Any]) -> None:
    cells = results.setdefault("load", {})
    for precision in given.precisions:
        queries = queries_of(given, precision)
        ways = {"gathered": (), "one by one": ("--batch", "1")}
        for way, options in ways.items():
            with serving(given.work, "--precision", precision, *options) as server:
                server.clients(queries, clients=8, seconds=3)  # warm
                for clients in CLIENTS:
                    found = server.clients(queries, clients=clients, seconds=given.seconds)
                    found["batch"] = mean_batch(server)
                    cells.setdefault(precision, {}).setdefault(way, {})[str(clients)] = found
                    print(f"{precision}, {way}, {clients} clients: {shown(found)}", flush=True)
        keep(RESULTS, results)


def mean_batch(server: Server) -> float:
    text = server.get("/metrics").decode()
    rows, count = (
        float(re.search(rf"^superbloom_batch_rows_{kind} (\S+)", text, re.M)[1]) for kind in ("sum", "count")
    )  # type: ignore[index]
    return rows / count


def shown(found: dict[str, Any]) -> str:
    half, most = (1000 * found[name] for name in ("p50", "p99"))
    return f"{found['rate']:.1f}/s, p50 {half:.0f} ms, p99 {most:.0f} ms, {found['statuses']}, {found['wrong']} wrong"


def highest(results: dict[str, Any]) -> tuple[str, float]:
    """The precision that answers most, and how many a second."""
    rates = {
        precision: max(cell["rate"] for cell in ways["gathered"].values())
        for precision, ways in results["load"].items()
    }
    best = max(rates, key=lambda precision: rates[precision])
    return best, rates[best]


def overload(given: argparse.Namespace, results: dict[str, Any]) -> None:
    precision, capacity = highest(results)
    queries = queries_of(given, precision)
    cells = results.setdefault("overload", {})
    for times in (1, 3, 10):
        with serving(given.work, "--precision", precision) as server:
            server.clients(queries, clients=8, seconds=3)
            before = server.memory()
            found = server.clients(queries, rate=times * capacity, seconds=given.seconds, health=True)
            found |= {"memory": server.memory() - before, "after": server.clients(queries, clients=1, seconds=3)}
        found["precision"], found["arrivals"] = precision, times * capacity
        cells[str(times)] = found
        print(f"{times} × {capacity:.0f}/s: {shown(found)}; health p99 {found['health p99']:.3f} s", flush=True)
    keep(RESULTS, results)


def soak(given: argparse.Namespace, results: dict[str, Any]) -> None:
    precision, capacity = highest(results)
    queries, memory = queries_of(given, precision), []
    with serving(given.work, "--precision", precision) as server:
        server.clients(queries, clients=8, seconds=3)
        flags = {"rate": 0.8 * capacity, "seconds": given.soak, "health": True}
        with server.started_clients(queries, **flags) as clients:
            while clients.poll() is None:
                memory.append(server.memory())
                time.sleep(2)
            found = json.loads(clients.stdout.read())  # type: ignore[union-attr]
    half = memory[len(memory) // 2 :]
    found |= {
        "precision": precision,
        "arrivals": 0.8 * capacity,
        "memory": memory,
        "growth": max(half) - sum(half) / len(half),
    }
    results["soak"] = found
    print(f"soak: {shown(found)}; memory {memory[0]:.0f} … {memory[-1]:.0f} MB", flush=True)
    keep(RESULTS, results)


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


def names(given: argparse.Namespace, results: dict[str, Any]) -> None:
    from superbloom.vocab import Vocab

    vocab, draw = Vocab.open(given.work / "model" / "vocab.arrow"), random.Random(3)
    prefixes = typed(vocab, 400)
    with serving(given.work) as server:
        took: dict[str, list[float]] = {"names": [], "one letter": [], "name": []}
        for prefix, seconds in zip(prefixes, completing(server, prefixes), strict=True):
            took["one letter" if len(prefix) == 1 else "names"].append(seconds)
        for _ in range(100):
            name = urllib.parse.quote(vocab.name(draw.randrange(len(vocab))), safe="")
            began = time.perf_counter()
            server.get(f"/v1/names/{name}")
            took["name"].append(time.perf_counter() - began)
    results["names"] = {
        name: {f"p{q}": float(np.quantile(seconds, q / 100)) for q in (50, 95, 99)} for name, seconds in took.items()
    }
    print(results["names"])
    keep(RESULTS, results)


def start(given: argparse.Namespace, results: dict[str, Any]) -> None:
    found = results.setdefault("start", {})
    for precision in given.precisions:
        seconds = []
        for _ in range(3):
            with serving(given.work, "--precision", precision) as server:
                seconds.append(server.seconds_to_ready)
        with (
            serving(given.work, "--precision", precision) as one,
            serving(given.work, "--precision", precision) as other,
        ):
            memory = {"first": one.memory("Pss"), "second": other.memory("Pss"), "rss": other.memory()}
        found[precision] = {"seconds": seconds, "Pss of two": memory}
        print(precision, found[precision], flush=True)
    keep(RESULTS, results)


def report(_: argparse.Namespace, results: dict[str, Any]) -> None:
    rows = []
    for precision, ways in results["load"].items():
        for clients in map(str, CLIENTS):
            cells = [ways[way][clients] for way in ("gathered", "one by one")]
            rows.append(
                [precision, clients]
                + [
                    part
                    for c in cells
                    for part in (f"{c['rate']:.0f}", f"{1000 * c['p50']:.0f}", f"{1000 * c['p99']:.0f}")
                ]
                + [f"{cells[0]['rate'] / cells[1]['rate']:.1f} ×", str(sum(c["wrong"] for c in cells))]
            )
    header = [
        "head",
        "clients",
        "a second",
        "p50 ms",
        "p99 ms",
        "one by one, a second",
        "p50 ms",
        "p99 ms",
        "gathering",
        "wrong",
    ]
    overloaded = [
        [
            f"{times} ×",
            f"{found['arrivals']:.0f}",
            f"{found['rate']:.0f}",
            f"{1000 * found['p50']:.0f}, {1000 * found['p99']:.0f}",
            ", ".join(f"{count:,} × {status}" for status, count in found["statuses"].items()),
            f"{1000 * found['p99 refused']:.0f}" if found["p99 refused"] else "",
            f"{1000 * found['health p99']:.0f}",
            str(found["later than its deadline"]),
            f"{found['memory']:+.0f}",
            f"{1000 * found['after']['p50']:.0f}",
        ]
        for times, found in results["overload"].items()
    ]
    above = [
        "arrivals", "a second", "answered", "p50, p99 ms", "answers", "p99 of refusals, ms", "/health p99, ms",
        "past the deadline", "memory, MB", "one client after, p50 ms",
    ]  # fmt: skip
    between_marks(DOC, {"load": markdown(header, rows), "overload": markdown(above, overloaded)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {part.__name__: part for part in (make, queries, load, overload, soak, names, start, report)}
    parser.add_argument("what", nargs="+", choices=parts)
    parser.add_argument("--work", type=Path, default=Path("serve-runs"), help="folder for the model and queries")
    parser.add_argument("--ids", type=int, default=NUM_IDS)
    parser.add_argument("--precisions", nargs="*", default=list(PRECISIONS), choices=PRECISIONS)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each cell")
    parser.add_argument("--soak", type=float, default=600.0, help="seconds")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for what in given.what:
        parts[what](given, results)


if __name__ == "__main__":
    main()
