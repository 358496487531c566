"""Arrow files, memory-mapped or read into memory. Every value is checked before it is used (docs/formats.md).

Arrow trusts its files: a damaged one can end the process, and a small hostile one can unpack to any size. So only plain
record batches are read, and the whole table is validated.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from itertools import count
from pathlib import Path

import pyarrow as pa

from superbloom.errors import InputError

MAGIC = b"ARROW1\0\0"
# Each batch and each column takes kilobytes of memory, even if it has few bytes in the file.
MAX_BATCHES = 10_000
MAX_METADATA_BYTES = 2**20


def read_arrow(
    path: str | Path, columns: dict[str, pa.DataType], optional: Collection[str] = (), copy: bool = False
) -> pa.Table:
    """These columns of an Arrow file, with their types. Columns in `optional` may be missing.

    Every value is checked, and each column is one chunk. The file is memory-mapped. copy=True reads it into memory, so
    that later changes of the file do not matter.
    """
    try:
        with _in_memory(path) if copy else pa.memory_map(str(path)) as source:
            _check_messages(source)
            schema = _stream(source).schema
            _check_types(path, schema, columns, optional)
            table = _stream(source, [number for number, name in enumerate(schema.names) if name in columns]).read_all()
        table = table.select([name for name in columns if name in table.column_names])
        table.validate(full=True)  # otherwise a damaged file ends the process (docs/formats.md)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except InputError:
        raise
    except (pa.ArrowException, OSError, EOFError, ValueError, KeyError, struct.error) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path} is not a sound Arrow file ({reason!r}); write it again") from None
    for name in table.column_names:
        nulls = sum(
            chunk.null_count + (chunk.values.null_count if pa.types.is_large_list(chunk.type) else 0)
            for chunk in table[name].chunks
        )
        if nulls:
            raise InputError(f"{path}: column {name!r} has {nulls} nulls; every row needs a value")
    if not table.num_rows:
        raise InputError(f"{path} has no rows; at least one is needed")
    return table if table.column(0).num_chunks == 1 else table.combine_chunks()


def _in_memory(path: str | Path) -> pa.NativeFile:
    with pa.OSFile(str(path)) as file:
        return pa.BufferReader(file.read_buffer())


def _check_types(
    path: str | Path, schema: pa.Schema, columns: dict[str, pa.DataType], optional: Collection[str]
) -> None:
    """Raise InputError on a wrong type. Called before any value is read, so that no other type is ever read."""
    for name, kind in columns.items():
        if name not in schema.names and name in optional:
            continue
        found = schema.field(name).type if name in schema.names else "missing"
        if found != kind:
            raise InputError(f"{path}: column {name!r} is {repr(str(found)[:80])[1:-1]}; it has to be {kind}")


def _stream(source: pa.NativeFile, columns: list[int] | None = None) -> pa.RecordBatchStreamReader:
    """A reader of the record batches of an Arrow file, in place, with these columns only.

    subtle: it uses neither compressed batches nor the index at the end. With them a small hostile file could take much
    memory: by a compressed run of zeros, or by an index that names one batch many times.
    """
    source.seek(len(MAGIC))
    return pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(included_fields=columns))


def _check_messages(source: pa.NativeFile) -> None:
    """Refuse a file that is no list of plain record batches, or that takes much more memory than it has bytes."""
    if source.read(len(MAGIC)) != MAGIC:
        raise ValueError("it does not begin with ARROW1")
    for number in count():
        try:
            message = pa.ipc.read_message(source)
        except EOFError:
            break
        if message.type not in ("schema", "record batch"):
            raise ValueError(f"it holds a message of type {message.type}; only plain record batches are used")
        if message.type == "record batch" and _is_compressed(message.metadata):
            raise ValueError("it holds a compressed batch, which cannot be used in place; only plain ones are used")
        if number > MAX_BATCHES or message.metadata.size > MAX_METADATA_BYTES:
            raise ValueError(
                f"it has more than {MAX_BATCHES:,} batches, or one described by more than {MAX_METADATA_BYTES:,} bytes"
            )


def _is_compressed(metadata: pa.Buffer) -> bool:
    """Whether field 3 (compression) is set in the flatbuffers table RecordBatch, field 2 of the table Message."""

    def follow(at: int) -> int:
        return at + int(struct.unpack_from("<I", metadata, at)[0])

    def field(table: int, number: int) -> int:
        """The position of a field, 0 if it is not set. A table begins with the distance back to a list of offsets."""
        offsets = table - struct.unpack_from("<i", metadata, table)[0]
        size = struct.unpack_from("<H", metadata, offsets)[0]
        offset = struct.unpack_from("<H", metadata, offsets + 4 + 2 * number)[0] if 4 + 2 * number < size else 0
        return table + offset if offset else 0

    return field(follow(field(follow(0), 2)), 3) != 0


def write_arrow(table: pa.Table, path: str | Path) -> None:
    """Write a table as one uncompressed record batch, so that it can be used in place."""
    Path(path).unlink(missing_ok=True)  # not in place: the table may be a memory map of this very file
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table.combine_chunks(), max_chunksize=max(1, table.num_rows))
