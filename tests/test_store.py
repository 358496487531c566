"""Model and corpus folders: what was saved is what is loaded; damage and malice are refused, by name, without harm.

Folders are opened in another process (PROBE), since a damaged file may end the process that reads it.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file, save_file

from superbloom import folder as folder_module
from superbloom.api import Superbloom
from superbloom.arrow import write_arrow
from superbloom.corpus import Corpus
from superbloom.errors import InputError
from superbloom.folder import MANIFESTS
from superbloom.special import MASK
from superbloom.vocab import Vocab

ROWS = [[f"name {number % 13}", f"name {number % 7}", f"näme {number % 5}"] for number in range(80)]
PLAIN = Corpus.from_sequences(ROWS)
TWO = Corpus.from_sequences(ROWS, targets=[[name.upper() for name in row] for row in ROWS])


def fitted(corpus: Corpus, **options: Any) -> Superbloom:
    options = {"alpha": 2, "dim": 16, "ffn_dim": 16, "heads": 2, "layers": 1} | options
    return Superbloom(**options).fit(corpus, steps=2, quiet=True)


@pytest.fixture(scope="session")
def good(tmp_path_factory) -> Path:
    """Folders corpus and model that hold every file there can be, and other, a model of other sizes."""
    parent = tmp_path_factory.mktemp("good")
    TWO.save(parent / "corpus")
    fitted(TWO, positions=True, target_alpha=3).save_pretrained(parent / "model")
    fitted(PLAIN, dim=8, alpha=3).save_pretrained(parent / "other")
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


PROBE = """
import json, os, resource, signal, sys, time
from pathlib import Path
from superbloom import MASK, Corpus, InputError, Superbloom

def corpus(folder, verify):
    found = Corpus.open(folder, verify=verify)
    found.fingerprint()
    [found.vocab.names(found.row(number)) for number in range(len(found))]
    (found.target_vocab or found.vocab).names(found.targets)
    [found.id_counts(split) for split in ("train", "valid", "test")]

def model(folder, verify):
    found = Superbloom.from_pretrained(folder, verify=verify)
    [name in found.model.vocab for name in found.model.vocab.names(range(len(found.model.vocab)))]
    found.predict([found.model.vocab.name(0), MASK], k=5)

def crash(folder, verify):
    os.kill(os.getpid(), signal.SIGSEGV if folder.endswith("crash") else 0)

def status(name):
    return int(Path("/proc/self/status").read_text().split(name + ":")[1].split()[0]) // 1024

# One that is good first, so that what follows is only its own time and memory.
warm, jobs = json.load(sys.stdin)
model(warm, True)
resource.setrlimit(resource.RLIMIT_AS, (status("VmSize") + 512 << 20, resource.RLIM_INFINITY))
for kind, folder, verify in jobs:
    signal.alarm(10)
    began, peak = time.perf_counter(), status("VmHWM")
    try:
        globals()[kind](folder, verify)
        outcome, message = "accepted", ""
    except InputError as error:
        outcome, message = "refused", str(error)
    except BaseException as error:
        outcome, message = type(error).__name__, str(error)
    line = {"outcome": outcome, "message": message}
    seconds, megabytes = time.perf_counter() - began, status("VmHWM") - peak
    print(json.dumps(line | {"seconds": seconds, "megabytes": megabytes}), flush=True)
"""


def probe(warm: Path, jobs: list[tuple[str, Path, bool]]) -> list[dict[str, Any]]:
    """What happens to (kind, folder, verify) one after another: refused, accepted, another error, or a death."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    outcomes: list[dict[str, Any]] = []
    while len(outcomes) < len(jobs):
        rest = [(kind, str(folder), verify) for kind, folder, verify in jobs[len(outcomes) :]]
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", PROBE],
            input=json.dumps([str(warm), rest]),
            capture_output=True,
            text=True,
            env=environment,
        )
        outcomes += map(json.loads, done.stdout.splitlines())
        assert done.returncode <= 0, done.stderr
        if done.returncode < 0:  # whoever came next did it
            name = signal.Signals(-done.returncode).name
            outcomes.append({"outcome": name, "message": done.stderr[-2000:], "seconds": 0.0, "megabytes": 0})
    return outcomes


def test_the_probe_tells_who_died(good, tmp_path):
    jobs = [("crash", tmp_path / name, True) for name in ("fine", "crash", "fine")]
    outcomes = probe(good / "model", [*jobs, ("model", good / "model", True), ("model", tmp_path, True)])
    assert [found["outcome"] for found in outcomes] == ["accepted", "SIGSEGV", "accepted", "accepted", "refused"]


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
            shutil.copytree(good / kind, folder)
            (folder / name).write_bytes(data)
            found.append((kind, name, damage, folder))
    return found


@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_a_damaged_file_is_refused_by_name(good, tmp_path, times):
    folders = damaged_folders(good, tmp_path, times)
    outcomes = probe(good / "model", [(kind, folder, True) for kind, _, _, folder in folders])
    assert len(outcomes) == 20 * times * len(FILES)
    wrong = [
        (folder.name, damage, found["outcome"], found["message"])
        for (_, name, damage, folder), found in zip(folders, outcomes, strict=True)
        if found["outcome"] != "refused" or f"{folder.name}/{name}" not in found["message"]
    ]
    assert wrong == []


@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_without_checksums_damage_is_refused_or_harmless(good, tmp_path, times):
    """The control of the above: it is the checksum that catches flipped weights. And nothing dies without it."""
    folders = damaged_folders(good, tmp_path, times)
    outcomes = probe(good / "model", [(kind, folder, False) for kind, _, _, folder in folders])
    found = [(*folder[:3], outcome["outcome"]) for folder, outcome in zip(folders, outcomes, strict=True)]
    assert {outcome for *_, outcome in found} == {"refused", "accepted"}
    assert ("model", "model.safetensors", "flip", "accepted") in found
    manifests = {(name, outcome) for _, name, _, outcome in found if name in MANIFESTS.values()}
    assert manifests == {("corpus.json", "refused"), ("config.json", "refused")}


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


def columns_edit(kind: str, file: str, **columns: Any) -> Edit:
    """Replace columns of an Arrow file; None drops one."""

    def edit(folder: Path) -> None:
        table = in_memory(folder / file)
        kept = {name: table[name] for name in table.column_names} | columns
        write_arrow(pa.table({name: part for name, part in kept.items() if part is not None}), folder / file)

    return resealed(kind, edit)


def tensors_edit(file: str, edit: Callable[[dict[str, torch.Tensor]], Any]) -> Edit:
    def apply(folder: Path) -> None:
        tensors = {name: part.clone() for name, part in load_file(folder / file).items()}
        edit(tensors)
        save_file({name: part.contiguous() for name, part in tensors.items()}, folder / file)

    return resealed("model", apply)


def set_model(name: str, value: Any) -> Edit:
    return manifest_edit("model", lambda manifest: manifest["model"].__setitem__(name, value))


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


def batches(folder: Path, number: int) -> None:
    table = in_memory(folder / "vocab.arrow")
    with pa.ipc.new_file(folder / "vocab.arrow", table.schema) as file:
        for _ in range(number):
            file.write_table(table)


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
            *(("evil\nkey", 1), ("layers ", 1)),
        ]
    ),
    *(
        ("model", f"{name}={value!r:.20} against the weights", set_model(name, value), "model.safetensors")
        for name, value in [
            *(("seq_len", 10**9), ("seq_len", 10**18), ("seq_len", 10**40), ("layers", 2), ("layers", 500)),
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
    ("model", "a file '..'", partial(outside, name=".."), ".. is missing"),
    ("model", "a file '../x' without a slash", partial(outside, name="x"), "x is missing"),
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
        ]
    ),
    *(
        (
            "model",
            f"metrics {data[:8]!r}",
            resealed("model", partial(put, name="metrics.json", data=data)),
            "metrics.json",
        )
        for data in (b"", b"[]", b"{", b"\xff", b"[" * 10**5, b"{}" + b" " * 2**25)
    ),
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
        "vocab.arrow is not a sound Arrow file (it holds a compressed batch",
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


@pytest.fixture(scope="module")
def hostile_outcomes(good, tmp_path_factory) -> list[dict[str, Any]]:
    jobs, all_of_them = [], tmp_path_factory.mktemp("hostile")
    for number, (kind, _, edit, _) in enumerate(HOSTILE):
        parent = all_of_them / str(number)
        shutil.copytree(good / kind, parent / kind)
        (parent / "other").symlink_to(good / "other")
        edit(parent / kind)
        jobs.append((kind, parent / kind, True))
    return probe(good / "model", jobs)


@pytest.mark.parametrize("number", range(len(HOSTILE)), ids=[f"{kind}: {what}" for kind, what, *_ in HOSTILE])
def test_a_hostile_folder_is_refused(hostile_outcomes, number):
    found, says = hostile_outcomes[number], HOSTILE[number][3]
    assert (found["outcome"], says in found["message"]) == ("refused", True), found
    assert "\n" not in found["message"]
    assert len(found["message"]) < 600
    assert found["seconds"] < 5
    assert found["megabytes"] < 64


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
    outcomes = probe(
        good / "model", [(kind, tmp_path / way / kind, True) for way in ("sealed", "written") for kind in MANIFESTS]
    )
    assert [found["outcome"] for found in outcomes] == ["accepted"] * 4


NO_PICKLE = """
import sys
from superbloom import MASK, Superbloom
import json, pickle, torch, huggingface_hub, rapidfuzz.process
events = []
sys.addaudithook(lambda event, arguments: events.append(event) if event.startswith("pickle.") else None)
def refuse(*arguments, **options):
    raise AssertionError("torch.load was called")
original, torch.load = torch.load, refuse
model = Superbloom.from_pretrained(sys.argv[1])
answers = [model.predict(["name 1", MASK], k=3), model.predict(["name 2"], k=3, exclude=["NAME 2"])]
loaded = len(events)
torch.save(torch.nn.Linear(1, 1), sys.argv[2])
original(sys.argv[2], weights_only=False)
print(json.dumps({"answers": len(answers), "loaded": loaded, "control": len(events)}))
"""


def test_loading_and_predicting_use_no_pickle(good, tmp_path):
    command = [sys.executable, "-c", NO_PICKLE, str(good / "model"), str(tmp_path / "pickled.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert (found["answers"], found["loaded"]) == (2, 0)
    assert found["control"] > 0


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
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    names = ["someone/cities", "someone/nothing", "../cities", "no such folder"]
    command = [sys.executable, "-c", HUB, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=tmp_path)
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
