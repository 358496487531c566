"""Files of tensors: safetensors, checked before they are used, memory-mapped or read into memory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from superbloom.errors import InputError
from superbloom.storage import Mapped

MAX_HEADER_BYTES = 2 * 2**20  # of a safetensors file: a thousand layers; parsed it takes ten times its size
# Types of a model's tensors, by safetensors' names.
DTYPES = {"F32": np.float32, "F16": np.float16, "I32": np.int32, "I64": np.int64, "U8": np.uint8}


def load_tensors(path: Path, mapped: Mapped) -> dict[str, Tensor]:
    """The tensors of a file that `layout_of` has checked, memory-mapped or read into memory.

    subtle: in memory they are laid out as in the map, in one aligned block. So a model gives the same scores, to the
    bit, either way and each time it is loaded. Scores with safetensors' own reader depend on where it puts each one.
    """
    if mapped.takes(path):
        return load_file(path)
    with path.open("rb") as stream:
        content = torch.empty(os.fstat(stream.fileno()).st_size, dtype=torch.uint8).numpy()
        stream.readinto(content.data)
    start = 8 + int.from_bytes(content[:8].tobytes(), "little")
    header = json.loads(content[8:start].tobytes())
    header.pop("__metadata__", None)
    tensors = {}
    for name, part in header.items():
        begin, end = part["data_offsets"]
        values = content[start + begin : start + end].view(DTYPES[part["dtype"]])
        tensors[name] = torch.from_numpy(values).view(part["shape"])
    return tensors


def layout_of(path: Path) -> dict[str, tuple[str, ...]]:
    """Type and shape of every tensor in a file, as text: ("F32", "20", "16")."""
    try:
        with path.open("rb") as stream:
            header = int.from_bytes(stream.read(8), "little")
        if header > MAX_HEADER_BYTES:
            raise SafetensorError(f"its header has {header:,} bytes; up to {MAX_HEADER_BYTES:,} are read")
        with safe_open(path, framework="pt") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {name: (part.get_dtype(), *map(str, part.get_shape())) for name, part in parts.items()}
    except (SafetensorError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path} is not a sound safetensors file ({reason!r}); copy it again") from None


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    try:
        save_file(tensors, path)
    except SafetensorError as error:  # for example a full disk
        raise OSError(f"{path.name} cannot be written: {error}") from None
