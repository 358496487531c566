"""Two processes and one folder: one writes, the other is told so; who reads meanwhile sees the old or the new."""

import errno
import fcntl
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from superbloom import Corpus, Superbloom
from superbloom.errors import InputError
from superbloom.reproduce.workbench import Workbench
from superbloom.storage import folder, locks
from superbloom.store import model_folder as store
from tests.support import disk, launch

pytestmark = pytest.mark.system

OLD = Corpus.from_sequences([["Oslo", "Bergen"], ["Oslo", "Narvik"]] * 50)
NEW = Corpus.from_sequences([["Aarhus", "Odense"], ["Aarhus", "Ribe"]] * 80)
BUSY = "wait for it, or choose another --out"


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def held(place: str, broken: Callable[[], None] | None) -> None:
    """In the process of a command: wait in the middle of it, until there is a file `go`."""
    if broken is not None:
        broken()
    seal, keep = folder._seal, Workbench.keep

    def wait() -> None:
        (Path(place) / "held").touch()
        until((Path(place) / "go").exists)

    def waiting_seal(*arguments):
        wait()
        return seal(*arguments)

    def waiting_keep(*arguments):
        wait()
        return keep(*arguments)

    folder._seal, Workbench.keep = waiting_seal, waiting_keep


def without_locks() -> None:
    """The twin: everybody gets every lock."""
    locks.fcntl.flock = lambda *_: None


class Two:
    """A command that is held half-way, and the same one beside it, in processes of their own."""

    def __init__(self, case: disk.Case, place: Path, broken: Callable[[], None] | None = None) -> None:
        self.case, self.place, self.broken = case, place, broken
        self.work = place / "work"
        for path in (self.work, place / "one", place / "two"):
            path.mkdir()
        case.files(self.work)
        self.before = disk.everything(self.work)
        self.command = disk._in(case.command, self.work)
        self.first = disk.Running(place / "one", self.command, partial(held, str(place), broken))
        until((place / "held").exists)

    def second(self, *more: str) -> tuple[int, str]:
        return disk.run(self.place / "two", (*self.command, *more), self.broken)

    def finish(self) -> tuple[int, str]:
        (self.place / "go").touch()
        return self.first.ended()

    def problems(self) -> list[str]:
        """What is wrong once both have ended: each has to be told apart, and nothing harmed."""
        code, printed = self.second()
        found = [] if code == 2 else [f"the second ended with {code}"]
        lines = printed.splitlines()
        if not (len(lines) == 1 and lines[0].startswith("error: another process is ") and BUSY in lines[0]):
            found.append(f"the second said {lines}")
        code, printed = self.finish()
        if code != 0:
            found.append(f"the first ended with {code}: {printed[-1000:]}")
        for name, kind in self.case.finals.items():
            disk.load(self.work / name, kind)
        left = [file for file in disk.everything(self.work) if "/." in f"/{file}" and not file.endswith("/.lock")]
        return found + [f"{file} is left behind" for file in left]


COMMANDS = ["prepare sequences", "prepare interactions", "prepare text", "prepare wikipedia", "train", "extend"]
COMMANDS += [pytest.param("reproduce", marks=pytest.mark.slow)]


@pytest.mark.parametrize("name", COMMANDS)
def test_of_two_writers_one_wins_and_the_other_is_told(tmp_path, name):
    assert Two(disk.CASES[name], tmp_path).problems() == []


@pytest.mark.parametrize("name", ["prepare sequences", "prepare wikipedia", "train"])
def test_without_the_lock_it_is_noticed(tmp_path, name):
    """The twin of the above, by the same look at it."""
    assert Two(disk.CASES[name], tmp_path, without_locks).problems() != []


def test_a_training_is_not_gone_on_with_while_it_runs(tmp_path):
    two = Two(replace(disk.CASES["train"], command=disk.TRAIN, files=disk.of_a_corpus), tmp_path)
    for option in ("--resume", "--overwrite"):
        code, printed = two.second(option)
        assert code == 2
        assert f"another process is writing {two.work / 'model'}; {BUSY}" in printed
    assert two.finish()[0] == 0
    store.load(two.work / "model")


@pytest.mark.parametrize("name", ["prepare wikipedia", "train"])
def test_a_killed_writer_is_in_nobodys_way(tmp_path, name):
    two = Two(disk.CASES[name], tmp_path)
    two.first.kill()
    assert (two.work / f".{next(iter(two.case.finals))}.lock").exists()  # it is left, and free
    code, printed = two.second(*two.case.again)
    assert code == 0, printed
    for final, kind in two.case.finals.items():
        assert disk.state(tmp_path / "absent", two.work / final, kind) == "new"
        assert not (two.work / f".{final}.lock").exists()


def test_many_at_once_leave_one_whole_folder(tmp_path):
    (tmp_path / "work").mkdir()
    case = disk.CASES["prepare sequences"]
    case.files(tmp_path / "work")
    places = [tmp_path / str(number) for number in range(6)]
    for place in places:
        place.mkdir()
    started = [disk.Running(place, disk._in(case.command, tmp_path / "work")) for place in places]
    ends = [process.ended() for process in started]
    codes = [code for code, _ in ends]
    assert 0 in codes
    assert set(codes) <= {0, 2}
    assert [BUSY in printed for _, printed in ends] == [code == 2 for code in codes]
    assert Corpus.open(tmp_path / "work" / "out").vocab.name(0) == "Aarhus"
    assert sorted(file.name for file in (tmp_path / "work").iterdir()) == ["out", "rows.tsv"]


# --- the lock itself -----------------------------------------------------------------------------------------------


@contextmanager
def locked_by_another(path: Path):
    """As another process would: a lock is of an open file, not of a process."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def test_a_link_to_a_folder_has_the_lock_of_the_folder(tmp_path):
    (tmp_path / "here").mkdir()
    OLD.save(tmp_path / "here" / "corpus")
    (tmp_path / "latest").symlink_to("here/corpus")
    before = disk.content(tmp_path / "here" / "corpus")
    with (
        locked_by_another(tmp_path / "here" / ".corpus.lock"),
        pytest.raises(InputError, match=r"another process is writing .*here/corpus; wait for it"),
    ):
        NEW.save(tmp_path / "latest")
    assert disk.content(tmp_path / "here" / "corpus") == before
    NEW.save(tmp_path / "latest")
    assert Corpus.open(tmp_path / "latest").fingerprint() == NEW.fingerprint()
    assert sorted(disk.everything(tmp_path)) == ["here", "here/corpus", *_parts("here/corpus"), "latest"]


def _parts(folder: str) -> list[str]:
    return [f"{folder}/{name}" for name in ("corpus.json", "sequences.arrow", "vocab.arrow")]


def test_where_there_are_no_locks_it_is_written_all_the_same(tmp_path, monkeypatch):
    def no_locks(*_) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", no_locks)
    NEW.save(tmp_path / "corpus")
    assert Corpus.open(tmp_path / "corpus").fingerprint() == NEW.fingerprint()
    assert [file.name for file in tmp_path.iterdir()] == ["corpus"]


def test_a_lock_that_was_removed_by_who_held_it_is_taken_anew(tmp_path, monkeypatch):
    """Opened before it was removed, locked after: that file is nobody's lock any more."""
    path, flock, removed = tmp_path / ".corpus.lock", fcntl.flock, []

    def removing(file, how) -> None:
        if not removed:
            path.unlink()
            removed.append(path)
        flock(file, how)

    monkeypatch.setattr(locks.fcntl, "flock", removing)
    with locks.locked(path, "busy"), pytest.raises(BlockingIOError), locked_by_another(path):
        pass
    assert removed


def test_a_folder_of_another_file_system_is_written_there(monkeypatch):
    if not Path("/dev/shm").is_dir():
        pytest.skip("there is no other file system")
    monkeypatch.setenv("TMPDIR", str(Path.cwd()))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        for corpus in (OLD, NEW):
            corpus.save(Path(place) / "corpus")
            assert Corpus.open(Path(place) / "corpus").fingerprint() == corpus.fingerprint()
        assert [file.name for file in Path(place).iterdir()] == ["corpus"]


# --- reading meanwhile ---------------------------------------------------------------------------------------------


def replace_again_and_again(one: str, other: str, path: str, pause: float) -> None:
    models = [Superbloom.from_pretrained(name) for name in (one, other)]
    while True:
        for model in models:
            model.save_pretrained(path)
            time.sleep(pause)


@pytest.fixture
def replaced(request, tmp_path):
    """A model folder that another process replaces by one of two over and over, and what both answer.

    The parameter is the pause between two, in seconds: without one, a slow reader would never end.
    """
    answers = {}
    for name, corpus in (("old", OLD), ("new", NEW)):
        model = Superbloom(alpha=1, dim=16, ffn_dim=16, heads=2, layers=1).fit(corpus, steps=2, quiet=True)
        model.save_pretrained(tmp_path / name)
        answers[corpus.vocab.name(0)] = [answer.name for answer in model.predict([corpus.vocab.name(0)], k=3)]
    model.save_pretrained(tmp_path / "model")
    paths = [str(tmp_path / name) for name in ("old", "new", "model")]
    (tmp_path / "writer").mkdir()
    writer = launch.start(
        tmp_path / "writer", before=partial(replace_again_and_again, *paths, getattr(request, "param", 0))
    )
    try:
        yield tmp_path / "model", answers
        assert writer.is_alive()
    finally:
        writer.kill()
        writer.join()


def test_a_model_that_is_replaced_while_it_is_read_is_the_old_or_the_new(replaced):
    path, answers = replaced
    seen, end = [], time.monotonic() + 60
    while time.monotonic() < end and sum(one != other for one, other in pairwise(seen)) < 10:
        model = Superbloom.from_pretrained(path)
        seen.append(model.model.vocab.name(0))
        assert [answer.name for answer in model.predict([seen[-1]], k=3)] == answers[seen[-1]]
    assert set(seen) == set(answers)


@pytest.mark.parametrize("replaced", [0.5], indirect=True)
def test_a_server_that_loads_anew_meanwhile_answers_with_the_old_or_the_new(replaced, tmp_path):
    from tests.support.servers import request, serve

    path, answers = replaced
    seen = set()
    with serve(tmp_path, path, "--port", 0) as server:
        url = server.ready()
        for times in range(1, 13):
            server.signal(signal.SIGHUP)
            until(lambda times=times: server.printed.count("reloaded") == times)
            for name, expected in answers.items():
                status, answer = request(f"{url}/v1/predict", {"context": [name], "k": 3})
                if status == 200:  # the other model does not know the name
                    seen.add(name)
                    assert [found["name"] for found in answer["masks"][0]["predictions"]] == expected
        assert "not reloaded" not in server.printed
        server.signal(signal.SIGTERM)
        assert server.ended() == 0
    assert seen == set(answers)
