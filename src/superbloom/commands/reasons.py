"""The reasons for an answer as lines of text: training rows that speak for it, and the parts of its probability.

The reasons are those of `POST /v1/predict` with explain, so a folder and a server print the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from superbloom.commands.console import print_wrapped, printable

MAX_ELEMENTS = 3  # names of the context that each kind of reason shows for an answer
MIN_SHARE = 0.005  # a part that adds less to a probability is not shown
INDENT = " " * 6


def print_reasons(probability: float, why: dict[str, Any]) -> None:
    """Print the reasons for one answer, the rows of training first."""
    for line in reasons(probability, why):
        print_wrapped(line, INDENT)


def print_similar_rows(rows: list[dict[str, Any]]) -> None:
    """Print the remembered rows that are most similar to the context, one per line."""
    if rows:
        print_wrapped("most similar rows:", INDENT)
    for row in rows:
        print_wrapped(_row(row), INDENT + "  ")


def reasons(probability: float, why: dict[str, Any]) -> Iterator[str]:
    """One line for each reason.

    >>> beside = {"name": "Copenhagen", "rows": 12, "nearest": 1, "share": 0.25}
    >>> row = {"key": "Denmark", "similarity": 0.8, "shared": ["Copenhagen"]}
    >>> why = {"beside": [beside], "similar_rows": [row], "parts": {"network": 0.1, "pairs": 0.3}, "depends_on": []}
    >>> print(*reasons(0.4, why), sep="\\n")
    beside Copenhagen in 12 rows, nearest distance 1
    in Denmark, similarity 0.80: shares Copenhagen
    probability: pairs 75%, network 25%
    """
    counted = [one for one in why["beside"] if one["rows"]]
    for one in sorted(counted, key=lambda one: (-one["rows"], one["nearest"]))[:MAX_ELEMENTS]:
        count = f"{one['rows']:,} row{'s' if one['rows'] > 1 else ''}"
        yield f"beside {printable(one['name'])} in {count}, nearest distance {one['nearest']}"
    # A model without rows knows only how strong a pair is.
    strong = [one for one in why["beside"] if not one["rows"] and one["share"]]
    for one in sorted(strong, key=lambda one: -one["share"])[: MAX_ELEMENTS - len(counted)]:
        yield f"beside {printable(one['name'])}: {one['share']:.1%} of what stood near it"
    for row in why["similar_rows"]:
        yield f"in {_row(row)}"
    parts = sorted(why["parts"].items(), key=lambda part: -part[1])
    shown = [f"{part} {value / probability:.0%}" for part, value in parts if value >= MIN_SHARE * probability > 0]
    if len(why["parts"]) > 1 and shown:
        yield f"probability: {', '.join(shown)}"
    strongest = sorted(why["depends_on"], key=lambda one: -abs(one["difference"]))[:MAX_ELEMENTS]
    if strongest:
        factors = [f"{printable(one['name'])} {_factor(one['difference'])}" for one in strongest]
        yield f"depends on: {', '.join(factors)}"


def _row(row: dict[str, Any]) -> str:
    key = "a row" if row["key"] is None else printable(row["key"])
    shared = ", ".join(map(printable, row["shared"][:MAX_ELEMENTS]))
    more = f" and {len(row['shared']) - MAX_ELEMENTS:,} more" if len(row["shared"]) > MAX_ELEMENTS else ""
    return f"{key}, similarity {row['similarity']:.2f}: shares {shared}{more}"


def _factor(difference: float) -> str:
    """What an element of the context does to the probability: it multiplies or divides it.

    >>> _factor(math.log(3)), _factor(-math.log(1.25)), _factor(40)
    ('× 3.00', '÷ 1.25', '× 1,000+')
    """
    factor = math.exp(min(20.0, abs(difference)))
    return f"{'×' if difference >= 0 else '÷'} {f'{factor:.2f}' if factor < 1000 else '1,000+'}"
