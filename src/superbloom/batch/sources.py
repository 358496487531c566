"""Whom to answer: a corpus folder, a log of events, or a table with a list of items per user → batches of histories.

A source is read as a stream. Names that the model does not know stay in the histories and are counted here, so that
the command can report them once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from superbloom.config import InteractionsOptions
from superbloom.corpus import Corpus, Vocab
from superbloom.errors import InputError
from superbloom.predict.recommend import leave_out, rows_of_users
from superbloom.prepare.files import total_bytes
from superbloom.prepare.interactions.columns import find_column, names_of
from superbloom.prepare.interactions.engines import working
from superbloom.prepare.interactions.histories import (
    HISTORIES,
    gathered,
    named_events,
    sorted_batches,
    user_events,
)
from superbloom.prepare.interactions.tables import find_files, log_of_files
from superbloom.prepare.interactions.text_tables import File
from superbloom.prepare.report import Notice
from superbloom.progress import Watch
from superbloom.storage import MANIFESTS

BATCH_USERS = 4096
MAX_USERS_SHOWN = 3


@dataclass(frozen=True)
class Source:
    """Histories of users.

    unknown: the names in them that the model does not know. batches: reads the histories from the start.
    events: writes those of a log into Parquet files and returns their folder, for an engine that sorts them itself.
    """

    num_users: int
    unknown: Sequence[str]
    batches: Callable[[], Iterator[pa.RecordBatch]]
    events: Callable[[], Path] | None = None


@contextmanager
def open_source(
    path: str,
    vocab: Vocab,
    options: InteractionsOptions,
    users: Sequence[str] | None,
    strict: bool,
    near: Path | None,
    watch: Watch,
    notice: Notice,
) -> Iterator[Source]:
    """The histories at a path: those of some users, or of all. near: temporary files lie on the disk of this path."""
    if is_corpus(path):
        yield of_corpus(Corpus.open(path), vocab, users, strict, path)
        return
    with working(options, near) as (engine, folder):
        files = find_files([path], folder)
        if all(_holds_lists(file, options) for file in files):
            yield of_lists(files, vocab, options, users)
            return
        with watch("reading", total_bytes([file.path for file in files]), True) as progress:
            log = log_of_files(files, options, folder, progress, notice)
        events = user_events(log, options, engine, users, watch)
        if users is not None:
            missing = [user for user in users if user not in set(events.users)]
            leave_out("users", missing, len(users), strict, "asked for are in the log")
        unknown = events.items.filter(pa.array(vocab.find_all(events.items) < 0)).to_pylist()
        yield Source(
            events.num_users,
            sorted(unknown),
            lambda: gathered(sorted_batches(events, engine)),
            lambda: named_events(events, engine, folder),
        )


def is_corpus(path: str) -> bool:
    return (Path(path) / MANIFESTS["corpus"]).is_file()


def of_corpus(corpus: Corpus, vocab: Vocab, users: Sequence[str] | None, strict: bool, name: str) -> Source:
    """The rows of a corpus with these keys, or all rows."""
    keys, lists = corpus.sequences["key"], corpus.sequences["ids"]
    rows = rows_of_users(corpus, users, strict)
    if users and not len(rows):
        shown = [", ".join(map(repr, few)) for few in (users[:MAX_USERS_SHOWN], keys[:MAX_USERS_SHOWN].to_pylist())]
        raise InputError(f"no user {shown[0]} in {name}; it has {len(keys):,} users, for example {shown[1]}")
    theirs = corpus.vocab.table["name"].chunk(0)

    def parts() -> Iterator[tuple[pa.Array, pa.Array, pa.Array]]:
        """The key of each row of a part, the ids of all of them, and where each row begins."""
        for start in range(0, len(rows), BATCH_USERS):
            chosen = pa.array(rows[start : start + BATCH_USERS])
            ids = lists.take(chosen).combine_chunks()
            ids = ids.chunk(0) if isinstance(ids, pa.ChunkedArray) else ids
            lengths = pc.list_value_length(ids).to_numpy()
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
            yield keys.take(chosen).combine_chunks().cast(pa.string()), ids.flatten(), pa.array(offsets)

    def batches() -> Iterator[pa.RecordBatch]:
        for users_, ids, offsets in parts():
            names = theirs.take(ids).cast(pa.string())
            yield pa.RecordBatch.from_arrays([users_, pa.ListArray.from_arrays(offsets, names)], schema=HISTORIES)

    unknown: list[str] = []
    if corpus.vocab is not vocab and not corpus.vocab.table["name"].equals(vocab.table["name"]):
        there = np.zeros(len(corpus.vocab), bool)
        for _, ids, _ in parts():
            there[ids.to_numpy()] = True
        unknown = corpus.vocab.names(np.flatnonzero(there & (corpus.vocab.numbers_in(vocab) < 0)).tolist())
    return Source(len(rows), unknown, batches)


def of_lists(files: Sequence[File], vocab: Vocab, options: InteractionsOptions, users: Sequence[str] | None) -> Source:
    """Parquet files with a row per user, whose items are a list."""
    wanted = None if users is None else pa.array(users, pa.string())

    def batches() -> Iterator[pa.RecordBatch]:
        for file in files:
            with pq.ParquetFile(file.path, pre_buffer=False) as table:
                names = table.schema_arrow.names
                chosen = [names[find_column(name, names, f"'{file.name}'")] for name in (options.user, options.item)]
                for batch in table.iter_batches(BATCH_USERS, columns=chosen, use_threads=False):
                    user = names_of(pa.chunked_array([batch[chosen[0]]]), options.user, f"'{file.name}'")
                    lists = batch[chosen[1]].cast(pa.list_(pa.string()))
                    found = pa.RecordBatch.from_arrays([user, lists], schema=HISTORIES)
                    keep = pc.is_valid(user) if wanted is None else pc.is_in(user, value_set=wanted)
                    yield found.filter(keep)

    count, unknown = 0, set[str]()
    for batch in batches():
        count += batch.num_rows
        items = batch["history"].flatten().drop_null().unique()
        unknown.update(items.filter(pa.array(vocab.find_all(items) < 0)).to_pylist())
    return Source(count, sorted(unknown), batches)


def _holds_lists(file: File, options: InteractionsOptions) -> bool:
    if not file.path.is_file() or file.path.open("rb").read(4) != b"PAR1":
        return False
    schema: Any = pq.read_schema(file.path)
    if options.item not in schema.names:
        return False
    kind = schema.field(options.item).type
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)
