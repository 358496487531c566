"""Open folders in other processes and report what happens, since a damaged file may end the process that reads it.

`probe` forks after it opened a good folder, so that the time and memory of each job are its own. With strace it also
reports each file that is opened outside the folder. NO_… are changes that leave out one check of the code.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from superbloom.storage import folder as folder_module
from tests.support import launch
from tests.support.folders import Outcome

# Opens folders in processes that are forked after a good folder was opened: so what follows is only its own time and
# memory. A process opens as many folders as `together` says, or ends before; another one opens those that follow.
# What the first of its jobs names as `broken` is left out of the code before.
PROBE = """
import gc, importlib, inspect, io, json, os, resource, signal, sys, textwrap, time
from pathlib import Path
from superbloom import MASK, Corpus, InputError, Superbloom

def corpus(folder, verify):
    found = Corpus.open(folder, verify=verify)
    found.fingerprint()
    [found.vocab.names(found.row(number)) for number in range(len(found))]
    (found.target_vocab or found.vocab).names(found.targets)
    [(found.id_counts(split), found.rows(split)) for split in ("train", "valid", "test")]
    if found.vocab.kinds is not None:
        found.sentence_starts, found.vocab.segmenter.segment("näme 1, twice")

def model(folder, verify):
    found = Superbloom.from_pretrained(folder, verify=verify)
    vocab = found.model.vocab
    [name in vocab for name in vocab.names(range(len(vocab)))]
    found.predict([vocab.name(0), MASK], k=5)
    if vocab.kinds is not None:
        found.predict("näme 1 [MASK] twice", k=5)

def crash(folder, verify):
    os.kill(os.getpid(), signal.SIGSEGV if folder.endswith("crash") else 0)

def eat(folder, verify):
    bytearray(200 << 20)

def spin(folder, verify):
    while True:
        pass

def command(folder, arguments):
    sys.argv, sys.stdout, sys.stderr = ["superbloom", *arguments], io.StringIO(), io.StringIO()
    try:
        cli.main()
    except SystemExit as error:
        printed = sys.stdout.getvalue() + sys.stderr.getvalue()
        *before, last, end = printed.split("\\n")  # some say first what they do
        if error.code == 2 and last.startswith("error: ") and not end and len(before) < 3:
            raise InputError(last[7:]) from None
        assert error.code in (0, None), printed

def leave(folder, verify):
    open(folder + ".beside", "w").close()

def without(place, line, instead):
    module, _, name = place.partition(":")
    function = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    function = getattr(function, "__func__", function)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(line) == 1, (place, line)
    changed = {}
    source = source.replace("@classmethod\\n", "").replace(line, instead)
    exec(compile("from __future__ import annotations\\n" + source, place, "exec"), function.__globals__, changed)
    function.__code__ = changed[function.__name__].__code__

def status(name):
    return int(Path("/proc/self/status").read_text().split(name + ":")[1].split()[0]) // 1024

def outcome(kind, folder, verify):
    try:
        globals()[kind](folder, verify)
        return "accepted", ""
    except InputError as error:
        return "refused", str(error)
    except BaseException as error:
        return type(error).__name__, str(error)

def opened(number, kind, folder, verify):
    signal.alarm(120)  # it waits for something that never comes
    seconds = 1 if kind == "spin" else 5
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + seconds, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_AS, (status("VmSize") + 512 << 20, resource.RLIM_INFINITY))
    began, before = time.perf_counter(), status("VmHWM")
    os.path.exists(f"/job/{number}")  # a mark in what strace sees
    what, message = outcome(kind, folder, verify)
    os.path.exists("/job/ends")
    seconds, megabytes = time.perf_counter() - began, status("VmHWM") - before
    return {"outcome": what, "message": message, "seconds": seconds, "megabytes": megabytes}

warm, jobs, together = json.load(sys.stdin)
if any(kind == "command" for kind, *_ in jobs):
    import superbloom.reproduce.run, superbloom.serve.server, superbloom.training.fit, torch.utils.tensorboard
    from superbloom import cli
for folder in warm:
    globals()["model" if "model" in os.path.basename(folder) else "corpus"](folder, True)
gc.freeze()  # or each process would look through all of this for garbage
number = 0
while number < len(jobs):
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        for change in jobs[number][3]:
            without(*change)
        with os.fdopen(writer, "w") as answer:
            for job in range(number, min(number + together, len(jobs))):
                print(json.dumps(opened(job, *jobs[job][:3])), file=answer, flush=True)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        told = answer.read().splitlines()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    died = {"outcome": signal.Signals(-code).name if code < 0 else "ended", "message": "", "seconds": 0, "megabytes": 0}
    told += [json.dumps(died)] if code else []  # at the job after those it told of
    print(*told, sep="\\n", flush=True)
    number += len(told)
"""

Job = tuple[str, Path, Any]
Change = tuple[str, str, str]


def probe(
    warm: list[Path],
    jobs: list[Job],
    broken: Sequence[Sequence[Change]] | None = None,
    trace: Path | None = None,
    together: int = 1,
) -> list[Outcome]:
    """What happens to (kind, folder, verify) one after another: refused, accepted, another error, or a death.

    broken is, for each of them, what is left out of the code. With trace, also the files outside the folder that were
    opened or changed, as strace sees it. together is how many of them a process opens.
    """
    changes = [()] * len(jobs) if broken is None else broken
    told = [(kind, str(folder), verify, left) for (kind, folder, verify), left in zip(jobs, changes, strict=True)]
    given = json.dumps([list(map(str, warm)), told, together])
    if trace is None:
        done = launch.python(PROBE, given=given)
        assert done.returncode == 0, done.stderr
    else:
        command = ["strace", *WATCHED, "-o", str(trace), sys.executable, "-c", PROBE]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, input=given, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    outcomes = list(map(json.loads, done.stdout.splitlines()))
    assert len(outcomes) == len(jobs)
    for number, elsewhere in enumerate(outside_of(trace, [folder for _, folder, _ in jobs]) if trace else []):
        outcomes[number]["outside"] = elsewhere
    return outcomes


CHANGES = ("open", "openat", "openat2", "creat", "rename", "renameat", "renameat2", "unlink", "unlinkat", "mkdir")
CHANGES += ("mkdirat", "rmdir", "symlink", "symlinkat", "link", "linkat", "truncate", "chmod", "fchmodat")
TRACED = f"trace=stat,newfstatat,access,faccessat2,{','.join(CHANGES)}"
WATCHED = ("-f", "-qq", "-y", "-s", "4096", "--seccomp-bpf", "-e", TRACED)
OURS = (
    sys.prefix,
    sys.base_prefix,
    str(Path(folder_module.__file__).parent),
    "/proc/",
    "/sys/",
    "/dev/shm",
    "/usr/lib",
    "/lib",
)


def outside_of(trace: Path, folders: list[Path]) -> list[list[str]]:
    """Of each job, what it opened or changed that lies neither in its folder nor among what Python is made of."""
    found: list[list[str]] = [[] for _ in folders]
    number = None
    for line in trace.read_text(errors="replace").splitlines():
        if mark := re.search(r'"/job/(\w+)"', line):
            number = int(mark[1]) if mark[1].isdecimal() else None
        elif number is not None and re.search(rf"\b({'|'.join(CHANGES)})\(", line) and "ENOENT" not in line:
            # What was opened in the end, links followed; of other calls, and of failed ones, what they name.
            ended = re.search(r"= \d+<(.*)>$", line)
            for path in [ended[1]] if ended else re.findall(r'"(/[^"]*)"', line):
                if not f"{path}/".startswith((*OURS, f"{folders[number]}/")):
                    found[number].append(path)
    return found


NO_CHECKSUMS = ("superbloom.storage.folder:_check_file", "sha256(file) != expected", "False")
NO_VALIDATION = ("superbloom.storage.arrow:read_arrow", "table.validate(full=True)", "pass")
NO_IDS = ("superbloom.corpus.vocab:Vocab.open", "by_name.view(np.uint32).max() >= len(vocab)", "False and")
