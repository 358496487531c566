"""A server process under load: many clients, too many, for long; on 5,281,889 names where their number matters.

Times are measured, so these run alone, and the best of a few tries counts. The large model is looked for in the folder
named by SUPERBLOOM_SERVE_WORK (`python -m benchmarks.serve make queries --precisions fp32 --work DIR` makes it), else
made. Seconds of the runs: SUPERBLOOM_LOAD, SUPERBLOOM_OVERLOAD, SUPERBLOOM_SOAK.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from superbloom.corpus.vocab import Vocab
from superbloom.predict import Predictor
from superbloom.store import model_folder as store
from tests.support import serving
from tests.support.serving import changes, mixed, read_padding_as_a_name
from tools import load

ROOT = Path(__file__).parents[2]

LOAD = float(os.environ.get("SUPERBLOOM_LOAD", "10"))
OVERLOAD = float(os.environ.get("SUPERBLOOM_OVERLOAD", "60"))
SOAK = float(os.environ.get("SUPERBLOOM_SOAK", "180"))
TRIES = 3
MANY_CONNECTIONS = ("--max-connections", "20000", "--max-connections-per-address", "20000")

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="Linux tells how much memory is used"
)


@pytest.fixture(scope="session")
def large(tmp_path_factory) -> Path:
    """A folder with a model of 5,281,889 names, d=768, and queries with the answers each gets alone."""
    given = os.environ.get("SUPERBLOOM_SERVE_WORK")
    work = Path(given) if given else tmp_path_factory.mktemp("large")
    parts = [*([] if (work / "model").is_dir() else ["make"]), "queries"]
    command = [sys.executable, "-m", "benchmarks.serve", *parts, "--precisions", "fp32", "--work", str(work.resolve())]
    subprocess.run(command, cwd=ROOT, check=True)
    return work


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> Path:
    """The same of 215 names, which is asked often in a short time."""
    work, predictor = tmp_path_factory.mktemp("small"), serving.of_names()
    store.save(predictor.model, work / "model", training={}, metrics={})
    queries = []
    for number in range(192):
        context = [f"ring {number % 24} name {number // 24}"]
        (found,) = predictor.predict(context, 3)
        answers = {"names": [p.name for p in found], "scores": [p.score for p in found]}
        queries.append({"body": {"context": context, "k": 3}, "seconds": load.DEADLINE, **answers})
    (work / "queries-fp32.json").write_text(json.dumps(queries), encoding="utf-8")
    return work


def queries(work: Path) -> Path:
    return work / "queries-fp32.json"


# Gathering (check 2)


def gained(work: Path, *options: str) -> tuple[float, float]:
    """Of eight clients instead of one: how many times the throughput, and how many times the p95."""
    with load.serving(work, *options) as server:
        server.clients(queries(work), clients=8, seconds=3)
        tries = []
        for _ in range(TRIES):
            one, eight = (server.clients(queries(work), clients=clients, seconds=LOAD) for clients in (1, 8))
            assert one["wrong"] == eight["wrong"] == 0
            tries.append((eight["rate"] / one["rate"], eight["p95"] / one["p95"]))
            if tries[-1][0] >= 4 and tries[-1][1] <= 2:
                break
    return max(tries)


@pytest.mark.alone
def test_eight_clients_gain_by_gathering(large, check):
    """The goal, 4 × at 2 ×, is told beside what was measured, not asserted: a noisy machine misses it now and then."""
    throughput, p95 = gained(large)
    assert throughput >= 2  # 2.7 to 4.3, by how fast the machine answers one query alone
    assert p95 <= 3
    check(2, f"1 → 8 clients: {throughput:.1f} × the throughput at {p95:.1f} × the p95; the goal is 4 × at 2 ×")


@pytest.mark.alone
def test_without_gathering_nothing_is_gained(large, check):
    throughput, p95 = gained(large, "--batch", "1")
    assert throughput < 2
    assert p95 > 3
    check.twin(2, "--batch 1", f"{throughput:.1f} × the throughput at {p95:.1f} × the p95")


# Neighbours (check 3)


@pytest.mark.slow
def test_a_neighbour_never_changes_an_answer_of_a_large_model(large, monkeypatch, check):
    predictor = Predictor(store.load(large / "model").model)
    asked = mixed(predictor, 1000)
    changed, most = changes(predictor, asked)
    assert changed == 0
    names = len(predictor.model.vocab)
    check(3, f"0 of {len(asked):,} answers among {names:,} names change in batches of 64, scores by {most:.1e} at most")
    read_padding_as_a_name(monkeypatch)
    changed, _ = changes(predictor, asked[:64])
    assert changed > 0
    check.twin(3, "padding is read as a name, large model", f"{changed} masks of 64 queries change")


# Overload (check 4)

UNBOUNDED = """
from superbloom.serve.gather import Gatherer
init = Gatherer.__init__
def unbounded(self, work, **options):
    init(self, work, **options | {"max_waiting": 10**9})
Gatherer.__init__ = unbounded
Gatherer.check_time = lambda self, rows, deadline: 3600.0
"""


class Overloaded(NamedTuple):
    """Three times as many arrivals as can be answered, and what became of them."""

    statuses: dict[str, int]
    unsaid: int  # refused without Retry-After
    late: int
    wrong: int
    goodput: float  # of what is answered when as many come as can be
    closed: float  # and of what 64 clients get that wait for their answers
    p99: float  # seconds, of what was answered
    megabytes: float
    back: float  # seconds from the last arrival until a client alone waits no longer than before

    def faults(self) -> list[str]:
        lost = sum(count for status, count in self.statuses.items() if status not in ("200", "429", "503"))
        found = {
            f"{lost} with another status or no answer": lost,
            f"{self.unsaid} refused without Retry-After": self.unsaid,
            f"{self.late} after their deadline": self.late,
            f"{self.wrong} wrong": self.wrong,
            f"goodput {self.goodput:.0%}": self.goodput < 0.8,
            f"memory +{self.megabytes:.0f} MB": self.megabytes > 100,
            f"idle latency back after {self.back:.1f} s": self.back > 5,
        }
        return [fault for fault, holds in found.items() if holds]


def overloaded(work: Path, seconds: float, before: str = "") -> Overloaded:
    # The queue is what has to refuse, so connections are not limited.
    with load.serving(work, *MANY_CONNECTIONS, before=before) as server:
        server.clients(queries(work), clients=64, seconds=3)  # warm
        idle = server.clients(queries(work), clients=1, seconds=3)["p50"]
        most = server.clients(queries(work), clients=64, seconds=LOAD)["rate"]
        capacity = in_time(server.clients(queries(work), rate=most, seconds=LOAD))
        memory = server.memory()
        found = server.clients(queries(work), rate=3 * most, seconds=seconds, health=True)
        grown = server.memory() - memory
        back = found["seconds"] - seconds + until_idle(server, work, 2 * idle)
    return Overloaded(
        found["statuses"],
        found["503 without Retry-After"],
        found["later than its deadline"],
        found["wrong"],
        in_time(found) / capacity,
        in_time(found) / most,
        found["p99"],
        grown,
        back,
    )


def in_time(found: dict[str, Any]) -> float:
    """Answers a second that came before their deadline."""
    return found["in time"] / found["seconds"]


def until_idle(server: Any, work: Path, enough: float) -> float:
    """Seconds until a client alone is answered in so short a time, at most a minute."""
    began = time.monotonic()
    while time.monotonic() < began + 60:
        asked = time.monotonic()
        if (server.clients(queries(work), clients=1, seconds=0.5)["p50"] or 60.0) <= enough:
            return asked - began
    return 60.0


@pytest.mark.alone
def test_what_is_too_much_is_refused_in_time(large, check):
    found = overloaded(large, OVERLOAD)
    assert found.faults() == []
    answers = ", ".join(f"{count:,} × {status}" for status, count in found.statuses.items())
    check(
        4,
        f"3 × the capacity for {OVERLOAD:.0f} s: {answers}, 0 late, goodput {found.goodput:.0%} "
        f"({found.closed:.0%} of what clients that wait get), p99 {found.p99:.1f} s, "
        f"memory {found.megabytes:+.0f} MB, idle latency back after {found.back:.1f} s",
    )


@pytest.mark.alone
def test_a_queue_without_end_is_noticed(large, check):
    found = overloaded(large, min(OVERLOAD, 15.0), before=UNBOUNDED)
    faults = found.faults()
    assert faults
    check.twin(4, "an unbounded queue", ", ".join(faults))


# Health (check 5)

ON_THE_LOOP = """
from concurrent.futures import Future
from superbloom.serve import gather
class Here:
    def __init__(self, *_, **__): pass
    def submit(self, work, *given):
        done = Future()
        done.set_result(work(*given))
        return done
    def shutdown(self): pass
gather.ThreadPoolExecutor = Here
"""


def health(work: Path, before: str = "") -> float:
    """p99 of /health in seconds, while 32 clients ask; the best of a few tries."""
    with load.serving(work, before=before) as server:
        server.clients(queries(work), clients=8, seconds=3)
        best = 60.0
        for _ in range(TRIES):
            flags = {"clients": 32, "seconds": LOAD, "health": True, "every": 0.05}
            best = min(best, server.clients(queries(work), **flags)["health p99"])
            if best <= 0.1:
                break
        return best


@pytest.mark.alone
def test_health_is_told_under_load(large, check):
    p99 = health(large)
    assert p99 <= 0.1
    check(5, f"/health p99 {1000 * p99:.0f} ms while 32 clients ask")


@pytest.mark.alone
def test_a_model_that_keeps_the_server_from_answering_is_noticed(large, check):
    p99 = health(large, before=ON_THE_LOOP)
    assert p99 > 0.1
    check.twin(5, "batches are computed where requests are read", f"/health p99 {1000 * p99:.0f} ms")


# Soak (check 10)

LEAK = """
from superbloom.serve import routes
kept, context_of = [], routes.context_of
routes.context_of = lambda *given: kept.append(bytes(1024)) or context_of(*given)
"""
LEAST = 256.0  # bytes a request by which memory may grow; a leak is more


class Soaked(NamedTuple):
    """Memory in the last half of the time, without the twentieth that is highest and the one that is lowest."""

    answered: int
    refused: int
    lost: int  # or wrong
    swing: float  # megabytes, from the mean to the most
    leak: float  # bytes a request, by the slope: a leak shows long before it swings by megabytes

    def faults(self) -> list[str]:
        found = {
            f"{self.lost} lost or wrong": self.lost,
            f"max − mean {self.swing:.0f} MB": self.swing > 20,
            f"{self.leak:.0f} bytes more with each request": self.leak > LEAST,
        }
        return [fault for fault, holds in found.items() if holds]


def soaked(work: Path, seconds: float, before: str = "") -> Soaked:
    """A server of which 70 % of what it can is asked."""
    memory: list[tuple[float, float]] = []
    with load.serving(work, before=before) as server:
        rate = 0.7 * server.clients(queries(work), clients=16, seconds=min(LOAD, 10.0))["rate"]
        with server.started_clients(queries(work), rate=rate, seconds=seconds) as clients:
            began = time.monotonic()
            while clients.poll() is None:
                memory.append((time.monotonic() - began, server.memory()))
                time.sleep(seconds / 200)
            found = json.loads(clients.stdout.read())
    times, megabytes = np.array(memory[len(memory) // 2 :]).T
    low, high = np.quantile(megabytes, [0.05, 0.95])
    kept = (low <= megabytes) & (megabytes <= high)
    times, megabytes = times[kept], megabytes[kept]
    slope = np.polyfit(times, megabytes, 1)[0]
    requests = sum(found["statuses"].values())
    answered, refused = (found["statuses"].get(status, 0) for status in ("200", "503"))
    lost = requests - answered - refused + found["wrong"]
    leak = 1e6 * slope / (requests / found["seconds"])
    return Soaked(answered, refused, lost, megabytes.max() - megabytes.mean(), leak)


@pytest.mark.alone
def test_memory_does_not_grow(small, check):
    found = soaked(small, SOAK)
    assert found.faults() == []
    check(
        10,
        f"{found.answered:,} answered and {found.refused:,} refused in {SOAK:.0f} s at 70 % of the capacity: "
        f"max − mean {found.swing:.1f} MB, {found.leak:+.0f} bytes with each request",
    )


@pytest.mark.alone
def test_a_leak_of_a_kilobyte_a_request_is_noticed(small, check):
    faults = soaked(small, min(SOAK, 60.0), before=LEAK).faults()
    assert faults
    check.twin(10, "a leak of 1 KB a request", ", ".join(faults))


# Completion (check 20)

SCANNING = """
import numpy as np, pyarrow.compute as pc
from superbloom.vocab import Vocab
def completions(self, prefix, k):
    found = pc.match_substring_regex(self._names, "^(?i)" + prefix)
    return np.flatnonzero(found.to_numpy(zero_copy_only=False))[:k]
Vocab.completions = completions
"""


def p95_of_completions(work: Path, number: int, before: str = "") -> float:
    """Seconds, the best of a few tries."""
    prefixes = load.typed(Vocab.open(work / "model" / "vocab.arrow"), number)
    with load.serving(work, before=before) as server:
        best = 60.0
        for _ in range(TRIES):
            best = min(best, float(np.quantile(load.completing(server, prefixes), 0.95)))
            if best <= 0.05:
                break
        return best


@pytest.mark.alone
def test_names_are_completed_while_one_types(large, check):
    p95 = p95_of_completions(large, 400)
    assert p95 <= 0.05
    check(20, f"completion among 5,281,889 names: p95 {1000 * p95:.1f} ms")


@pytest.mark.alone
def test_a_completion_that_looks_at_all_names_is_noticed(large, check):
    p95 = p95_of_completions(large, 5, before=SCANNING)
    assert p95 > 0.05
    check.twin(20, "a completion that looks at all names", f"p95 {1000 * p95:.0f} ms")
