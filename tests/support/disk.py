"""Commands that write, and a disk that fails: ENOSPC or EIO at one call of a run.

strace first lists the calls of a command that write to its folder, then makes one of them fail in each run. A run is
judged by what it leaves: the old artefact as it was or a whole new one, nothing half written under a final name, no
temporary file, and one line with exit code 2, or a good end if the call did not matter.
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
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet

from superbloom import Corpus, Superbloom
from superbloom.store import model_folder as store
from tests.support import launch
from tests.support.corpora import rings
from tests.support.launch import OUTPUT, start
from tests.support.traced import STRACE, UNTRACED, skip_untraced

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
    ours = (
        "predict.recommend",
        "batch.local",
        "batch.sources",
        "batch.spark",
        "batch.tables",
        "evaluate.tables",
        "prepare.sequences",
        "prepare.interactions",
        "prepare.text",
        "prepare.wikipedia",
    )
    for module in (*(f"superbloom.{name}" for name in ours), "superbloom.reproduce.run", *LIBRARIES):
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


def of_a_corpus(folder: Path) -> None:
    rings(num_rings=12, rows=300).save(folder / "corpus")


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
        ("prepare", "sequences", "HERE/rows.tsv", "--out", "HERE/out", "--overwrite"), of_sequences, {"out": "corpus"}
    ),
    "prepare interactions": Case(
        ("prepare", "interactions", "HERE/log.csv", "--time", "at", "--out", "HERE/out", "--overwrite"),
        of_interactions,
        {"out": "corpus"},
    ),
    "prepare text": Case(
        ("prepare", "text", "HERE/text.txt", "--out", "HERE/out", "--overwrite"), of_text, {"out": "corpus"}
    ),
    "prepare wikipedia": Case(
        ("prepare", "wikipedia", "HERE/dump.xml", "--out", "HERE/out", "--overwrite", "--workers", 1),
        of_pages,
        {"out": "corpus"},
        again=("--workers", 1),
        keeps="out.parts",
    ),
    "train": Case((*TRAIN, "--overwrite"), of_models, {"model": "model"}, again=("--overwrite",), keeps="model.run"),
    "train --resume": Case((*TRAIN, "--resume"), of_a_run, {"model": "model"}, again=("--resume",), keeps="model.run"),
    "extend": Case(
        ("extend", "HERE/model", "HERE/names.txt", "--out", "HERE/model", "--overwrite"), of_growth, {"model": "model"}
    ),
    "evaluate": Case(
        ("evaluate", "HERE/model", "HERE/corpus", "--out", "HERE/report", "--overwrite"),
        of_reports,
        {"report": "report"},
    ),
    "recommend to CSV": Case((*RECOMMEND, "HERE/out.csv", "--overwrite"), of_reports, {"out.csv": "csv"}),
    "recommend to Parquet": Case(
        (*RECOMMEND, "HERE/out.parquet", "--overwrite"), of_reports, {"out.parquet": "parquet"}
    ),
    "reproduce": Case(REPRODUCE, of_models, {"paper": "report"}, again=("--json",)),
}
