"""What a reader returns: how much it read, kept and left out, and which options suit the training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

Notice = Callable[[str], None]  # receives a line about anything that was left out


def unnoticed(line: str) -> None:
    """Print nothing."""


@dataclass
class Report:
    """The counts of a corpus. A reader that has more to report adds fields.

    damage: what is wrong with the files, a line each. train_options and train_minutes: what to add to
    `superbloom train` for a first model of this corpus.

    >>> Report({"names": 20_000}).table(), Report({"names": 20_000}).document()
    ([('20,000', 'names')], {'counts': {'names': 20000}})
    """

    counts: dict[str, int] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list, kw_only=True)

    train_options: ClassVar[str] = ""
    train_minutes: ClassVar[int] = 5

    def table(self) -> list[tuple[str, str]]:
        """Rows of a number and what it counts, for people."""
        return [(f"{count:,}", name) for name, count in self.counts.items()]

    def document(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return {"counts": self.counts}
