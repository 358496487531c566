"""`prepare wikipedia` resumes after a kill at any moment; damaged leftovers of a run are done again."""

import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import CASES
from tests.support.dumps import (
    END,
    KILLED,
    Done,
    content,
    files,
    finish,
    flaw,
    job,
    run,
    start,
    streams,
    varied_pages,
    whole,
)
from tests.support.peaks import children

pytestmark = pytest.mark.system


# Runs that are killed, and what they leave behind.


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dump, plain and packed, and the corpora that uninterrupted runs make of them."""
    folder = tmp_path_factory.mktemp("site")
    pages = varied_pages(120)
    (folder / "dump.xml").write_bytes(whole(pages))
    (folder / "dump.bz2").write_bytes(b"".join(streams(pages)))
    run(folder, *(job(f"dump.{kind}", "--out", f"whole.{kind}", "--workers", 1) for kind in ("xml", "bz2")))
    assert content(folder / "whole.xml") == content(folder / "whole.bz2")
    return folder


def lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pieces_done(parts: Path) -> int:
    return len(list(parts.glob("*-*.done")))


def wait_for(happened: Callable[[], bool], process: Any) -> None:
    while not happened():
        assert process.exitcode is None, "it ended too early"
        time.sleep(0.001)


def kill(process: Any) -> None:
    """kill -9 a run, and see its workers end by themselves."""
    workers = children(process.pid)
    process.kill()
    process.join()
    for _ in range(3000):
        if not any(map(lives, workers)):
            break
        time.sleep(0.01)
    assert not any(map(lives, workers)), "workers live on"


@pytest.mark.parametrize(("kind", "size", "moments"), [("xml", 2_000, (1, "random", 40)), ("bz2", 2_000, (10,))])
def test_killed_at_any_moment_it_goes_on(site: Path, kind: str, size: int, moments: tuple[int | str, ...]) -> None:
    out, parts = site / f"killed.{kind}", site / f"killed.{kind}.parts"
    command = (f"dump.{kind}", "--out", out.name, "--workers", 2)
    for moment in moments:
        process = start(site, *command, pieces=size)
        if moment == "random":
            time.sleep(random.Random(1).uniform(0.1, 1.0))
        else:
            wait_for(lambda moment=moment: pieces_done(parts) >= moment, process)
        kill(process)
        assert not out.exists()
    done = finish(site, start(site, *command, pieces=size))
    assert flaw(done) is None
    assert f"resuming from {parts.name}: " in done.err
    assert files(out) == files(site / f"whole.{kind}")
    assert not parts.exists()


def test_interrupted_run_goes_on_and_so_does_one_whose_worker_is_killed(site: Path) -> None:
    command = ("dump.xml", "--out", "stopped", "--workers", 2)
    process = start(site, *command, pieces=1_000)
    wait_for(lambda: pieces_done(site / "stopped.parts") >= 3, process)
    workers = children(process.pid)
    os.kill(process.pid, signal.SIGINT)
    done = finish(site, process)
    assert done.code == 130
    assert re.fullmatch(r"stopped; .*\n", done.err)
    assert not any(map(lives, workers))

    before = pieces_done(site / "stopped.parts")
    process = start(site, *command, pieces=1_000)
    wait_for(lambda: pieces_done(site / "stopped.parts") >= before + 3, process)
    os.kill(children(process.pid)[0], signal.SIGKILL)
    done = finish(site, process)
    assert done.code == 2
    assert "Traceback" not in done.err
    assert re.match(r"error: a worker process ended", done.err.splitlines()[-1])

    assert not (site / "stopped").exists()
    assert finish(site, start(site, *command, pieces=1_000)).code == 0
    assert files(site / "stopped") == files(site / "whole.xml")


@pytest.mark.parametrize("step", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_before_any_change_of_a_file_it_goes_on(tmp_path: Path, step: int) -> None:
    # When it opens, renames or removes a file, from making the folder of parts to removing it.
    (tmp_path / "dump.xml").write_bytes(whole(varied_pages(5)))
    command = ("dump.xml", "--workers", 1, "--out")
    changes = int(run(tmp_path, job(*command, "whole", die=-1))[0].out.split()[-1])
    assert changes > 30
    numbers = [n for n in range(1, changes + 1) if n % step == 0 or n < 6 or n > changes - 6]
    results = run(tmp_path, *(job(*command, n, die=die) for n in numbers for die in (n, None)))
    assert {done.code for done in results[::2]} == {KILLED}
    wrong = {
        n: redone(tmp_path / str(n), done, tmp_path / "whole") for n, done in zip(numbers, results[1::2], strict=True)
    }
    assert {n: how for n, how in wrong.items() if how} == {}
    assert [n for n, done in zip(numbers, results[1::2], strict=True) if done.code] == [changes - 1, changes]


def redone(out: Path, done: Done, whole: Path) -> str | None:
    """What is wrong with the result of a run that went on."""
    is_finished = f"{out.name} already holds a corpus" in done.err  # it was killed when nothing was left to do
    if done.code and not is_finished:
        return f"code {done.code}: {done.err[-200:]}"
    if files(out) != files(whole):
        return "other bytes"
    return "leftovers" if out.with_name(f"{out.name}.parts").exists() else None


def damaged(data: bytes, flips: int) -> dict[str, bytes | None]:
    """The content of a file in the ways it may come back; None where it does not."""
    ways = {"gone": None, "cut": data[: len(data) // 2], "zeroed": bytes(len(data))}
    # In a text, where it matters: in links and values.
    places = [match.end() for match in re.finditer(rb'\[\[|": ', data)] if data.isascii() else range(len(data))
    for at in random.Random(0).sample(places, flips):
        ways[f"byte {at} flipped"] = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    return ways


def test_damaged_leftovers_are_done_again(site: Path) -> None:
    command = ("dump.xml", "--workers", 1, "--out")
    run(site, job(*command, "left", pieces=30_000, die="tempfile.mkdtemp"))  # about to write the corpus
    left, outs = site / "left.parts", []
    assert pieces_done(left) > 2
    few = CASES // 1000
    for pattern, flips in {
        "*-*.done": 4 * few,
        "*.npz": few,
        "*.parquet": few,
        "parts.json": 2,
        "names.duckdb": 0,
    }.items():
        found = sorted(left.glob(pattern))
        name = found[len(found) // 2].name
        for way, data in damaged((left / name).read_bytes(), flips).items():
            if (name, data) != ("parts.json", None):  # a folder without it may be anything
                outs.append(f"{name} {way}")
                copied = Path(shutil.copytree(left, site / f"{outs[-1]}.parts"))
                (copied / name).unlink() if data is None else (copied / name).write_bytes(data)
    results = run(site, *(job(*command, out, pieces=30_000) for out in outs))
    wrong = {out: redone(site / out, done, site / "whole.xml") for out, done in zip(outs, results, strict=True)}
    assert {out: how for out, how in wrong.items() if how} == {}


def test_changed_dump_starts_anew(tmp_path: Path) -> None:
    old, other = whole(varied_pages(60, 1)), whole(varied_pages(60, 2))
    same_size = other[: len(old) - len(END)].ljust(len(old) - len(END)) + END
    options = ("--workers", 1, "--out")
    changes = {"time": (old, 10**9), "size": (other, 0), "content": (same_size, 10**9)}
    for name in changes:
        (tmp_path / name).write_bytes(old)
    run(tmp_path, *(job(name, *options, f"{name} out", pieces=9_000, die="tempfile.mkdtemp") for name in changes))
    for name, (text, later) in changes.items():
        status = (tmp_path / name).stat()
        (tmp_path / name).write_bytes(text)
        os.utime(tmp_path / name, ns=(status.st_atime_ns, status.st_mtime_ns + later))
        assert pieces_done(tmp_path / f"{name} out.parts") > 2
    results = run(
        tmp_path, *(job(name, *options, out, pieces=9_000) for name in changes for out in (f"{name} out", name * 2))
    )
    for name, again, fresh in zip(changes, results[::2], results[1::2], strict=True):
        assert (again.code, again.err) == (fresh.code, fresh.err)
        assert "resuming" not in again.err
        assert redone(tmp_path / f"{name} out", again._replace(code=0), tmp_path / (name * 2)) is None
