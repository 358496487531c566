"""Bytes as people write and read them."""

from __future__ import annotations

import re

from superbloom.errors import InputError

UNITS = {"": 1} | {f"{k}{b}": f ** (i + 1) for f, b in ((1000, "b"), (1024, "ib")) for i, k in enumerate("kmgt")}


def in_bytes(text: str) -> int:
    """The number of bytes in a text that people write.

    >>> in_bytes("16GB"), in_bytes("1.5 GiB"), in_bytes("1000")
    (16000000000, 1610612736, 1000)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?b?)", text.strip().lower(), re.ASCII)
    unit = found and (found[2] if found[2] in UNITS else {"b": ""}.get(found[2], found[2] + "b"))
    if found is None or unit not in UNITS or not (value := int(float(found[1]) * UNITS[unit])):
        raise InputError(f"memory {text!r} given; a number of bytes is allowed, or with a unit: 16GB, 16GiB, 500MB")
    return value


def shown_bytes(size: float) -> str:
    """A number of bytes as text.

    >>> shown_bytes(1_234_000_000), shown_bytes(56_000_000)
    ('1.2 GB', '56 MB')
    """
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"
