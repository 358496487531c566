"""The file of a model's memory: memory.safetensors (docs/formats.md).

    weights                                        of the network and each part, in the order of mixture.PARTS
    pairs.starts, .ids, .weights, .after           memory/pairs.py; absent if no pairs are kept
    rows.starts, .ids, .place_starts, .places, .rarity      memory/rows.py; absent if no rows are kept

The file may be large, so it is mapped, and only what a query needs is read. Opening checks types, sizes and where
lists begin; ids are checked when they are read.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import torch

from superbloom.errors import InputError
from superbloom.memory import Memory, Pairs, Rows
from superbloom.storage import Mapped
from superbloom.store.tensors import layout_of, load_tensors, write_tensors

MEMORY_FILE = "memory.safetensors"
KINDS = {
    "pairs": (Pairs, {"starts": "I64", "ids": "I32", "weights": "F16", "after": "U8"}),
    "rows": (Rows, {"starts": "I64", "ids": "I32", "place_starts": "I64", "places": "I32", "rarity": "F32"}),
}


def write_memory(memory: Memory, path: Path) -> None:
    tensors = {"weights": torch.tensor(list(memory.weights.values()), dtype=torch.float32)}
    for kind in KINDS:
        if (part := getattr(memory, kind)) is not None:
            columns = ((field.name, getattr(part, field.name)) for field in fields(part))
            tensors |= {f"{kind}.{name}": torch.from_numpy(np.ascontiguousarray(column)) for name, column in columns}
    write_tensors(tensors, path)


def load_memory(path: Path, num_ids: int, mapped: Mapped) -> Memory:
    """The memory in a file; InputError if it is no memory for this number of ids."""
    found = {name: kind for name, (kind, *shape) in layout_of(path).items() if len(shape) == 1}
    present = [kind for kind in KINDS if f"{kind}.starts" in found]
    expected = {"weights": "F32"} | {f"{kind}.{name}": of for kind in present for name, of in KINDS[kind][1].items()}
    if found != expected:
        raise InputError(f"{path} holds {found!s:.200}; {expected!s:.200} is expected: save the model again")
    arrays = {name: tensor.numpy() for name, tensor in load_tensors(path, mapped).items()}
    made = {kind: KINDS[kind][0](**{name: arrays[f"{kind}.{name}"] for name in KINDS[kind][1]}) for kind in present}
    memory = Memory(made.get("pairs"), made.get("rows"))
    weights = arrays["weights"].astype(np.float64)
    if len(weights) != len(memory.parts) or not bool((weights >= 0).all()) or not abs(weights.sum() - 1) < 1e-5:
        raise InputError(f"{path}: weights {weights!s:.80} are no weights of {len(memory.parts)} parts; save it again")
    for part in (memory.pairs, memory.rows):
        if part is not None and not part.is_sound(num_ids):
            raise InputError(f"{path}: a list begins outside of the file, or out of order; save the model again")
    return Memory(memory.pairs, memory.rows, dict(zip(memory.parts, weights.tolist(), strict=True)))
