"""The keys of remembered rows, such as the page, user or file that each row came from: UTF-8, one after the other."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MAX_KEY_CHARACTERS = 100  # a longer key is cut
MAX_KEYS_BYTES = 256 * 2**20  # of all keys together; beyond, none are kept
CUT = "…"  # the end of a key that was cut


def packed(keys: pa.Array) -> tuple[np.ndarray, np.ndarray] | None:
    """Where each key begins (rows + 1,) int64, and all bytes, uint8; None if they have more than MAX_KEYS_BYTES.

    >>> [part.tolist() for part in packed(pa.array(["Oslo", "å"]))]
    [[0, 4, 6], [79, 115, 108, 111, 195, 165]]
    """
    keys = keys.cast(pa.large_string())
    head = pc.utf8_slice_codeunits(keys, 0, MAX_KEY_CHARACTERS - len(CUT))
    is_long = pc.greater(pc.utf8_length(keys), MAX_KEY_CHARACTERS)
    cut, nothing = (pa.scalar(text, pa.large_string()) for text in (CUT, ""))
    short = pc.if_else(is_long, pc.binary_join_element_wise(head, cut, nothing), keys)
    starts = np.concatenate([[0], np.cumsum(pc.binary_length(short).to_numpy())]).astype(np.int64)
    if starts[-1] > MAX_KEYS_BYTES:
        return None
    return starts, np.frombuffer(short.cast(pa.large_binary()).buffers()[2] or b"", np.uint8)[: starts[-1]].copy()


def key_at(starts: np.ndarray, text: np.ndarray, row: int) -> str:
    """The key of a row. A damaged file may hold bytes that are no text: they are replaced.

    >>> key_at(np.array([0, 4, 6]), np.frombuffer("Osloå".encode(), np.uint8), 1)
    'å'
    """
    return text[starts[row] : starts[row + 1]].tobytes().decode(errors="replace")
