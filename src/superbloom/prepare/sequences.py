"""Text files with one sequence of names per line, separated by tabs or another text."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from superbloom.config import SequencesOptions, WriteOptions, document
from superbloom.config.readers import reader_options
from superbloom.corpus import Corpus
from superbloom.errors import InputError
from superbloom.prepare.files import Given, open_lines, paths_of, source_of, total_bytes
from superbloom.prepare.report import Notice, Report, unnoticed
from superbloom.progress import Progress, Watch, unwatched
from superbloom.storage import only_writer


@dataclass
class SequencesReport(Report):
    """left_out: the number of names, ids and rows that --min-count and --max-names left out."""

    left_out: dict[str, int] = field(default_factory=dict)

    def table(self) -> list[tuple[str, str]]:
        reasons = {
            "names": "names left out: too rare",
            "ids": "ids of these names left out",
            "rows": "rows left out: no name is left in them",
        }
        return super().table() + [(f"{count:,}", reasons[what]) for what, count in self.left_out.items() if count]

    def document(self) -> dict[str, Any]:
        return super().document() | ({"left_out": self.left_out} if self.left_out else {})


@document(SequencesOptions, WriteOptions)
def prepare_sequences(
    files: Given,
    out: str | os.PathLike[str],
    options: SequencesOptions | None = None,
    *,
    overwrite: bool = WriteOptions.overwrite,
    notice: Notice = unnoticed,  # noqa: ARG001 (every reader takes it)
    watch: Watch = unwatched,
    **given: Any,
) -> SequencesReport:
    """Write the corpus folder of these files: a row per line that is not empty."""
    options, paths, out = reader_options(SequencesOptions, options, given), paths_of(files), Path(out)
    with only_writer(out, "corpus", overwrite):
        every = [*paths, *options.valid, *options.test]
        with watch("reading", total_bytes(every), True) as progress:
            rows = read_sequences(paths, options, progress=progress)
            held_out: dict[str, Any] = {
                name: _named(name, read_sequences(given, options, progress=progress), options.keyed)
                for name, given in (("valid", options.valid), ("test", options.test))
                if given
            }
            limits: dict[str, Any] = {"min_count": options.min_count, "max_names": options.max_names}
            corpus = Corpus.from_keyed(rows, **held_out, **limits, source=source_of(every))
        corpus.save(out, overwrite=overwrite)
    return SequencesReport(corpus.counts(), corpus.info.get("left out", {}))


def _named(split: str, rows: Iterator[tuple[str, list[str]]], keyed: bool) -> Iterator[tuple[str, list[str]]]:
    """The rows of a held-out file, under keys of their own unless the file has them."""
    return rows if keyed else ((f"{split} {key}", names) for key, names in rows)


def read_sequences(
    files: Given, options: SequencesOptions | None = None, *, progress: Progress | None = None, **given: Any
) -> Iterator[tuple[str, list[str]]]:
    """Yield (key, names) of each line that is not empty.

    The key is the first field if `keyed`, otherwise the number of the line in all files.
    """
    options = reader_options(SequencesOptions, options, given)
    sep, keyed = options.sep, options.keyed
    lines_before = 0  # in the files before this one
    for path in paths_of(files):
        line_number = rows = separated = 0
        for line_number, line in enumerate(open_lines(path, progress), 1):
            if not line.strip():
                continue
            key, _, rest = line.partition(sep) if keyed else (str(lines_before + line_number), "", line)
            if not key:
                raise InputError(
                    f"line {line_number:,} of '{path}' begins with {sep!r}; with --keyed, a row begins with its name"
                )
            rows += 1
            separated += sep in line
            yield key, [name for name in rest.split(sep) if name]
        lines_before += line_number
        if rows and not separated:
            raise InputError(
                f"no line of '{path}' holds {sep!r}, so each would be one name; name the separator: --sep ' '"
            )
