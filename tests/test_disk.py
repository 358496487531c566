"""Disks that fail: ENOSPC or EIO at each call that writes, of every command that writes, in real processes.

strace first tells which calls of a command write to its folder, then makes them fail, one in each run. Whatever fails:
the old artefact stays as it was or the new one is whole, nothing half written has a final name, no temporary file is
left, and the command says so in one line with exit code 2, or ends well because the call did not matter.
"""

import atexit
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from io import BytesIO, FileIO
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import launch
import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from conftest import rings
from launch import OUTPUT, start
from traced import STRACE, UNTRACED, needs_strace, skip_untraced

from superbloom import Corpus, Superbloom, store
from superbloom import corpus as corpus_module
from superbloom import folder as folder_module
from superbloom import run as run_module
from superbloom.checkpoints import _write as write_checkpoint

pytestmark = pytest.mark.system

ERRORS = ("ENOSPC", "EIO")
CALLS = (
    "write,pwrite64,writev,pwritev,fsync,fdatasync,ftruncate,fallocate,copy_file_range,sendfile,"
    "openat,mkdir,mkdirat,chmod,fchmod,fchmodat,rename,renameat,renameat2,symlink,link"
)
MOST_TRIES = 5  # to make a call fail that writes to the folder
# Imported late by commands.
LIBRARIES = ("pandas", "pydantic", "tokenizers", "matplotlib.figure", "PIL.PngImagePlugin", "pyarrow.dataset")


@dataclass(frozen=True)
class Case:
    """A command, the files it finds in its folder, and those it is to write, with their kinds."""

    command: tuple[object, ...]
    files: Callable[[Path], None]
    finals: dict[str, str]
    again: tuple[object, ...] = ()  # what is added to go on after a failure
    keeps: str = "^$"  # a pattern: what else may lie there after a failure, to go on from


@dataclass
class Outcome:
    """What one failing call led to; problems is empty if nothing was lost."""

    call: str
    code: int
    found: dict[str, str]  # of each final name: old, new, other, absent or partial
    problems: list[str] = field(default_factory=list)


def watched(options: list[str], broken: Callable[[], None] | None) -> None:
    """In the process of a command: have strace look at it from here on."""
    assert STRACE
    if broken is not None:
        broken()
    status = os.open("/proc/self/status", os.O_RDONLY)  # not opened again and again: that would be counted
    tracer = subprocess.Popen([STRACE, "-f", "-qq", *options, "-p", str(os.getpid())], stderr=subprocess.DEVNULL)
    while b"TracerPid:\t0" in os.pread(status, 4096, 0):
        if tracer.poll() is not None:
            os._exit(UNTRACED)
        time.sleep(0.002)


class Running:
    """A command in a process of its own."""

    def __init__(self, folder: Path, command: tuple[object, ...], before: Callable[[], None] | None = None) -> None:
        self.pipe, self.output = forking(), folder / OUTPUT
        self.output.unlink(missing_ok=True)
        self.pid = self._ask((str(folder), list(map(str, command)), before))

    def ended(self) -> tuple[int, str]:
        """Exit code and what was printed."""
        code = self._ask(self.pid)
        skip_untraced(code)
        printed = self.output.read_text()
        self.output.unlink()
        return code, printed

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert self.ended()[0] == -signal.SIGKILL

    def _ask(self, message: object) -> int:
        self.pipe.send(message)
        assert self.pipe.poll(600)
        return self.pipe.recv()


def run(folder: Path, command: tuple[object, ...], before: Callable[[], None] | None = None) -> tuple[int, str]:
    return Running(folder, command, before).ended()


@cache
def forking() -> Connection:
    """To a process that forks one for each command: it has the modules already, which take longer than the commands."""
    ours, its = Pipe()
    place = tempfile.TemporaryDirectory()
    process = start(Path(place.name), before=partial(fork_again_and_again, its))

    def end() -> None:
        process.kill()
        process.join()
        place.cleanup()

    atexit.register(end)
    return ours


def fork_again_and_again(pipe: Connection) -> None:
    """A command is answered with the number of its process, such a number, once it has ended, with its exit code."""
    ours = ("recommend", "report", "prepare.sequences", "prepare.interactions", "prepare.text", "prepare.wikipedia")
    for module in (*(f"superbloom.{name}" for name in ours), "superbloom.reproduce.command", *LIBRARIES):
        import_module(module)
    while True:
        message = pipe.recv()
        if isinstance(message, int):
            pipe.send(os.waitstatus_to_exitcode(os.waitpid(message, 0)[1]))
        elif child := os.fork():
            pipe.send(child)
        else:
            os._exit(ended(*message))


def ended(folder: str, command: list[str], before: Callable[[], None] | None) -> int:
    """The exit code of a command."""
    try:
        launch._run(folder, command, before, {"OMP_NUM_THREADS": 1})
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
    return 0


def calls_that_write(trace: Path, folder: Path) -> list[tuple[str, int]]:
    """(call, n) where the n-th such call of a thread writes to something in the folder."""
    counts: Counter[tuple[str, str]] = Counter()
    found: dict[tuple[str, int], None] = {}
    for line in trace.read_text(errors="replace").splitlines():
        parts = re.match(r"(\d+) +(\w+)\((.*)", line)
        if parts is None:
            continue
        thread, call, arguments = parts.groups()
        counts[thread, call] += 1
        arguments = re.sub(r"AT_FDCWD<[^>]*>", "", arguments)
        writes = call != "openat" or "O_CREAT" in arguments
        if writes and str(folder) in arguments and OUTPUT not in arguments:
            found[call, counts[thread, call]] = None
    return list(found)


def failed_in(trace: Path, place: Path) -> bool:
    """Whether a call that strace made fail was about this file or folder."""
    return any("(INJECTED)" in line and str(place) in line for line in trace.read_text(errors="replace").splitlines())


def outcomes(
    case: Case, place: Path, most: int | None = None, broken: Callable[[], None] | None = None, file: str = ""
) -> list[Outcome]:
    """What the command does where each of its writing calls fails with either error; with `most`, where so many do.

    With a file, those that write to that one. broken is called in its process before: a twin.
    """
    template, folder, trace = place / "template", place / "work", place / "trace"
    template.mkdir(parents=True)
    case.files(template)
    shutil.copytree(template, folder)
    watching = partial(watched, ["-y", "-o", str(trace), "-e", f"trace={CALLS}"], broken)
    code, printed = run(folder, _in(case.command, folder), watching)
    assert code == 0, printed
    new = {name: content(folder / name) for name in case.finals}
    for name, kind in case.finals.items():
        load(folder / name, kind)
    failures = [(*call, error) for call in calls_that_write(trace, folder / file) for error in ERRORS]
    if most is not None and most < len(failures):
        failures = [failures[number * len(failures) // most] for number in range(most)]
    found = []
    for call, nth, error in failures:
        # Several threads write: the n-th call of one of them may be another call the next time.
        for _ in range(MOST_TRIES):
            shutil.rmtree(folder)
            shutil.copytree(template, folder)
            options = ["-y", "-o", str(trace), "-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={nth}"]
            code, printed = run(folder, _in(case.command, folder), partial(watched, options, broken))
            if failed_in(trace, folder / file):
                break
        found.append(judged(case, template, folder, new, code, printed, error))
        found[-1].call = f"{call} {nth} {error}"
    return found


def judged(
    case: Case, template: Path, folder: Path, new: dict[str, dict[str, bytes]], code: int, printed: str, error: str
) -> Outcome:
    found = {name: state(template / name, folder / name, kind, new[name]) for name, kind in case.finals.items()}
    outcome = Outcome("", code, found)
    told = [line for line in printed.splitlines() if line.startswith("error: ")]
    if code == 0:
        if stale := [name for name, found in outcome.found.items() if found != "new"]:
            outcome.problems.append(f"ended well, but {stale} is not written")
    elif code != 2 or "Traceback" in printed or len(told) != 1:
        outcome.problems.append(f"code {code}: {printed[-2000:]}")
    elif os.strerror(getattr(errno, error)) not in told[0] and "DuckDB gave up: " not in told[0]:
        outcome.problems.append(f"does not say why: {told[0]}")
    if lost := [name for name, found in outcome.found.items() if found == "partial"]:
        outcome.problems.append(f"half written: {lost}")
    if others := [name for name, found in outcome.found.items() if found == "other"]:
        outcome.problems.append(f"not what it is without the failure: {others}")
    known = {*everything(template), *(file for file in everything(folder) if file.split("/")[0] in case.finals)}
    beside = [file for file in everything(folder) if file not in known and not re.match(case.keeps, file)]
    beside += [file for file in everything(folder) if "/." in f"/{file}" and not file.endswith("/.lock")]
    if beside:
        outcome.problems.append(f"left behind: {sorted(set(beside))}")
    if code and case.again:
        code, printed = run(folder, (*_in(case.command, folder), *case.again))
        states = {name: state(template / name, folder / name, kind, new[name]) for name, kind in case.finals.items()}
        if code or set(states.values()) != {"new"}:
            outcome.problems.append(f"cannot be gone on with: {states}, code {code}, {printed[-2000:]}")
    return outcome


def state(old: Path, path: Path, kind: str, new: dict[str, bytes] | None = None) -> str:
    """Whether an artefact is the old one, the new one, if it is known, another that is whole, or partial."""
    if not path.exists():
        return "absent" if not old.exists() else "partial"
    if old.exists() and content(path) == content(old):
        load(path, kind)
        return "old"
    try:
        load(path, kind)
    except Exception:
        return "partial"
    return "new" if new is None or kind == "report" or tables(content(path)) == tables(new) else "other"


def tables(files: dict[str, bytes]) -> dict[str, bytes]:
    """Those whose bytes depend on the command alone; a card and a manifest tell times, too."""
    return {name: data for name, data in files.items() if not name.endswith((".json", ".md"))}


def content(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def everything(folder: Path) -> list[str]:
    return [str(file.relative_to(folder)) for file in folder.rglob("*")]


def load(path: Path, kind: str) -> None:
    """Raises if it is not whole."""
    if kind == "corpus":
        Corpus.open(path)
    elif kind == "model":
        store.load(path)
    elif kind == "csv":
        assert pyarrow.csv.read_csv(path).num_rows == 96 * 3
        assert path.read_bytes().endswith(b"\n")
    elif kind == "parquet":
        assert pyarrow.parquet.read_table(path).num_rows == 96 * 3
    else:
        for file in path.rglob("*"):
            if file.is_file() and "models" not in file.parts and "runs" not in file.parts:
                _load_file(file)
        for model in path.glob("models/*"):
            store.load(model)


def _load_file(file: Path) -> None:
    if file.suffix == ".json":
        json.loads(file.read_bytes())
    elif file.suffix == ".png":
        assert file.read_bytes().endswith(b"IEND\xaeB`\x82")
    elif file.suffix == ".md":
        assert file.read_bytes().endswith(b"\n")


def _in(command: tuple[object, ...], folder: Path) -> tuple[object, ...]:
    return tuple(str(word).replace("HERE", str(folder)) for word in command)


# --- the commands that write ---------------------------------------------------------------------------------------

SMALL = ("--dim", 16, "--heads", 2, "--ffn-dim", 16, "--layers", 1, "--batch-size", 16, "--valid-every", 3)
TRAIN = ("train", "HERE/corpus", "--out", "HERE/model", "--steps", 6, "--save-every", 3, *SMALL, "--json")
LINKS = "out.parts/links"
PAGE = "<page><title>{}</title><ns>0</ns><revision><text>{}</text></revision></page>\n"


def old_corpus(folder: Path, name: str = "out") -> None:
    Corpus.from_sequences([["Oslo", "Bergen"], ["Oslo", "Narvik"]] * 50).save(folder / name)


def of_sequences(folder: Path) -> None:
    old_corpus(folder)
    (folder / "rows.tsv").write_text("Aarhus\tOdense\nAarhus\tRibe\n" * 50)


def of_interactions(folder: Path) -> None:
    old_corpus(folder)
    rows = [f"{user},{item},{10 * user + item}" for user in range(40) for item in range(user % 5, 9)]
    (folder / "log.csv").write_text("user_id,item_id,at\n" + "\n".join(rows) + "\n")


def of_text(folder: Path) -> None:
    old_corpus(folder)
    (folder / "text.txt").write_text("Miles Davis plays jazz. John Coltrane, too.\n\nJazz is music.\n\n" * 40)


def of_pages(folder: Path) -> None:
    old_corpus(folder)
    pages = [PAGE.format(f"P{i}", f"[[P{i + 1}]] and [[P{i // 2}]]") for i in range(30)]
    (folder / "dump.xml").write_text("<mediawiki>\n" + "".join(pages) + "</mediawiki>\n")


def of_models(folder: Path) -> None:
    """A corpus, and an old model that was trained on another."""
    (rings(num_rings=12, rows=300)).save(folder / "corpus")
    other = Corpus.from_sequences([["Oslo", "Bergen"], ["Oslo", "Narvik"]] * 50)
    small = {"alpha": 1, "dim": 16, "ffn_dim": 16, "heads": 2, "layers": 1}
    Superbloom(**small).fit(other, steps=2, quiet=True).save_pretrained(folder / "model")


def of_a_run(folder: Path) -> None:
    """The same, where a run has done half of its steps; its model stands in the old one's place."""
    of_models(folder)
    shutil.rmtree(folder / "model")
    code, printed = run(folder, (*_in(TRAIN, folder), "--steps", 3))
    assert code == 0, printed


def of_growth(folder: Path) -> None:
    of_models(folder)
    (folder / "names.txt").write_text("".join(f"new {i}\n" for i in range(2)))


def of_reports(folder: Path) -> None:
    """A trained model of the corpus, and the reports of another time."""
    corpus = rings(num_rings=12, rows=300)
    corpus.save(folder / "corpus")
    small = {"alpha": 1, "dim": 16, "ffn_dim": 16, "heads": 2, "layers": 1}
    Superbloom(**small).fit(corpus, steps=2, quiet=True).save_pretrained(folder / "model")
    (folder / "report").mkdir()
    (folder / "report" / "metrics.json").write_text('{"an": "older report"}')
    (folder / "users.txt").write_text("".join(f"{i}\n" for i in range(96)))
    pyarrow.csv.write_csv(pyarrow.table({"user": ["0"] * 96 * 3}), folder / "out.csv")
    pyarrow.parquet.write_table(pyarrow.table({"user": ["0"] * 96 * 3}), folder / "out.parquet")


RECOMMEND = ("recommend", "HERE/model", "HERE/corpus", "--users-file", "HERE/users.txt", "-k", 3, "--out")
REPRODUCE = ("reproduce", "HERE/corpus", "--out", "HERE/paper", "--only", "examples", "--budget", "0.01m")
CASES = {
    "prepare sequences": Case(
        ("prepare", "sequences", "HERE/rows.tsv", "--out", "HERE/out"), of_sequences, {"out": "corpus"}
    ),
    "prepare interactions": Case(
        ("prepare", "interactions", "HERE/log.csv", "--time", "at", "--out", "HERE/out"),
        of_interactions,
        {"out": "corpus"},
    ),
    "prepare text": Case(("prepare", "text", "HERE/text.txt", "--out", "HERE/out"), of_text, {"out": "corpus"}),
    "prepare wikipedia": Case(
        ("prepare", "wikipedia", "HERE/dump.xml", "--out", "HERE/out", "--workers", 1),
        of_pages,
        {"out": "corpus"},
        again=("--workers", 1),
        keeps="out.parts",
    ),
    "train": Case(TRAIN, of_models, {"model": "model"}, again=("--resume",), keeps="model.run"),
    "train --resume": Case((*TRAIN, "--resume"), of_a_run, {"model": "model"}, again=("--resume",), keeps="model.run"),
    "extend": Case(("extend", "HERE/model", "HERE/names.txt", "--out", "HERE/model"), of_growth, {"model": "model"}),
    "evaluate": Case(
        ("evaluate", "HERE/model", "HERE/corpus", "--out", "HERE/report"), of_reports, {"report": "report"}
    ),
    "recommend to CSV": Case((*RECOMMEND, "HERE/out.csv"), of_reports, {"out.csv": "csv"}),
    "recommend to Parquet": Case((*RECOMMEND, "HERE/out.parquet"), of_reports, {"out.parquet": "parquet"}),
    "reproduce": Case(REPRODUCE, of_models, {"paper": "report"}, again=("--json",)),
}


@needs_strace
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_disk_that_fails_at_any_call_loses_nothing(tmp_path, check, name):
    most = {"train": 120, "train --resume": 120, "reproduce": 20}.get(name)  # of these, hundreds of calls take too long
    found = outcomes(CASES[name], tmp_path, most)
    assert [(outcome.call, outcome.problems) for outcome in found if outcome.problems] == []
    assert len(found) >= 12
    check(14, f"{name}: {told(found)}")


def told(found: list[Outcome]) -> str:
    calls = {outcome.call.rsplit(" ", 1)[0] for outcome in found}
    refused = sum(outcome.code == 2 for outcome in found)
    kept = sum("new" not in outcome.found.values() for outcome in found if outcome.code == 2)
    return (
        f"{len(found)} failures at {len(calls)} calls, {refused} told in one line with exit 2 ({kept} with the old in "
        f"place, {refused - kept} with a whole new one), {len(found) - refused} that did not matter; "
        f"{sum(map(bool, (outcome.problems for outcome in found)))} lost or left anything"
    )


@needs_strace
@pytest.mark.parametrize("name", ["prepare sequences", "recommend to CSV"])
def test_some_calls_that_fail_lose_nothing(tmp_path, check, name):
    found = outcomes(CASES[name], tmp_path, 6)
    assert [(outcome.call, outcome.problems) for outcome in found if outcome.problems] == []
    check(14, f"{name}, some calls: {told(found)}")


@needs_strace
def test_a_file_on_the_way_that_is_cut_is_noticed_at_once(tmp_path):
    found = outcomes(CASES["prepare wikipedia"], tmp_path, file=LINKS)
    assert [(outcome.call, outcome.problems) for outcome in found if outcome.problems] == []
    assert {outcome.code for outcome in found} == {2}


# --- broken on purpose ---------------------------------------------------------------------------------------------


def straight_into_place() -> None:
    """Folders are written under their final names."""

    @contextmanager
    def new_folder(path, kind, content):
        shutil.rmtree(path)
        Path(path).mkdir()
        yield Path(path)
        folder_module._seal(Path(path), kind, content)

    corpus_module.new_folder = store.new_folder = new_folder


def errors_ignored() -> None:
    """Folders are written as they should be, but a disk that fails is not told."""
    original = folder_module.new_folder

    @contextmanager
    def new_folder(*arguments):
        with suppress(OSError), original(*arguments) as temporary:
            yield temporary

    corpus_module.new_folder = store.new_folder = new_folder


def files_written_over() -> None:
    """A table is written over the old one."""
    run_module.write_atomically = lambda path, data: path.write_bytes(data)


def last_bytes_not_looked_at() -> None:
    """Files are written by NumPy's tofile, which does not tell whether the last few thousand bytes had room."""

    class File(FileIO):
        def write(self, data) -> int:
            np.frombuffer(data, np.uint8).tofile(self)
            return len(data)

    original = Path.open
    Path.open = lambda path, mode="r", *given, **named: (
        File(path, "w") if mode == "wb" else original(path, mode, *given, **named)
    )


@needs_strace
def test_a_corpus_that_lacks_what_had_no_room_is_noticed(tmp_path, check):
    found = outcomes(CASES["prepare wikipedia"], tmp_path, None, last_bytes_not_looked_at, LINKS)
    noticed = [outcome for outcome in found if outcome.problems]
    assert any(outcome.code == 0 for outcome in noticed)
    signs = "another corpus, or another reason"
    check.twin(14, "prepare wikipedia, last bytes not looked at", f"{len(noticed)} of {len(found)} failures: {signs}")


@needs_strace
@pytest.mark.parametrize(
    ("name", "broken", "sign"),
    [
        ("prepare sequences", straight_into_place, "half written"),
        ("prepare sequences", errors_ignored, "ended well, but"),
        ("recommend to CSV", files_written_over, "half written"),
    ],
)
def test_what_loses_something_is_noticed(tmp_path, check, name, broken, sign):
    found = outcomes(CASES[name], tmp_path, 6, broken)
    noticed = [outcome for outcome in found if any(sign in problem for problem in outcome.problems)]
    assert noticed
    check.twin(14, f"{name}, {broken.__name__.replace('_', ' ')}", f"{len(noticed)} of {len(found)} failures: {sign}")


FULL = """
import sys
from pathlib import Path
import numpy as np
from superbloom.prepare.files import mapped
path = Path(sys.argv[1]) / "numbers"
array = mapped(path, np.int32, 10**6) if sys.argv[2] == "ours" else np.memmap(path, np.int32, "w+", shape=10**6)
array[:] = 1
"""


def test_an_array_in_a_file_takes_its_room_at_once(tmp_path):
    """On a disk of half a megabyte: an error that can be told, where a file with holes ends the process by a signal."""
    mount = f'mount -t tmpfs -o size=512k tmpfs "{tmp_path}" && exec "$@"'
    prefix = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh")
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("this system lets nobody mount a file system of their own")
    ours, plain = (
        subprocess.run([*prefix, sys.executable, "-c", FULL, tmp_path, who], capture_output=True, text=True)
        for who in ("ours", "numpy")
    )
    assert ours.returncode == 1
    assert "No space left on device" in ours.stderr
    assert plain.returncode == -signal.SIGBUS


class Failing(BytesIO):
    """A file whose n-th write fails."""

    def __init__(self, nth: int) -> None:
        super().__init__()
        self.left = nth

    def write(self, data) -> int:
        self.left -= 1
        if self.left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


def test_a_checkpoint_that_cannot_be_written_says_what_the_disk_said():
    """Not what torch makes of it: that the file is not as long as it should be."""
    failed = 0
    for nth in range(1, 100):
        file = Failing(nth)
        with suppress(OSError):
            write_checkpoint({"weights": torch.zeros(1000), "steps": [1, 2]}, file)
        failed += file.left <= 0
        if file.left > 0:
            break
    assert failed > 10
