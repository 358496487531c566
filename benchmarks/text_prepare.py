"""How fast does text become ids, and how large a vocabulary?   python -m benchmarks.text_prepare TEXT VOCAB.TXT

`prepare text` with up to a million entries, on one process and on two: seconds of each of its two passes and of all of
it, the vocabulary by kind, and the most memory that the command and its children take together (PSS, in a run of its
own, since sampling slows it). Then the segmenter alone, from bytes to ids with that vocabulary, and beside it the
tokenizers library with BERT's word pieces (encode_batch of whole lines), both on one core and on two. Of the last two
also the processor's own seconds, which tell the speed of a machine that is shared.
The last line printed is what benchmarks/results/text_prepare.json keeps (| tee /dev/stderr | tail -n 1).
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from superbloom.corpus.corpus import Corpus
from superbloom.corpus.vocab import Vocab
from superbloom.prepare.text import prepare_text
from superbloom.prepare.text.documents import Form, pieces, starts
from tools.record import report

MB = 1_000_000
VOCAB_SIZE = 1_000_000
SAMPLE = 20 * MB  # of the text, for the tokenizers library
SAMPLE_SECONDS = 0.1


def pieces_of(text: Path) -> Iterator[bytes]:
    """The pieces of a file as they are read, without the lines between documents."""
    for piece in pieces([str(text)], lambda _: None, print):
        yield starts(piece).text if piece.form is Form.DOCS else piece.data or b""


def prepare(text: Path, wordpieces: Path, out: Path, workers: int) -> dict[str, Any]:
    """Run it and tell the seconds of its passes and of all of it."""
    taken: dict[str, Any] = {}

    @contextmanager
    def watch(what: str, total: int | None, in_bytes: bool) -> Iterator[Callable[[int], None]]:  # noqa: ARG001
        start = time.perf_counter()
        yield lambda _: None
        taken[what] = time.perf_counter() - start

    start = time.perf_counter()
    options = {"wordpieces": wordpieces, "vocab_size": VOCAB_SIZE, "workers": workers}
    told = prepare_text([text], out, overwrite=True, watch=watch, **options)
    return taken | {"all": time.perf_counter() - start, "counts": told.counts}


def peak_memory(text: Path, wordpieces: Path, out: Path) -> float:
    """The most MB that the command and its children take together."""
    command = [sys.executable, "-m", "superbloom", "prepare", "text", str(text), "--out", str(out), "--overwrite"]
    command += ["--workers", "2", "--wordpieces", str(wordpieces), "--vocab-size", str(VOCAB_SIZE)]
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            peak = max(peak, sum(map(kilobytes, tree(process.pid))))
            time.sleep(SAMPLE_SECONDS)
    if process.returncode:
        sys.exit(f"superbloom ended with code {process.returncode}")
    return peak / 1000


def tree(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(other for child in children for other in tree(int(child)))]


def kilobytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/smaps_rollup").read_text().split("Pss:")[1].split()[0])
    except (OSError, IndexError):
        return 0


def segment_alone(text: Path, vocab: Path, number: int, of: int) -> None:
    """Print the seconds that every so many-th piece takes, read into memory before the clock starts."""
    segmenter = Vocab.open(vocab).segmenter
    mine = [data for at, data in enumerate(pieces_of(text)) if at % of == number]
    print("ready", flush=True)
    sys.stdin.readline()
    with timed() as taken:
        taken["ids"] = sum(len(segmenter.entries(segmenter.reader.read(data)).ids) for data in mine)
    print(json.dumps(taken | {"bytes": sum(map(len, mine))}))


@contextmanager
def timed() -> Iterator[dict[str, float]]:
    """Seconds of the clock and of the processor, all threads together."""
    clock, processor = time.perf_counter(), time.process_time()
    taken: dict[str, float] = {}
    yield taken
    taken |= {"seconds": time.perf_counter() - clock, "processor": time.process_time() - processor}


@contextmanager
def on(cores: int) -> Iterator[None]:
    """On the last so many cores."""
    all_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(all_cores)[-cores:])
    yield
    os.sched_setaffinity(0, all_cores)


def speeds(told: list[dict[str, float]]) -> dict[str, float]:
    """MB a second by the clock, and by the processor."""
    megabytes = sum(one["bytes"] for one in told) / MB
    clock, processor = max(one["seconds"] for one in told), sum(one["processor"] for one in told)
    return {"clock": megabytes / clock, "processor": megabytes / processor}


def segmenting(text: Path, vocab: Path, processes: int) -> dict[str, float]:
    """MB a second of the segmenter alone, in so many processes at once."""
    commands = [
        [sys.executable, "-m", __spec__.name, str(text), str(vocab), "--alone", str(number), str(processes)]
        for number in range(processes)
    ]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, **pipes) for command in commands]
    for process in running:
        process.stdout.readline()
    for process in running:
        process.stdin.write("go\n")
        process.stdin.flush()
    return speeds([json.loads(process.communicate()[0]) for process in running])


def library(text: Path, wordpieces: Path, threads: int) -> dict[str, float]:
    """MB a second of the tokenizers library on whole lines, in a process of its own."""
    command = [sys.executable, "-m", __spec__.name, str(text), str(wordpieces), "--library"]
    environment = os.environ | {"RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return speeds([json.loads(done.stdout)])


def library_alone(text: Path, wordpieces: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer

    names = wordpieces.read_text().splitlines()
    tokenizer = Tokenizer(WordPiece({name: number for number, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    sample = b"".join(data for _, data in zip(range(2), pieces_of(text), strict=False))[:SAMPLE]
    lines = sample.decode(errors="ignore").splitlines()
    with timed() as taken:
        for at in range(0, len(lines), 1000):
            tokenizer.encode_batch(lines[at : at + 1000], add_special_tokens=False)
    print(json.dumps(taken | {"bytes": len(sample)}))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("  ")[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("vocabulary", type=Path, help="BERT's vocab.txt")
    parser.add_argument("--work", type=Path, help="folder for the corpus, kept (default: a temporary one)")
    parser.add_argument("--alone", nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--library", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    if given.alone:
        return segment_alone(given.text, given.vocabulary, *given.alone)
    if given.library:
        return library_alone(given.text, given.vocabulary)
    with TemporaryDirectory() as temporary:
        work = given.work or Path(temporary)
        out = work / "corpus"
        megabytes = sum(map(len, pieces_of(given.text))) / MB
        figures: dict[str, Any] = {"megabytes": megabytes, "prepare": {}, "segmenter": {}, "library": {}}
        rows = []
        for workers in (1, 2):
            with on(workers):
                taken = figures["prepare"][workers] = prepare(given.text, given.vocabulary, out, workers)
            for what, name in (("reading", "reading and counting"), ("segmenting", "segmenting"), ("all", "all of it")):
                speed = f"{megabytes / taken[what]:.1f}"
                rows.append([f"prepare text: {name}", str(workers), f"{taken[what]:.1f} s", speed, ""])
        figures["names sha256"] = Corpus.open(out).checksums["names sha256"]
        for cores in (1, 2):
            with on(cores):
                ours = figures["segmenter"][cores] = segmenting(given.text, out / "vocab.arrow", cores)
                theirs = figures["library"][cores] = library(given.text, given.vocabulary, cores)
            told = {"the segmenter alone, bytes to ids": ours, "tokenizers, BERT's pieces, encode_batch": theirs}
            for name, speed in told.items():
                rows.append([name, str(cores), "", f"{speed['clock']:.1f}", f"{speed['processor']:.1f}"])
        figures["peak_megabytes"] = peak_memory(given.text, given.vocabulary, out)
        rows.append(["peak memory of the command (PSS)", "2", f"{figures['peak_megabytes']:,.0f} MB", "", ""])
        for name, count in figures["prepare"][2]["counts"].items():
            rows.append([name, "", f"{count:,}", "", ""])
    header = ["what", "processes", "", "MB/s", "MB per second of a processor"]
    report(f"{megabytes:.0f} MB of text into ids", header, rows, figures)
    return None


if __name__ == "__main__":
    main()
