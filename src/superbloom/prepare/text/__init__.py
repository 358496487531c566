"""Natural language (Sec. 4): text of any size → a corpus of word pieces, words and bigrams.

    documents.py    files → pieces, and where documents begin in them
    parts.py        a piece, in a process of its own (../workers.py) → its words as numbers, counted
    vocabulary.py   all parts → the vocabulary (wordpieces.py: read from a file, or trained)
    rows.py         parts and the vocabulary → entries, by processes again → ids, rows, the corpus

Text is read and normalised once. The parts lie in a temporary folder beside the corpus, which takes about twice the
room of the text; memory holds a piece for each process, and the keys of the rows.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from superbloom.corpus import Kind
from superbloom.errors import InputError, check_whole
from superbloom.prepare.text.documents import expand, pieces
from superbloom.prepare.text.parts import ERRORS, Part, Reading
from superbloom.prepare.text.rows import assemble, segment_all
from superbloom.prepare.text.vocabulary import build, check_size, counted
from superbloom.prepare.text.wordpieces import read_word_pieces
from superbloom.prepare.workers import Pool
from superbloom.runtime import available_cores
from superbloom.storage import only_writer

GIB = 2**30
WORKER_BYTES = 600 * 2**20  # what a process takes at most
LONGEST_SOURCE = 200  # characters, in corpus.json

Watch = Callable[[str, int | None, bool], AbstractContextManager[Callable[[int], None]]]


@contextmanager
def unwatched(what: str, total: int | None, in_bytes: bool) -> Iterator[Callable[[int], None]]:  # noqa: ARG001
    yield lambda _: None


@dataclass
class Report:
    """What was read and what it became."""

    counts: dict[str, int] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)  # some of the words that word pieces do not cover

    def table(self) -> list[tuple[str, str]]:
        """Rows of a number and what it counts."""
        named = {"ids": "ids in the corpus", "left out": "words left out: word pieces do not cover them"}
        return [(f"{count:,}", named.get(name, name)) for name, count in self.counts.items()]


def prepare_text(
    paths: Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    wordpieces: str | os.PathLike[str] | None = None,
    vocab_size: int = 1_000_000,
    min_count: int = 5,
    cased: bool = False,
    errors: str = "strict",
    workers: int | None = None,
    memory: int = 2 * GIB,
    notice: Callable[[str], None] = lambda _: None,
    watch: Watch = unwatched,
) -> Report:
    """Write the corpus folder of such text: a row for each document, keyed by its title or number.

    Added to the word pieces are the most frequent words and bigrams, none rarer than min_count. notice receives a line
    about anything left out; watch shows how far each of the two passes is.
    """
    out = Path(out)
    check_whole(vocab_size=vocab_size, min_count=min_count)
    if errors not in ERRORS:
        raise InputError(f"errors={errors!r} given; {' and '.join(map(repr, ERRORS))} are allowed")
    given = [os.fspath(path) for path in paths]
    files = expand(given)
    given_pieces = None if wordpieces is None else read_word_pieces(Path(wordpieces))
    if given_pieces is not None:
        check_size(vocab_size, given_pieces, f"'{wordpieces}'")
    size = max(1, min(workers or available_cores(), (memory - GIB // 2) // WORKER_BYTES))
    beside: dict[str, Any] = {"prefix": f".{out.name}-", "dir": out.resolve().parent, "ignore_cleanup_errors": True}
    with only_writer(out, "corpus"), tempfile.TemporaryDirectory(**beside) as temporary:
        folder = Path(temporary)
        with Pool(size) as pool:
            parts = read_files(files, Reading(folder, not cased, errors), pool, notice, watch)
            words = sum(part.words for part in parts)
            if not words:
                raise InputError(f"no word was found in {', '.join(given)}; give files of text")
            with counted(folder, parts, memory // 2, size) as counts:
                vocab = build(counts, given_pieces, vocab_size, min_count, "cased" if cased else "lowercase")
            with watch("segmenting", len(parts), False) as progress:
                left, examples = segment_all(parts, vocab, folder, pool, progress)
        if left == words:
            raise InputError(f"the word pieces cover none of the {words:,} words; give those of another --wordpieces")
        corpus, assembled = assemble(parts, vocab, folder)
        if left:
            shown = ", ".join(map(repr, examples))
            notice(f"{left:,} of {words:,} words are not covered by the word pieces, e.g. {shown}; left out")
        assert corpus.vocab.kinds is not None
        by_kind = np.bincount(corpus.vocab.kinds, minlength=len(Kind)).tolist()
        told = {"documents": assembled["documents"], "sentences": assembled["sentences"], "words": words}
        told |= dict(zip(("word pieces", "unigrams", "bigrams"), by_kind, strict=True)) | {"ids": assembled["ids"]}
        report = Report(told | {"left out": left}, examples)
        source = ", ".join(Path(path).name for path in given)
        source = source if len(source) <= LONGEST_SOURCE else source[:LONGEST_SOURCE] + "…"
        corpus.info = {"source": source, "min_count": min_count, "counted": report.counts}
        corpus.save(out)
    return report


def read_files(
    files: list[str], reading: Reading, pool: Pool, notice: Callable[[str], None], watch: Watch
) -> list[Part]:
    """The first pass: all files as words."""
    sizes = [Path(file).stat().st_size for file in files if Path(file).is_file()]
    with watch("reading", sum(sizes) if len(sizes) == len(files) else None, True) as progress:
        return [part for _, part in pool.run(reading, pieces(files, progress, notice))]
