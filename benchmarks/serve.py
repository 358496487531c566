"""How fast does a server answer over loopback, how much does gathering bring, and what happens when it is too much?

    make       a model folder of 5,281,889 names, d=768, α=50, m=2, with random weights
    queries    queries with the answers each gets alone; the others make them, too
    load       1, 8, 32 and 128 clients, gathered and one by one, fp32, bf16 and int8; every answer checked
    workers    1, 8 and 32 clients of one worker and of two; resumes
    overload   ten times as many arrivals as it can answer
    soak       ten minutes at 80 % of the highest rate: errors and memory
    names      completing names, and the name of a digest
    start      from the command to ready, and what a second server on the same folder takes
    report     the tables into docs/serving.md

Random weights, scaled so that logits have a standard deviation of 3: with weights as they are drawn all names are
equally likely, and no search is needed to say so. Results: benchmarks/results/serve.json.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

from tools.load import Server, completing, make_model, queries_of, serving, typed
from tools.record import between_marks, keep, markdown

HERE = Path(__file__).parent
RESULTS, DOC = HERE / "results" / "serve.json", HERE.parent / "docs" / "serving.md"
NUM_IDS = 5_281_889
CLIENTS = (1, 8, 32, 128)
PRECISIONS = ("fp32", "bf16", "int8")


def make(given: argparse.Namespace, _: dict[str, Any]) -> None:
    make_model(given.work / "model", given.ids)


def queries(given: argparse.Namespace, _: dict[str, Any]) -> None:
    for precision in given.precisions:
        queries_of(given.work, precision)


def load(given: argparse.Namespace, results: dict[str, Any]) -> None:
    cells = results.setdefault("load", {})
    for precision in given.precisions:
        queries = queries_of(given.work, precision)
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


def workers(given: argparse.Namespace, results: dict[str, Any]) -> None:
    """Cells that are measured already stay; remove "workers" from the results to measure them again."""
    cells = results.setdefault("workers", {}).setdefault(f"{given.ids:,} names", {})
    ways = {"1 worker": ("--workers", "1"), "2 workers": ("--workers", "2")}
    if not (given.work / "model").is_dir():
        make_model(given.work / "model", given.ids)
    for precision in given.precisions:
        queries = queries_of(given.work, precision)
        for way, options in ways.items():
            kept = cells.setdefault(precision, {}).setdefault(way, {})
            for part, extra, asked in (("gathered", (), (1, 8, 32)), ("one by one", ("--batch", "1"), (32,))):
                missing = [clients for clients in asked if f"{part}, {clients}" not in kept]
                if not missing:
                    continue
                with serving(given.work, "--precision", precision, *options, *extra) as server:
                    server.clients(queries, clients=8, seconds=3)  # warm
                    for clients in missing:
                        began = server.cpu_seconds()
                        found = server.clients(queries, clients=clients, seconds=given.seconds)
                        found["cpu"] = (server.cpu_seconds() - began) / max(1, found["statuses"].get("200", 0))
                        kept[f"{part}, {clients}"] = found | {"memory": server.memory()}
                        print(f"{precision}, {way}, {part}, {clients} clients: {shown(found)}", flush=True)
                        keep(RESULTS, results)
    print("\n" + markdown(WORKERS_HEADER, workers_rows(cells)))


WORKERS_HEADER = [
    "head", "processes", "1 client, a second", "p50 ms", "8 clients, a second", "p99 ms", "p99 / p50 of one",
    "32 clients, a second", "p99 ms", "32 one by one, a second", "gathering", "CPU ms an answer, one by one",
    "memory, MB", "wrong",
]  # fmt: skip


def workers_rows(cells: dict[str, Any]) -> list[list[str]]:
    rows = []
    for precision, ways in cells.items():
        for way, found in ways.items():
            one, eight, many = (found[f"gathered, {clients}"] for clients in (1, 8, 32))
            alone = found["one by one, 32"]
            row = [one["rate"], 1000 * one["p50"], eight["rate"], 1000 * eight["p99"]]
            more = [many["rate"], 1000 * many["p99"], alone["rate"]]
            wrong = sum(cell["wrong"] for cell in found.values())
            rows.append(
                [precision, way, *(f"{number:.0f}" for number in row), f"{eight['p99'] / one['p50']:.1f} ×"]
                + [f"{number:.0f}" for number in more]
                + [
                    f"{many['rate'] / alone['rate']:.1f} ×",
                    f"{1000 * many['cpu']:.1f}, {1000 * alone['cpu']:.1f}",
                    f"{many['memory']:.0f}",
                ]
                + [str(wrong)]
            )
    return rows


def mean_batch(server: Server) -> float:
    text = server.get("/metrics").decode()
    rows, count = (
        float(re.search(rf"^superbloom_batch_size_{kind} (\S+)", text, re.M)[1]) for kind in ("sum", "count")
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
    queries = queries_of(given.work, precision)
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
    queries, memory = queries_of(given.work, precision), []
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


def names(given: argparse.Namespace, results: dict[str, Any]) -> None:
    from superbloom.corpus.vocab import Vocab

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
            memory = {"first": one.memory(), "second": other.memory()}
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
    tables = {"load": markdown(header, rows), "overload": markdown(above, overloaded)}
    whole = results.get("workers", {}).get(f"{NUM_IDS:,} names")
    between_marks(DOC, tables | ({"workers": markdown(WORKERS_HEADER, workers_rows(whole))} if whole else {}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {part.__name__: part for part in (make, queries, load, workers, overload, soak, names, start, report)}
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
