"""Rows of names from text files: one sequence a line, names separated by tabs, compressed or not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from superbloom.corpus import Corpus
from superbloom.prepare.files import open_lines


def read_sequences(paths: Iterable[str | Path], *, keyed: bool = False) -> Iterator[tuple[str, list[str]]]:
    """(key, names) of each line that is not empty; the key is the first field if keyed, else the line's number."""
    number = 0
    for path in paths:
        for line in open_lines(path):
            number += 1
            fields = [field for field in line.split("\t") if field]
            if fields:
                yield (fields[0], fields[1:]) if keyed else (str(number), fields)


def prepare_sequences(
    paths: Iterable[str | Path], *, keyed: bool = False, min_count: int = 1, max_names: int | None = None
) -> Corpus:
    """The corpus of such files."""
    paths = list(paths)
    source = ", ".join(Path(path).name for path in paths)
    rows = read_sequences(paths, keyed=keyed)
    return Corpus.from_keyed(rows, min_count=min_count, max_names=max_names, source=source)
