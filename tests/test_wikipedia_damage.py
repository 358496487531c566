"""Dumps under attack: runs killed at any moment, leftovers damaged, files cut, poisoned or made to fill the memory."""

import bz2
import codecs
import gzip
import json
import lzma
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
import zlib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape, quoteattr

import launch
import pyarrow as pa
import pytest
import typer
from conftest import CASES

from superbloom import cli
from superbloom.corpus import Corpus
from superbloom.prepare.wikipedia import bzip2, dump

pytestmark = pytest.mark.system

KILLED, HANGS = -signal.SIGKILL, -signal.SIGALRM
GIB = 2**30

HEAD = b'<mediawiki xml:lang="en">\n  <siteinfo></siteinfo>\n'
END = b"</mediawiki>\n"
WORDS = ("Sea", "Ñandú", "北京", "Ελλάδα", "rock & roll", "naïve", "Q🌺", "İzmir", "2001: a", "Ωmega")


class Done(NamedTuple):
    code: int
    out: str
    err: str


# Commands run in processes of their own, forked where all is imported (launch.py).


def job(*arguments: object, **options: Any) -> dict[str, Any]:
    """A command, and how it is run.

    pieces: bytes of a piece, instead of many millions
    die: kill -9 itself when about to open, rename or remove the n-th file, or at an event of this name;
         otherwise it prints how many such changes there were
    stdin: the file that is its standard input
    bare: as if rapidgzip were not installed
    """
    return {"arguments": list(map(str, arguments)), **options}


def run(folder: Path, *jobs: dict[str, Any]) -> list[Done]:
    """Run commands in a folder, one after another."""
    told = launch.python("from test_wikipedia_damage import run_all; run_all()", cwd=folder, given=json.dumps(jobs))
    assert told.returncode == 0, told.stderr
    return [Done(*result) for result in json.loads(told.stdout)]


def run_all() -> None:
    """In the process: run the commands that standard input tells, each in a process forked from this one."""
    cli.app = typer.main.get_command(cli.app)  # built once for all
    json.dump([in_a_fork(job) for job in json.load(sys.stdin)], sys.stdout)


def in_a_fork(job: dict[str, Any]) -> tuple[int, str, str]:
    child = os.fork()
    if not child:
        code = 1
        try:
            signal.alarm(45)  # it hangs
            redirect(job.get("stdin", os.devnull))
            changes = adapt(**job)
            sys.argv = ["superbloom", "prepare", "wikipedia", *job["arguments"]]
            try:
                cli.main()
            finally:
                if "die" in job:
                    sys.stdout.write(f"{len(changes)}\n")
        except SystemExit as error:
            code = error.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, Path(".out").read_text(errors="replace"), Path(".err").read_text(errors="replace")


def redirect(given: str = os.devnull) -> None:
    """Read from a file, and write to .out and .err."""
    for number, file in enumerate((given, ".out", ".err")):
        os.dup2(os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC if number else os.O_RDONLY), number)
    # The buffers of sys.stdout belong to the files that were there before.
    sys.stdin, sys.stdout, sys.stderr = (open(number, mode, closefd=False) for number, mode in enumerate("rww"))  # noqa: SIM115


def adapt(
    pieces: int | None = None, bare: bool = False, die: int | str | None = None, **_: object
) -> list[tuple[str, Any]]:
    """Do what the options of a job ask for; return the changes of files, to which those to come are added."""
    if pieces:
        dump.PIECE_BYTES.update(bzip2=pieces, plain=pieces)
        dump.STREAM_BYTES, dump.READ_BYTES = pieces, 2048
    if bare:
        bzip2.IndexedBzip2File = None
    changes = []

    def watch(event: str, details: Any) -> None:
        change = event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir")
        change = change or (event == "open" and os.getcwd() in os.path.abspath(str(details[0])))  # noqa: PTH100, PTH109
        if change:
            changes.append((event, details))
        if event == die or (change and len(changes) == die):
            os.kill(os.getpid(), signal.SIGKILL)

    if die is not None:
        sys.addaudithook(watch)
    return changes


def flaw(done: Done) -> str | None:
    """What no run may do, whatever it is given."""
    if done.code == HANGS:
        return "it hangs"
    if "Traceback" in done.err or done.code not in (0, 2, 3):
        return f"code {done.code}: {done.err[-300:]}"
    if done.code == 2 and not re.fullmatch(r"(what was read is kept .*\n)?error: .*\n", done.err):
        return f"not told in one line: {done.err}"
    return None


def page(title: str, text: str = "", ns: int = 0, redirect: str | None = None) -> bytes:
    to = "" if redirect is None else f"<redirect title={quoteattr(redirect)} />"
    head = f"  <page>\n    <title>{escape(title)}</title>\n    <ns>{ns}</ns>\n    {to}<revision>\n"
    return f"{head}      <text bytes='{len(text)}'>{escape(text)}</text>\n    </revision>\n  </page>\n".encode()


def varied_pages(count: int, seed: int = 0) -> list[bytes]:
    """Articles in several scripts with links among them, to nowhere and elsewhere; redirects; other namespaces."""
    rng = random.Random(seed)
    titles = [f"{rng.choice(WORDS)} {number}" for number in range(count)]
    pages = []
    for title in titles:
        kind, links = rng.random(), rng.choices([*titles, "Nowhere", "talk:Sea", "fr:Mer", "#x", "a%2Cb"], k=25)
        ends = ("]]", "#part]]", "|two\nlines]]")
        text = "".join(f"[[{link}{rng.choice(ends)} {rng.random()}\n" for link in links)
        if kind < 0.15:
            pages.append(page(title, f"#REDIRECT [[{links[0]}]]", redirect=rng.choice(titles) if kind < 0.1 else None))
        else:
            pages.append(page(f"Talk:{title}" if kind > 0.9 else title, text, ns=int(kind > 0.9)))
    return pages


def plain_pages(count: int, links: int = 2) -> list[bytes]:
    """Articles that link to others, and nothing else, so that those before a cut are rows as they are in the whole."""
    rng = random.Random(0)
    names = [[f"Page {(number + 1 + i * i) % count}" for i in range(links)] for number in range(count)]
    texts = ["".join(f"[[{name}]] {rng.random()}\n" for name in row) for row in names]
    return [page(f"Page {number}", text) for number, text in enumerate(texts)]


def whole(pages: list[bytes]) -> bytes:
    return b"".join([HEAD, *pages, END])


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as packer:
        packer.write(data)
    return bytes(sink.getvalue())


def streams(pages: list[bytes], step: int = 4) -> list[bytes]:
    """bzip2 streams of a few pages each, as in the dumps called multistream."""
    groups = [b"".join(pages[at : at + step]) for at in range(0, len(pages), step)]
    return [bz2.compress(text) for text in (HEAD, *groups, END)]


def halves(pages: list[bytes], between: bytes = b"") -> bytes:
    """Two bzip2 streams of small blocks; the cut between them may fall anywhere."""
    text = whole(pages)
    return bz2.compress(text[: len(text) // 2], 1) + between + bz2.compress(text[len(text) // 2 :], 1)


PACK: dict[str, Callable[[list[bytes]], bytes]] = {
    "plain": whole,
    "bz2": lambda pages: bz2.compress(whole(pages)),
    "bz2 of small blocks": lambda pages: bz2.compress(whole(pages), 1),
    "bz2 of many streams": lambda pages: b"".join(streams(pages)),
    "bz2 of two streams": halves,
    "bz2 with an empty stream": lambda pages: halves(pages, bz2.compress(b"")),
    "bz2 with zeros after it": lambda pages: bz2.compress(whole(pages), 1) + bytes(10_000),
    "gz": lambda pages: gzip.compress(whole(pages)),
    "xz": lambda pages: lzma.compress(whole(pages)),
    "zst": lambda pages: zstd(whole(pages)),
}


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def content(folder: Path) -> tuple[str, list[str]]:
    corpus = Corpus.open(folder)
    return corpus.fingerprint(), corpus.sequences["key"].to_pylist()


def rows(folder: Path) -> dict[str, list[str]]:
    corpus = Corpus.open(folder)
    return {key: corpus.vocab.names(corpus.row(n)) for n, key in enumerate(corpus.sequences["key"].to_pylist())}


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


def start(folder: Path, *arguments: object, pieces: int) -> Any:
    """A run that goes on beside the test, with pieces of so many bytes."""
    return launch.start(folder, "prepare", "wikipedia", *arguments, before=partial(begin, pieces))


def begin(pieces: int) -> None:
    """In the process, before the command."""
    redirect()
    adapt(pieces)
    # Tests that a shell runs in the background are told to ignore Ctrl-C, and so would this be.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def finish(folder: Path, process: Any) -> Done:
    process.join(timeout=120)
    return Done(process.exitcode, (folder / ".out").read_text(), (folder / ".err").read_text())


def children(process: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


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
    assert f"going on with {parts.name}: " in done.err
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


def redone(out: Path, done: Done, whole: Path) -> str | None:
    """What is wrong with the result of a run that went on."""
    if done.code:
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
        assert "going on" not in again.err
        assert redone(tmp_path / f"{name} out", again._replace(code=0), tmp_path / (name * 2)) is None


# However a dump is packed, cut into pieces and shared among processes, the corpus is the same.


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    pages = varied_pages(320, seed=3)
    for name, pack in PACK.items():
        (folder / name).write_bytes(pack(pages))
    run(folder, job("plain", "--out", "expected", "--workers", 1))
    assert len(rows(folder / "expected")) > 200
    return folder


@pytest.mark.parametrize(
    "way",
    [{}, {"pieces": 33_333, "bare": True}, {"stdin": True}, pytest.param({"pieces": 2_500}, marks=pytest.mark.slow)],
    ids=["one piece", "pieces", "stdin", "small pieces"],
)
def test_packing_and_pieces_do_not_matter(packed: Path, way: dict[str, Any]) -> None:
    jobs = [
        job("-" if "stdin" in way else kind, "--workers", 1, "--out", f"{kind} {way}", **way | {"stdin": kind})
        for kind in PACK
    ]
    results = run(packed, *jobs)
    wrong = {kind: (done.code, done.err) for kind, done in zip(PACK, results, strict=True) if done.code or done.err}
    assert wrong == {}
    assert [kind for kind in PACK if content(packed / f"{kind} {way}") != content(packed / "expected")] == []


@pytest.mark.parametrize(("kind", "workers"), [("plain", 2), ("bz2 of many streams", 3), ("gz", 2)])
def test_number_of_workers_does_not_matter(packed: Path, kind: str, workers: int) -> None:
    out = f"{kind} {workers}"
    done = finish(packed, start(packed, kind, "--out", out, "--workers", workers, "--memory", 4, pieces=20_000))
    assert (done.code, done.err) == (0, "")
    assert content(packed / out) == content(packed / "expected")


def two_pages() -> bytes:
    """A small dump without spaces between its tags, so that there are not too many places to cut it."""
    return re.sub(rb"(?<=>)\s+(?=<)", b"", whole([page("A", "[[B]] [[C]]"), page("B", "[[A]] [[C]]")]))


def tag_ends(text: bytes) -> set[int]:
    """Where tags begin and end, and every second byte of the last ones."""
    ends = {match.start() for match in re.finditer(rb"(?=<)|(?<=>)", text)} - {0}
    return ends | set(range(text.rindex(b"</page>"), len(text), 2))


def test_piece_may_end_anywhere(tmp_path: Path) -> None:
    text = two_pages()
    (tmp_path / "dump.xml").write_bytes(text)
    sizes = [len(text), 9, 33, *range(text.rindex(b"</text>"), len(text), 2)]
    results = run(tmp_path, *(job("dump.xml", "--open", "--workers", 1, "--out", n, pieces=n) for n in sizes))
    assert {size: done.err for size, done in zip(sizes, results, strict=True) if done.code} == {}
    expected = {"A": ["B", "C"], "B": ["A", "C"]}
    assert [size for size in sizes if rows(tmp_path / str(size)) != expected] == []


# Files that are cut or damaged.


def kept(folder: Path, done: Done) -> list[tuple[str, list[str]]]:
    """The rows of the corpus a damaged dump became, none if it was refused; it may have no other flaw."""
    assert flaw(done) is None
    assert folder.exists() == (done.code != 2)
    return list(rows(folder).items()) if folder.exists() else []


@pytest.mark.parametrize("beside", [{0}, pytest.param({-1, 1}, marks=pytest.mark.slow)])
def test_plain_dump_is_kept_up_to_any_cut(tmp_path: Path, beside: set[int]) -> None:
    text = two_pages()
    cuts = sorted({min(len(text), end + by) for end in tag_ends(text) for by in beside})
    for cut in cuts:
        (tmp_path / f"{cut}.xml").write_bytes(text[:cut])
    results = run(tmp_path, *(job(f"{cut}.xml", "--open", "--workers", 1, "--out", cut) for cut in cuts))
    wrong, expected = {}, list({"A": ["B", "C"], "B": ["A", "C"]}.items())
    for cut, done in zip(cuts, results, strict=True):
        pages = text.count(b"</page>", 0, cut)
        code = 0 if b"</mediawiki>" in text[:cut] else 3 if pages else 2
        if flaw(done) or done.code != code or kept(tmp_path / str(cut), done) != expected[:pages]:
            wrong[cut] = flaw(done) or (done.code, f"{code} expected", done.err)
    assert wrong == {}


def test_strict_writes_nothing(tmp_path: Path) -> None:
    pages = plain_pages(40)
    text = whole(pages)
    broken = {"plain": text[:-900], "bz2": b"".join(streams(pages))[:-300], "gz": gzip.compress(text)[:-99]}
    broken["untitled"] = b"".join([HEAD, *pages, b"<page></page>", END])
    for name, data in (broken | {"sound": text}).items():
        (tmp_path / name).write_bytes(data)
    assert run(tmp_path, job("sound", "--out", "older", "--strict"))[0].code == 0
    before = files(tmp_path / "older")
    outs = [(name, out) for name in broken for out in ("older", "new")]
    for (name, _), done in zip(
        outs, run(tmp_path, *(job(name, "--out", out, "--strict") for name, out in outs)), strict=True
    ):
        assert flaw(done) is None
        assert done.code == 2, name
        assert f"'{name}'" in done.err
        assert re.search(r"byte [\d,]+", done.err)
    assert files(tmp_path / "older") == before
    assert not (tmp_path / "new").exists()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump longer than what is read of it at once, and the corpus it becomes."""
    folder = tmp_path_factory.mktemp("large")
    pages = plain_pages(1_600, links=25)
    (folder / "dump.xml").write_bytes(whole(pages))
    done = run(folder, job("dump.xml", "--open", "--workers", 1, "--out", "expected"))[0]
    assert (done.code, len(rows(folder / "expected"))) == (0, 1_600)
    return folder


PACKERS: dict[str, tuple[Callable[[bytes], bytes], Callable[[], Any]]] = {
    "bz2 of small blocks": (lambda text: bz2.compress(text, 1), bz2.BZ2Decompressor),
    "bz2 of many streams": (
        lambda text: b"".join(bz2.compress(text[at : at + 66_666]) for at in range(0, len(text), 66_666)),
        bz2.BZ2Decompressor,
    ),
    "gz": (gzip.compress, lambda: zlib.decompressobj(31)),
    "xz": (lzma.compress, lzma.LZMADecompressor),
}


@cache
def packed_text(text: bytes, kind: str) -> tuple[bytes, list[int]]:
    """A text, packed, and how many bytes come out of each beginning of that."""
    pack, unpacker = PACKERS[kind]
    packed, lengths, unpack = pack(text), [0], unpacker()
    for at in range(len(packed)):
        data = unpack.decompress(packed[at : at + 1])
        length = lengths[-1]
        while data:
            length += len(data)
            data = b"" if unpack.eof else unpack.decompress(b"")
        lengths.append(length)
        if unpack.eof:
            unpack = unpacker()
    return packed, lengths


@cache
def expected_rows(folder: Path) -> list[tuple[str, list[str]]]:
    return list(rows(folder / "expected").items())


def difference(folder: Path, out: str, done: Done, readable: bytes) -> str | None:
    """How the corpus of a damaged dump is not what the readable part of its text says."""
    pages, expected = readable.count(b"</page>"), expected_rows(folder)
    found = list(rows(folder / out).items()) if (folder / out).exists() else []
    codes = (0, 3) if END in readable else (3,) if pages else (2,)
    if flaw(done) or done.code not in codes or found != expected[:pages]:
        return flaw(done) or f"code {done.code}, {len(found)} rows instead of {pages}: {done.err}"
    return None


@pytest.mark.parametrize(
    "kind", ["bz2 of small blocks", "bz2 of many streams", "gz", pytest.param("xz", marks=pytest.mark.slow)]
)
def test_packed_dump_is_kept_up_to_any_cut(large: Path, kind: str) -> None:
    text = (large / "dump.xml").read_bytes()
    packed, lengths = packed_text(text, kind)
    size, many = len(packed), min(16, CASES // 125) if kind.startswith("bz2") else 4
    cuts = [*range(size // many, size - 50, size // many), *range(size - 13, size, 48 // many)]
    for cut in cuts:
        (large / f"{kind} {cut}").write_bytes(packed[:cut])
    options = ("--open", "--workers", 1, "--out")
    given = [(f"{kind} {cut}", *options, f"{kind} {cut} out") for cut in cuts]
    results = run(large, *(job(*words, pieces=100_000, bare=n % 2 > 0) for n, words in enumerate(given)))
    wrong = {
        f"{cut} of {size}": difference(large, f"{kind} {cut} out", done, text[: lengths[cut]])
        for cut, done in zip(cuts, results, strict=True)
    }
    assert {cut: how for cut, how in wrong.items() if how} == {}


def test_cut_zstd_dump_keeps_what_precedes_it(large: Path) -> None:
    packed = zstd((large / "dump.xml").read_bytes())
    for part in (30, 60, 90):
        (large / f"{part}.zst").write_bytes(packed[: len(packed) * part // 100])
    results = run(large, *(job(f"{part}.zst", "--open", "--out", f"zst {part}") for part in (30, 60, 90)))
    expected = expected_rows(large)
    for part, done in zip((30, 60, 90), results, strict=True):
        assert (part, done.code) == (part, 3), done.err
        found = kept(large / f"zst {part}", done)
        assert found == expected[: len(found)]
        assert len(found) > 16 * (part - 20)  # blocks of 128 kB


# What a bzip2 stream of one block begins with, and where.
HEADS = {"its header": 2, "its mark": 6, "its checksum": 11, "its first place": 15}


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("bz2 of small blocks", "in a block"),
        *(("bz2 of many streams", f"in {part}") for part in ("a block", *HEADS)),
    ],
)
def test_flipped_byte_leaves_the_blocks_before_it(large: Path, kind: str, where: str) -> None:
    text = (large / "dump.xml").read_bytes()
    packed, lengths = packed_text(text, kind)
    places = [len(packed) * part // 100 for part in (77, 93)]
    if where != "in a block":
        places = [packed.index(b"BZh91AY&SY", place) + HEADS[where.removeprefix("in ")] for place in places]
    for place in places:
        flipped = packed[:place] + bytes([packed[place] ^ 0x10]) + packed[place + 1 :]
        (large / f"{kind} at {place}").write_bytes(flipped)
    cases = [(f"{kind} at {place}", bare, text[: lengths[place]]) for place in places for bare in (False, True)]
    cases = cases if CASES > 1000 else cases[::3]  # the first place with rapidgzip, the second without
    options, wrong = ("--open", "--workers", 1, "--out"), {}
    jobs = [job(name, *options, f"{name} {bare}", pieces=30_000, bare=bare) for name, bare, _ in cases]
    for (name, bare, intact), done in zip(cases, run(large, *jobs), strict=True):
        how = difference(large, f"{name} {bare}", done, intact)
        if how or not re.search(rf"'{name}' .*block at byte [\d,]+", done.err):
            wrong[f"{name}{' without rapidgzip' * bare}"] = how or done.err
    assert wrong == {}


@pytest.mark.parametrize(("size", "bare"), [(None, False), (20_000, True)])
def test_streams_lost_in_the_middle_are_told(large: Path, size: int | None, bare: bool) -> None:
    packed = streams(plain_pages(1_600, links=25), step=100)
    lost = [*packed[:13], bytes(sum(map(len, packed[13:15]))), *packed[15:]]
    (large / "lost.bz2").write_bytes(b"".join(lost))
    out = f"lost {size} {bare}"
    done = run(large, job("lost.bz2", "--open", "--workers", 1, "--out", out, pieces=size, bare=bare))[0]
    assert (done.code, len(rows(large / out))) == (3, 1_200), done.err
    assert kept(large / out, done) == expected_rows(large)[:1_200]


def test_file_without_pages_leaves_nothing_behind(tmp_path: Path) -> None:
    nothing = {"empty": b"", "space": b" \n", "head": HEAD, "siteinfo": HEAD + END, "cut": SOME[: len(HEAD) + 50]}
    nothing |= {"other": b"<html></html>", "picture": bytes(range(256)), "bz2": bz2.compress(HEAD + END)}
    for name, data in nothing.items():
        (tmp_path / name).write_bytes(data)
    wrong = {}
    for name, done in zip(
        nothing, run(tmp_path, *(job(name, "--out", f"{name} out") for name in nothing)), strict=True
    ):
        if done.code != 2 or not re.fullmatch(rf"error: .*\b{name}\b.*\n", done.err):
            wrong[name] = f"code {done.code}: {done.err}"
        elif left := [path.name for path in tmp_path.glob(f"{name} out*")]:
            wrong[name] = left
    assert wrong == {}


# Files that are meant to do harm.


def pss(process: int) -> int:
    """The memory of a process; what it shares with others is shared out among them."""
    try:
        return 1024 * int(re.search(r"\nPss: +(\d+)", Path(f"/proc/{process}/smaps_rollup").read_text())[1])
    except (OSError, TypeError):
        return 0


def tree(process: int) -> list[int]:
    return [process, *(below for child in children(process) for below in tree(child))]


def measured(
    folder: Path, *arguments: object, reader: str = "wikipedia", without: str | None = None, most: int = 3 * GIB
) -> tuple[Done, int]:
    """Run the command itself, and see how much memory it takes with all its workers.

    without: a statement that changes a limit first; then the system stops it when it has asked for so much.
    """
    script = ["-m", "superbloom"] if without is None else ["-c", f"{without}; from superbloom import cli; cli.main()"]
    bounded = None if without is None else partial(resource.setrlimit, resource.RLIMIT_AS, (most, most))
    with (folder / ".out").open("w+") as out, (folder / ".err").open("w+") as err:
        command = [sys.executable, *script, "prepare", reader, *map(str, arguments)]
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=err, preexec_fn=bounded)
        peak, end = 0, time.monotonic() + 300
        while process.poll() is None:
            peak = max(peak, sum(map(pss, tree(process.pid))))
            time.sleep(0.02)
            if time.monotonic() > end:
                process.kill()
                raise AssertionError("it hangs")
    return Done(process.returncode, (folder / ".out").read_text(), (folder / ".err").read_text()), peak


def unbounded(done: Done, peak: int, told: str, allowed: int = GIB) -> list[str]:
    """What is wrong with how a file without end was stopped: memory, or not one line that says where."""
    found = [flaw(done)] if flaw(done) else []
    if peak > allowed:
        found.append(f"{peak / GIB:.2f} GiB")
    if not re.search(told, done.err):
        found.append(f"no file and place: {done.err[-200:]}")
    return found


PACK_BYTES = {"bz2": bz2.compress, "gz": gzip.compress, "xz": lzma.compress, "zst": zstd}
OPENING = b"<page><title>Swollen</title><ns>0</ns><revision><text>"
SOME = b"".join([HEAD, *plain_pages(9)])


@pytest.mark.parametrize(
    ("kind", "fill"),
    [("bz2", b"\0"), ("bz2", b" "), ("gz", b"\0")]
    + [pytest.param(kind, fill, marks=pytest.mark.slow) for kind in ("xz", "zst") for fill in (b"\0", b" ")]
    + [pytest.param(kind, "[[é]]".encode(), marks=pytest.mark.slow) for kind in PACK_BYTES],
)
def test_packed_page_without_end_takes_little_memory(tmp_path: Path, kind: str, fill: bytes, check: Any) -> None:
    pack = PACK_BYTES[kind]
    # 45 MB of zeros are one bzip2 block of some forty bytes; there are 4.5 GB of them here.
    (tmp_path / f"bomb.{kind}").write_bytes(pack(SOME + OPENING) + pack(fill * (45_000_000 // len(fill))) * 100)
    done, peak = measured(tmp_path, f"bomb.{kind}", "--out", "out")
    assert unbounded(done, peak, rf"'bomb.{kind}' .*at byte {len(SOME):,} ") == []
    assert done.code == 3
    assert len(rows(tmp_path / "out")) == 9
    size = (tmp_path / f"bomb.{kind}").stat().st_size
    check(18, f"{kind} of {fill!r}, {size / 1e6:.1f} MB for 4.5 GB: {peak / 2**20:.0f} MiB, the pages before it kept")


def test_a_page_without_end_is_noticed_where_nothing_stops_it(tmp_path: Path, check: Any) -> None:
    """The twin: the same measurement of half a gigabyte without the limit of a page, and a control with it."""
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(SOME + OPENING) + gzip.compress(b" " * 45_000_000) * 12)
    allowed, place = 400 * 2**20, rf"'bomb.gz' .*at byte {len(SOME):,} "
    limit = "from superbloom.prepare.wikipedia import parts; parts.MAX_PAGE_BYTES = "
    run_with = partial(measured, tmp_path, "bomb.gz", "--workers", 1, most=2 * GIB)
    done, stopped = run_with("--out", "control", without=limit + "32 * 2**20")
    assert unbounded(done, stopped, place, allowed) == []
    done, peak = run_with("--out", "twin", without=limit + "2**60")
    assert f"{peak / GIB:.2f} GiB" in unbounded(done, peak, place, allowed)
    noticed = f"540 MB of one page take {peak / 2**20:.0f} MiB, with it {stopped / 2**20:.0f}"
    check.twin(18, "no limit of a page", noticed)


def test_siteinfo_without_end_is_refused(tmp_path: Path, check: Any) -> None:
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(HEAD) + gzip.compress(b" " * 2**25) * 60)
    done, peak = measured(tmp_path, "bomb.gz", "--out", "out")
    assert unbounded(done, peak, r"'bomb.gz'.* byte [\d,]+") == []
    assert done.code == 2
    assert not (tmp_path / "out").exists()
    check(18, f"a head without end: exit 2, {peak / 2**20:.0f} MiB")


@pytest.mark.parametrize("megabytes", [300, pytest.param(1000, marks=pytest.mark.slow)])
def test_endless_line_of_links_takes_little_memory(tmp_path: Path, megabytes: int, check: Any) -> None:
    with (tmp_path / "dump.xml").open("wb") as file:
        file.write(SOME + OPENING)
        for _ in range(megabytes):
            file.write(b"[[Page 1]]" * 100_000)
        file.write(b"</text></revision></page>" + END)
    done, peak = measured(tmp_path, "dump.xml", "--out", "out")
    assert unbounded(done, peak, rf"'dump.xml' .*at byte {len(SOME):,} ") == []
    assert done.code == 3
    assert len(rows(tmp_path / "out")) == 9
    check(18, f"a line of {megabytes:,} MB: {peak / 2**20:.0f} MiB, the pages before it kept")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "pages"),
    [
        ("plain", 25),
        pytest.param(
            "bz2", 45, marks=pytest.mark.xfail(reason="takes 1.16 GB of 1: a window holds too many spellings")
        ),
    ],
)
def test_millions_of_spellings_stay_within_the_memory_allowed(tmp_path: Path, kind: str, pages: int) -> None:
    # Pages of a size MediaWiki allows, in which no link is like another, none plain ASCII.
    text = b"".join(
        [SOME, *(page(f"Many {n}", "".join(f"[[é{n}-{i:x}]]" for i in range(100_000))) for n in range(pages)), END]
    )
    (tmp_path / "dump").write_bytes(text if kind == "plain" else bz2.compress(text))
    done, peak = measured(tmp_path, "dump", "--open", "--out", "out", "--memory", 1)
    assert done.code == 0
    assert peak <= 1e9, f"{peak / 1e9:.2f} GB"


@pytest.mark.parametrize("filler", [b"<page><title>Empty</title></page>", b"</page>"], ids=str)
def test_pages_without_text_take_linear_time(tmp_path: Path, filler: bytes) -> None:
    # It takes seconds, or hours where each page is searched for a <text> to the end of the file.
    (tmp_path / "dump.bz2").write_bytes(bz2.compress(SOME + filler * (3_000_000 // len(filler)) + END))
    done = run(tmp_path, job("dump.bz2", "--out", "out"))[0]
    assert flaw(done) is None
    assert {key: row for key, row in rows(tmp_path / "out").items() if key.startswith("Page")} == {
        f"Page {n}": [f"Page {(n + 1) % 9}", f"Page {(n + 2) % 9}"] for n in range(9)
    }


LAUGHS = b'<!DOCTYPE mediawiki [<!ENTITY lol "lol">' + b"".join(
    b'<!ENTITY lol%d "%s">' % (n, b"&lol%s;" % (str(n - 1).encode() if n > 1 else b"") * 10) for n in range(1, 10)
)


def test_entities_are_not_expanded(tmp_path: Path, check: Any) -> None:
    laughing = page("&lol9;", "[[Page 1]] [[&lol9;]]").replace(b"&amp;", b"&")
    (tmp_path / "before.xml").write_bytes(LAUGHS + b"]>\n" + SOME + laughing + END)
    (tmp_path / "after.xml").write_bytes(SOME + LAUGHS + b"]>\n" + laughing + END)
    before, peak = measured(tmp_path, "before.xml", "--out", "before")
    assert flaw(before) is None
    assert before.code == 2
    assert peak <= GIB
    after, peak = measured(tmp_path, "after.xml", "--out", "after")
    assert flaw(after) is None
    assert peak <= GIB
    assert set(rows(tmp_path / "after")) <= {*(f"Page {n}" for n in range(9)), "&lol9;"}
    check(18, f"an entity bomb of 10^9: not expanded, {peak / 2**20:.0f} MiB")


POISON = {
    "NUL in the text": page("Odd", "x\0y [[Page 1]] [[Pa\0ge 2]]"),
    "NUL in the title": page("O\0dd", "[[Page 1]]"),
    "NULs between pages": bytes(1000),
    "surrogates as bytes": page("Odd", "[[Page 1]] [[SURROGATE]]").replace(b"SURROGATE", b"\xed\xa0\x80\xed\xb0\x80"),
    "surrogates as bytes in the title": page("Odd SURROGATE").replace(b"SURROGATE", b"\xed\xa0\x80"),
    "surrogates as references": page("Odd", "[[Page 1]] [[a&#xD800;]] [[&#55296;]]").replace(b"&amp;", b"&"),
    "surrogates as escaped references": page("Odd", "[[Page 1]] [[a&#xD800;]] [[&#55296;]]"),
    "a surrogate as a reference in the title": page("Odd &#xD800;", "[[Page 1]]").replace(b"&amp;", b"&"),
    "a surrogate in a redirect": page("Odd", redirect="a&#xD800;").replace(b"&amp;", b"&"),
    "bytes in a redirect": page("Odd", redirect="a").replace(b'"a"', b'"\xff\xed\xa0\x80"'),
    "references beyond Unicode": page("Odd", "[[&#x110000;]] [[&#9999999;]] [[&#0;]]").replace(b"&amp;", b"&"),
    "bytes that are not UTF-8": page("Odd", "[[Page 1]] BYTES [[aBYTES]]").replace(b"BYTES", bytes(range(128, 256))),
    "percent signs": page("Odd", "[[%ED%A0%80]] [[%FF%00]] [[%]] [[%%%]]"),
    "a million brackets": page("Odd", "[[" * 500_000 + "]]" * 500_000),
    "a million open tags": page("Odd", "<!--<nowiki><pre><math>" * 50_000),
    "a title of a megabyte": page("o" * 1_000_000, "[[Page 1]]"),
    "a link of a megabyte": page("Odd", f"[[{'é' * 500_000}]]"),
    "a namespace of many digits": page("Odd", "[[Page 1]]", ns=10**30),
    "a page in a page": b"<page>" + page("Odd", "[[Page 1]]"),
    "an end without a page": b"</page>\n",
    "a text without a page": b"<text>[[Page 1]]</text>",
    "a text without end": page("Odd", "[[Page 1]] [[Page 2]]").replace(b"</text>", b""),
    "a tag without end": page("Odd", "[[Page 1]] [[Page 2]]").replace(b"<text bytes=", b"<text <text bytes="),
    "a page of ends": b"<page></text></revision></title></page>",
}


def test_poisoned_page_harms_no_other(tmp_path: Path, check: Any) -> None:
    pages = plain_pages(9)
    for number, poison in enumerate(POISON.values()):
        (tmp_path / f"{number}.xml").write_bytes(whole([*pages[:5], poison, *pages[5:], poison]))
    (tmp_path / "none.xml").write_bytes(whole(pages))
    names = ["none", *map(str, range(len(POISON)))]
    results = run(tmp_path, *(job(f"{name}.xml", "--workers", 1, "--out", name) for name in names))
    expected, wrong = rows(tmp_path / "none"), {}
    for poison, name, done in zip(["none", *POISON], names, results, strict=True):
        if flaw(done) or done.code == 2:
            wrong[poison] = flaw(done) or done.err
        elif {key: row for key, row in rows(tmp_path / name).items() if key in expected} != expected:
            wrong[poison] = "other pages are lost or changed"
    assert wrong == {}
    check(18, f"{len(POISON)} poisons (NUL, lone surrogates, bytes that are no UTF-8, …): no other page changed")


def test_line_ends_and_encodings_do_not_matter(tmp_path: Path, check: Any) -> None:
    text = whole(varied_pages(150, seed=5)).decode()
    wide = {f"UTF-16-{order}": text.encode(f"utf-16-{order}") for order in ("le", "be")}
    marks = {"le": codecs.BOM_UTF16_LE, "be": codecs.BOM_UTF16_BE}
    declared = '<?xml version="1.0" encoding="UTF-16"?>\n' + text
    variants = {
        "UTF-8": text.encode(),
        "UTF-8 with a mark": codecs.BOM_UTF8 + text.encode(),
        "CRLF": text.replace("\n", "\r\n").encode(),
        **wide,
        **{f"UTF-16-{order} with a mark": mark + wide[f"UTF-16-{order}"] for order, mark in marks.items()},
        "UTF-16 declared": declared.encode("utf-16"),
        "UTF-16 with CRLF": declared.replace("\n", "\r\n").encode("utf-16"),
        "UTF-16 in bzip2": bz2.compress(wide["UTF-16-be"]),
        "UTF-16 in gzip": gzip.compress(declared.encode("utf-16")),
    }
    jobs = []
    for name, data in variants.items():
        (tmp_path / name).write_bytes(data)
        sizes = [None, 5_001] if name in ("CRLF", "UTF-16-be", "UTF-16 in gzip") else [None]
        jobs += [job(name, "--workers", 1, "--out", f"{name} {size}", pieces=size) for size in sizes]
    for asked, done in zip(jobs, run(tmp_path, *jobs), strict=True):
        out = asked["arguments"][-1]
        assert (out, done.code, done.err) == (out, 0, "")
        assert content(tmp_path / out) == content(tmp_path / "UTF-8 None"), out
    check(18, f"CRLF, byte order marks and UTF-16, {len(variants)} ways to write a dump: the same corpus")


def test_cut_utf16_dump_is_kept_up_to_the_cut(tmp_path: Path) -> None:
    text = SOME.decode().encode("utf-16")
    for cut in (1, 2, 3):
        (tmp_path / f"{cut}.xml").write_bytes(text + "<page>🌺".encode("utf-16-le")[:-cut])
    for cut, done in zip((1, 2, 3), run(tmp_path, *(job(f"{n}.xml", "--out", n) for n in (1, 2, 3))), strict=True):
        assert (flaw(done), done.code) == (None, 3)
        assert len(rows(tmp_path / str(cut))) == 9


UNREADABLE = {
    "no title": page("Odd", "[[Page 1]] [[Page 2]]").replace(b"<title>Odd</title>", b""),
    "an empty title": page(" ", "[[Page 1]] [[Page 2]]"),
    "a title cut short": page("Odd", "[[Page 1]] [[Page 2]]").replace(b"</title>", b""),
    "a title in Latin-1": page("Odd", "[[Page 1]] [[Page 2]]").replace(b"Odd", b"\xd8dd"),
    "a title of surrogates": page("Odd", "[[Page 1]] [[Page 2]]").replace(b"Odd", b"\xed\xa0\x80"),
}


def test_unreadable_page_is_left_out_and_told(tmp_path: Path) -> None:
    pages, jobs = plain_pages(9), {}
    for kind, odd in UNREADABLE.items():
        text = whole([*pages[:5], odd, *pages[5:], odd])
        (tmp_path / f"{kind}.xml").write_bytes(text)
        (tmp_path / f"{kind}.bz2").write_bytes(bz2.compress(text))
        for name, size in ((f"{kind}.xml", 400), (f"{kind}.bz2", None)):
            jobs[name] = job(name, "--workers", 1, "--out", f"{name} out", pieces=size)
    (tmp_path / "whole").write_bytes(whole(pages))
    *results, _ = run(tmp_path, *jobs.values(), job("whole", "--out", "whole out"))
    wrong = {}
    for name, done in zip(jobs, results, strict=True):
        before = [len(HEAD + b"".join(pages[:5])), len(HEAD + b"".join(pages) + UNREADABLE[Path(name).stem])]
        told = [f"'{name}': the page at byte {byte + 2:,} " in done.err for byte in before]  # after its indentation
        if flaw(done) or done.code != 3 or not all(told):
            wrong[name] = flaw(done) or f"code {done.code}: {done.err}"
        elif rows(tmp_path / f"{name} out") != rows(tmp_path / "whole out"):
            wrong[name] = "other pages are lost or changed"
    assert wrong == {}
