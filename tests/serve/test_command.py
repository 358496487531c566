"""The command `superbloom serve`: SIGHUP reloads, mistakes are one line, and `predict --server` asks it."""

import json
import re
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from superbloom.cli import app
from superbloom.serve import server as command
from tests.support import launch, serving
from tests.support.servers import ONE, request, save, serve, until

pytestmark = pytest.mark.system


@pytest.mark.parametrize("workers", [1, 2])
def test_a_replaced_folder_is_loaded_on_sighup_and_a_damaged_one_is_not(tmp_path, workers):
    folder = tmp_path / "model"
    save(folder)
    with serve(tmp_path, folder, "--port", 0, "--workers", workers) as server:
        url = server.ready()

        def best() -> list[str]:
            _, answer = request(f"{url}/v1/predict", {"context": [ONE], "k": 3})
            return [prediction["name"] for prediction in answer["masks"][0]["predictions"]]

        def expected(seed: int) -> list[str]:
            return [prediction.name for prediction in serving.of_names(seed).predict([ONE], 3)[0]]

        assert best() == expected(0)
        save(folder, seed=1)
        assert best() == expected(0)
        server.signal(signal.SIGHUP)
        until(lambda: "the model was reloaded" in server.printed)
        assert best() == expected(1) != expected(0)
        assert request(f"{url}/v1/model")[1]["steps"] == 1
        damage(folder)
        server.signal(signal.SIGHUP)
        line = until(lambda: re.search(r"the model was not reloaded, the old one stays: .*\n", server.printed))[0]
        assert "model.safetensors" in line
        assert best() == expected(1)
        server.signal(signal.SIGTERM)
        assert server.ended() == 0
        assert len(server.printed.splitlines()) == 4


def damage(folder: Path) -> None:
    """Another file in place of one, as a copy that went wrong leaves it."""
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-100] ^= 1
    (folder / "damaged").write_bytes(content)
    (folder / "damaged").replace(folder / "model.safetensors")


def test_what_cannot_be_served_is_told_in_one_line(model, tmp_path):
    shutil.copytree(model, tmp_path / "damaged")
    damage(tmp_path / "damaged")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for number, (arguments, line) in enumerate(
            [
                ((tmp_path / "damaged", "--port", 0), "model.safetensors"),
                ((tmp_path / "nothing", "--port", 0), "nothing"),
                ((model, "--port", port), f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another"),
                ((model, "--host", "0.0.0.0"), "--host 0.0.0.0 lets other machines send requests; give an --api-key"),
                ((model, "--host", "a..b", "--api-key", "x" * 16), "cannot listen on a..b:8000"),
                ((model, "--api-key", ""), "the API key is empty"),
                ((model, "--cors", "*"), "--cors * given; an origin like https://example.org is allowed"),
                ((model, "--seconds", "0"), "seconds=0.0: more than 0 is allowed"),
                ((model, "--report", tmp_path), "has no metrics.json; give a folder that `superbloom evaluate --out`"),
            ]
        ):
            (tmp_path / str(number)).mkdir()
            with serve(tmp_path / str(number), *arguments) as server:
                assert server.ended() == 2
                printed = [text for text in server.printed.splitlines() if not text.startswith("loading ")]
                assert len(printed) == 1, printed
                assert printed[0].startswith("error: ")
                assert line in printed[0]


def test_a_model_that_fails_to_load_in_any_way_ends_the_server(model, tmp_path):
    with serve(tmp_path, model, "--port", 0, before=broken) as server:
        assert server.ended() != 0
        assert "not what anyone expected" in server.printed


def broken() -> None:
    def load(_: Path, **__: Any) -> None:
        raise KeyError("not what anyone expected")

    command.load_model = load  # type: ignore[assignment]


@contextmanager
def asked(tmp_path: Path, *, text: bool = False) -> Iterator[tuple[Path, str]]:
    save(tmp_path / "model", text=text)
    with serve(tmp_path, tmp_path / "model", "--port", 0) as server:
        yield tmp_path / "model", server.ready()


def told(*words: object) -> str:
    done = CliRunner().invoke(app, ["predict", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_a_server_is_asked_from_the_command_line_as_a_folder_is(tmp_path):
    (tmp_path / "allowed.txt").write_text(f"{ONE}\na\nb\n")
    with asked(tmp_path) as (model, url):
        for words in (
            [ONE],
            [ONE, "[MASK]", "a", "-k", 3],
            ["[MASK]", ONE, "[MASK]", "-k", 2],
            [ONE, "--exclude-context", "--exclude", "a"],
            [ONE, "--allow", "a", "--allow-file", tmp_path / "allowed.txt"],
            [ONE, "--min-score", "-4"],
            [ONE, "--min-score", "100"],
            [ONE, "--beam", 1, "--max-rounds", 1, "-k", 5],
            [ONE, "--beam", 3],
            ["日本", "two\nlines", "-k", 1],
        ):
            assert told("--server", url, *words) == told(model, *words)
            here, there = (json.loads(told(*place, *words, "--json")) for place in ([model], ["--server", url]))
            assert here["context"] == there["context"]
            for one, other in zip(here["predictions"], there["predictions"], strict=True):
                for p, q in zip(one, other, strict=True):
                    assert [p.pop(part) for part in ("name", "certified")] == [q.pop("name"), q.pop("certified")]
                    assert q == pytest.approx(p)


def test_a_server_is_asked_to_fill_in_a_text(tmp_path):
    with asked(tmp_path, text=True) as (model, url):
        for words in (["Miles Davis plays [MASK]."], ["[MASK1] is a [MASK2] qq.", "-k", 2]):
            assert told("--server", url, "--text", *words) == told(model, "--text", *words)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([ONE, "--server", "http://127.0.0.1:1"], "no answer from http://127.0.0.1:1: [Errno 111] Connection refused"),
        ([ONE, "--server", "ftp://x"], "'ftp://x' given; an address like http://127.0.0.1:8000 is allowed"),
        ([ONE, "--server", "http://x", "--combine", "min"], "a server scores names as its model does"),
        (
            [ONE, "--server", "http://x", "--precision", "int8"],
            "--precision, --prior and --network-only are the server's to choose",
        ),
        (["--server", "http://x"], "give the names of a context, or a --text with [MASK], and not both"),
    ],
)
def test_what_cannot_be_asked_is_told_in_one_line(words, line):
    done = launch.command("predict", *words, code=2)
    assert done.stderr.startswith(f"error: {line}")
    assert len(done.stderr.splitlines()) == 1
