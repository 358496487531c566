"""Options: dataclass fields with a default, the values that are allowed, and the sentence that people read.

`option` declares one. `settle` refuses all faults of a dataclass in one line. `make` builds one from what a user
gave. `document` adds the options to a docstring. commands/options.py makes the command line from the same fields, and
serve/schemas.py the HTTP schema.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from superbloom.errors import InputError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Allowed:
    """An interval of numbers, and how it is written in a message."""

    low: float
    high: float
    text: str
    is_whole: bool = True
    includes_low: bool = True
    includes_high: bool = True

    def holds(self, value: Any) -> bool:
        if self.is_whole and not isinstance(value, int):
            return False
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            return False
        above = self.low <= value if self.includes_low else self.low < value
        below = value <= self.high if self.includes_high else value < self.high
        return above and below


def whole(low: int, high: int | None = None) -> Allowed:
    """Whole numbers from low, up to high if it is given."""
    if high is None:
        return Allowed(low, math.inf, f"{low} or more")
    return Allowed(low, high, "0 to 2^63 − 1" if high == 2**63 - 1 else f"{low:,} to {high:,}")


SEED = whole(0, 2**63 - 1)
POSITIVE = Allowed(0, math.inf, "more than 0", is_whole=False, includes_low=False, includes_high=False)
FINITE = Allowed(-math.inf, math.inf, "a number", is_whole=False, includes_low=False, includes_high=False)
NOT_NEGATIVE = Allowed(0, math.inf, "0 or more", is_whole=False, includes_high=False)
BELOW_ONE = Allowed(0, 1, "from 0 to below 1", is_whole=False, includes_high=False)
FROM_0_TO_1 = Allowed(0, 1, "from 0 to 1", is_whole=False)
BETWEEN_0_AND_1 = Allowed(0, 1, "between 0 and 1", is_whole=False, includes_low=False, includes_high=False)


def option(
    default: Any,
    help: str,
    allowed: Allowed | None = None,
    *,
    flag: str | None = None,
    shown_default: str | None = None,
    gigabytes: bool = False,
    common: bool = False,
) -> Any:
    """A field with its default, its help text and its allowed values.

    flag: the name on the command line, if it is not the name of the field; of a bool, a flag without a --no- form.
    shown_default: the default as people read it, if the value does not say it. gigabytes: a number of bytes that the
    command line takes in GB. common: where a command has many options, --help shows this one first.
    """
    shown = {"help": help, "flag": flag, "shown_default": shown_default, "common": common}
    metadata = shown | {"allowed": allowed, "gigabytes": gigabytes}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def kind_of(hint: Any) -> tuple[Any, bool]:
    """The type of a field without None, and whether None is allowed.

    >>> kind_of(int | None)
    (<class 'int'>, True)
    """
    if get_origin(hint) in (Union, UnionType) and type(None) in get_args(hint):
        parts = tuple(part for part in get_args(hint) if part is not type(None))
        return (parts[0] if len(parts) == 1 else Union[parts]), True  # noqa: UP007, built at run time
    return hint, False


def choices_of(kind: Any) -> tuple[str, ...]:
    """The values of a Literal; none of another type."""
    return get_args(kind) if get_origin(kind) is Literal else ()


def plain(value: Any) -> Any:
    """Numbers and truth values of NumPy as those of Python, which JSON can hold.

    >>> import numpy as np
    >>> plain(np.int64(3)), plain(np.bool_(False)), plain("a")
    (3, False, 'a')
    """
    item = getattr(value, "item", None)
    return item() if item is not None and getattr(value, "shape", None) == () else value


def faults(options: Any) -> list[str]:
    """What is wrong with the values of a dataclass of options, field by field."""
    hints = get_type_hints(type(options))
    found = []
    for spec in fields(options):
        value, (kind, optional) = getattr(options, spec.name), kind_of(hints[spec.name])
        if optional and value is None:
            continue
        allowed: Allowed | None = spec.metadata.get("allowed")
        choices = choices_of(kind)
        if choices and value not in choices:
            found.append(f"{spec.name}={value!r:.80}: {' or '.join(map(repr, choices))} is allowed")
        elif kind is bool and type(value) is not bool:
            found.append(f"{spec.name}={value!r:.80}: True or False is allowed")
        elif allowed is not None and not allowed.holds(value):
            found.append(f"{spec.name}={value!r:.80}: {allowed.text} is allowed")
    return found


def settle(options: Any, *conflicts: str) -> None:
    """Make NumPy's numbers plain, then refuse all faults of a dataclass of options, and conflicts, in one line."""
    for spec in fields(options):
        object.__setattr__(options, spec.name, plain(getattr(options, spec.name)))
    refuse([*faults(options), *conflicts])


def refuse(found: Iterable[str]) -> None:
    """Raise InputError with all faults in one line, if there are any."""
    if line := "; ".join(found):
        raise InputError(line)


def make(kind: type[T], given: Mapping[str, Any]) -> T:
    """A dataclass of options from what a user gave; InputError if an option is unknown."""
    check_known(given, [spec.name for spec in fields(kind)])  # type: ignore[arg-type]
    return kind(**given)


def environment_name(name: str) -> str:
    """The environment variable of an option of `superbloom serve`.

    >>> environment_name("max_k")
    'SUPERBLOOM_MAX_K'
    """
    return f"SUPERBLOOM_{name.upper()}"


def check_known(given: Iterable[str], known: Iterable[str]) -> None:
    """Raise InputError if an option is unknown."""
    if unknown := sorted(set(given) - set(known)):
        raise InputError(f"unknown options {unknown}; {', '.join(known)} are allowed")


def default_of(spec: Any) -> Any:
    """The default of a field; MISSING if it has none."""
    return spec.default if spec.default_factory is MISSING else spec.default_factory()


def document(*kinds: type) -> Callable[[F], F]:
    """Add the options of these dataclasses, with defaults and help, to the docstring of a function."""

    def decorate(function: F) -> F:
        lines = [
            f"    {spec.name} = {spec.metadata['shown_default'] or repr(default_of(spec))}: {spec.metadata['help']}"
            for kind in kinds
            for spec in fields(kind)
            if "help" in spec.metadata
        ]
        function.__doc__ = f"{function.__doc__ or ''}\n\n    Options:\n\n" + "\n".join(f"    {line}" for line in lines)
        return function

    return decorate
