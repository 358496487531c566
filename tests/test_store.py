"""Model and corpus folders: what was saved is what is loaded; damage and malice are refused, by name, without harm.

Folders are opened in another process (PROBE), since a damaged file may end the process that reads it.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import launch
import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file, save_file
from traced import untraced

from superbloom import cli
from superbloom import folder as folder_module
from superbloom.api import Superbloom
from superbloom.arrow import write_arrow
from superbloom.corpus import Corpus
from superbloom.errors import InputError
from superbloom.folder import MANIFESTS
from superbloom.hashing import BloomHash
from superbloom.special import MASK
from superbloom.vocab import Vocab

Outcome = dict[str, Any]
ROWS = [[f"name {number % 13}", f"name {number % 7}", f"näme {number % 5}"] for number in range(80)]
PLAIN = Corpus.from_sequences(ROWS)
TWO = Corpus.from_sequences(ROWS, targets=[[name.upper() for name in row] for row in ROWS])


CUTS = pa.array([2] * len(PLAIN), pa.int32())  # of rows of three
LOG = Corpus(PLAIN.vocab, PLAIN.sequences.append_column("valid_from", CUTS).append_column("test_from", CUTS))
WORDS = ["näme", "##s", "name 1", "twice", ",", "1", "n", "a"]
KINDS = np.array([0, 0, 2, 1, 0, 0, 0, 0], np.int8)
TEXTS = Corpus(
    Vocab.from_arrays(WORDS, np.arange(8, 0, -1), KINDS, "cased")[0],
    pa.table(
        {
            "key": pa.array(map(str, range(60)), pa.large_string()),
            "ids": pa.array([[0, 1, 2, 3, 4, 5]] * 60, pa.large_list(pa.int32())),
            "split": pa.array([0] * 50 + [1] * 5 + [2] * 5, pa.int8()),
            "sentences": pa.array([[0, 3]] * 60, pa.large_list(pa.int32())),
        }
    ),
)


def fitted(corpus: Corpus, **options: Any) -> Superbloom:
    options = {"alpha": 2, "dim": 16, "ffn_dim": 16, "heads": 2, "layers": 1} | options
    return Superbloom(**options).fit(corpus, steps=2, quiet=True)


@pytest.fixture(scope="session")
def good(tmp_path_factory) -> Path:
    """Folders corpus and model that hold every file there can be, and others: of text, of a log, of other sizes."""
    parent = tmp_path_factory.mktemp("good")
    TWO.save(parent / "corpus")
    fitted(TWO, positions=True, target_alpha=3).save_pretrained(parent / "model")
    fitted(PLAIN, dim=8, alpha=3).save_pretrained(parent / "other")
    fitted(PLAIN, distance=False).save_pretrained(parent / "plain-model")
    PLAIN.save(parent / "plain-corpus")
    TEXTS.save(parent / "text-corpus")
    fitted(TEXTS, mask_as="element").save_pretrained(parent / "text-model")
    LOG.save(parent / "log-corpus")
    return parent


def flat(answers: list) -> list:
    """The predictions of one mask or of several."""
    return [one for some in answers for one in some] if isinstance(answers[0], list) else answers


@pytest.mark.parametrize("corpus", [PLAIN, TWO], ids=["one vocabulary", "two vocabularies"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tied": False},
        {"positions": True, "layers": 2},
        {"inputs": "tokens", "mask_as": "element", "distance": False, "spread": False},
        {"norm": "post", "transform": True, "output_bias": False},
        {"num_hashes": 3, "alpha": 3, "softmax": "joint"},
    ],
    ids=str,
)
def test_a_model_survives_its_folder(tmp_path, corpus, options):
    model = fitted(corpus, **options)
    model.evaluate(corpus, split="train")
    model.save_pretrained(tmp_path / "model")
    again = Superbloom.from_pretrained(tmp_path / "model")
    assert again.model.config == model.model.config
    assert again.metrics == json.loads(json.dumps(model.metrics))
    for context in ([MASK], ["name 3", MASK, "näme 1"], ["name 6", "name 5", MASK, MASK]):
        for one, other in zip(flat(again.predict(context, k=6)), flat(model.predict(context, k=6)), strict=True):
            # subtle: mapped weights lie elsewhere in memory, and sums are taken in another order there
            assert one.score == pytest.approx(other.score, rel=1e-6)
            assert one.probability == pytest.approx(other.probability, rel=1e-6)
            assert (one.name, one.certified) == (other.name, other.certified)
    again.save_pretrained(tmp_path / "copy")
    files = {file.name for file in (tmp_path / "model").iterdir()} - {"config.json", "README.md"}
    assert len(files) == {PLAIN: 5, TWO: 7}[corpus]
    assert {name for name in files if not same(tmp_path / "model" / name, tmp_path / "copy" / name)} == set()


def same(one: Path, other: Path) -> bool:
    return one.read_bytes() == other.read_bytes()


def test_the_card_of_a_model_is_yours_to_edit(tmp_path, good):
    shutil.copytree(good / "model", tmp_path / "model")
    (tmp_path / "model" / "README.md").write_text("mine")
    assert Superbloom.from_pretrained(tmp_path / "model").predict(["name 1"], k=1)


def test_the_card_quotes_names(tmp_path):
    corpus = Corpus.from_sequences([['say "a\\b"\n```'] * 2 + ["b"]] * 20)
    fitted(corpus, alpha=1).save_pretrained(tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    block = card.split("```python\n")[1].split("\n```\n")[0]
    called = []
    names = {"Superbloom": type("", (), {"from_pretrained": lambda _: model}), "MASK": MASK}
    model = type("", (), {"predict": lambda context, k: called.append((context, k))})
    exec(block.split("\n\n")[1], names)
    assert called == [(['say "a\\b"\n```', MASK], 10)]


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
    import superbloom.reproduce.command, superbloom.serve.command, superbloom.train, torch.utils.tensorboard
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


@pytest.mark.system
def test_the_probe_tells_who_died(good, tmp_path):
    jobs = [("crash", tmp_path / name, True) for name in ("fine", "crash", "fine")]
    jobs += [(kind, tmp_path, True) for kind in ("model", "eat", "spin")]
    trace = None if untraced(*WATCHED) else tmp_path / "trace"
    outcomes = probe([good / "model"], [*jobs, ("leave", tmp_path / "x", True)], trace=trace)
    told = ["accepted", "SIGSEGV", "accepted", "refused", "accepted", "SIGXCPU", "accepted"]
    assert [found["outcome"] for found in outcomes] == told
    assert outcomes[4]["megabytes"] >= 190
    if trace:
        assert [found["outside"] for found in outcomes] == [[]] * 6 + [[f"{tmp_path}/x.beside"]]


FILES = [
    *(("corpus", name) for name in ("corpus.json", "sequences.arrow", "targets.arrow", "vocab.arrow")),
    *(("model", name) for name in ("bloom.safetensors", "config.json", "metrics.json", "model.safetensors")),
    *(("model", name) for name in ("prior.safetensors", "target_bloom.safetensors", "targets.arrow", "vocab.arrow")),
]


def test_every_file_is_among_those_damaged(good):
    present = {(kind, file.name) for kind in MANIFESTS for file in (good / kind).iterdir()}
    assert present - {("model", "README.md")} == set(FILES)


def flipped(data: bytes, rng: np.random.Generator) -> bytes:
    place, bit = rng.integers(len(data)), rng.integers(8)
    return data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]


def damaged(file: Path, times: int, rng: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    """Versions of a file that are not it: 20 · times of them."""
    data = file.read_bytes()
    others = [other for other in file.parent.iterdir() if other.name not in (file.name, "README.md")]
    for _ in range(10 * times):
        yield "flip", flipped(data, rng)
    for _ in range(3 * times):
        yield "cut", data[: -rng.integers(2, len(data))]  # the newline at the end of a manifest says nothing
    for _ in range(2 * times):
        place = rng.choice(np.flatnonzero(np.frombuffer(data, np.uint8)))
        yield "zero", data[:place] + bytes(min(4096, len(data) - place)) + data[place + 4096 :]
    for _ in range(2 * times):
        yield "swap", others[rng.integers(len(others))].read_bytes()
        yield "append", data + rng.bytes(rng.integers(1, 100))
    for size in rng.integers(2**40, 2**63, size=times).tolist():
        yield "huge", size.to_bytes(8, "little") + data[8:]


def damaged_folders(good: Path, tmp_path: Path, times: int) -> list[tuple[str, str, str, Path]]:
    rng = np.random.default_rng(15)
    found = []
    for kind, name in FILES:
        for number, (damage, data) in enumerate(damaged(good / kind / name, times, rng)):
            folder = tmp_path / f"{kind}-{name}-{number}"
            shutil.copytree(good / kind, folder, copy_function=os.link)
            (folder / name).unlink()
            (folder / name).write_bytes(data)
            found.append((kind, name, damage, folder))
    return found


def missed(good: Path, folders: list[tuple[str, str, str, Path]], broken: Sequence[Change] = ()) -> Counter[str]:
    """What became of damages that were not refused with the name of the file, by outcome."""
    jobs = [(kind, folder, True) for kind, _, _, folder in folders]
    outcomes = probe([good / "model"], jobs, [broken] * len(jobs), together=20)
    return Counter(
        found["outcome"] if found["outcome"] != "refused" else found["message"]
        for (_, name, _, folder), found in zip(folders, outcomes, strict=True)
        if found["outcome"] != "refused" or f"{folder.name}/{name}" not in found["message"]
    )


@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_a_damaged_file_is_refused_by_name(good, tmp_path, times, check):
    folders = damaged_folders(good, tmp_path, times)
    assert len(folders) == 20 * times * len(FILES)
    assert missed(good, folders) == {}
    check(15, f"{len(folders):,} of {len(folders):,} damages of {len(FILES)} files refused by name, 0 signals")


NO_CHECKSUMS = ("superbloom.folder:_check_file", "sha256(file) != expected", "False")
NO_VALIDATION = ("superbloom.arrow:read_arrow", "table.validate(full=True)", "pass")
NO_IDS = ("superbloom.vocab:Vocab.open", "by_name.view(np.uint32).max() >= len(vocab)", "False and")


@pytest.mark.system
def test_damage_is_missed_without_checksums_and_validation(good, tmp_path, check):
    """The twin: the same measurement of code that leaves them out."""
    folders = damaged_folders(good, tmp_path, 1)
    without = missed(good, folders, [NO_CHECKSUMS, NO_VALIDATION])
    deaths = sum(number for what, number in without.items() if what.startswith("SIG"))  # perhaps none: it is chance
    assert without["accepted"] + deaths > 20
    noticed = f"of {len(folders)} damages {without['accepted']} accepted silently, {deaths} deaths by signal"
    check.twin(15, "no checksum compared, no Arrow table validated", noticed)


@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_without_checksums_damage_is_refused_or_harmless(good, tmp_path, times, check):
    """It is the checksum that catches flipped weights. And nothing dies without it (verify=False)."""
    folders = damaged_folders(good, tmp_path, times)
    outcomes = probe([good / "model"], [(kind, folder, False) for kind, _, _, folder in folders], together=20)
    found = [(*folder[:3], outcome["outcome"]) for folder, outcome in zip(folders, outcomes, strict=True)]
    assert {outcome for *_, outcome in found} == {"refused", "accepted"}
    assert ("model", "model.safetensors", "flip", "accepted") in found
    manifests = {(name, outcome) for _, name, _, outcome in found if name in MANIFESTS.values()}
    assert manifests == {("corpus.json", "refused"), ("config.json", "refused")}
    refused = sum(outcome == "refused" for *_, outcome in found)
    check(15, f"with verify=False, too, 0 signals in {len(found):,} damages ({refused:,} refused)")


Edit = Callable[[Path], None]


def resealed(kind: str, edit: Edit) -> Edit:
    """Edit files and give the folder checksums that fit, as someone with bad intent would."""

    def apply(folder: Path) -> None:
        edit(folder)
        manifest = json.loads((folder / MANIFESTS[kind]).read_bytes())
        (folder / MANIFESTS[kind]).unlink()
        own = ("format", "version", "files", "sha256")
        folder_module._seal(folder, kind, {name: part for name, part in manifest.items() if name not in own})

    return apply


def manifest_edit(kind: str, edit: Callable[[dict[str, Any]], Any]) -> Edit:
    """Edit the manifest and give it the checksum that fits."""

    def apply(folder: Path) -> None:
        manifest = json.loads((folder / MANIFESTS[kind]).read_bytes())
        manifest.pop("sha256")
        edit(manifest)
        manifest.setdefault("sha256", folder_module._digest(manifest))
        (folder / MANIFESTS[kind]).write_text(json.dumps(manifest))

    return apply


def in_memory(file: Path) -> pa.Table:
    return pa.ipc.open_file(pa.py_buffer(file.read_bytes())).read_all()


def columns_edit(kind: str, file: str, /, **columns: Any) -> Edit:
    """Replace columns of an Arrow file; None drops one."""

    def edit(folder: Path) -> None:
        table = in_memory(folder / file)
        kept = {name: table[name] for name in table.column_names} | columns
        edited = pa.table({name: part for name, part in kept.items() if part is not None})
        write_arrow(edited.replace_schema_metadata(table.schema.metadata), folder / file)

    return resealed(kind, edit)


def tensors_edit(file: str, edit: Callable[[dict[str, torch.Tensor]], Any]) -> Edit:
    def apply(folder: Path) -> None:
        tensors = {name: part.clone() for name, part in load_file(folder / file).items()}
        edit(tensors)
        save_file({name: part.contiguous() for name, part in tensors.items()}, folder / file)

    return resealed("model", apply)


def set_model(name: str, value: Any) -> Edit:
    return manifest_edit("model", lambda manifest: manifest["model"].__setitem__(name, value))


def filled(tensors: dict[str, torch.Tensor], value: float) -> None:
    for part in tensors.values():
        part.fill_(value)


def put(folder: Path, name: str, data: bytes) -> None:
    (folder / name).write_bytes(data)


def of_another(folder: Path, name: str) -> None:
    shutil.copy(folder.parent / "other" / name, folder / name)


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def compressed(folder: Path, codec: str) -> None:
    table = in_memory(folder / "vocab.arrow")
    with pa.ipc.new_file(
        folder / "vocab.arrow", table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)
    ) as file:
        file.write_table(table)


def bomb(folder: Path) -> None:
    """A few kilobytes that unpack to names of 300 megabytes."""
    size = 300 * 2**20
    offsets = pa.py_buffer(np.array([0, 1, size], np.int64))
    names = pa.LargeStringArray.from_buffers(2, offsets, pa.py_buffer(bytes(size)))
    write_arrow(pa.table({"name": names, "count": [2, 1]}), folder / "vocab.arrow")
    compressed(folder, "zstd")


def without_schema(folder: Path) -> None:
    """An Arrow file whose first message is a batch; pyarrow's read_schema dies of it."""
    data = (folder / "vocab.arrow").read_bytes()
    put(folder, "vocab.arrow", data[:8] + data[16 + int.from_bytes(data[12:16], "little") :])


def batches(folder: Path, number: int, rows: int | None = None) -> None:
    table = in_memory(folder / "vocab.arrow")
    (batch,) = table.slice(0, rows).to_batches()
    with pa.ipc.new_file(folder / "vocab.arrow", table.schema) as file:
        for _ in range(number):
            file.write_batch(batch)


def described(folder: Path, what: dict[str, Any]) -> None:
    write_arrow(in_memory(folder / "vocab.arrow").replace_schema_metadata(what), folder / "vocab.arrow")


def text_names(name: str) -> Edit:
    names = TEXTS.vocab.table["name"].to_pylist()
    return columns_edit("model", "vocab.arrow", name=pa.array([n if n != "name 1" else name for n in names], TEXT))


def header_edit(folder: Path, file: str, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Change what a safetensors file says of its tensors; None: only that it would be endless."""
    data = (folder / file).read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    told = edit({name: part for name, part in json.loads(data[8:end]).items() if name != "__metadata__"})
    header = told if isinstance(told, bytes) else json.dumps(told).encode()
    size = b"\xff" * 8 if told is None else len(header).to_bytes(8, "little")
    put(folder, file, size + header + data[end:])


def each(header: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {name: part | changes for name, part in header.items()}


def many_hashes(folder: Path) -> None:
    """A model of 18 names and 20,000 hash functions, all of it consistent: to check and to ask it took minutes."""
    manifest = json.loads((folder / "config.json").read_bytes())
    manifest["model"] |= {"num_hashes": 20_000, "dim": 1, "heads": 1, "ffn_dim": 1}
    (folder / "config.json").write_text(json.dumps(manifest))
    bloom = BloomHash.from_table(torch.arange(18, dtype=torch.int32)[:, None].repeat(1, 20_000) // 2, 9, 2)
    tables = {"table": bloom.table, "order": bloom.order, "starts": bloom.starts}
    save_file({name: part.contiguous() for name, part in tables.items()}, folder / "bloom.safetensors")


def swollen(value: bytes) -> bytes:
    """JSON of nearly 16 MB that would take twenty times as much."""
    return b'{"a":[' + (value + b",") * ((2**24 - 20) // (len(value) + 1)) + b"0]}"


def elsewhere(path: Path) -> None:
    """What could be anybody's file; all that is known of it is its size."""
    target = path.parent.parent / f"{path.name} elsewhere"
    target.write_bytes(b"private")
    path.symlink_to(target)


def bound(path: Path) -> None:
    """A socket; its name has to be short."""
    place = Path.cwd()
    os.chdir(path.parent)
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(place)


def hollow(folder: Path, kind: str, name: str) -> None:
    """A file of 200 GB that takes no room on the disk."""
    with (folder / name).open("ab") as file:
        file.truncate(200 * 10**9)
    entry = {"bytes": 200 * 10**9, "sha256": "0" * 64}
    manifest_edit(kind, lambda manifest: manifest["files"].__setitem__(name, entry))(folder)


def shift_last_row(folder: Path) -> None:
    """The last row ends one id early: an id that belongs to no row. No writer makes this, so the bytes are changed."""
    offsets = TWO.offsets.copy()
    offsets[-1] -= 1
    data = (folder / "sequences.arrow").read_bytes()
    assert data.count(TWO.offsets.tobytes()) == 2  # of ids and of targets
    put(folder, "sequences.arrow", data.replace(TWO.offsets.tobytes(), offsets.tobytes()))


def outside(folder: Path, name: str) -> None:
    """A name that leads out of the folder, to a file of just the size and checksum stated."""
    (folder.parent / "x").write_bytes(b"private")
    entry = {"bytes": 7, "sha256": folder_module.sha256(folder.parent / "x")}
    manifest_edit("model", lambda manifest: manifest["files"].__setitem__(name, entry))(folder)


def replaced(folder: Path, name: str, make: Callable[[Path], Any]) -> None:
    (folder / name).unlink()
    make(folder / name)


LISTS = pa.large_list(pa.int32())
TEXT = pa.large_string()
IDS = TWO.sequences["ids"].to_pylist()
NAMES = TWO.vocab.table["name"]
COUNTS = TWO.vocab.counts
ORDER = TWO.vocab.table["by_name"].to_numpy()
SIZE = len(NAMES)
FUTURE = {"version": 999, "superbloom": "\x1b[2J\nx"}
FLAT = NAMES.combine_chunks()
ONES = pa.array([1] * SIZE, pa.int32())
# Types of Arrow that are none of ours, as long as the names.
ODD = {
    "as views": FLAT.cast(pa.string_view()),
    "in structs": pa.StructArray.from_arrays([FLAT], ["x"]),
    "in runs": pa.RunEndEncodedArray.from_arrays(pa.array([SIZE], pa.int32()), FLAT[:1]),
    "in a union": pa.UnionArray.from_sparse(pa.array([0] * SIZE, pa.int8()), [FLAT]),
    "of nothing": pa.nulls(SIZE),
    "in lists of one": pa.FixedSizeListArray.from_arrays(FLAT, 1),
    "in views of lists": pa.ListViewArray.from_arrays(ONES, ONES, FLAT),
    "of an extension type": pa.array([b"x" * 16] * SIZE, pa.uuid()),
    "in maps": pa.MapArray.from_arrays(pa.array(range(SIZE + 1), pa.int32()), FLAT, FLAT),
}
OFFSETS = np.frombuffer(FLAT.buffers()[1], np.int64)[: SIZE + 1]
BAD_TEXT = {
    what: pa.LargeStringArray.from_buffers(SIZE, pa.py_buffer(offsets), data)
    for what, offsets, data in [
        ("offsets out of order", np.array([0, *OFFSETS[-2:0:-1], OFFSETS[-1]]), FLAT.buffers()[2]),
        ("an offset below zero", np.array([0, -5, *OFFSETS[2:]]), FLAT.buffers()[2]),
        ("bytes that are not UTF-8", OFFSETS.copy(), pa.py_buffer(b"\xff" * int(OFFSETS[-1]))),
    ]
}

# kind, what was done, how, and what the message has to say
HOSTILE: list[tuple[str, str, Edit, str]] = [
    *(
        ("model", f"{name}={value!r:.20}", set_model(name, value), "config.json")
        for name, value in [
            *(
                (name, value)
                for name in ("layers", "dim", "num_ids", "heads")
                for value in (10**9, 10**15, 10**40, -1, 0)
            ),
            *(("num_ids", value) for value in (13.0, "13", None, True, float("nan"), [13], {"13": 13}, nested(400))),
            *(("dim", value) for value in (float("inf"), float("nan"), 10**12, "a\nb", nested(400))),
            *(("ffn_dim", 10**15), ("alpha", 10**9), ("alpha", -2), ("num_special", 10**18), ("num_special", 3)),
            *(("num_target_ids", value) for value in (10**15, -1, "x", 2.0)),
            *(("target_alpha", value) for value in (10**15, -1, "x", 2.5, False)),
            *(("dropout", value) for value in ("x", float("nan"), -1, None, [0.0])),
            *(("norm", value) for value in ("both", 5, ["pre"], None)),
            *(("softmax", {}), ("positions", "yes"), ("positions", 1), ("tied", 0), ("tied", None)),
            *(("hash_seed", "x"), ("hash_seed", 0.5), ("seq_len", -1), ("seq_len", "long")),
            *(("seq_len", 10**9), ("seq_len", 10**18), ("seq_len", 10**40)),
            *(("evil\nkey", 1), ("layers ", 1)),
        ]
    ),
    *(
        ("model", f"{name}={value!r:.20} against the weights", set_model(name, value), "model.safetensors")
        for name, value in [
            *(("seq_len", 100_000), ("layers", 2), ("layers", 500)),
            *(("dim", 18), ("ffn_dim", 17), ("alpha", 1), ("num_ids", 9), ("num_special", 5), ("num_hashes", 3)),
            *(("positions", False), ("transform", True), ("output_bias", False), ("norm", "post")),
        ]
    ),
    ("model", "names of one vocabulary", set_model("num_target_ids", None), "model.safetensors"),
    *(
        (
            kind,
            f"{name}={value!r:.20}",
            manifest_edit(kind, lambda m, n=name, v=value: m.__setitem__(n, v)),
            MANIFESTS[kind],
        )
        for kind in MANIFESTS
        for name, value in [
            *(("version", value) for value in ("1", True, 999, 0, -1, 1.0, None, [1], 10**40)),
            *(("format", value) for value in ("their model", 5, None, ["superbloom model"], nested(400), "x" * 10**5)),
            *(("files", value) for value in ([], {}, None, "vocab.arrow", 5, ["vocab.arrow"], {"vocab.arrow": {}})),
            *(("sha256", value) for value in (None, 5, "", "0" * 64, nested(400))),
            *((name, value) for name in folder_module.CONTENTS[kind] for value in (None, 5, [])),
        ]
    ),
    *(
        (kind, f"no {name}", manifest_edit(kind, lambda manifest, name=name: manifest.pop(name)), MANIFESTS[kind])
        for kind in MANIFESTS
        for name in ("format", "version", "files", *folder_module.CONTENTS[kind])
    ),
    *(
        (kind, f"{name} not listed", manifest_edit(kind, lambda m, name=name: m["files"].pop(name)), name)
        for kind, name in FILES
        if name not in MANIFESTS.values() and (kind, name) != ("corpus", "targets.arrow")
    ),
    *(
        (
            "model",
            f"{part} is {value!r:.20}",
            manifest_edit("model", lambda m, p=part, v=value: m["files"]["vocab.arrow"].__setitem__(p, v)),
            "vocab.arrow",
        )
        for part, value in [
            *(("bytes", value) for value in ("1082", 1082.0, -1, None, True, [1082], 10**40, 2**62, nested(400))),
            *(("sha256", value) for value in (None, 5, "", ["x"], "\ud800\n", nested(400))),
        ]
    ),
    *(
        (
            "model",
            f"entry is {value!r:.20}",
            manifest_edit("model", lambda m, v=value: m["files"].__setitem__("vocab.arrow", v)),
            "vocab.arrow",
        )
        for value in (None, 5, "x", [], [1, 2], {}, {"bytes": 1}, nested(400))
    ),
    *(
        ("model", f"a file {name!r}", partial(outside, name=name), "config.json lists the file")
        for name in ("../x", "/etc/passwd", "", ".", "./x", "a/../../x", "x/", "x\0y", "two\nlines", "\ud800")
    ),
    *(
        ("model", f"a file {name!r:.20}", partial(outside, name=name), "config.json lists the file")
        for name in ("..", "x", "Vocab.arrow", "x" * 300, "x" * 10**5, "README.md", "config.json")
    ),
    (
        "model",
        "thousands of files",
        manifest_edit("model", lambda m: m["files"].update({f"f{i}": {"bytes": 1, "sha256": ""} for i in range(9999)})),
        "config.json lists the file",
    ),
    ("model", "an escape sequence as its release", manifest_edit("model", lambda m: m.update(FUTURE)), "config.json"),
    *(
        (kind, f"manifest {data[:8]!r}", partial(put, name=MANIFESTS[kind], data=data), MANIFESTS[kind])
        for kind in MANIFESTS
        for data in [
            *(b"", b"{", b"[]", b"5", b"NaN", b'"x"', b"null", b"\xff\xfe", b"\x00" * 100, b"{}" + b"\x00" * 100),
            *(b"[" * 10**5, b'{"a":' * 10**5, b"[" * 900 + b"]" * 900, b"[" * 990 + b"]" * 990),
            *(b'{"format": ' + b"9" * 10**5 + b"}", b"[" + b"{}," * 10**6 + b"{}]"),
        ]
    ),
    *(
        ("model", f"{name} is a {made}", partial(replaced, name=name, make=make), name)
        for name in ("vocab.arrow", "config.json", "metrics.json")
        for made, make in [
            ("pipe", os.mkfifo),
            ("folder", Path.mkdir),
            ("link to nothing", lambda path: path.symlink_to("nothing")),
            ("link to itself", lambda path: path.symlink_to(path.name)),
            ("link to an endless device", lambda path: path.symlink_to("/dev/zero")),
            ("link to a file elsewhere", elsewhere),
            ("link to a link elsewhere", lambda path: (elsewhere(path.with_name("x")), path.symlink_to("x"))),
            ("socket", bound),
        ]
    ),
    *(
        (kind, f"{name} is 200 GB of holes", partial(hollow, kind=kind, name=name), name)
        for kind, name in (("model", "vocab.arrow"), ("model", "model.safetensors"), ("corpus", "sequences.arrow"))
    ),
    ("model", "another file of 200 GB of holes", partial(hollow, kind="model", name="more"), "lists the file 'more'"),
    *(
        (
            "model",
            f"metrics {data[:8]!r}",
            resealed("model", partial(put, name="metrics.json", data=data)),
            "metrics.json",
        )
        for data in (
            b"",
            b"[]",
            b"{",
            b"\xff",
            b"[" * 10**5,
            b"{}" + b" " * 2**25,
            *map(swollen, (b"[]", b"{}", b"1e5")),
        )
    ),
    *(
        ("model", f"{file}: {what}", resealed("model", partial(header_edit, file=file, edit=edit)), file)
        for file in ("model.safetensors", "bloom.safetensors", "prior.safetensors")
        for what, edit in [
            ("a header of 2^64 bytes", lambda _: None),
            ("a header nested deeply", lambda _: b'{"a":' * 10**5),
            ("tensors that overlap", lambda h: each(h, data_offsets=[0, 4])),
            ("tensors before the file", lambda h: each(h, data_offsets=[-4, 0])),
            ("tensors beyond the file", lambda h: each(h, data_offsets=[2**62, 2**62 + 4])),
            ("tensors backwards", lambda h: each(h, data_offsets=[4, 0])),
            ("tensors larger than any", lambda h: each(h, shape=[2**62, 2**62])),
            ("tensors of nothing times much", lambda h: each(h, shape=[0, 2**62], data_offsets=[0, 0])),
            ("a type that is an escape sequence", lambda h: each(h, dtype="\x1b[2J\n")),
            ("names that are escape sequences", lambda h: {f"\x1b[2J\n{name}": part for name, part in h.items()}),
            ("no whole numbers", lambda h: each(h, data_offsets=[0.0, 1e308])),
            ("a description of 9 MB", lambda h: h | {"__metadata__": {"x": "y" * 9_000_000}}),
            (
                "300,000 tensors",
                lambda _: {f"{i:x}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(300_000)},
            ),
        ]
    ),
    *(
        ("plain-model", f"{name}={value}", set_model(name, value), "config.json")
        for name, value in (("seq_len", 10**6), ("seq_len", 10**15), ("num_hashes", 257))
    ),
    ("plain-model", "20,000 hash functions", resealed("model", many_hashes), "config.json"),
    *(
        ("model", f"weights: {what}", tensors_edit("model.safetensors", edit), "model.safetensors")
        for what, edit in [
            ("none", dict.clear),
            ("one more", lambda t: t.update(evil=torch.zeros(1))),
            ("one less", lambda t: t.pop("bias")),
            ("one renamed", lambda t: t.update({"bias\n2": t.pop("bias")})),
            ("another shape", lambda t: t.update(bias=t["bias"][:-1])),
            ("another rank", lambda t: t.update(bias=t["bias"][None])),
            ("no elements", lambda t: t.update(bias=t["bias"][:0])),
            ("doubles", lambda t: t.update(bias=t["bias"].double())),
            ("whole numbers", lambda t: t.update(bias=t["bias"].long())),
            ("truth values", lambda t: t.update(bias=t["bias"].bool())),
            ("bytes", lambda t: t.update(bias=t["bias"].to(torch.float8_e4m3fn))),
            ("complex", lambda t: t.update(bias=t["bias"].to(torch.complex64))),
            ("a thousand layers", lambda t: t.update({f"layers.{i}.x": torch.zeros(1) for i in range(1000)})),
        ]
    ),
    *(
        ("model", f"hashes: {what}", tensors_edit(file, edit), file)
        for file in ("bloom.safetensors", "target_bloom.safetensors")
        for what, edit in [
            ("none", dict.clear),
            ("one more", lambda t: t.update(evil=torch.zeros(1))),
            ("no order", lambda t: t.pop("order")),
            ("bucket too large", lambda t: t["table"].__setitem__((0, 0), t["starts"].shape[1] - 1)),
            ("bucket far too large", lambda t: t["table"].__setitem__((3, 1), 2**31 - 1)),
            ("bucket negative", lambda t: t["table"].__setitem__((5, 1), -1)),
            ("id too large", lambda t: t["order"].__setitem__((0, 0), SIZE)),
            ("id negative", lambda t: t["order"].__setitem__((1, 2), -(2**31))),
            ("not a permutation", lambda t: t["order"].__setitem__((0, 0), t["order"][0, 1])),
            ("order swapped", lambda t: t.update(order=t["order"].flip(0))),
            ("another hash", lambda t: t.update(table=t["table"].flip(0))),
            ("start too large", lambda t: t["starts"].__setitem__((0, -1), 2**62)),
            ("start negative", lambda t: t["starts"].__setitem__((1, 1), -5)),
            ("short starts", lambda t: t.update(starts=t["starts"][:, :1])),
            ("no starts", lambda t: t.update(starts=t["starts"][:, :0])),
            ("no ids", lambda t: t.update(table=t["table"][:0], order=t["order"][:, :0])),
            ("no hashes", lambda t: t.update(table=t["table"][:, :0], order=t["order"][:0], starts=t["starts"][:0])),
            ("one dimension", lambda t: t.update(table=t["table"].flatten())),
            ("floats", lambda t: t.update(table=t["table"].float())),
            ("long ids", lambda t: t.update(order=t["order"].long())),
        ]
    ),
    *(
        ("model", f"prior: {what}", tensors_edit("prior.safetensors", edit), "prior.safetensors")
        for what, edit in [
            ("none", dict.clear),
            ("one more", lambda t: t.update(evil=torch.zeros(1))),
            ("too few", lambda t: t.update(counts=t["counts"][:-1])),
            ("floats", lambda t: t.update(counts=t["counts"].float())),
            ("negative", lambda t: t["counts"].__setitem__(2, -2)),
            ("a weight that is no number", lambda t: t["scale"].__setitem__(0, torch.nan)),
            ("a weight too large", lambda t: t["scale"].__setitem__(0, 1e9)),
            ("temperature zero", lambda t: t["scale"].__setitem__(1, 0.0)),
            ("temperature without end", lambda t: t["scale"].__setitem__(1, torch.inf)),
            ("one scale", lambda t: t.update(scale=t["scale"][:1])),
        ]
    ),
    *(
        ("model", f"{file} of another model", resealed("model", partial(of_another, name=file)), says)
        for file, says in (("model.safetensors", "model.safetensors"), ("bloom.safetensors", "6 buckets"))
    ),
    (
        "model",
        "names of another model",
        columns_edit("model", "vocab.arrow", name=NAMES[:9], count=COUNTS[:9], by_name=None),
        "9 names",
    ),
    (
        "model",
        "targets of another model",
        columns_edit("model", "targets.arrow", name=NAMES[:9], count=COUNTS[:9], by_name=None),
        "9 names",
    ),
    *(
        (kind, f"{file}: {what}", columns_edit(kind, file, **columns), file)
        for kind, file in FILES
        if file in ("vocab.arrow", "targets.arrow")
        for what, columns in [
            ("by_name too large", {"by_name": np.where(ORDER == 3, SIZE, ORDER).astype(np.int32)}),
            ("by_name far too large", {"by_name": np.where(ORDER == 3, 2**31 - 1, ORDER).astype(np.int32)}),
            ("by_name negative", {"by_name": np.where(ORDER == 3, -1, ORDER).astype(np.int32)}),
            ("by_name twice", {"by_name": np.where(ORDER == 3, 4, ORDER).astype(np.int32)}),
            ("by_name text", {"by_name": NAMES}),
            ("by_name long", {"by_name": ORDER.astype(np.int64)}),
            ("by_name null", {"by_name": pa.array([None, *ORDER[1:].tolist()], pa.int32())}),
            ("names null", {"name": pa.array([None] * SIZE, TEXT)}),
            ("names coded", {"name": NAMES.combine_chunks().dictionary_encode()}),
            ("names bytes", {"name": NAMES.cast(pa.large_binary())}),
            *((f"names {what}", {"name": names}) for what, names in ODD.items()),
            *((f"names with {what}", {"name": names}) for what, names in BAD_TEXT.items()),
            ("names twice", {"name": pa.array(["x"] * SIZE, TEXT), "by_name": None}),
            ("no names", {"name": None}),
            ("counts negative", {"count": -COUNTS[::-1]}),
            ("counts rising", {"count": COUNTS[::-1]}),
            ("counts null", {"count": pa.array([None] * SIZE, pa.int64())}),
            ("counts floats", {"count": COUNTS.astype(float)}),
            ("nothing at all", {"name": pa.array([], TEXT), "count": pa.array([], pa.int64()), "by_name": None}),
        ]
    ),
    *(
        ("corpus", f"packed with {codec}", resealed("corpus", partial(compressed, codec=codec)), "vocab.arrow")
        for codec in ("zstd", "lz4")
    ),
    (
        "corpus",
        "a packed bomb",
        resealed("corpus", bomb),
        "vocab.arrow is not a sound Arrow file ('it holds a compressed",
    ),
    ("corpus", "100,000 batches", resealed("corpus", partial(batches, number=100_000, rows=1)), "10,000 batches"),
    (
        "corpus",
        "100,000 columns",
        columns_edit("corpus", "vocab.arrow", **dict.fromkeys(map(str, range(10**5)), COUNTS)),
        "bytes",
    ),
    ("corpus", "a description of 9 MB", resealed("corpus", partial(described, what={"x": "y" * 9_000_000})), "bytes"),
    *(
        ("text-model", f"{what}", edit, "vocab.arrow")
        for what, edit in [
            ("kind 3", columns_edit("model", "vocab.arrow", kind=np.full(8, 3, np.int8))),
            ("kind -1", columns_edit("model", "vocab.arrow", kind=np.full(8, -1, np.int8))),
            ("words that are bigrams", columns_edit("model", "vocab.arrow", kind=np.full(8, 2, np.int8))),
            ("bigrams that are words", columns_edit("model", "vocab.arrow", kind=np.full(8, 1, np.int8))),
            ("no kinds", columns_edit("model", "vocab.arrow", kind=None)),
            ("kinds of text", columns_edit("model", "vocab.arrow", kind=pa.array(["x"] * 8))),
            ("no normalisation", resealed("model", partial(described, what={}))),
            *(
                (f"normalisation {told!r:.10}", resealed("model", partial(described, what={"superbloom.text": told})))
                for told in (b"\xff\x1b", b"", b"CASED", b"x" * 10**5)
            ),
            ("bigrams of three", text_names("a b c")),
            ("bigrams of spaces", text_names("a ")),
            ("bigrams of nothing", text_names(" ")),
        ]
    ),
    *(
        (f"{kind}-corpus", what, columns_edit("corpus", "sequences.arrow", **columns), "sequences.arrow")
        for kind, what, columns in [
            ("log", "a cut before the row", {"valid_from": np.full(80, -1, np.int32)}),
            ("log", "a cut behind the row", {"test_from": np.full(80, 4, np.int32)}),
            ("log", "a cut far behind", {"test_from": np.full(80, 2**31 - 1, np.int32)}),
            ("log", "cuts the wrong way round", {"test_from": np.full(80, 1, np.int32)}),
            ("log", "one cut", {"test_from": None}),
            ("log", "long cuts", {"test_from": np.full(80, 2)}),
            ("text", "sentences that begin late", {"sentences": pa.array([[1, 3]] * 60, LISTS)}),
            ("text", "sentences that fall", {"sentences": pa.array([[0, 3, 2]] * 60, LISTS)}),
            ("text", "sentences beyond the row", {"sentences": pa.array([[0, 6]] * 60, LISTS)}),
            ("text", "sentences before the row", {"sentences": pa.array([[0, -(2**31)]] * 60, LISTS)}),
            ("text", "no sentences", {"sentences": pa.array([[]] * 60, LISTS)}),
            ("text", "sentences null", {"sentences": pa.array([None] * 60, LISTS)}),
        ]
    ),
    ("corpus", "no schema", resealed("corpus", without_schema), "vocab.arrow"),
    ("corpus", "no batches", resealed("corpus", partial(batches, number=0)), "vocab.arrow has no rows"),
    ("corpus", "names again in a second batch", resealed("corpus", partial(batches, number=2)), "vocab.arrow"),
    ("corpus", "not Arrow", resealed("corpus", partial(put, name="vocab.arrow", data=b"name,count\n")), "vocab.arrow"),
    ("corpus", "no file at all", resealed("corpus", partial(put, name="vocab.arrow", data=b"")), "vocab.arrow"),
    (
        "corpus",
        "only a beginning",
        resealed("corpus", partial(put, name="vocab.arrow", data=b"ARROW1\0\0")),
        "vocab.arrow",
    ),
    (
        "corpus",
        "a length of 2 GB",
        resealed("corpus", partial(put, name="vocab.arrow", data=b"ARROW1\0\0\xff\xff\xff\xff\xff\xff\xff\x7f")),
        "vocab.arrow",
    ),
    (
        "corpus",
        "a row that ends early",
        resealed("corpus", shift_last_row),
        "sequences.arrow: rows must follow one another",
    ),
    *(
        ("corpus", f"sequences: {what}", columns_edit("corpus", "sequences.arrow", **columns), "sequences.arrow: ")
        for what, columns in [
            *((f"{name} too large", {name: pa.array([[SIZE, 0, 0], *IDS[1:]], LISTS)}) for name in ("ids", "targets")),
            *(
                (f"{name} far too large", {name: pa.array([[2**31 - 1, 0, 0], *IDS[1:]], LISTS)})
                for name in ("ids", "targets")
            ),
            *((f"{name} negative", {name: pa.array([[-1, 0, 0], *IDS[1:]], LISTS)}) for name in ("ids", "targets")),
            *(
                (f"{name} null inside", {name: pa.array([[None, 0, 0], *IDS[1:]], LISTS)})
                for name in ("ids", "targets")
            ),
            *((f"{name} null", {name: pa.array([None, *IDS[1:]], LISTS)}) for name in ("ids", "targets")),
            *((f"{name} long", {name: pa.array(IDS, pa.large_list(pa.int64()))}) for name in ("ids", "targets")),
            *((f"{name} short lists", {name: pa.array(IDS, pa.list_(pa.int32()))}) for name in ("ids", "targets")),
            *((f"no {name}", {name: None}) for name in ("ids", "targets", "split", "key")),
            ("fewer targets", {"targets": pa.array([[0], *IDS[1:]], LISTS)}),
            ("targets elsewhere", {"targets": pa.array([IDS[0] + [0], IDS[1][1:], *IDS[2:]], LISTS)}),
            ("split 3", {"split": pa.array([3, *TWO.splits[1:].tolist()], pa.int8())}),
            ("split -1", {"split": pa.array([-1, *TWO.splits[1:].tolist()], pa.int8())}),
            ("split null", {"split": pa.array([None, *TWO.splits[1:].tolist()], pa.int8())}),
            ("split long", {"split": TWO.splits.astype(np.int64)}),
            ("keys numbers", {"key": np.arange(len(TWO))}),
        ]
    ),
]


# Odd, but nothing that would do harm: the same must hold of them, whether they are refused or not.
HARMLESS: list[tuple[str, str, Edit, str | None]] = [
    *(
        ("corpus", f"another column {what}", columns_edit("corpus", "vocab.arrow", more=column), None)
        for what, column in ODD.items()
    ),
    *(
        ("plain-model", f"weights {value}", tensors_edit("model.safetensors", partial(filled, value=value)), None)
        for value in (torch.nan, torch.inf, 3e38)
    ),
    ("plain-model", "no name has a count", tensors_edit("prior.safetensors", lambda t: t["counts"].fill_(-1)), None),
    ("plain-model", "alpha of another", manifest_edit("model", lambda m: m["model"].update(buckets=9, alpha=99)), None),
    (
        "corpus",
        "info in disorder",
        manifest_edit("corpus", lambda m: m["info"].update(x=nested(800), y="\ud800")),
        None,
    ),
    ("corpus", "counts of others", manifest_edit("corpus", lambda m: m["counts"].update(rows=10**40, x="\x1b")), None),
    ("model", "another file", partial(put, name="more", data=b"x"), None),
    ("model", "a card elsewhere", lambda folder: replaced(folder, "README.md", elsewhere), None),
]
Hostile = Sequence[tuple[str, str, Edit, str | None]]
ROOM = 48  # megabytes that opening a small folder and asking takes


def kind_of(base: str) -> str:
    return base.rpartition("-")[2]


def made(good: Path, parent: Path, hostile: Hostile) -> list[Job]:
    """The folders of these edits, each in a place of its own."""
    jobs = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder_module, "fsync", lambda _: None)  # which takes most of the time
        for number, (base, _, edit, _) in enumerate(hostile):
            kind = kind_of(base)
            shutil.copytree(good / base, parent / str(number) / kind)
            (parent / str(number) / "other").symlink_to(good / "other")
            edit(parent / str(number) / kind)
            jobs.append((kind, parent / str(number) / kind, True))
    return jobs


def harms(
    good: Path, parent: Path, hostile: Hostile, broken: Sequence[Sequence[Change]] | None = None
) -> dict[str, list[str]]:
    """What each hostile folder does that it must not: nothing, as long as it is refused, in one line, for little."""
    jobs = made(good, parent, hostile)
    warm = [good / name for name in ("model", "text-model", "log-corpus", "text-corpus")]
    outcomes = probe(warm, jobs, broken, trace=None if untraced(*WATCHED) else parent / "trace")
    found = enumerate(zip(hostile, jobs, outcomes, strict=True))
    wrong = {f"{n} {h[0]}: {h[1]}": harm(told, h[3], folder) for n, (h, (_, folder, _), told) in found}
    return {what: how for what, how in wrong.items() if how}


def harm(found: Outcome, says: str | None, folder: Path, room: int = ROOM) -> list[str]:
    wrong = []
    if found["outcome"] != "refused" and not (says is None and found["outcome"] == "accepted"):
        wrong.append(found["outcome"])
    if found["outcome"] == "refused" and (says or "") not in found["message"]:
        wrong.append(f"does not say {says}: {found['message']}")
    if not found["message"].isprintable() or len(found["message"]) > 600:
        wrong.append(f"not one line: {found['message']!r:.700}")
    on_disk = sum(file.stat().st_blocks * 512 for file in folder.iterdir() if file.is_file()) / 2**20
    if found["megabytes"] > room + 2 * on_disk:
        wrong.append(f"{found['megabytes']} MB of {on_disk:.0f}")
    return wrong + [f"opens {path}" for path in found.get("outside", [])]


@pytest.mark.system
@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.slow)])
def test_a_hostile_folder_does_no_harm(good, tmp_path, every, check):
    hostile, harmless = HOSTILE[::every], HARMLESS[::every]
    assert harms(good, tmp_path, [*hostile, *harmless]) == {}
    reads = untraced(*WATCHED) or "0 reads or writes outside"
    check(
        16,
        f"{len(hostile)} of {len(HOSTILE)} hostile folders refused in one line, {len(harmless)} of {len(HARMLESS)} odd "
        f"ones without harm: 0 signals, {reads}, none takes more than {ROOM} MB and twice its size",
    )


# Parts of the code that keep one kind of hostile folder out, and which those are.
NO_NAMES = ("superbloom.folder:read_folder", "if name not in FILES[kind] + OPTIONAL[kind]:", "if False:")
NO_LINKS = ("superbloom.folder:_check_place", "if leads_out(file):", "if False:")
KEPT_OUT: dict[str, tuple[list[Change], list[str]]] = {
    "names of files are not looked at": (
        [NO_NAMES, NO_LINKS],
        ["a file '../x'", "a file '/etc/passwd'"],
    ),
    "links are followed": (
        [NO_LINKS],
        ["config.json is a link to a file elsewhere", "config.json is a link to a link elsewhere"],
    ),
    "ids in hash tables are not compared": (
        [("superbloom.hashing:BloomHash.verify", "if not sound:", "if False:")],
        ["hashes: bucket far too large", "hashes: id negative", "hashes: start too large"],
    ),
    "Arrow tables are not validated": (
        [NO_VALIDATION],
        ["vocab.arrow: names with an offset below zero", "vocab.arrow: names with offsets out of order"],
    ),
    "sizes are not bounded": (
        [("superbloom.folder:read_json", "> MAX_VALUES", "< 0")],
        ["metrics b'{\"a\":[[]'"],
    ),
}


SEEN_BY_TRACE = ("links are followed",)  # what was read is refused in the same words
UNDEFINED = ("Arrow tables are not validated",)  # what follows is chance: some folders may be refused all the same


@pytest.mark.system
def test_harm_is_noticed_where_a_check_is_left_out(good, tmp_path, check):
    """The twins: the same measurement of code without one of its checks."""
    chosen = {what: [one for one in HOSTILE if one[1] in names] for what, (_, names) in KEPT_OUT.items()}
    hostile = [one for some in chosen.values() for one in some]
    noticed = harms(good, tmp_path, hostile, [KEPT_OUT[what][0] for what, some in chosen.items() for _ in some])
    end = 0
    for what, some in chosen.items():
        begin, end = end, end + len(some)
        if what in SEEN_BY_TRACE and untraced(*WATCHED):
            continue
        found = [how for name, how in noticed.items() if begin <= int(name.split()[0]) < end]
        assert len(some) >= len(KEPT_OUT[what][1])
        assert len(found) == len(some) or (found and what in UNDEFINED), what
        kinds = Counter(how[0].split("/")[0].strip() for how in found)
        check.twin(16, what, f"{len(found)} of {len(some)} flagged: {', '.join(kinds)[:200]}")


def test_a_folder_resealed_without_an_edit_is_accepted(good, tmp_path):
    """The control: none of the above was refused for how it was sealed."""
    for kind in MANIFESTS:
        shutil.copytree(good / kind, tmp_path / "sealed" / kind)
        resealed(kind, lambda _: None)(tmp_path / "sealed" / kind)
        shutil.copytree(good / kind, tmp_path / "written" / kind)
        manifest_edit(kind, lambda _: None)(tmp_path / "written" / kind)
    columns_edit("model", "vocab.arrow", by_name=None)(tmp_path / "sealed" / "model")
    tensors_edit("model.safetensors", lambda _: None)(tmp_path / "sealed" / "model")
    set_model("seq_len", 32)(tmp_path / "sealed" / "model")
    jobs = [(kind, tmp_path / way / kind, True) for way in ("sealed", "written") for kind in MANIFESTS]
    outcomes = probe([good / "model"], jobs)
    assert [found["outcome"] for found in outcomes] == ["accepted"] * 4


# Loads, asks, serves and goes on with a run, and counts what is unpickled meanwhile; `broken` runs before that.
NO_PICKLE = """
import json, pickle, sys
from pathlib import Path
import huggingface_hub, lightning, rapidfuzz.process, torch, torch.utils.tensorboard
from starlette.testclient import TestClient
from superbloom import MASK, Corpus, Superbloom, checkpoints, store
from superbloom.predict import Predictor
from superbloom.serve.app import make_app

model_folder, corpus_folder, run, broken = sys.argv[1:]
corpus = Corpus.open(corpus_folder)
Superbloom(alpha=2, dim=8, ffn_dim=8, heads=2).fit(corpus, steps=2, run=run, save_every=1, quiet=True)
exec(broken)
events, told = [], {}
sys.addaudithook(lambda event, arguments: events.append(event) if event.startswith("pickle.") else None)

def part(name):
    told[name] = len(events)
    events.clear()

model = Superbloom.from_pretrained(model_folder)
Corpus.open(corpus_folder)
part("load")
answers = [model.predict(["name 1", MASK], k=3), model.predict(["name 2"], k=3, exclude=["NAME 2"])]
part("predict")
with TestClient(make_app(Predictor(store.load(model_folder).model)), base_url="http://localhost") as client:
    assert client.post("/v1/predict", json={"context": ["name 1"]}).status_code == 200
part("serve")
again = Superbloom(alpha=2, dim=8, ffn_dim=8, heads=2).fit(corpus, steps=4, run=run, resume=True, quiet=True)
assert again.training["steps"] == 4
part("resume")
print(json.dumps(told))
"""
# A loader as others have it, and a resume that trusts what it finds.
UNPICKLES = """
def load_tensors(*arguments):
    return pickle.loads(pickle.dumps(original(*arguments)))
original, store._load_tensors = store._load_tensors, load_tensors
read = torch.load
checkpoints.torch.load = lambda path, weights_only, **options: read(path, weights_only=False, **options)
"""


def unpickled(good: Path, run: Path, broken: str = "") -> dict[str, int]:
    """How many objects were unpickled by loading, asking, serving and going on."""
    done = launch.python(NO_PICKLE, good / "model", good / "corpus", run, broken)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_no_pickle_is_ever_read(good, tmp_path, check):
    found = unpickled(good, tmp_path / "run")
    assert found == {"load": 0, "predict": 0, "serve": 0, "resume": 0}
    check(17, f"events of pickle in {', '.join(found)}: 0")


def test_a_loader_that_unpickles_is_noticed(good, tmp_path, check):
    found = unpickled(good, tmp_path / "run", UNPICKLES)
    assert found["load"] > 0
    assert found["resume"] > 0
    check.twin(
        17, "pickle in the loader, weights_only=False in the resume", f"{found['load']} and {found['resume']} events"
    )


COMMANDS = {
    "model": [
        ["predict", "MODEL", "name 1"],
        ["serve", "MODEL", "--port", "0"],
        ["evaluate", "MODEL", "CORPUS"],
        ["recommend", "MODEL", "CORPUS"],
        ["inspect", "MODEL"],
        ["extend", "MODEL", "NAMES", "--out", "OUT"],
        ["train", "CORPUS", "--from-model", "MODEL", "--out", "OUT", "--steps", "1"],
    ],
    "corpus": [
        ["evaluate", "MODEL", "CORPUS"],
        ["recommend", "MODEL", "CORPUS"],
        ["inspect", "CORPUS"],
        ["train", "CORPUS", "--out", "OUT", "--steps", "1"],
        ["train", "CORPUS", "--out", "OUT", "--resume", "--steps", "1"],
        ["reproduce", "CORPUS", "--out", "OUT"],
    ],
}
SENT = {
    "model": ["vocab.arrow: by_name far too large", "hashes: id negative", "an escape sequence as its release"],
    "corpus": ["sequences: ids far too large", "vocab.arrow: names with an offset below zero"],
}


@pytest.mark.system
@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_every_command_refuses_hostile_folders(good, tmp_path, few, check):
    """All of them open a folder by the same two functions; so each is tried with a few, or with one of these."""
    (tmp_path / "names").write_text("new\n")
    chosen = [one for one in HOSTILE if one[1] in SENT[kind_of(one[0])] and one[0] == kind_of(one[0])]
    folders = [(one[0], one[3], job[1]) for one, job in zip(chosen, made(good, tmp_path, chosen), strict=True)]
    jobs, says = [], []
    for kind, (turn, words) in [(kind_, one) for kind_, some in COMMANDS.items() for one in enumerate(some)]:
        own = [(told, folder) for of, told, folder in folders if of == kind]
        for told, folder in own[turn % len(own) :][:1] if few else own:
            place = {"MODEL": good / "plain-model", "CORPUS": good / "plain-corpus", "OUT": tmp_path / "out"}
            place |= {kind.upper(): folder, "NAMES": tmp_path / "names"}
            jobs.append(("command", folder, [str(place.get(word, word)) for word in words]))
            says.append(told)
    outcomes = probe([good / "model"], jobs)
    wrong = {
        " ".join(job[2]): how
        for job, told, found in zip(jobs, says, outcomes, strict=True)
        if (how := harm(found, told, job[1], room=200))  # what a command imports takes memory, too
    }
    assert wrong == {}
    assert not (tmp_path / "out").exists()
    check(16, f"{len(jobs)} commands with hostile folders: all refused in one line")


def test_a_card_elsewhere_is_not_copied(good, tmp_path):
    shutil.copytree(good / "plain-model", tmp_path / "model")
    (tmp_path / "secret").write_text("secret")
    replaced(tmp_path / "model", "README.md", lambda path: path.symlink_to(tmp_path / "secret"))
    model = Superbloom.from_pretrained(tmp_path / "model")
    with pytest.raises(InputError, match="README.md leads out of its folder"):
        model.save_pretrained(tmp_path / "model")
    assert Superbloom.from_pretrained(tmp_path / "model").predict(["name 1"], k=1)


def test_a_manifest_that_is_a_pipe_is_not_waited_for(good, tmp_path):
    shutil.copytree(good / "plain-model", tmp_path / "model")
    replaced(tmp_path / "model", "config.json", os.mkfifo)
    with pytest.raises(InputError, match="is not a model folder"):
        plain_model(good).save_pretrained(tmp_path / "model")


def test_what_a_hostile_manifest_lists_is_not_removed(good, tmp_path):
    shutil.copytree(good / "plain-model", tmp_path / "model")
    manifest_edit("model", lambda m: m["files"].__setitem__("thesis.txt", {"bytes": 1, "sha256": ""}))(
        tmp_path / "model"
    )
    (tmp_path / "model" / "thesis.txt").write_text("x")
    with pytest.raises(InputError, match="also holds 'thesis.txt'"):
        plain_model(good).save_pretrained(tmp_path / "model")


def test_a_checkpoint_is_not_written_through_a_link(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".checkpoint").symlink_to(tmp_path / "mine")
    small = Superbloom(alpha=2, dim=8, ffn_dim=8, heads=2, layers=1)
    small.fit(PLAIN, steps=1, run=tmp_path / "run", resume=True, quiet=True)
    assert (tmp_path / "mine").read_text() == "mine"
    shutil.rmtree(tmp_path / "run" / "tensorboard")
    (tmp_path / "run" / "tensorboard").symlink_to(tmp_path)
    with pytest.raises(InputError, match="tensorboard is a link"):
        small.fit(PLAIN, steps=2, run=tmp_path / "run", resume=True, quiet=True)


def test_inspect_shows_nothing_that_steers_the_terminal(good, tmp_path, capsys, monkeypatch):
    odd = {
        "\x1b[2J": "\x1b",
        "list\x1b": ["\x1b", nested(800)],
        "deep": dict_nested(800),
        "lone": "\ud800",
        "c1": "\x9b",
    }
    shutil.copytree(good / "corpus", tmp_path / "corpus")
    manifest_edit("corpus", lambda m: m["info"].update(odd))(tmp_path / "corpus")
    for options in ([], ["--json"]):
        monkeypatch.setattr(sys, "argv", ["superbloom", "inspect", str(tmp_path / "corpus"), *options])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 0
        assert "".join(capsys.readouterr().out.split("\n")).isprintable()


def dict_nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(depth):
        found = {"x": found}
    return found


def plain_model(good: Path) -> Superbloom:
    return Superbloom.from_pretrained(good / "plain-model")


HUB = """
import json, sys
from superbloom import InputError, Superbloom
for name in sys.argv[1:]:
    try:
        print(json.dumps(Superbloom.from_pretrained(name).predict(["name 1"], k=1)[0].name))
    except InputError as error:
        print(json.dumps({"refused": str(error)}))
"""


def test_a_name_of_the_hub_is_found_in_its_cache(good, tmp_path):
    """The layout of a download: a snapshot of links to blobs, found through refs/main."""
    repo, revision = tmp_path / "models--someone--cities", "0123456789abcdef0123456789abcdef01234567"
    for folder in ("refs", "blobs", f"snapshots/{revision}"):
        (repo / folder).mkdir(parents=True)
    (repo / "refs" / "main").write_text(revision)
    for file in (good / "model").iterdir():
        shutil.copy(file, repo / "blobs" / file.name)
        (repo / "snapshots" / revision / file.name).symlink_to(Path("../../blobs") / file.name)
    environment = {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    names = ["someone/cities", "someone/nothing", "../cities", "no such folder"]
    done = launch.python(HUB, *names, environment=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found, *refused = map(json.loads, done.stdout.splitlines())
    assert found == Superbloom.from_pretrained(good / "model").predict(["name 1"], k=1)[0].name
    messages = [answer["refused"] for answer in refused]
    assert [message.split(",")[0] for message in messages[:2]] == [
        "there is no folder someone/nothing",
        "there is no folder ../cities",
    ]
    assert messages[2] == "a model folder holds config.json; no such folder does not exist"
    assert "\n" not in "".join(messages)


def test_a_vocabulary_can_be_written_over_the_file_it_is_read_from(tmp_path):
    TWO.vocab.write(tmp_path / "vocab.arrow")
    again = Vocab.open(tmp_path / "vocab.arrow")
    again.write(tmp_path / "vocab.arrow")
    assert again.table.equals(Vocab.open(tmp_path / "vocab.arrow").table)


def test_metrics_that_are_missing_are_named(good, tmp_path):
    shutil.copytree(good / "model", tmp_path / "model")
    (tmp_path / "model" / "metrics.json").unlink()
    with pytest.raises(InputError, match=r"metrics.json is missing; the folder is incomplete: copy it again"):
        Superbloom.from_pretrained(tmp_path / "model")
