"""Interaction logs: one row per user, items in the order of events (docs/interactions.md).

    tables.py        files or a DataFrame → Parquet files of user, item, time (text_tables.py: any text file;
                     columns.py: names and times; names.py: names as numbers)
    engines.py       DuckDB, or Spark for logs beyond one machine
    events.py        clean, filter and sort the events, as Ibis expressions that an engine runs
    assemble.py      sorted events → ids by frequency, rows, the corpus (split.py: what is held out)

What grows with the log lies in files of a temporary folder, and text is sorted by its bytes. So both engines give the
same corpus, and neither holds the log in memory.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from superbloom.config import InteractionsOptions, WriteOptions, document
from superbloom.config.readers import reader_options
from superbloom.corpus import Corpus
from superbloom.prepare.files import Given, paths_of, source_of, total_bytes
from superbloom.prepare.interactions.assemble import InteractionsReport, assemble
from superbloom.prepare.interactions.columns import Columns
from superbloom.prepare.interactions.engines import working
from superbloom.prepare.interactions.events import sort_events
from superbloom.prepare.interactions.tables import find_files, log_of_files, log_of_frame
from superbloom.prepare.report import Notice, unnoticed
from superbloom.progress import Watch, unwatched
from superbloom.storage import only_writer

__all__ = ["InteractionsReport", "from_interactions", "prepare_interactions"]


@document(InteractionsOptions, WriteOptions)
def prepare_interactions(
    files: Given,
    out: str | os.PathLike[str],
    options: InteractionsOptions | None = None,
    *,
    overwrite: bool = WriteOptions.overwrite,
    notice: Notice = unnoticed,
    watch: Watch = unwatched,
    **given: Any,
) -> InteractionsReport:
    """Write the corpus folder of the log in these files: a row per user. The rest of the log lies on disk meanwhile."""
    options, paths, out = reader_options(InteractionsOptions, options, given), paths_of(files), Path(out)
    with only_writer(out, "corpus", overwrite):
        with working(options, out) as (engine, folder):
            found = find_files(paths, folder)
            with watch("reading", total_bytes([file.path for file in found]), True) as progress:
                log = log_of_files(found, options, folder, progress, notice)
            events = sort_events(log, options, engine, folder, watch)
            corpus = assemble(events, options, source_of(paths), watch)
        corpus.save(out, overwrite=overwrite)
    return InteractionsReport(corpus.counts(), corpus.info["dropped"])


def from_interactions(
    events: Any,
    user: str | int = InteractionsOptions.user,
    item: str | int = InteractionsOptions.item,
    **options: Any,
) -> Corpus:
    """The corpus of a DataFrame with one event per row: pandas, polars, Arrow and whatever else narwhals reads.

    options: those of prepare_interactions; format and encoding concern files only.

    >>> import pyarrow as pa
    >>> log = pa.table({"user_id": [1, 1, 2, 2], "item_id": ["b", "a", "b", "c"], "ts": [7, 3, 5, 6]})
    >>> corpus = from_interactions(log, time="ts", min_item_count=1)
    >>> [corpus.vocab.names(corpus.row(row)) for row in range(2)], corpus.vocab.names([0, 1, 2])
    ([['a', 'b'], ['b', 'c']], ['b', 'a', 'c'])
    """
    chosen = reader_options(InteractionsOptions, None, {"user": user, "item": item, **options})
    with working(chosen, None) as (engine, folder):
        log = log_of_frame(events, Columns.of(chosen), folder, chosen.memory)
        found = sort_events(log, chosen, engine, folder, unwatched)
        return assemble(found, chosen, type(events).__name__, unwatched)
