"""Any interaction log → Parquet files of user, item and time that an engine can read.

    text        CSV, TSV, `a::b::c`, RecBole's .inter, `user item [time]` and `user item item …` lines, JSON lines;
                packed or not
    Parquet     a file, or a folder of part files
    DataFrame   pandas, polars, Arrow and whatever else narwhals reads

The first bytes of a file decide what it is, not its name. The log becomes one Parquet file:

    user, item  int32: the place among all users or items in the order of their names (names.py); null if there was
                none, an empty one, or NaN
    at          int64: a whole time, microseconds since 1970, or without times the place in the log; float64 if times
                have fractions; null if there was none
    part        int8: what the event is for (columns.py)

Spark reads Parquet files with plain columns in place instead, so that its executors share the work.
Logs are read and written in batches, so that they may be larger than the memory.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq

from superbloom.config import InteractionsOptions
from superbloom.errors import InputError
from superbloom.prepare.files import open_bytes
from superbloom.prepare.interactions.columns import (
    ALLOWED,
    TEST,
    TRAIN,
    VALID,
    Columns,
    Seen,
    find_column,
    is_rated,
    is_text,
    names_of,
    times_of,
    whole,
)
from superbloom.prepare.interactions.names import Coder, Names
from superbloom.prepare.interactions.text_tables import File, read_text, with_partition
from superbloom.prepare.report import Notice
from superbloom.progress import Progress

BATCH_EVENTS = 2**18
MAX_WAITING_EVENTS = 2**22
NAMES_SHARE = 1 / 8  # of the memory: names that wait for their codes, and again names that have one, of each column
PLACES = {"compression": "none", "use_dictionary": False, "write_statistics": False}  # how numbers are written
CODES = pa.schema(
    {"user": pa.int64(), "item": pa.int64(), "time": pa.int64(), "fraction": pa.float64(), "part": pa.int8()}
)


@dataclass
class Log:
    """A folder of Parquet files, and what was seen among the times.

    names: users and items in order, if the files hold their places. Without, they hold names, and other columns.
    """

    folder: Path
    columns: Columns
    seen: Seen
    names: dict[str, pa.LargeStringArray] | None = None


def find_parts(paths: Iterable[str | os.PathLike[str]], options: InteractionsOptions, folder: Path) -> list[File]:
    """The files of a log, and those of what is held out. A file may be one of them only."""
    parts = {TRAIN: tuple(os.fspath(path) for path in paths), VALID: options.valid, TEST: options.test}
    if shared := {name for one, other in combinations(parts.values(), 2) for name in {*one} & {*other}}:
        raise InputError(
            f"'{min(shared)}' is given twice, among the files of the log, of --valid and of --test; give each its own"
        )
    return [
        replace(file, part=part, number=number)
        for part, given in parts.items()
        if given or part == TRAIN
        for number, file in enumerate(find_files(given, folder / f"fetched-{part}"))
    ]


def find_files(paths: Iterable[str | os.PathLike[str]], folder: Path) -> list[File]:
    """The files of a log; those of a folder in the order of their names. Remote ones are fetched into `folder`."""
    files: list[File] = []
    for number, path in enumerate(os.fspath(path) for path in paths):
        local = _fetched(path, folder / str(number)) if "://" in path else Path(path)
        if path == "-" or not local.is_dir():
            files.append(File(local, path, {}))
            continue
        parts = [part.relative_to(local) for part in local.rglob("*") if part.is_file()]
        # As in Hive and Spark, _SUCCESS, .crc files and unfinished folders are not data.
        parts = sorted(part for part in parts if not any(name.startswith(("_", ".")) for name in part.parts))
        if not parts:
            raise InputError(f"'{path}' is a folder without files; give a file, or a folder of part files")
        for part in parts:
            keyed = (name.partition("=") for name in part.parts[:-1] if "=" in name)
            files.append(File(local / part, str(Path(path) / part), {key: unquote(value) for key, _, value in keyed}))
    if not files:
        raise InputError("no file given; give an interaction log: CSV, TSV, Parquet, .inter or lines of text")
    return files


def _fetched(address: str, target: Path) -> Path:
    """Copy the file or folder at a remote address to a local one."""
    try:
        system, path = pa.fs.FileSystem.from_uri(address)
        there = system.get_file_info(path)
        if there.type == pa.fs.FileType.NotFound:
            raise InputError(f"'{address}' does not exist; give a file, or a folder of part files")
        found = [there] if there.is_file else system.get_file_info(pa.fs.FileSelector(path, recursive=True))
        for file in found:
            if file.is_file:
                local = target / (file.base_name if there.is_file else file.path[len(path) :].strip("/"))
                local.parent.mkdir(parents=True, exist_ok=True)
                with system.open_input_stream(file.path, compression=None) as stream, local.open("wb") as copy:
                    shutil.copyfileobj(stream, copy, 2**20)
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"'{address}' cannot be fetched: {reason}; give a path or an address like s3://…") from None
    return target / there.base_name if there.is_file else target


def log_of_files(
    files: Sequence[File], options: InteractionsOptions, folder: Path, progress: Progress, notice: Notice
) -> Log:
    """The log in these files, as Parquet files in a subfolder of `folder`."""
    columns, encoding = Columns.of(options), options.encoding
    try:
        "".encode(encoding)  # it refuses codecs that are not for text
    except (LookupError, UnicodeError):
        raise InputError(f"encoding {encoding!r} is unknown; utf-8, latin-1 and cp1252 are common ones") from None
    as_it_is = columns.time is not None and columns.time_format is None and columns.rating is None
    as_it_is = as_it_is and not options.is_split and options.format != "sessions"
    plain = options.engine == "spark" and as_it_is and all(_is_plain(file, columns) for file in files)
    if plain and len({_kinds(file, columns) for file in files}) == 1:
        log = folder / "log"
        log.mkdir()
        for number, file in enumerate(files):
            (log / f"part-{number:05d}.parquet").symlink_to(file.path.absolute())
            progress(file.path.stat().st_size)
        return Log(log, columns, Seen())

    def pieces() -> Iterator[tuple[str, pa.Table]]:
        for file in files:
            for table in _read(file, columns, options, progress, notice):
                yield f"'{file.name}'", of_part(table, file.part)

    return _copy(pieces(), columns, folder, options.memory)


def _is_plain(file: File, columns: Columns) -> bool:
    """Whether Spark can read a Parquet file and its columns as they are."""
    if _head(file.path)[:4] != b"PAR1":
        return False
    schema = _parquet(file).schema_arrow
    names = [name.lower() for name in schema.names]  # to Spark, ID and id are the same
    if len(set(names)) < len(names) or any(name not in schema.names for name in columns.wanted().values()):
        return False
    named = all(is_text(kind) or pa.types.is_integer(kind) for kind in _kinds(file, columns)[:2])
    when = _kinds(file, columns)[-1]
    timed = _is_date(when) or (pa.types.is_integer(when) and when != pa.uint64())
    return named and timed and all(_is_flat(kind) for kind in schema.types)


def _is_flat(kind: pa.DataType) -> bool:
    checks = (is_text, _is_date, pa.types.is_integer, pa.types.is_boolean, pa.types.is_float32, pa.types.is_float64)
    return any(check(kind) for check in checks)


def _is_date(kind: pa.DataType) -> bool:
    return kind == pa.date32() or (pa.types.is_timestamp(kind) and kind.unit in ("ms", "us"))


def _kinds(file: File, columns: Columns) -> tuple[pa.DataType, ...]:
    schema = _parquet(file).schema_arrow
    return tuple(schema.field(name).type for name in columns.wanted().values())


def _parquet(file: File) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file.path, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(file, error) from None


def _damaged(file: File, error: Exception) -> InputError:
    return InputError(
        f"'{file.name}' is not a valid Parquet file ({' '.join(str(error).split())[:200]}); fetch it again"
    )


def _head(path: Path) -> bytes:
    if not path.is_file():
        return b""
    with path.open("rb") as stream:
        return stream.read(4)


def _read(
    file: File, columns: Columns, options: InteractionsOptions, progress: Progress, notice: Notice
) -> Iterator[pa.Table]:
    """The columns of a file, not converted and named user, item, time, rating, in batches."""
    if _head(file.path) == b"PAR1":
        yield from _read_parquet(file, columns, progress)
    else:
        with open_bytes("-" if file.name == "-" else file.path, progress) as stream:
            yield from read_text(file, stream, columns, options.format, options.encoding, notice)


def _read_parquet(file: File, columns: Columns, progress: Progress) -> Iterator[pa.Table]:
    source = _parquet(file)
    names = source.schema_arrow.names
    places = {
        role: find_column(name, [*names, *file.partition], f"'{file.name}'") for role, name in columns.wanted().items()
    }
    stored = {role: names[place] for role, place in places.items() if place < len(names)}
    try:
        for batch in source.iter_batches(BATCH_EVENTS, columns=list(dict.fromkeys(stored.values())), use_threads=False):
            yield with_partition({role: batch[name] for role, name in stored.items()}, len(batch), columns, file)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(file, error) from None
    progress(file.path.stat().st_size)


def of_part(events: pa.Table, part: int) -> pa.Table:
    """Events with what they are for, unless they have it."""
    if "part" in events.column_names:
        return events
    return events.append_column("part", pa.array(np.full(events.num_rows, part, np.int8)))


def log_of_tables(tables: Mapping[str, pa.Table], columns: Columns, folder: Path, memory: int) -> Log:
    """The log in tables of user, item, … by name, as a Parquet file in a subfolder of `folder`."""
    pieces = (
        (name, table.slice(start, BATCH_EVENTS))
        for name, table in tables.items()
        for start in range(0, max(1, table.num_rows), BATCH_EVENTS)
    )
    return _copy(pieces, columns, folder, memory)


def table_of_frame(frame: Any, columns: Columns, where: str = "the table") -> pa.Table:
    """The columns of a DataFrame of any kind that narwhals knows, not converted and named user, item, time, rating."""
    import narwhals as nw

    try:
        data = nw.from_native(frame)
    except TypeError:
        raise InputError(
            f"{type(frame).__name__} given; a DataFrame of pandas, polars or Arrow is allowed (for files: "
            "prepare_interactions)"
        ) from None
    names = data.collect_schema().names()
    chosen = {role: names[find_column(name, names, where)] for role, name in columns.wanted().items()}
    selected = data.select(*dict.fromkeys(chosen.values()))
    eager = selected.collect() if isinstance(selected, nw.LazyFrame) else selected
    return pa.table(
        {role: _arrow_column(eager[name], name, role in ("time", "rating")) for role, name in chosen.items()}
    )


def _arrow_column(series: Any, name: str, is_time: bool) -> pa.ChunkedArray:
    import narwhals as nw

    if series.dtype != nw.Object:
        column = series.to_arrow()
        return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    try:
        values = pa.array((_object_text(value, name, is_time) for value in series.to_list()), pa.large_string())
    except UnicodeEncodeError as error:
        raise InputError(f"column {name!r} holds {error.object!r:.80}, a lone surrogate; {ALLOWED}") from None
    return pa.chunked_array([values])


def _object_text(value: Any, column: str, is_time: bool) -> str | None:
    """A value in a column of Python objects as text. As names, 1, "1" and 1.0 are the same."""
    if value is None or isinstance(value, str):
        return value
    if type(value).__name__ == "NAType" or (isinstance(value, float | np.floating | date) and value != value):
        return None  # pandas' NA, NaN or NaT
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float | np.floating):
        return str(value) if is_time else whole([float(value)], column)[0]
    if is_time and isinstance(value, date):
        return value.isoformat()
    raise InputError(f"column {column!r} holds {value!r:.80} of type {type(value).__name__}; {ALLOWED}")


def _copy(pieces: Iterable[tuple[str, pa.Table]], columns: Columns, folder: Path, memory: int) -> Log:
    """Write tables as one Parquet file of places and times, in a subfolder of `folder`."""
    log = Log(folder / "log", columns, Seen())
    log.folder.mkdir()
    max_bytes = int(memory * NAMES_SHARE)
    coders = {role: Coder(folder / role, max_bytes) for role in ("user", "item")}
    _write_codes((_converted(piece, columns, where, log.seen) for where, piece in pieces), coders, folder, max_bytes)
    pa.default_memory_pool().release_unused()  # DuckDB needs it
    names = {role: coder.sort(memory // 2) for role, coder in coders.items()}
    _write_places(names, columns.time is not None, log, folder)
    log.names = {role: found.by_number for role, found in names.items()}
    return log


def _converted(piece: pa.Table, columns: Columns, where: str, seen: Seen) -> pa.Table:
    """A piece of the log with names as text and times as numbers."""
    if columns.rating is not None:
        piece = piece.filter(is_rated(piece["rating"], columns, where, seen))
    user = names_of(piece["user"], columns.user, where)
    item = names_of(piece["item"], columns.item, where)
    if columns.time is None:
        time, fraction = pa.nulls(len(user), pa.int64()), pa.nulls(len(user), pa.float64())
    else:
        counted = pc.and_(pc.is_valid(user), pc.is_valid(item))
        time, fraction = times_of(piece["time"], counted, columns, where, seen)
    return pa.table({"user": user, "item": item, "time": time, "fraction": fraction, "part": piece["part"]})


def _write_codes(pieces: Iterable[pa.Table], coders: dict[str, Coder], folder: Path, max_bytes: int) -> None:
    """Write pieces with codes instead of names. Codes are given to many pieces at once, which is faster."""
    waiting: list[pa.Table] = []
    with pa.ipc.new_stream(folder / "codes", CODES) as stream:

        def flush() -> None:
            if waiting:
                table = pa.concat_tables(waiting)
                waiting.clear()
                codes = [coder.codes(table[role]) for role, coder in coders.items()]
                stream.write_table(
                    pa.table([*codes, table["time"], table["fraction"], table["part"]], CODES), BATCH_EVENTS
                )

        for piece in pieces:
            waiting.append(piece)
            size = sum(table.select(["user", "item"]).nbytes for table in waiting)
            if size >= max_bytes or sum(table.num_rows for table in waiting) >= MAX_WAITING_EVENTS:
                del piece  # or it would stay in memory while the next one is read
                flush()
        flush()


def _write_places(names: dict[str, Names], timed: bool, log: Log, folder: Path) -> None:
    """Write the Parquet file of the log from the file of codes."""
    at_type = pa.float64() if log.seen.fractions else pa.int64()
    schema, rows = pa.schema({"user": pa.int32(), "item": pa.int32(), "at": at_type, "part": pa.int8()}), 0
    with (
        pa.OSFile(str(folder / "codes")) as source,
        pq.ParquetWriter(log.folder / "part-0.parquet", schema, store_schema=False, **PLACES) as writer,
    ):
        for batch in pa.ipc.open_stream(source):
            places = [_places(batch[role], found.numbers) for role, found in names.items()]
            at = batch["time"] if timed else pa.array(np.arange(rows, rows + len(batch)))
            if log.seen.fractions:
                at = pc.add(at.cast(pa.float64(), safe=False), batch["fraction"])
            writer.write_table(pa.table([*places, at, batch["part"]], schema), BATCH_EVENTS)
            rows += len(batch)


def _places(codes: pa.Array, numbers: np.ndarray) -> pa.Array:
    missing = codes.is_null().to_numpy(zero_copy_only=False) if codes.null_count else None
    return pa.array(numbers[codes.fill_null(0).to_numpy()], mask=missing)
