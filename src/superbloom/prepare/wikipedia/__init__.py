"""Wikipedia entity prediction (Sec. 3): MediaWiki dumps of any wiki and language → a corpus of links.

dump.py      a file → pieces that can be parsed independently (bzip2.py: any range of a bzip2 file)
parts.py     a piece → its pages and links, in files (wikitext.py: which links; words.py: words of each language)
reading.py   all pieces, parsed by a pool of processes (../workers.py) → parts, counts and damage
merge.py     all parts → redirects followed, ids given, the corpus
resume.py    OUT.parts, the folder of the parts, with which a killed run resumes
report.py    what was counted
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from superbloom.config import WikipediaOptions, WriteOptions, document
from superbloom.config.readers import reader_options
from superbloom.errors import InputError
from superbloom.prepare.files import Given, paths_of, source_of, total_bytes
from superbloom.prepare.report import Notice, unnoticed
from superbloom.prepare.wikipedia.merge import merge
from superbloom.prepare.wikipedia.reading import read_dumps
from superbloom.prepare.wikipedia.report import WikipediaReport
from superbloom.prepare.wikipedia.resume import is_written, remove_parts, start_or_resume
from superbloom.prepare.workers import pool_size
from superbloom.progress import Watch, unwatched
from superbloom.storage import only_writer

__all__ = ["WikipediaReport", "prepare_wikipedia"]

WORKER_BYTES = 300 * 2**20  # memory of a worker at its peak
KEEP_SECONDS = 60  # what took longer to read is kept when the options turn out to be wrong


@document(WikipediaOptions, WriteOptions)
def prepare_wikipedia(
    files: Given,
    out: str | os.PathLike[str],
    options: WikipediaOptions | None = None,
    *,
    overwrite: bool = WriteOptions.overwrite,
    notice: Notice = unnoticed,
    watch: Watch = unwatched,
    **given: Any,
) -> WikipediaReport:
    """Write the corpus folder of MediaWiki dumps: a row per article, keyed by its title.

    A killed run resumes when it is called again with the same files. A refused one leaves nothing behind, unless it
    has read for more than KEEP_SECONDS. What precedes damage in a file is kept, and report.damage names the place.
    """
    options, paths, out = reader_options(WikipediaOptions, options, given), paths_of(files), Path(out)
    processes = pool_size(options.workers, options.memory, WORKER_BYTES)
    folder = out.with_name(f"{out.name}.parts")
    overwrite = overwrite or is_written(folder, out, source_of(paths))
    with only_writer(out, "corpus", overwrite):
        began = time.monotonic()
        start_or_resume(folder, paths, options.drop_disambiguations, notice)
        try:
            with watch("reading", total_bytes(paths), True) as progress:
                report, parts = read_dumps(paths, options, folder, processes, progress)
            for line in report.damage:
                notice(line)
            corpus, counts = merge(folder, parts, options, options.memory // 2, processes, watch)
        except InputError:
            if time.monotonic() - began > KEEP_SECONDS and any(folder.glob("*.npz")):
                notice(f"what was read is kept in {folder} for the next run; remove it if there is none")
            else:
                remove_parts(folder)
            raise
        if not options.open_links and counts["to missing pages"] > counts["kept"]:
            notice(f"{counts['to missing pages']:,} links lead to pages that are not in these files; --open keeps them")
        report.counts |= counts
        report.add_shares(corpus.vocab)
        corpus.info = {"source": source_of(paths), "min_count": options.min_count, "counted": report.counts}
        corpus.save(out, overwrite=overwrite)
        remove_parts(folder)
    return report
