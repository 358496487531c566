"""Natural language (Sec. 4): text of any size → a corpus of word pieces, words and bigrams.

    documents.py    files → pieces, and where documents begin in them
    parts.py        a piece, in a worker (../workers.py) → its words as numbers, counted
    vocabulary.py   all parts → the vocabulary (wordpieces.py: read from a file, or trained)
    rows.py         parts and the vocabulary, in workers → entries → ids, rows, the corpus

Text is read and normalised once. The parts lie in a temporary folder beside the corpus, which takes about twice the
size of the text. Memory holds a piece per worker, and the keys of the rows.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from superbloom.config import TextOptions, WriteOptions, document
from superbloom.config.readers import reader_options
from superbloom.corpus import Kind
from superbloom.errors import InputError
from superbloom.prepare.files import Given, paths_of, source_of, total_bytes
from superbloom.prepare.report import Notice, Report, unnoticed
from superbloom.prepare.scratch import scratch_folder
from superbloom.prepare.text.documents import expand, pieces
from superbloom.prepare.text.parts import Reading
from superbloom.prepare.text.rows import assemble, segment_all
from superbloom.prepare.text.vocabulary import build, check_size, counted, normalisation_of
from superbloom.prepare.text.wordpieces import read_word_pieces
from superbloom.prepare.workers import Pool, pool_size
from superbloom.progress import Watch, unwatched
from superbloom.storage import only_writer

SHOWN_IF_ANY = ("headings", "pages without a title")
WORKER_BYTES = 600 * 2**20  # memory of a worker at its peak


@dataclass
class TextReport(Report):
    """left_out: examples of words that the word pieces do not cover."""

    left_out: list[str] = field(default_factory=list)

    train_options: ClassVar[str] = "--preset text "
    train_minutes: ClassVar[int] = 15

    def table(self) -> list[tuple[str, str]]:
        named = {
            "ids": "ids in the corpus",
            "left out": "words left out: word pieces do not cover them",
            "headings": "headings left out",
            "pages without a title": "pages left out: they have no title",
        }
        shown = {name: count for name, count in self.counts.items() if count or name not in SHOWN_IF_ANY}
        return [(f"{count:,}", named.get(name, name)) for name, count in shown.items()]

    def document(self) -> dict[str, Any]:
        return super().document() | {"left_out": self.left_out}


@document(TextOptions, WriteOptions)
def prepare_text(
    files: Given,
    out: str | os.PathLike[str],
    options: TextOptions | None = None,
    *,
    overwrite: bool = WriteOptions.overwrite,
    notice: Notice = unnoticed,
    watch: Watch = unwatched,
    **given: Any,
) -> TextReport:
    """Write the corpus folder of text files: a row per document, keyed by its title or number."""
    options, paths, out = reader_options(TextOptions, options, given), paths_of(files), Path(out)
    found = expand(paths)
    word_pieces = None
    if options.wordpieces is not None:
        word_pieces = read_word_pieces(Path(options.wordpieces))
        check_size(options.vocab_size, word_pieces, f"'{options.wordpieces}'")
    processes = pool_size(options.workers, options.memory, WORKER_BYTES)
    with only_writer(out, "corpus", overwrite), scratch_folder(out) as folder:
        with Pool(processes) as pool:
            reading = Reading(folder, normalisation_of(options), options.errors)
            with watch("reading", total_bytes(found), True) as progress:
                parts = [part for _, part in pool.run(reading, pieces(found, progress, notice, options.errors))]
            words = sum(part.words for part in parts)
            if not words:
                raise InputError(f"no word was found in {', '.join(paths)}; give files of text")
            with counted(folder, parts, options.memory // 2, processes) as counts:
                vocab = build(counts, word_pieces, options)
            with watch("segmenting", len(parts), False) as progress:
                uncovered, examples = segment_all(parts, vocab, folder, pool, progress)
        if uncovered == words:
            raise InputError(f"the word pieces cover none of the {words:,} words; give another file as --wordpieces")
        if uncovered:
            shown = ", ".join(map(repr, examples))
            notice(f"{uncovered:,} of {words:,} words are not covered by the word pieces, e.g. {shown}; left out")
        corpus, totals = assemble(parts, vocab, folder)
        assert corpus.vocab.kinds is not None
        by_kind = np.bincount(corpus.vocab.kinds, minlength=len(Kind)).tolist()
        report = TextReport(
            {"documents": totals["documents"], "sentences": totals["sentences"], "words": words}
            | dict(zip(("word pieces", "unigrams", "bigrams"), by_kind, strict=True))
            | {"ids": totals["ids"], "left out": uncovered}
            | {"headings": sum(part.left_out.headings for part in parts)}
            | {"pages without a title": sum(part.left_out.untitled for part in parts)},
            left_out=examples,
        )
        corpus.info = {"source": source_of(paths), "min_count": options.min_count, "counted": report.counts}
        corpus.save(out, overwrite=overwrite)
    return report
