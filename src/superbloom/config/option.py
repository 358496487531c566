"""Options: a dataclass field with a default, its limits and the sentence that people read about it."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(default: Any, help_: str) -> Any:
    """A field with a default and the sentence the command line shows for it."""
    return field(default=default, metadata={"help": help_})


def is_seed(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
