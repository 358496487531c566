"""The corpora that several benchmarks share, prepared once.   python -m benchmarks.corpora DATA WORK [NAME …]

DATA is the folder of the raw files, WORK the folder for the corpora. Twelve kinds of catalogue: pages that link to each
other, histories of users, sessions, sets, and code. recommend.py prepares the four public logs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import recommend
from superbloom import Corpus
from superbloom.prepare.files import open_lines
from superbloom.prepare.interactions import prepare_interactions
from superbloom.prepare.sequences import prepare_sequences
from superbloom.prepare.wikipedia import prepare_wikipedia

LOGS = ("ml-1m", "beauty", "nowplaying", "book-crossing")


def _wikispeedia(data: Path, folder: Path) -> None:
    prepare_sequences([data / "wiki" / "wikispeedia_page_links_in_order.tsv.xz"], folder, keyed=True)


def _enwik8(names: int | None) -> Callable[[Path, Path], None]:
    def prepare(data: Path, folder: Path) -> None:
        prepare_wikipedia([data / "wiki" / "enwik8.xz"], folder, open_links=True, max_names=names)

    return prepare


def _pypi(data: Path, folder: Path) -> None:
    prepare_sequences([data / "large" / "pypi_2023_package_dependencies.tsv.xz"], folder, keyed=True, min_count=2)


def _linux_calls(data: Path, folder: Path) -> None:
    """The functions that each function calls, in order of first use; those that are called in two functions or more."""

    def rows() -> Iterator[tuple[str, list[str]]]:
        for line in open_lines(data / "large" / "linux61_function_identifiers.tsv.xz"):
            key, *names = line.rstrip("\n").split("\t")
            yield key, [name[:-1] for name in names if name.endswith("(")]

    Corpus.from_keyed(rows(), min_count=2, source="calls in functions of Linux 6.1").save(folder)


def _linux_identifiers(data: Path, folder: Path) -> None:
    """All identifiers of each function, in order of first use; those of two functions or more."""

    def rows() -> Iterator[tuple[str, list[str]]]:
        for line in open_lines(data / "large" / "linux61_function_identifiers.tsv.xz"):
            key, *names = line.rstrip("\n").split("\t")
            yield key, [name.removesuffix("(") for name in names]

    Corpus.from_keyed(rows(), min_count=2, source="identifiers of functions of Linux 6.1").save(folder)


def _file_sessions(data: Path, folder: Path) -> None:
    """The files that each author changed, in order of days; the last tenth of all events is for testing."""
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "log.tsv"
        with log.open("w", encoding="utf-8") as out:
            out.write("user_id\titem_id\tday\n")
            for line in open_lines(data / "large" / "git_developer_file_sessions.tsv.xz"):
                key, *names = line.rstrip("\n").split("\t")
                author, day = key.rsplit("/", 1)
                out.writelines(f"{author}\t{name}\t{day}\n" for name in names if '"' not in name)
        prepare_interactions([log], folder, time="day", split="time", min_item_count=5)


PREPARE: dict[str, Callable[[Path, Path], None]] = {
    "wikispeedia": _wikispeedia,
    "enwik8-5000": _enwik8(5000),
    "enwik8-20000": _enwik8(20_000),
    "enwik8": _enwik8(None),
    "pypi": _pypi,
    "linux-calls": _linux_calls,
    "linux-identifiers": _linux_identifiers,
    "file-sessions": _file_sessions,
    **{
        name: (lambda data, folder, name=name: recommend.prepared(name, data / "interactions", folder)) for name in LOGS
    },
}


def corpus_of(name: str, data: Path, work: Path) -> Corpus:
    """The corpus of this name, prepared at the first call."""
    folder = work / name
    if not folder.exists():
        work.mkdir(parents=True, exist_ok=True)
        PREPARE[name](data, folder)
    return Corpus.open(folder, verify=False)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("names", nargs="*", help=", ".join(PREPARE))
    given = parser.parse_args(arguments)
    for name in given.names or PREPARE:
        print(name, corpus_of(name, given.data, given.work).counts(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
