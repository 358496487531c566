"""Ids that stand for no name, and how a mask is written."""

from __future__ import annotations

from enum import IntEnum


class Special(IntEnum):
    """Ids that stand for no name. Negative, so that they stay what they are when the catalogue grows."""

    PAD = -1
    MASK = -2
    CLS = -3
    SEP = -4


MASK = Special.MASK
MASK_TEXT = "[MASK]"
