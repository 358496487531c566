"""InputError, the one kind of error that a user can cause, and checks that raise it.

Its message is a single line: what was given, what is allowed and what to do next. The command line prints that line and
exits with code 2. Any other exception that escapes is a defect of Superbloom.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from numbers import Integral
from typing import Any

MAX_SHOWN_CHARS = 200  # of an unknown name
# Parts of the messages of libraries when memory or address space runs out.
OUT_OF_MEMORY_PHRASES = ("allocate memory", "out of memory", "failed to map segment", "can't start new thread")


class InputError(ValueError):
    """The user gave something that cannot be used; the message says what it is and what to do."""


class UnknownNameError(InputError):
    """A name that is not in the catalogue. Close matches are computed lazily, when the message is shown.

    >>> print(UnknownNameError("Copenhagan", 20_000, lambda: ["Copenhagen"]))
    'Copenhagan' is not among the 20,000 names; did you mean 'Copenhagen'?
    """

    def __init__(self, name: str, known: int, find_closest: Callable[[], list[str]]) -> None:
        super().__init__(name)
        self.name, self.known, self._find_closest = name, known, find_closest

    def __reduce__(self) -> tuple[Any, ...]:
        """Process pools send errors back as pickles. A pickle carries the closest names, not the function."""
        return type(self), (self.name, self.known, partial(list, self.closest))

    @cached_property
    def closest(self) -> list[str]:
        return self._find_closest()

    def __str__(self) -> str:
        given = repr(self.name) if len(self.name) <= MAX_SHOWN_CHARS else f"{self.name[:MAX_SHOWN_CHARS]!r}…"
        *others, last = map(repr, self.closest or [""])
        meant = f"{', '.join(others)} or {last}" if others else last
        return f"{given} is not among the {self.known:,} names" + (f"; did you mean {meant}?" if self.closest else "")


def check_whole(**given: Any) -> None:
    """Raise InputError unless every value is a whole number from 1. NumPy integers are allowed, booleans are not.

    >>> check_whole(k="3")
    Traceback (most recent call last):
    superbloom.errors.InputError: k='3' given; whole numbers from 1 are allowed
    """
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise InputError(f"{name}={value!r:.80} given; whole numbers from 1 are allowed")


def check_key(key: str | None) -> None:
    """Raise InputError if HTTP headers cannot carry an API key unchanged."""
    if key is not None and not re.fullmatch(r"[!-~]+", key):
        raise InputError(
            "the API key holds characters that HTTP cannot send; "
            "ASCII letters, digits and punctuation are allowed, no spaces"
        )


@contextmanager
def room_for(what: str, remedy: str) -> Iterator[None]:
    """If memory runs out inside, raise InputError: how much was asked for, what it was for, and the remedy.

    >>> with room_for("the logits", "lower --logits-mb"):
    ...     raise MemoryError("Unable to allocate 3.00 GiB for an array")
    Traceback (most recent call last):
    superbloom.errors.InputError: out of memory: 3.00 GiB more for the logits; lower --logits-mb
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(f"out of memory: {_asked(str(error))} for {what}; {remedy}") from None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out: in numpy, in torch, while loading a library or starting a thread."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in OUT_OF_MEMORY_PHRASES)


def _asked(message: str) -> str:
    found = re.search(r"allocate (\d[\d.]*) (bytes|[KMGT]iB)", message)
    if found is None:
        return "no more"
    amount, unit = found.groups()
    return f"{int(amount) / 2**30:.2f} GiB more" if unit == "bytes" else f"{amount} {unit} more"
