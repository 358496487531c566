"""Model processes behind one server: killed, replaced, reloaded under load, and sharing their memory (check 23)."""

import os
import random
import re
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from superbloom.corpus.vocab import Vocab
from superbloom.errors import InputError
from superbloom.predict import Predictor, Query
from superbloom.serve import processes, workers
from superbloom.serve import server as server_module
from superbloom.serve.wire import (
    answers_from_bytes,
    answers_to_bytes,
    error_to_bytes,
    queries_from_bytes,
    queries_to_bytes,
)
from superbloom.store import model_folder as store
from tests.support import serving
from tests.support.servers import HOLD, ONE, children, held, request, serve, until

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux lists processes and their memory"),
]

CONTEXTS = [[f"ring {number} name {number % 8}", "a"] for number in range(24)]


@cache
def swapped() -> Predictor:
    """Another model, whose ids mean other names: names of one model and weights of the other show in any answer."""
    vocab = serving.names_vocab()
    names = vocab.names(range(len(vocab)))[::-1]
    return Predictor(serving.sure(Vocab.from_arrays(names, range(len(names), 0, -1))[0], seed=1))


@cache
def expected(predictor: Predictor) -> list[list[Any]]:
    return [[(p.name, pytest.approx(p.score, abs=1e-4)) for p in predictor.predict(c, 3)[0]] for c in CONTEXTS]


class Clients:
    """Threads that ask without pause. Every answer is compared with what some models say."""

    def __init__(self, url: str, *models: Predictor) -> None:
        self._url, self._expected = url, [expected(model) for model in models]
        self.statuses: Counter[int] = Counter()
        self.of_model: Counter[int] = Counter()  # right answers to requests since a time, by model
        self.since = 0.0
        self.wrong: list[Any] = []
        self.stop = threading.Event()

    def ask(self, seed: int) -> None:
        draw = random.Random(seed)
        while not self.stop.is_set():
            number, began = draw.randrange(len(CONTEXTS)), time.monotonic()
            status, answer = request(f"{self._url}/v1/predict", {"context": CONTEXTS[number], "k": 3})
            self.statuses[status] += 1
            if status != 200:
                continue
            told = [(p["name"], p["score"]) for p in answer["masks"][0]["predictions"]]
            fits = [model for model, answers in enumerate(self._expected) if told == answers[number]]
            if began >= self.since:
                self.of_model.update(fits)
            if not fits:
                self.wrong.append((CONTEXTS[number], told))


@contextmanager
def asking(url: str, number: int, *models: Predictor) -> Iterator[Clients]:
    clients = Clients(url, *models)
    with ThreadPoolExecutor(number) as pool:
        asked = [pool.submit(clients.ask, seed) for seed in range(number)]
        try:
            yield clients
        finally:
            clients.stop.set()
    for one in asked:
        one.result()  # raises if a request got no answer


def more(clients: Clients, number: int) -> None:
    """Wait until so many requests more are answered."""
    before = clients.statuses[200]
    until(lambda: clients.statuses[200] >= before + number or clients.wrong)


def killed(model: Path, folder: Path, kills: int, before: Callable[[], None] | None = None) -> Clients:
    """Kill workers one by one while eight clients ask. After each, the server has to answer with all its workers."""
    with serve(folder, model, "--port", 0, "--workers", 2, before=before) as server:
        url = server.ready()
        with asking(url, 8, serving.of_names()) as clients:
            for number in range(kills):
                more(clients, 10)
                old = server.workers()
                os.kill(old[number % 2], signal.SIGKILL)
                until(lambda old=old: len(server.workers()) == 2 and server.workers() != old, 10.0)
            more(clients, 10)
        until(
            lambda: "superbloom_workers 2.0" in request(f"{url}/metrics")[1].splitlines(), 10.0
        )  # the last one answers
        assert f"superbloom_worker_restarts_total {kills}.0" in request(f"{url}/metrics")[1].splitlines()
        assert server.printed.count("a model process ended with SIGKILL; another takes its place") == kills
        server.signal(signal.SIGTERM)
        assert server.ended() == 0
    return clients


def test_workers_killed_one_by_one_under_load_lose_no_answer(model, tmp_path, check):
    clients = killed(model, tmp_path, 6)
    assert clients.wrong == []
    assert set(clients.statuses) <= {200, 503}
    assert clients.statuses[503] <= 8 * 6  # at most what was in flight
    told = ", ".join(f"{count:,} × {status}" for status, count in sorted(clients.statuses.items()))
    check(23, f"6 workers of 2 killed one by one while 8 clients ask: {told}, 0 wrong, 0 lost")


def not_replaced() -> None:
    """In the process of a server: a worker that ends is not replaced."""
    processes._Template._bury = lambda self, process, _: self._began.pop(process) or 3600.0  # type: ignore[assignment]


def test_workers_that_are_not_replaced_are_noticed(model, tmp_path, check):
    with pytest.raises(AssertionError, match="it did not come to pass"):
        killed(model, tmp_path, 1, before=not_replaced)
    check.twin(23, "workers that end are not replaced", "one of 2 is missing after 10 s")


def test_a_model_is_swapped_while_32_clients_ask(tmp_path, check):
    """Every answer is the old model's or the new one's, and the new one's after the reload."""
    folder, models = tmp_path / "model", (serving.of_names(), swapped())
    store.save(models[0].model, folder, training={}, metrics={})
    with serve(tmp_path, folder, "--port", 0, "--workers", 2) as server:
        url = server.ready()
        with asking(url, 32, *models) as clients:
            for swap in (1, 2, 3):
                more(clients, 40)
                store.save(models[swap % 2].model, folder, training={}, metrics={})
                server.signal(signal.SIGHUP)
                until(lambda swap=swap: server.printed.count("the model was reloaded") == swap)
                clients.since = time.monotonic()
                clients.of_model = Counter()
                until(lambda: clients.of_model.total() >= 40 or clients.wrong)
                assert set(clients.of_model) == {swap % 2}
        assert clients.wrong == []
        assert set(clients.statuses) == {200}
        until(lambda: len(server.workers()) == 2)  # those of the old models have ended
        server.signal(signal.SIGTERM)
        assert server.ended() == 0
    check(23, f"3 reloads while 32 clients ask: {clients.statuses[200]:,} answers, each of the old model or the new")


def half_swapped() -> None:
    """In the process of a server: after a reload, the workers of the old model compute for the new one."""
    made: list[workers.Workers] = []
    original = workers.Keeper.start

    def start(self: Any, *given: Any) -> Any:
        made.append(original(self, *given))
        made[0].close = lambda: None  # type: ignore[method-assign]
        return made[0]

    loaded, waited = workers.Workers.source, workers.Workers.wait

    def source(self: Any) -> Any:
        if not hasattr(self, "told"):
            self.told = loaded(self)
            waited(self)
        return processes_see()

    workers.Workers.wait = lambda self: None  # type: ignore[method-assign]

    folder = Path("model").resolve()

    def processes_see() -> Any:
        return server_module._versions(folder)

    workers.Keeper.start, workers.Workers.source = start, source  # type: ignore[method-assign]


def test_workers_of_the_old_model_behind_names_of_the_new_are_noticed(tmp_path, check):
    folder, models = tmp_path / "model", (serving.of_names(), swapped())
    store.save(models[0].model, folder, training={}, metrics={})
    with serve(tmp_path, folder, "--port", 0, before=half_swapped) as server:
        url = server.ready()
        with asking(url, 2, *models) as clients:
            more(clients, 5)
            assert clients.wrong == []
            store.save(models[1].model, folder, training={}, metrics={})
            server.signal(signal.SIGHUP)
            until(lambda: clients.wrong)
    check.twin(23, "names are reloaded and workers are not", "answers of neither model")


def test_workers_that_end_while_idle_are_noticed_by_no_client(model, tmp_path):
    with serve(tmp_path, model, "--port", 0, "--workers", 3) as server:
        url = server.ready()
        for process in server.workers():
            os.kill(process, signal.SIGKILL)
        until(lambda: server.printed.count("another takes its place") == 3)
        until(lambda: request(f"{url}/readyz")[0] == 200)
        with asking(url, 3, serving.of_names()) as clients:
            more(clients, 10)
        assert clients.wrong == []
        assert set(clients.statuses) == {200}


def test_the_process_that_holds_the_model_is_replaced(model, tmp_path):
    """Its workers answer until the model is loaded again."""
    with serve(tmp_path, model, "--port", 0, "--workers", 2) as server:
        url = server.ready()
        with asking(url, 4, serving.of_names()) as clients:
            more(clients, 10)
            old = server.workers()
            (keeper,) = [child for child in children(server.process.pid) if children(child)]
            (template,) = children(keeper)
            os.kill(template, signal.SIGKILL)
            until(lambda: "the model was reloaded" in server.printed)
            until(lambda: len(server.workers()) == 2 and not set(old) & set(server.workers()))
            more(clients, 10)
        assert clients.wrong == []
        assert set(clients.statuses) == {200}
        assert "the process that holds the model has ended; the model is loaded again" in server.printed


def test_a_server_that_cannot_replace_workers_ends(model, tmp_path):
    with serve(tmp_path, model, "--port", 0) as server:
        server.ready()
        (keeper,) = [child for child in children(server.process.pid) if children(child)]
        (template,) = children(keeper)
        os.kill(keeper, signal.SIGKILL)
        os.kill(template, signal.SIGKILL)
        assert server.ended() == 2
        line = "error: the processes that hold the model have ended; start the server again"
        assert server.printed.splitlines()[-1] == line


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_all_processes_end_with_the_server(model, tmp_path, number):
    with serve(tmp_path, model, "--port", 0, "--workers", 2) as server:
        server.ready()
        others = server.processes()[1:]
        assert len(others) == 5  # keeper, template, two workers, and the one that waits for a crash
        for process in others:
            os.kill(process, signal.SIGTERM)  # as to a whole group: they end after the server
        assert len(server.workers()) == 2
        server.signal(number)
        assert server.ended() in (-number, 0)
        until(lambda: not any(Path(f"/proc/{process}/fd").exists() and alive(process) for process in others))


def alive(process: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def poisoned() -> None:
    """In the process of a server: a query for seven names ends the worker that computes it."""
    original = Predictor.answer

    def answer(self: Predictor, queries: list[Query]) -> Any:
        if any(query.k == 7 for query in queries):
            os._exit(3)
        return original(self, queries)

    Predictor.answer = answer  # type: ignore[method-assign]


def test_a_query_that_ends_its_worker_fails_alone(model, tmp_path):
    with serve(tmp_path, model, "--port", 0, before=poisoned) as server, ThreadPoolExecutor(12) as pool:
        url = server.ready()
        bodies = [{"context": [ONE], "k": 7 if number == 5 else 3} for number in range(12)]
        found = list(pool.map(lambda body: request(f"{url}/v1/predict", body), bodies))
        assert [status for status, _ in found] == [503 if number == 5 else 200 for number in range(12)]
        assert found[5][1] == {"error": "the process that computed this ended; try again in a moment"}
        assert "a model process ended with exit code 3; another takes its place" in server.printed


def test_a_stuck_worker_is_replaced(model, tmp_path):
    with serve(tmp_path, model, "--port", 0, before=impatient) as server, ThreadPoolExecutor(1) as pool:
        url = server.ready()
        (stuck,) = server.workers()
        os.kill(stuck, signal.SIGSTOP)
        taken = pool.submit(request, f"{url}/v1/predict", {"context": [ONE]})
        assert taken.result()[0] == 200
        assert stuck not in server.workers()


def impatient() -> None:
    workers.MAX_BATCH_SECONDS = 0.5


def dying() -> None:
    """In the process of a server: workers end before they are warm."""
    processes._work = lambda *_: os._exit(1)


def test_a_model_whose_workers_end_while_they_start_is_not_served(model, tmp_path):
    with serve(tmp_path, model, "--port", 0, "--workers", 2, before=dying) as server:
        assert server.ended() == 2
        assert server.printed.splitlines()[-1].startswith("error: the model processes end while they start")


def ending() -> None:
    """In the process of a server: the process that loads the model ends."""
    processes.warm = lambda _: os._exit(1)


def test_a_model_whose_loading_process_ends_is_not_served(model, tmp_path):
    with serve(tmp_path, model, "--port", 0, before=ending) as server:
        assert server.ended() == 2
        assert server.printed.splitlines()[-1].startswith("error: the process that loads the model has ended")


def replacing() -> None:
    """In the process of a server: while it loads the model, the folder is replaced by an equal one, twice."""
    original, left = server_module.load_model, [1, 2]

    def load(folder: Path, **options: Any) -> Any:
        loaded = original(folder, **options)
        if left and not options.get("weights", True):
            shutil.copytree(folder, tmp := folder.with_name(f"copy {left.pop()}"))
            folder.rename(folder.with_name(f"old {len(left)}"))
            tmp.rename(folder)
        return loaded

    server_module.load_model = load  # type: ignore[assignment]


def test_a_folder_that_is_replaced_while_it_is_loaded_is_loaded_again(model, tmp_path):
    shutil.copytree(model, tmp_path / "model")
    with serve(tmp_path, tmp_path / "model", "--port", 0, before=replacing) as server:
        url = server.ready()
        assert len(list(tmp_path.glob("old *"))) == 2
        with asking(url, 1, serving.of_names()) as clients:
            more(clients, 3)
        assert clients.wrong == []
        until(lambda: len(server.workers()) == 1)


def failing() -> None:
    """In the process of a server: computing fails with an exception."""
    held()
    original = Predictor.answer

    def answer(self: Predictor, queries: list[Query]) -> Any:
        if any(query.k == 7 for query in queries):
            raise RuntimeError("seven")
        return original(self, queries)

    Predictor.answer = answer  # type: ignore[method-assign]


def test_an_exception_in_a_worker_is_logged_and_fails_alone(model, tmp_path):
    with serve(tmp_path, model, "--port", 0, before=failing) as server, ThreadPoolExecutor(6) as pool:
        url = server.ready()
        (tmp_path / HOLD).touch()
        bodies = [{"context": [ONE], "k": 7 if number == 2 else 3} for number in range(6)]
        taken = [pool.submit(request, f"{url}/v1/predict", body) for body in bodies]
        (tmp_path / HOLD).unlink()
        assert [one.result()[0] for one in taken] == [500 if number == 2 else 200 for number in range(6)]
        assert 'raise RuntimeError("seven")' in server.printed
        assert len(server.workers()) == 1


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_workers_hold_the_weights_in_the_precision_that_is_asked_for(model, tmp_path, precision):
    predictor = Predictor(serving.of_names().model, precision=precision)
    with serve(tmp_path, model, "--port", 0, "--precision", precision) as server:
        url = server.ready()
        assert request(f"{url}/v1/model")[1]["precision"] == precision
        with asking(url, 1, predictor) as clients:
            more(clients, 5)
        assert clients.wrong == []


def proportional_memory(model: Path, folder: Path, number: int) -> float:
    """Megabytes of all processes of a server; shared pages are divided among those that share them."""
    with serve(folder, model, "--port", 0, "--workers", number) as server:
        url = server.ready()
        for context in CONTEXTS:
            assert request(f"{url}/v1/predict", {"context": context})[0] == 200
        parts = [Path(f"/proc/{process}/smaps_rollup").read_text() for process in server.processes()]
        return sum(int(re.search(r"^Pss:\s+(\d+)", part, re.MULTILINE)[1]) for part in parts) / 1000


def test_workers_share_their_memory(tmp_path, check):
    """A model of 40 MB: two workers take less than 1.3 times the memory of one."""
    vocab = serving.names_vocab()
    model = serving.sure(vocab, dim=512, ffn_dim=2048, layers=3)
    store.save(model, tmp_path / "model", training={}, metrics={})
    assert (tmp_path / "model" / "model.safetensors").stat().st_size > 30e6
    one, two = (proportional_memory(tmp_path / "model", tmp_path, number) for number in (1, 2))
    assert two <= 1.3 * one
    check(23, f"proportional memory of 2 workers: {two / one:.2f} × that of one")


@pytest.mark.parametrize("predictor", [serving.remembering, serving.of_text], ids=["memory", "text"])
def test_queries_and_answers_survive_the_wire(predictor):
    """With reasons, filters and several masks; the same to the last digit."""
    model = predictor()
    queries = serving.mixed(model, 40) if model.model.vocab.is_text is False else texts(model)
    received = queries_from_bytes(queries_to_bytes(queries))
    answers = model.answer(queries)
    assert model.answer(received) == answers
    assert any(found.explanation for masks in answers for found in masks)
    assert answers_from_bytes(answers_to_bytes(answers)) == answers


def texts(model: Predictor) -> list[Query]:
    given = ["[MASK] plays jazz.", "john [MASK1] is a [MASK2]"]
    return [model.query(text, 3, explain=explain) for text in given for explain in (False, True)]


@pytest.mark.parametrize(("is_input_error", "kind"), [(True, InputError), (False, RuntimeError)])
def test_an_error_survives_the_wire(is_input_error, kind):
    with pytest.raises(kind, match="seven") as raised:
        answers_from_bytes(error_to_bytes("seven", is_input_error))
    assert type(raised.value) is kind
