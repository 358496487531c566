"""Edits of a model or corpus folder that leave its checksums right.

Each function changes a folder, or returns an edit that does, and seals it again: only the content is wrong.
"""

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import load_file, save_file

from superbloom.hashing.bloom import BloomHash
from superbloom.storage import folder as folder_module
from superbloom.storage.arrow import write_arrow
from superbloom.storage.folder import MANIFESTS
from tests.support.folders import TEXTS, TWO

Edit = Callable[[Path], None]
TEXT = pa.large_string()


def resealed(kind: str, edit: Edit) -> Edit:
    """Edit files and give the folder checksums that fit, as someone with bad intent would."""

    def apply(folder: Path) -> None:
        edit(folder)
        manifest = json.loads((folder / MANIFESTS[kind]).read_bytes())
        (folder / MANIFESTS[kind]).unlink()
        own = ("format", "version", "files", "sha256")
        folder_module._seal(folder, kind, {name: part for name, part in manifest.items() if name not in own})

    return apply


def manifest_edit(kind: str, edit: Callable[[dict[str, Any]], Any]) -> Edit:
    """Edit the manifest and give it the checksum that fits."""

    def apply(folder: Path) -> None:
        manifest = json.loads((folder / MANIFESTS[kind]).read_bytes())
        manifest.pop("sha256")
        edit(manifest)
        manifest.setdefault("sha256", folder_module._digest(manifest))
        (folder / MANIFESTS[kind]).write_text(json.dumps(manifest))

    return apply


def in_memory(file: Path) -> pa.Table:
    return pa.ipc.open_file(pa.py_buffer(file.read_bytes())).read_all()


def columns_edit(kind: str, file: str, /, **columns: Any) -> Edit:
    """Replace columns of an Arrow file; None drops one."""

    def edit(folder: Path) -> None:
        table = in_memory(folder / file)
        kept = {name: table[name] for name in table.column_names} | columns
        edited = pa.table({name: part for name, part in kept.items() if part is not None})
        write_arrow(edited.replace_schema_metadata(table.schema.metadata), folder / file)

    return resealed(kind, edit)


def tensors_edit(file: str, edit: Callable[[dict[str, torch.Tensor]], Any]) -> Edit:
    def apply(folder: Path) -> None:
        tensors = {name: part.clone() for name, part in load_file(folder / file).items()}
        edit(tensors)
        save_file({name: part.contiguous() for name, part in tensors.items()}, folder / file)

    return resealed("model", apply)


def set_model(name: str, value: Any) -> Edit:
    return manifest_edit("model", lambda manifest: manifest["model"].__setitem__(name, value))


def filled(tensors: dict[str, torch.Tensor], value: float) -> None:
    for part in tensors.values():
        part.fill_(value)


def put(folder: Path, name: str, data: bytes) -> None:
    (folder / name).write_bytes(data)


def of_another(folder: Path, name: str) -> None:
    shutil.copy(folder.parent / "other" / name, folder / name)


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def compressed(folder: Path, codec: str) -> None:
    table = in_memory(folder / "vocab.arrow")
    with pa.ipc.new_file(
        folder / "vocab.arrow", table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)
    ) as file:
        file.write_table(table)


def bomb(folder: Path) -> None:
    """A few kilobytes that unpack to names of 300 megabytes."""
    size = 300 * 2**20
    offsets = pa.py_buffer(np.array([0, 1, size], np.int64))
    names = pa.LargeStringArray.from_buffers(2, offsets, pa.py_buffer(bytes(size)))
    write_arrow(pa.table({"name": names, "count": [2, 1]}), folder / "vocab.arrow")
    compressed(folder, "zstd")


def without_schema(folder: Path) -> None:
    """An Arrow file whose first message is a batch; pyarrow's read_schema dies of it."""
    data = (folder / "vocab.arrow").read_bytes()
    put(folder, "vocab.arrow", data[:8] + data[16 + int.from_bytes(data[12:16], "little") :])


def batches(folder: Path, number: int, rows: int | None = None) -> None:
    table = in_memory(folder / "vocab.arrow")
    (batch,) = table.slice(0, rows).to_batches()
    with pa.ipc.new_file(folder / "vocab.arrow", table.schema) as file:
        for _ in range(number):
            file.write_batch(batch)


def described(folder: Path, what: dict[str, Any]) -> None:
    write_arrow(in_memory(folder / "vocab.arrow").replace_schema_metadata(what), folder / "vocab.arrow")


def text_names(name: str) -> Edit:
    names = TEXTS.vocab.table["name"].to_pylist()
    return columns_edit("model", "vocab.arrow", name=pa.array([n if n != "name 1" else name for n in names], TEXT))


def header_edit(folder: Path, file: str, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Change what a safetensors file says of its tensors; None: only that it would be endless."""
    data = (folder / file).read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    told = edit({name: part for name, part in json.loads(data[8:end]).items() if name != "__metadata__"})
    header = told if isinstance(told, bytes) else json.dumps(told).encode()
    size = b"\xff" * 8 if told is None else len(header).to_bytes(8, "little")
    put(folder, file, size + header + data[end:])


def each(header: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {name: part | changes for name, part in header.items()}


def many_hashes(folder: Path) -> None:
    """A model of 18 names and 20,000 hash functions, all of it consistent: to check and to ask it took minutes."""
    manifest = json.loads((folder / "config.json").read_bytes())
    manifest["model"] |= {"num_hashes": 20_000, "dim": 1, "heads": 1, "ffn_dim": 1}
    (folder / "config.json").write_text(json.dumps(manifest))
    bloom = BloomHash.from_table(torch.arange(18, dtype=torch.int32)[:, None].repeat(1, 20_000) // 2, 9, 2)
    tables = {"table": bloom.table, "order": bloom.order, "starts": bloom.starts}
    save_file({name: part.contiguous() for name, part in tables.items()}, folder / "bloom.safetensors")


def swollen(value: bytes) -> bytes:
    """JSON of nearly 16 MB that would take twenty times as much."""
    return b'{"a":[' + (value + b",") * ((2**24 - 20) // (len(value) + 1)) + b"0]}"


def elsewhere(path: Path) -> None:
    """What could be anybody's file; all that is known of it is its size."""
    target = path.parent.parent / f"{path.name} elsewhere"
    target.write_bytes(b"private")
    path.symlink_to(target)


def bound(path: Path) -> None:
    """A socket; its name has to be short."""
    place = Path.cwd()
    os.chdir(path.parent)
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(place)


def hollow(folder: Path, kind: str, name: str) -> None:
    """A file of 200 GB that takes no room on the disk."""
    with (folder / name).open("ab") as file:
        file.truncate(200 * 10**9)
    entry = {"bytes": 200 * 10**9, "sha256": "0" * 64}
    manifest_edit(kind, lambda manifest: manifest["files"].__setitem__(name, entry))(folder)


def shift_last_row(folder: Path) -> None:
    """The last row ends one id early: an id that belongs to no row. No writer makes this, so the bytes are changed."""
    offsets = TWO.offsets.copy()
    offsets[-1] -= 1
    data = (folder / "sequences.arrow").read_bytes()
    assert data.count(TWO.offsets.tobytes()) == 2  # of ids and of targets
    put(folder, "sequences.arrow", data.replace(TWO.offsets.tobytes(), offsets.tobytes()))


def outside(folder: Path, name: str) -> None:
    """A name that leads out of the folder, to a file of just the size and checksum stated."""
    (folder.parent / "x").write_bytes(b"private")
    entry = {"bytes": 7, "sha256": folder_module.sha256(folder.parent / "x")}
    manifest_edit("model", lambda manifest: manifest["files"].__setitem__(name, entry))(folder)


def replaced(folder: Path, name: str, make: Callable[[Path], Any]) -> None:
    (folder / name).unlink()
    make(folder / name)
