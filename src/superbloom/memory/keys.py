"""The keys of remembered rows, such as the page, user or file that each row came from: UTF-8, one after the other."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from superbloom.errors import InputError

MAX_KEY_CHARACTERS = 100  # a longer key is cut
MAX_KEYS_BYTES = 256 * 2**20  # if all keys together are larger, none are kept
CUT = "…"  # the end of a key that was cut


def shortened(keys: pa.Array) -> pa.Array:
    """Keys as they are kept: those above MAX_KEY_CHARACTERS end in CUT."""
    keys = keys.cast(pa.large_string())
    head = pc.utf8_slice_codeunits(keys, 0, MAX_KEY_CHARACTERS - len(CUT))
    is_long = pc.greater(pc.utf8_length(keys), MAX_KEY_CHARACTERS)
    cut, nothing = (pa.scalar(text, pa.large_string()) for text in (CUT, ""))
    return pc.if_else(is_long, pc.binary_join_element_wise(head, cut, nothing), keys)


def packed(keys: pa.Array) -> tuple[np.ndarray, np.ndarray] | None:
    """Where each key begins (rows + 1,) int64, and all bytes, uint8; None if they have more than MAX_KEYS_BYTES.

    >>> [part.tolist() for part in packed(pa.array(["Oslo", "å"]))]
    [[0, 4, 6], [79, 115, 108, 111, 195, 165]]
    """
    short = shortened(keys)
    starts = np.concatenate([[0], np.cumsum(pc.binary_length(short).to_numpy())]).astype(np.int64)
    if starts[-1] > MAX_KEYS_BYTES:
        return None
    return starts, np.frombuffer(short.cast(pa.large_binary()).buffers()[2] or b"", np.uint8)[: starts[-1]].copy()


def as_array(starts: np.ndarray, text: np.ndarray) -> pa.Array:
    """Packed keys as Arrow text; InputError if a damaged file holds bytes that are none."""
    buffers = [pa.py_buffer(np.ascontiguousarray(part)) for part in (starts, text)]
    keys = pa.LargeStringArray.from_buffers(len(starts) - 1, *buffers)
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid:
        raise InputError("the memory of the model holds keys that are not UTF-8; save the model again") from None
    return keys


def key_at(starts: np.ndarray, text: np.ndarray, row: int) -> str:
    """The key of a row. A damaged file may hold bytes that are no text: they are replaced.

    >>> key_at(np.array([0, 4, 6]), np.frombuffer("Osloå".encode(), np.uint8), 1)
    'å'
    """
    return text[starts[row] : starts[row + 1]].tobytes().decode(errors="replace")
