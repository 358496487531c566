"""What happens to a model whose files are written, cut short or replaced while it is used (docs/reliability.md)."""

import gc
import http.client
import os
import re
import shutil
import signal
import urllib.error
from pathlib import Path
from typing import Any

import pytest
import torch

from superbloom import Superbloom
from superbloom.errors import InputError
from superbloom.predict import Predictor
from superbloom.serve.errors import RefusedError
from superbloom.serve.service import Served
from superbloom.storage import mapped
from superbloom.storage.mapped import Mapped
from superbloom.store import model_folder as store
from tests.support import serving
from tests.support.servers import ONE, Server, children, request, save, serve, until

CHANGED = (
    "model.safetensors was changed in place while it was served; reload the model (SIGHUP or POST /v1/reload). "
    "To replace a model, copy it to a new folder and rename that, or serve with --copy"
)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """Folders 0 and 1 with two models of the same sizes."""
    folder = tmp_path_factory.mktemp("models")
    for seed in (0, 1):
        save(folder / str(seed), seed)
    return folder


@pytest.fixture
def served(models, tmp_path) -> Path:
    """A copy of model 0."""
    return shutil.copytree(models / "0", tmp_path / "served")


def copy_into(other: Path, folder: Path) -> None:
    """cp other/* folder/"""
    for file in other.iterdir():
        shutil.copyfile(file, folder / file.name)


def cut_short(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 0)


def best(url: str) -> tuple[int, Any]:
    """The names of an answer, or the line of a refusal."""
    status, answer = request(f"{url}/v1/predict", {"context": [ONE], "k": 3})
    return status, [p["name"] for p in answer["masks"][0]["predictions"]] if status == 200 else answer["error"]


def answer_of(seed: int) -> tuple[int, list[str]]:
    return 200, [prediction.name for prediction in serving.of_names(seed).predict([ONE], 3)[0]]


def reload(server: Server) -> None:
    server.signal(signal.SIGHUP)
    until(lambda: "the model was reloaded" in server.printed)


def map_all() -> None:
    """In the process of a server: no file is small enough to be copied."""
    mapped.MAX_COPIED_BYTES = 0


def map_all_unchecked() -> None:
    """In the process of a server: files are mapped, and nobody notices that they change."""
    map_all()
    Mapped.changed = lambda _: None  # type: ignore[method-assign]


@pytest.mark.parametrize(("options", "before"), [((), None), (("--copy",), map_all)], ids=["small", "--copy"])
def test_files_read_into_memory_may_be_changed_under_a_server(models, served, tmp_path, options, before):
    with serve(tmp_path, served, "--port", 0, *options, before=before) as server:
        url = server.ready()
        copy_into(models / "1", served)
        assert best(url) == answer_of(0) != answer_of(1)
        cut_short(served)
        assert best(url) == answer_of(0)
        assert request(f"{url}/ready") == (200, {"status": "ready"})
        copy_into(models / "1", served)
        reload(server)
        assert best(url) == answer_of(1)
        server.signal(signal.SIGTERM)
        assert server.ended() == 0
        assert len(server.printed.splitlines()) == 3


@pytest.mark.parametrize("change", [copy_into, lambda _, folder: cut_short(folder)], ids=["written", "cut short"])
def test_a_mapped_file_changed_in_place_is_refused_until_it_is_reloaded(models, served, tmp_path, change):
    with serve(tmp_path, served, "--port", 0, before=map_all) as server:
        url = server.ready()
        assert best(url) == answer_of(0)
        change(models / "1", served)
        assert best(url) == (503, CHANGED)
        for path in ("/ready", "/v1/model", "/v1/names?prefix=r", "/v1/names/a"):
            assert request(f"{url}{path}") == (503, {"error": CHANGED})
        assert request(f"{url}/health") == (200, {"status": "ok"})
        until(lambda: CHANGED in server.printed)
        copy_into(models / "1", served)
        reload(server)
        assert best(url) == answer_of(1)
        assert request(f"{url}/ready")[0] == 200
        assert server.printed.count(CHANGED) == 1
        server.signal(signal.SIGTERM)
        assert server.ended() == 0


def test_a_mapped_folder_replaced_by_rename_is_no_change(models, served, tmp_path):
    with serve(tmp_path, served, "--port", 0, before=map_all) as server:
        url = server.ready()
        save(served, seed=1)  # as `superbloom train --out` does it
        assert best(url) == answer_of(0)
        reload(server)
        assert best(url) == answer_of(1)
        served.rename(tmp_path / "old")
        shutil.copytree(models / "0", served)
        assert best(url) == answer_of(1)
        shutil.rmtree(tmp_path / "old")
        assert best(url) == answer_of(1)
        assert request(f"{url}/ready")[0] == 200


def test_a_change_while_a_batch_is_computed_is_noticed(models, served, monkeypatch):
    monkeypatch.setattr(mapped, "MAX_COPIED_BYTES", 0)
    from superbloom.serve.errors import RefusedError
    from superbloom.serve.service import Served

    class Slow:
        def answer(self, _: Any) -> list[Any]:
            copy_into(models / "1", served)
            return []

    with pytest.raises(RefusedError, match="was changed in place") as refused:
        Served(Slow(), mapped=store.load(served).mapped).answer([])  # type: ignore[arg-type]
    assert refused.value.status == 503


def test_a_model_process_that_dies_of_a_cut_file_is_reported(models, served, tmp_path):
    """Only it ends: the server refuses predictions until the model is loaded again."""
    with serve(tmp_path, served, "--port", 0, before=map_all_unchecked) as server:
        url = server.ready()
        cut_short(served)
        assert best(url) == (503, "the process that computed this ended; try again in a moment")
        line = until(lambda: re.search(r"^a model process .*\n", server.printed, re.MULTILINE))[0]
        assert line == (
            "a model process ended with SIGBUS (a memory-mapped file of the model was cut short, or its disk failed); "
            "another takes its place\n"
        )
        copy_into(models / "1", served)
        reload(server)
        assert best(url) == answer_of(1)


def test_a_server_that_dies_of_a_cut_file_says_so(served, tmp_path):
    with serve(tmp_path, served, "--port", 0, before=map_all_unchecked) as server:
        url = server.ready()
        os.truncate(served / "vocab.arrow", 0)
        with pytest.raises((ConnectionError, http.client.HTTPException, urllib.error.URLError)):
            request(f"{url}/v1/names?prefix=r")
        assert server.ended() == -signal.SIGBUS
        line = until(lambda: re.search(r"^error: .*\n", server.printed, re.MULTILINE))[0]
        assert line == (
            f"error: the server ended with SIGBUS: a memory-mapped file in {served} was cut short, or its disk failed; "
            "copy the model again and start the server, with --copy if files may change in place\n"
        )
        assert len(server.printed.splitlines()) == 3


def test_another_crash_of_a_server_is_printed_as_it_is(served, tmp_path):
    with serve(tmp_path, served, "--port", 0) as server:
        server.ready()
        server.signal(signal.SIGSEGV)
        assert server.ended() == -signal.SIGSEGV
        until(lambda: "Fatal Python error: Segmentation fault" in server.printed)


def state(process: int) -> dict[str, str]:
    """What Linux tells of a process; nothing once it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    found = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return {} if found["State"].startswith("Z") else found


def ignores(process: int, number: signal.Signals) -> bool:
    return bool(int(state(process)["SigIgn"], 16) >> (number - 1) & 1)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_process_that_waits_for_a_crash_ends_with_the_server(served, tmp_path, number):
    with serve(tmp_path, served, "--port", 0) as server:
        server.ready()
        pid = server.process.pid
        (watcher,) = [child for child in children(pid) if not children(child)]
        until(lambda: ignores(watcher, signal.SIGHUP))  # it has started
        files = {file.readlink().name for file in Path(f"/proc/{watcher}/fd").iterdir()}
        os.kill(watcher, signal.SIGTERM)  # as to a whole group
        server.signal(number)
        assert server.ended() in (-number, 0)
        until(lambda: not state(watcher))
        assert len(server.printed.splitlines()) == 2
        assert {name for name in files if not name.startswith("pipe:")} == {"null", "output.txt"}


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_a_mapped_file_is_held_open_as_long_as_the_model(served, monkeypatch):
    monkeypatch.setattr(mapped, "MAX_COPIED_BYTES", 0)
    gc.collect()
    before = open_files()
    loaded = store.load(served)
    assert open_files() - before >= 4  # weights, tables, names, prior
    assert loaded.mapped.changed() is None
    (served / "vocab.arrow").write_bytes((served / "vocab.arrow").read_bytes())
    assert loaded.mapped.changed() == "vocab.arrow"
    del loaded
    gc.collect()
    assert open_files() == before
    copied = store.load(served, copy=True)
    assert open_files() == before
    assert copied.mapped.changed() is None


def test_a_model_is_the_same_mapped_and_copied(served, monkeypatch):
    small = Superbloom.from_pretrained(served)
    monkeypatch.setattr(mapped, "MAX_COPIED_BYTES", 0)
    copied, large = (Superbloom.from_pretrained(served, copy=copy) for copy in (True, False))
    weights = [model.model.network.state_dict() for model in (small, copied, large)]
    for name, part in weights[0].items():
        assert all(torch.equal(part, other[name]) for other in weights)
        assert len({other[name].data_ptr() % 64 for other in weights}) == 1  # or sums are taken in another order
    for context in ([], [ONE], ["a", "b"]):
        assert small.predict(context, 5) == copied.predict(context, 5) == large.predict(context, 5)
    for vocab in (copied.model.vocab, large.model.vocab):
        assert small.model.vocab.table.equals(vocab.table)


@pytest.mark.parametrize("function", ["_load_network", "_agree"])
def test_a_folder_changed_in_place_while_it_is_loaded_is_refused(models, served, monkeypatch, function):
    """Else the checksums would be those of the old files, and the model of the new."""
    original = getattr(store, function)

    def changing(*arguments: Any) -> Any:
        monkeypatch.undo()
        copy_into(models / "1", served)
        return original(*arguments)

    monkeypatch.setattr(store, function, changing)
    with pytest.raises(InputError, match="was changed while it was loaded; load it again"):
        store.load(served)
    assert store.load(served).training == {"steps": 1}


def test_a_file_cut_short_while_it_is_loaded_is_refused(served, monkeypatch):
    original = store._layout

    def cutting(*arguments: Any) -> Any:
        cut_short(served)
        return original(*arguments)

    monkeypatch.setattr(store, "_layout", cutting)
    with pytest.raises(InputError, match="was changed while it was loaded; load it again once it is complete"):
        store.load(served)


def test_a_file_that_changes_during_a_look_up_is_noticed(models, tmp_path, monkeypatch):
    monkeypatch.setattr(mapped, "MAX_COPIED_BYTES", 0)
    shutil.copytree(models / "0", tmp_path / "model")
    stored = store.load(tmp_path / "model")
    served = Served(Predictor(stored.model), mapped=stored.mapped)
    assert served.look_up([lambda: 7]) == [7]
    with pytest.raises(RefusedError, match="vocab.arrow was changed in place"):
        served.look_up([(tmp_path / "model" / "vocab.arrow").touch])
