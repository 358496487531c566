"""Special ids, which stand for no name: padding, [MASK], and the [CLS] and [SEP] of text (Sec. 4)."""

from __future__ import annotations

from enum import IntEnum


class Special(IntEnum):
    """Ids that stand for no name. They are negative, so they stay the same when the catalogue grows."""

    PAD = -1
    MASK = -2
    CLS = -3
    SEP = -4


MASK = Special.MASK
MASK_TEXT = "[MASK]"  # a mask in a query or text
