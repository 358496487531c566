"""Splits of a corpus: 10 % of the rows are for testing (Sec. 3.1), 5 % of the others for validation.

The split of a row depends on its key alone, so a row stays in its split when the data grows or is prepared again.
`split_of` maps n keys to an int8 array (n,) of the codes in SPLITS.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from superbloom.errors import InputError

SPLITS = {"train": 0, "valid": 1, "test": 2}
TEST_SHARE = 0.10  # of all rows
VALID_SHARE = 0.05  # of the rows that are not for testing
VALID_FROM = 1 - (1 - TEST_SHARE) * VALID_SHARE
# Written into corpus.json, so that other programs can split their rows the same way.
SPLIT_RULE = (
    f"x = first 8 hex digits of md5(key) / 16^8; test: x < {TEST_SHARE}; valid: x >= {VALID_FROM:.3f}; else train"
)


def split_of(keys: Iterable[str]) -> np.ndarray:
    """Return the split code of each key. It uses md5 because every engine that may write a corpus has md5.

    >>> split_of(["Denmark", "Oslo"]).tolist()
    [0, 1]
    """
    digests = (hashlib.md5(key.encode(), usedforsecurity=False).hexdigest()[:8] for key in keys)
    try:
        x = np.fromiter((int(digest, 16) for digest in digests), dtype=np.float64) / 16**8
    except UnicodeEncodeError as error:
        raise InputError(f"key {error.object!r} holds a lone surrogate; keys must be Unicode text") from None
    splits = np.full(len(x), SPLITS["train"], dtype=np.int8)
    splits[x < TEST_SHARE] = SPLITS["test"]
    splits[x >= VALID_FROM] = SPLITS["valid"]
    return splits
