"""What is the same when a command is run again, with more threads, on an older processor, with another torch?

    python -m benchmarks.determinism measure [--python OTHER/bin/python …]
    python -m benchmarks.determinism report        the table into docs/reliability.md

Each surroundings is a process of its own that prepares the built-in links in four ways, makes hash functions and
batches, trains, and asks one and the same model; compared is the sha256 of what came out, and, where that differs, by
how much. Older processors are this one told to do without its newer instructions. Another Python is one that has
another torch. What is in --work is not measured again. Results: benchmarks/results/determinism.json.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
RESULTS, DOC = HERE / "results" / "determinism.json", HERE.parent / "docs" / "reliability.md"
STEPS, ASKED, K = 100, 200, 10
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
AVX2 |= {
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL",
}
SSE = {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "ONEDNN_MAX_CPU_ISA": "SSE41"}
SSE |= {"OPENBLAS_CORETYPE": "Nehalem", "NPY_DISABLE_CPU_FEATURES": f"AVX2 FMA3 {AVX2['NPY_DISABLE_CPU_FEATURES']}"}
SURROUNDINGS = {
    "first": {},
    "run again": {"PYTHONHASHSEED": "1"},
    "two threads": {"OMP_NUM_THREADS": "2"},
    "without AVX-512, if it has that": AVX2,
    "without AVX": SSE,
}
WHAT = ("corpora", "hash functions", "coherent hash functions", "batches", "weights", "answers")


def one(folder: Path, model: Path) -> None:
    """In surroundings of its own: everything, once. The model that is asked is the one the first of all trained."""
    import torch

    from superbloom import BloomHash, Superbloom
    from superbloom.corpus.corpus import Corpus
    from superbloom.training.batches import Batches

    folder.mkdir(parents=True)
    found: dict[str, Any] = {"torch": torch.__version__, "corpora": corpora(folder)}
    corpus = Corpus.open(folder / "sequences")
    found["hash functions"] = BloomHash.random(corpus.num_ids, 2, 10, seed=0).checksum()
    found["coherent hash functions"] = BloomHash.coherent(corpus, 2, 10, 1, 0).checksum()
    batches = Batches(corpus, seq_len=64, batch_size=32, mask_share=0.15, seed=0)
    parts = (part for step in range(STEPS) for part in (batches[step].ids, batches[step].targets))
    found["batches"] = digest(*(part.numpy() for part in parts))
    trained = Superbloom(alpha=4).fit(corpus, steps=STEPS, quiet=True)
    weights = {name: value.numpy() for name, value in trained.model.network.state_dict().items()}
    np.savez(folder / "weights.npz", **weights)
    found["weights"] = digest(*weights.values())
    if not model.exists():
        trained.save_pretrained(model)
    rng, asked = np.random.default_rng(0), Superbloom.from_pretrained(model)
    contexts = [corpus.vocab.names(rng.integers(0, 2000, 5)) for _ in range(ASKED)]
    answers = [[(p.name, p.score) for p in asked.predict(context, k=K)] for context in contexts]
    found["answers"] = digest(json.dumps(answers))
    (folder / "found.json").write_text(json.dumps(found | {"given": answers}), encoding="utf-8")


def corpora(folder: Path) -> dict[str, str]:
    """Of the built-in links as sequences, as a dump, as a log and as text."""
    import bz2

    from superbloom.prepare.bundled import LINKS
    from superbloom.prepare.sequences import read_sequences

    rows = list(read_sequences([LINKS], keyed=True))
    escaped = [(html.escape(title), [html.escape(name) for name in names]) for title, names in rows]
    pages = "".join(
        f"<page><title>{title}</title><ns>0</ns><id>{number}</id><revision><id>1</id><text>"
        + " and ".join(f"[[{name}]]" for name in names)
        + "</text></revision></page>\n"
        for number, (title, names) in enumerate(escaped, 1)
    )
    (folder / "dump.xml.bz2").write_bytes(bz2.compress(f"<mediawiki>\n{pages}</mediawiki>\n".encode(), 1))
    events = [f"{user}\t{name}" for user, (_, names) in enumerate(rows) for name in names]
    (folder / "log.tsv").write_text("\n".join(["user_id\titem_id", *events]), encoding="utf-8")
    (folder / "text.txt").write_text("\n\n".join(" ".join(names) for _, names in rows[:4000]), encoding="utf-8")
    ways = {
        "sequences": ("--keyed", LINKS),
        "wikipedia": ("--open", folder / "dump.xml.bz2"),
        "interactions": (folder / "log.tsv",),
        "text": ("--vocab-size", 8000, folder / "text.txt"),
    }
    found = {}
    for way, options in ways.items():
        command = [sys.executable, "-m", "superbloom", "prepare", way, *options, "--out", folder / way, "--json"]
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
        tables = sorted([*(folder / way).glob("*.arrow"), *(folder / way).glob("*.txt")])
        found[way] = digest(*(table.read_bytes() for table in tables))
    return found


def digest(*parts: Any) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part.encode() if isinstance(part, str) else part if isinstance(part, bytes) else part.tobytes())
    return whole.hexdigest()


def measure(given: argparse.Namespace) -> None:
    from tools.record import keep

    ways = [(name, environment, sys.executable) for name, environment in SURROUNDINGS.items()]
    ways += [("", {}, python) for python in given.python]
    results: dict[str, Any] = {}
    for number, (name, environment, python) in enumerate(ways):
        folder = given.work / str(number)
        if not (folder / "found.json").exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a run that was cut off
            paths = os.pathsep.join(map(str, (HERE.parent / "src", HERE.parent)))
            source = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
            command = [python, "-m", __spec__.name, "one", "--work", str(folder), "--model", str(given.work / "model")]
            subprocess.run(command, check=True, env=os.environ | source | environment)
        found = json.loads((folder / "found.json").read_text(encoding="utf-8"))
        results[name or f"torch {found['torch']}"] = compared(given.work / "0", folder)
        print(name or found["torch"], results[name or f"torch {found['torch']}"], flush=True)
    keep(RESULTS, {"surroundings": results})


def compared(first: Path, other: Path) -> dict[str, str]:
    """For each of WHAT "same", or how far it is from the first."""
    one, two = (json.loads((folder / "found.json").read_text(encoding="utf-8")) for folder in (first, other))
    cells = {what: "same" if one[what] == two[what] else "another" for what in WHAT}
    if cells["corpora"] != "same":
        cells["corpora"] = "others: " + ", ".join(
            way for way, sum_ in one["corpora"].items() if two["corpora"][way] != sum_
        )
    if cells["weights"] != "same":
        pairs = [np.load(folder / "weights.npz") for folder in (first, other)]
        apart = max(float(np.abs(pairs[0][name] - pairs[1][name]).max()) for name in pairs[0].files)
        cells["weights"] = f"up to {apart:.1g} apart"
    if cells["answers"] != "same":
        pairs = list(zip(one["given"], two["given"], strict=True))
        names = sum([name for name, _ in a] == [name for name, _ in b] for a, b in pairs)
        apart = max(abs(x - dict(b).get(name, x)) for a, b in pairs for name, x in a)
        cells["answers"] = f"{names} of {len(pairs)} lists the same, scores up to {apart:.1g} apart"
    return cells


def report(_: argparse.Namespace) -> None:
    from tools.record import between_marks, markdown

    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows = [
        [name, *(cells[what] for what in WHAT)] for name, cells in results["surroundings"].items() if name != "first"
    ]
    between_marks(DOC, {"determinism": markdown(["", *WHAT], rows)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "one", "report"))
    parser.add_argument("--work", type=Path, default=Path("determinism-runs"))
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--python", nargs="*", default=[], help="other Pythons, with other releases of torch")
    given = parser.parse_args()
    {"measure": measure, "one": lambda given: one(given.work, given.model), "report": report}[given.what](given)


if __name__ == "__main__":
    main()
