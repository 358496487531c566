"""Rows of names from text files: one sequence a line, names between tabs or another separator, packed or not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from superbloom.corpus import Corpus
from superbloom.errors import InputError
from superbloom.prepare.files import open_lines


def read_sequences(
    paths: Iterable[str | Path], *, sep: str = "\t", keyed: bool = False
) -> Iterator[tuple[str, list[str]]]:
    """(key, names) of each line that is not empty; the key is the first field if keyed, else the line's number."""
    if not sep:
        raise InputError("an empty --sep given; a tab, ' ', ',' or another text is allowed")
    before = 0  # lines of the files before this one
    for path in paths:
        line_number = rows = separated = 0
        for line_number, line in enumerate(open_lines(path), 1):
            if not line.strip():
                continue
            key, _, rest = line.partition(sep) if keyed else (str(before + line_number), "", line)
            if not key:
                raise InputError(
                    f"line {line_number:,} of '{path}' begins with {sep!r}; with keys, a row's name stands there"
                )
            rows += 1
            separated += sep in line
            yield key, [name for name in rest.split(sep) if name]
        before += line_number
        if rows and not separated:
            raise InputError(
                f"no line of '{path}' holds {sep!r}, so each would be one name; say what separates: --sep ' '"
            )


def prepare_sequences(
    paths: Iterable[str | Path],
    *,
    sep: str = "\t",
    keyed: bool = False,
    min_count: int = 1,
    max_names: int | None = None,
) -> Corpus:
    """The corpus of such files."""
    paths = list(paths)
    source = ", ".join(Path(path).name for path in paths)
    rows = read_sequences(paths, sep=sep, keyed=keyed)
    return Corpus.from_keyed(rows, min_count=min_count, max_names=max_names, source=source)
