"""Wikipedia dumps made for tests, in every packing, and commands that read them in processes of their own."""

import bz2
import gzip
import json
import lzma
import os
import random
import re
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape, quoteattr

import pyarrow as pa
import typer

from superbloom import cli
from superbloom.corpus.corpus import Corpus
from superbloom.prepare.wikipedia import bzip2, dump
from tests.support import launch

KILLED, HANGS = -signal.SIGKILL, -signal.SIGALRM


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
    told = launch.python("from tests.support.dumps import run_all; run_all()", cwd=folder, given=json.dumps(jobs))
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


def two_pages() -> bytes:
    """A small dump without spaces between its tags, so that there are not too many places to cut it."""
    return re.sub(rb"(?<=>)\s+(?=<)", b"", whole([page("A", "[[B]] [[C]]"), page("B", "[[A]] [[C]]")]))


def tag_ends(text: bytes) -> set[int]:
    """Where tags begin and end, and every second byte of the last ones."""
    ends = {match.start() for match in re.finditer(rb"(?=<)|(?<=>)", text)} - {0}
    return ends | set(range(text.rindex(b"</page>"), len(text), 2))


SOME = b"".join([HEAD, *plain_pages(9)])
