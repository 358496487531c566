"""Interaction logs: one row per user, items in the order of events (docs/recommendation.md).

    tables.py        files or a DataFrame → Parquet files of user, item, time (text_tables.py: any text file;
                     columns.py: names and times; names.py: names as numbers; sessions.py: lines and lists of items
                     without a user)
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

import pyarrow as pa

from superbloom.config import InteractionsOptions, WriteOptions, document
from superbloom.config.readers import reader_options
from superbloom.corpus import Corpus
from superbloom.prepare.files import Given, paths_of, source_of, total_bytes
from superbloom.prepare.interactions.assemble import InteractionsReport, assemble
from superbloom.prepare.interactions.columns import PARTS, Columns
from superbloom.prepare.interactions.engines import working
from superbloom.prepare.interactions.events import sort_events
from superbloom.prepare.interactions.sessions import sessions_of
from superbloom.prepare.interactions.tables import find_parts, log_of_files, log_of_tables, of_part, table_of_frame
from superbloom.prepare.report import Notice, unnoticed
from superbloom.progress import Watch, unwatched
from superbloom.storage import only_writer

__all__ = ["InteractionsReport", "from_interactions", "from_sessions", "prepare_interactions"]


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
    options = reader_options(InteractionsOptions, options, given).with_defaults()
    paths, out = paths_of(files), Path(out)
    with only_writer(out, "corpus", overwrite):
        with working(options, out) as (engine, folder):
            found = find_parts(paths, options, folder)
            with watch("reading", total_bytes([file.path for file in found]), True) as progress:
                log = log_of_files(found, options, folder, progress, notice)
            events = sort_events(log, options, engine, folder, watch)
            corpus = assemble(events, options, source_of([*paths, *options.valid, *options.test]), watch)
        corpus.save(out, overwrite=overwrite)
    return InteractionsReport(corpus.counts(), corpus.info["dropped"], corpus.info.get("held out", {}))


def from_interactions(
    events: Any,
    user: str | int = InteractionsOptions.user,
    item: str | int = InteractionsOptions.item,
    *,
    valid: Any = None,
    test: Any = None,
    **options: Any,
) -> Corpus:
    """The corpus of a DataFrame with one event per row: pandas, polars, Arrow and whatever else narwhals reads.

    valid, test: tables of the events to hold out, instead of `split`. options: those of prepare_interactions; format
    and encoding concern files only.

    >>> import pyarrow as pa
    >>> log = pa.table({"user_id": [1, 1, 2, 2], "item_id": ["b", "a", "b", "c"], "ts": [7, 3, 5, 6]})
    >>> corpus = from_interactions(log, time="ts", min_item_count=1)
    >>> [corpus.vocab.names(corpus.row(row)) for row in range(2)], corpus.vocab.names([0, 1, 2])
    ([['a', 'b'], ['b', 'c']], ['b', 'a', 'c'])
    """
    frames = {"train": events, "valid": valid, "test": test}
    frames = {name: frame for name, frame in frames.items() if frame is not None or name == "train"}
    chosen = _options_of(frames, {"user": user, "item": item, **options})
    columns = Columns.of(chosen)
    tables = {name: table_of_frame(frame, columns, _called(name)) for name, frame in frames.items()}
    return _corpus_of(tables, columns, chosen, type(events).__name__)


def from_sessions(sessions: Any, *, valid: Any = None, test: Any = None, **options: Any) -> Corpus:
    """The corpus of sessions: lists of items in order, each a row without a user.

    valid, test: sessions to hold out, whose items are asked, except the first; or pairs of a list of items and the one
    that is asked after it. options: those of prepare_interactions that do not concern files, columns or times.

    >>> corpus = from_sessions([["a", "b"], ["b", "c", "b"]], test=[(["a", "c"], "b")], min_item_count=1)
    >>> corpus.sequences["key"].to_pylist(), [part.tolist() for part in corpus.asked("test")]
    (['session 1', 'session 2', 'test 1'], [[2], [2]])
    """
    rows = {"train": sessions, "valid": valid, "test": test}
    rows = {name: some for name, some in rows.items() if some is not None or name == "train"}
    chosen = _options_of(rows, {"format": "sessions", **options})
    tables = {name: sessions_of(some, PARTS[name]) for name, some in rows.items()}
    return _corpus_of(tables, Columns("user", "item", None), chosen, "sessions")


def _options_of(given: dict[str, Any], options: dict[str, Any]) -> InteractionsOptions:
    """The options for tables, of which those that are held out stand for files."""
    held_out = {name: _called(name) for name in given if name != "train"}
    return reader_options(InteractionsOptions, None, options | held_out).with_defaults()


def _called(name: str) -> str:
    return "the table" if name == "train" else f"the {name} table"


def _corpus_of(tables: dict[str, pa.Table], columns: Columns, options: InteractionsOptions, source: str) -> Corpus:
    with working(options, None) as (engine, folder):
        named = {_called(name): of_part(table, PARTS[name]) for name, table in tables.items()}
        log = log_of_tables(named, columns, folder, options.memory)
        return assemble(sort_events(log, options, engine, folder, unwatched), options, source, unwatched)
