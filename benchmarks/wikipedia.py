"""How near does reading a Wikipedia dump come to decompressing it?   python -m benchmarks.wikipedia ENWIK8.xz

`superbloom prepare wikipedia --open` and `lbzip2 -d` in turn on 1.1 GB, which are 11 copies of enwik8; then ours beside
the readers of gensim and mwxml on enwik8 alone; all on the same two cores. Ours is timed as a command, start included,
the readers without their imports. Memory is sampled in a run of its own: sampling slows a run by a tenth or more.
Needs pip install 'superbloom[bench]' and apt install lbzip2. --work FOLDER keeps the packed dumps for the next time.
The last line printed is what benchmarks/results/wikipedia.json keeps (| tee /dev/stderr | tail -n 1).
"""

import argparse
import bz2
import lzma
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from tools.record import report

CORES = 2
COPIES = 11  # of enwik8, so that there is more than 1 GB of text
MB = 1_000_000
SAMPLE_SECONDS = 0.05
LINK = re.compile(r"\[\[([^\]|#]+)")
COMPRESS = ["lbzip2", f"-n{CORES}"]
DECOMPRESS = ["lbzip2", "-dc", f"-n{CORES}"]


def pack(enwik8: Path, megabytes: int, copies: int, work: Path) -> Path:
    """Compress the whole pages of so much of enwik8, several times over, each time under other titles."""
    packed = work / f"enwik8-{megabytes}mb-{copies}.xml.bz2"
    if packed.exists():
        return packed
    with lzma.open(enwik8) as file:
        text = file.read(megabytes * MB)
    start, stop = text.index(b"<page>"), text.rindex(b"</page>") + len(b"</page>")
    head, body = text[:start], text[start:stop] + b"\n"
    part = packed.with_suffix(".part")
    with part.open("wb") as out, subprocess.Popen(COMPRESS, stdin=subprocess.PIPE, stdout=out) as lbzip2:
        assert lbzip2.stdin
        lbzip2.stdin.write(head + body)
        for number in range(2, copies + 1):
            lbzip2.stdin.write(body.replace(b"</title>", b" (%d)</title>" % number))
        lbzip2.stdin.write(b"</mediawiki>\n")
    if lbzip2.returncode:
        sys.exit(f"lbzip2 ended with code {lbzip2.returncode}")
    return part.rename(packed)


def megabytes_of_text(packed: Path) -> float:
    """Counted once before any clock runs, which also brings the file into the system's cache."""
    with subprocess.Popen([*DECOMPRESS, packed], stdout=subprocess.PIPE) as lbzip2:
        assert lbzip2.stdout
        size = 0
        while data := lbzip2.stdout.read(MB):
            size += len(data)
    if lbzip2.returncode:
        sys.exit(f"lbzip2 ended with code {lbzip2.returncode}")
    return size / MB


def seconds(what: Callable[..., object], *given: Path) -> float:
    start = time.perf_counter()
    what(*given)
    return time.perf_counter() - start


def decompress(packed: Path) -> None:
    subprocess.run([*DECOMPRESS, packed], stdout=subprocess.DEVNULL, check=True)


def ours(packed: Path, work: Path, watch: Callable[[subprocess.Popen[str]], None] = lambda _: None) -> None:
    """Run our command into a fresh folder."""
    with TemporaryDirectory(dir=work) as folder:
        command = [sys.executable, "-m", "superbloom", "prepare", "wikipedia", packed, "--open"]
        command += ["--out", Path(folder) / "corpus"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            watch(process)
            told, _ = process.communicate()
        if process.returncode:
            sys.exit(f"superbloom ended with code {process.returncode}:\n{told}")


def peak_memory(packed: Path, work: Path) -> tuple[float, str]:
    """The most MB that our command and its children took together, and how counted: PSS if the system tells it."""
    import psutil

    known = psutil.Process().memory_full_info()
    measure = next(name for name in ("pss", "uss", "rss") if getattr(known, name, 0))
    peak = 0

    def memory(process: psutil.Process) -> int:
        try:
            return getattr(process.memory_full_info(), measure)
        except psutil.Error:  # it has just ended
            return 0

    def sample(process: subprocess.Popen[str]) -> None:
        nonlocal peak
        root = psutil.Process(process.pid)
        while process.poll() is None:
            try:
                tree = [root, *root.children(recursive=True)]
            except psutil.Error:
                continue
            peak = max(peak, sum(map(memory, tree)))
            time.sleep(SAMPLE_SECONDS)

    ours(packed, work, sample)
    return peak / MB, measure.upper()


def readers() -> dict[str, Callable[[Path], int]]:
    """Other readers, each of which returns how many texts or links it found."""
    import mwxml
    from gensim.corpora.wikicorpus import WikiCorpus, extract_pages

    def texts(packed: Path) -> int:
        # enwik8 tells no namespaces; asked for some, WikiCorpus would wait for ever.
        corpus = WikiCorpus(str(packed), dictionary={}, processes=CORES, filter_namespaces=False)
        return sum(1 for _ in corpus.get_texts())

    def gensim_links(packed: Path) -> int:
        with bz2.open(packed) as file:
            return sum(len(LINK.findall(text)) for _, text, _ in extract_pages(file))

    def mwxml_links(packed: Path) -> int:
        with bz2.open(packed) as file:
            dump = mwxml.Dump.from_file(file)
            return sum(len(LINK.findall(revision.text or "")) for page in dump for revision in page)

    return {
        "gensim WikiCorpus, texts": texts,
        "gensim extract_pages, links by a regex": gensim_links,
        "mwxml, links by a regex": mwxml_links,
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("  ")[0])
    parser.add_argument("enwik8", type=Path, help="enwik8, packed as .xz")
    parser.add_argument("--dump", type=Path, help="a .bz2 dump to use in place of the 11 copies")
    parser.add_argument("--work", type=Path, help="folder for the packed dumps, kept (default: a temporary one)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-megabytes", type=int, default=100, help="of enwik8 for the other readers; 0: without")
    given = parser.parse_args()
    for path in (given.enwik8, given.dump):
        if path and not path.is_file():
            sys.exit(f"there is no file {path}")
    missing = [name for name in ("psutil", "gensim", "mwxml") if not find_spec(name)]
    if missing:
        sys.exit(f"{', '.join(missing)} not found: pip install 'superbloom[bench]'")
    if not shutil.which("lbzip2"):
        sys.exit("lbzip2 not found: apt install lbzip2")
    return given


def beside_lbzip2(packed: Path, work: Path, rounds: int) -> tuple[list[list[str]], dict[str, Any]]:
    size = megabytes_of_text(packed)
    theirs, own, ratios = [], [], []
    for number in range(1, rounds + 1):
        theirs.append(seconds(decompress, packed))
        own.append(seconds(ours, packed, work))
        ratios.append(own[-1] / theirs[-1])
        told = f"lbzip2 {theirs[-1]:.1f} s, superbloom {own[-1]:.1f} s, ratio {ratios[-1]:.2f}"
        print(f"round {number}: {told}", flush=True)
    peak, measure = peak_memory(packed, work)
    ratio, best = median(ratios), min(own) / min(theirs)
    rows = [
        row(f"lbzip2 -d -n{CORES}", size, median(theirs)),
        row("superbloom", size, median(own), f"{ratio:.2f}× the time (median ratio), {best:.2f}× (best by best)"),
        [f"peak memory of its processes ({measure})", f"{peak:,.0f} MB", "", "", ""],
    ]
    figures = {"megabytes": size, "lbzip2": theirs, "superbloom": own, "median_ratio": ratio, "best_ratio": best}
    return rows, figures | {"peak_megabytes": peak, "memory": measure}


def beside_readers(packed: Path, work: Path) -> tuple[list[list[str]], dict[str, Any]]:
    size = megabytes_of_text(packed)
    own = seconds(ours, packed, work)
    print(f"superbloom: {own:.1f} s", flush=True)
    times = {}
    for name, reader in readers().items():
        times[name] = seconds(reader, packed)
        print(f"{name}: {times[name]:.1f} s", flush=True)
    rows = [row(name, size, taken, f"superbloom is {taken / own:.2f}× as fast") for name, taken in times.items()]
    ratio = min(times.values()) / own
    rows.append(row("superbloom", size, own, f"{ratio:.2f}× as fast as the fastest of them"))
    return rows, {"megabytes": size, "superbloom": own, "seconds": times, "ratio_to_fastest": ratio}


def row(name: str, megabytes: float, taken: float, beside: str = "") -> list[str]:
    return [name, f"{megabytes:,.0f} MB", f"{taken:.1f} s", f"{megabytes / taken:.1f}", beside]


def main() -> None:
    given = arguments()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    with ExitStack() as stack:
        work = given.work or Path(stack.enter_context(TemporaryDirectory()))
        work.mkdir(parents=True, exist_ok=True)
        large = given.dump or pack(given.enwik8, 100, COPIES, work)
        rows, figures = beside_lbzip2(large, work, given.rounds)
        if given.peer_megabytes:
            small = pack(given.enwik8, given.peer_megabytes, 1, work)
            more, figures["readers"] = beside_readers(small, work)
            rows += more
    print()
    report("Reading a Wikipedia dump", ["reader", "text", "time", "MB/s", "beside"], rows, figures)


if __name__ == "__main__":
    main()
