"""The file of a model's memory: memory.safetensors (docs/formats.md).

    neighbours, corpus                             the option, and checksums of the corpora that were counted
    half_life                                      the option; absent if nothing fades
    weights                                        of the network and each part, in the order of mixture.PARTS
    pairs.starts, .ids, .weights, .after, .counts  memory/pairs.py; absent if no pairs are kept
    rows.starts, .ids, .place_starts, .places, .rarity      memory/rows.py; absent if no rows are kept
    ranker.direct, .hidden, .bias, .out, .offset, .known    memory/ranker.py; absent if none was learned
    rows.row, rows.key_starts, .key_text           the row and the keys of pieces; both absent in older folders

The file may be large, so it is mapped, and only what a query needs is read. Opening checks types, sizes and where
lists begin; ids are checked when they are read.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from superbloom.errors import InputError
from superbloom.memory import Memory, Pairs, Ranker, Rows
from superbloom.storage import Mapped
from superbloom.store.tensors import layout_of, load_tensors, write_tensors

MEMORY_FILE = "memory.safetensors"
ALONE = {"weights": "F32", "neighbours": "I32", "corpus": "U8"}
KINDS = {
    "pairs": {"starts": "I64", "ids": "I32", "weights": "F16", "after": "U8", "counts": "I32"},
    "rows": {"starts": "I64", "ids": "I32", "place_starts": "I64", "places": "I32", "rarity": "F32"},
    "ranker": {"direct": "F32", "hidden": "F32", "bias": "F32", "out": "F32", "offset": "F32", "known": "I32"},
}
# What a part may lack: the numbers of rows, in older folders; their keys, there and if none are kept.
OPTIONAL = {"rows": [{"row": "I32"}, {"key_starts": "I64", "key_text": "U8"}]}


def write_memory(memory: Memory, path: Path) -> None:
    tensors = {
        "weights": torch.tensor(list(memory.weights.values()), dtype=torch.float32),
        "neighbours": torch.tensor([memory.neighbours], dtype=torch.int32),
        "corpus": torch.tensor(list(bytes.fromhex(memory.corpus)), dtype=torch.uint8),
    }
    if memory.half_life is not None:
        tensors["half_life"] = torch.tensor([memory.half_life], dtype=torch.float32)
    for kind, columns in KINDS.items():
        if (part := getattr(memory, kind)) is not None:
            names = [*columns, *(name for group in OPTIONAL.get(kind, []) for name in group)]
            arrays = {name: array for name in names if (array := getattr(part, name)) is not None}
            tensors |= {f"{kind}.{name}": torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}
    write_tensors(tensors, path)


def load_memory(path: Path, num_ids: int, mapped: Mapped) -> Memory:
    """The memory in a file; InputError if it is no memory for this number of ids."""
    found = {name: kind for name, (kind, *shape) in layout_of(path).items() if len(shape) == 1}
    present = {
        kind: dict(columns) for kind, columns in KINDS.items() if any(f"{kind}.{name}" in found for name in columns)
    }
    for kind in present:
        for group in OPTIONAL.get(kind, []):
            present[kind] |= group if f"{kind}.{next(iter(group))}" in found else {}
    alone = ALONE | ({"half_life": "F32"} if "half_life" in found else {})
    expected = alone | {f"{kind}.{name}": of for kind, columns in present.items() for name, of in columns.items()}
    if found != expected:
        raise InputError(f"{path} holds {found!s:.200}; {expected!s:.200} is expected: save the model again")
    arrays = {name: tensor.numpy() for name, tensor in load_tensors(path, mapped).items()}

    def columns(kind: str) -> dict[str, np.ndarray]:
        return {name: arrays[f"{kind}.{name}"] for name in present[kind]}

    pairs = Pairs(**columns("pairs")) if "pairs" in present else None
    rows = Rows(**columns("rows")) if "rows" in present else None
    for part in (pairs, rows):
        if part is not None and not part.is_sound(num_ids):
            raise InputError(f"{path}: a list begins outside of the file, or out of order; save the model again")
    ranker = Ranker(**columns("ranker")) if "ranker" in present else None
    memory, weights, neighbours = Memory(pairs, rows), arrays["weights"].astype(np.float64), arrays["neighbours"]
    if ranker is not None and not ranker.is_sound(memory.num_features):
        raise InputError(f"{path}: the ranker is not one of {memory.num_features} features; save the model again")
    is_sound = len(weights) == len(memory.parts) and bool((weights >= 0).all()) and weights[0] > 0
    if not is_sound or not abs(weights.sum() - 1) < 1e-5 or len(neighbours) != 1 or neighbours[0] < 1:
        raise InputError(
            f"{path}: weights {weights!s:.80} and neighbours {neighbours!s:.40} are not those of {len(memory.parts)} "
            "parts; save the model again"
        )
    half_life = None
    if "half_life" in arrays:
        held = arrays["half_life"]
        if len(held) != 1 or not 0 < held[0] < np.inf or (rows is not None and rows.row is None):
            raise InputError(f"{path}: the half-life {held!s:.40} is not one, or rows lack it; save the model again")
        half_life = float(held[0])
        rows = None if rows is None else rows.fading(half_life)
    named = dict(zip(memory.parts, weights.tolist(), strict=True))
    return Memory(pairs, rows, named, ranker, int(neighbours[0]), arrays["corpus"].tobytes().hex(), half_life)
