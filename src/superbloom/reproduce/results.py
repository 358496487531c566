"""What was measured so far, and how two models compare on the same hidden elements.

The hits of a model are one number per hidden element, (elements,). Intervals treat the elements of one row as one
observation, since they depend on each other.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from superbloom.evaluate import KS, share
from superbloom.evaluate.metrics import Z_95
from superbloom.reproduce.cells import (
    PAPER_PREFIX,
    SAMPLERS,
    SENSITIVITY_ALPHAS,
    SENSITIVITY_HASHES,
    TEXT_PAIRS,
    sensitivity_name,
)

BY_SUM = ", by the sum"  # after the name of a cell: names are ranked by the paper's sum over hashes
BY_PROBABILITY = ", by probability"  # after the name of a cell as in the paper
SAME_SIZE = 0.1  # the largest relative difference in parameters of a pair of models


class Difference(NamedTuple):
    """How much more often one model finds the hidden elements than another, with its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, differences: np.ndarray, row: np.ndarray) -> Difference:
        """Return the mean of one difference per hidden element; the elements of one row count as one observation.

        >>> hits = np.array([1.0, 0.0, 0.0, 1.0])
        >>> Difference.of(hits, row=np.arange(4))
        Difference(value=0.5, low=0.01..., high=0.98...)
        >>> Difference.of(hits.repeat(9), row=np.arange(4).repeat(9)) == Difference.of(hits, np.arange(4))
        True
        """
        value = float(differences.mean())
        spread = Z_95 * error_of(differences, row)
        return cls(value, value - spread, value + spread)

    def __str__(self) -> str:
        return f"{100 * self.value:+.1f} ({100 * self.low:+.1f} to {100 * self.high:+.1f})"


def error_of(values: np.ndarray, row: np.ndarray) -> float:
    """Return the standard error of the mean of values; those of one row count as one observation."""
    sums = np.bincount(row, weights=values - values.mean())
    return float(np.sqrt((sums**2).sum()) / len(values))


class Results:
    """The finished cells by name. With several seeds, a hit is the share of seeds that hit.

    rows is the number of test rows; hidden element i belongs to row i modulo rows.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        found: list[dict[str, Any]],
        rows: int,
        yardsticks: dict[str, Any] | None = None,
        costs: dict[str, Any] | None = None,
    ) -> None:
        self.settings, self.rows, self.yardsticks, self.costs = settings, rows, yardsticks, costs
        self.cells: dict[str, list[dict[str, Any]]] = {}
        for result in found:
            self.cells.setdefault(result["cell"], []).append(result)

    def __contains__(self, name: str) -> bool:
        return name in self.cells

    def has_all(self, *names: str) -> bool:
        return all(name in self.cells for name in names)

    def first(self, name: str) -> dict[str, Any]:
        """Return a cell with its first seed."""
        return self.cells[name][0]

    @property
    def yardstick_recall(self) -> dict[str, dict[str, dict[str, float]]]:
        """Recall of popularity and co-occurrence, by name and k."""
        return (self.yardsticks or {"recall": {}})["recall"]

    @property
    def sensitivity(self) -> dict[tuple[int, int], str]:
        """The finished cells of the sensitivity to α and m, by (α, m)."""
        grid = [(alpha, m) for alpha in SENSITIVITY_ALPHAS for m in SENSITIVITY_HASHES]
        return {place: name for place in grid if (name := sensitivity_name(*place)) in self}

    def text_pairs(self) -> Iterator[tuple[str, str, tuple[str, str]]]:
        """Yield finished pairs of text models of one size: unhashed, hashed, and their rows in Table 5."""
        for width, _, _, rows in TEXT_PAIRS:
            narrow = f"baseline-h{width}"
            wide = next((n for n in self.cells if n.startswith("hash") and self._has_same_size(n, narrow)), None)
            if wide is not None:
                yield narrow, wide, rows

    def _has_same_size(self, one: str, other: str) -> bool:
        if not self.has_all(one, other):
            return False
        return abs(self.first(one)["parameters"] / self.first(other)["parameters"] - 1) < SAME_SIZE

    @property
    def sampled(self) -> str | None:
        """The cell with a sampled softmax that is best on validation rows."""
        names = [name for name in (f"sampled-softmax, {sampler}" for sampler in SAMPLERS) if name in self]
        return max(names, key=self.validation, default=None)

    def with_coherent(self, alpha: int, functions: int) -> str:
        """Return the cell of Table 7 with this number of coherent functions; for 0, it may be that of Table 2."""
        of_table_2 = "superbloom" in self and self.first("superbloom")["model"]["alpha"] == alpha
        return "superbloom" if functions == 0 and of_table_2 else f"hash{alpha}-{functions}"

    def validation(self, name: str) -> float:
        """Return the best recall@10 on validation rows."""
        best = [max((point["recall_at_10"] for point in c["history"]), default=0.0) for c in self.cells[name]]
        return statistics.mean(best)

    def hits(self, name: str, k: int) -> np.ndarray:
        """Return for each hidden element the share of seeds that rank it among the k best.

        Cells as in the paper rank by the sum over hashes, others by probability, unless the name says otherwise.
        """
        is_sum = name.endswith(BY_SUM) or (name.startswith(PAPER_PREFIX) and not name.endswith(BY_PROBABILITY))
        ranks, cells = "ranks by sum" if is_sum else "ranks", self.cells[cell_of(name)]
        return np.mean([np.array(cell[ranks]) < k for cell in cells], axis=0)

    def row(self, hits: np.ndarray) -> np.ndarray:
        """Return the test row of each hidden element."""
        return np.arange(len(hits)) % self.rows

    def recall(self, name: str, k: int) -> dict[str, float]:
        """Return the recall of a cell with Wilson's interval.

        The interval is that of the number of independent elements that would have the same standard error.
        """
        hits = self.hits(name, k)
        p, error = float(hits.mean()), error_of(hits, self.row(hits))
        independent = min(len(hits), max(1, round(p * (1 - p) / error**2))) if error > 0 else min(len(hits), self.rows)
        return share(p * independent, independent)

    def spread(self, name: str, k: int) -> float | None:
        """Return the standard deviation of recall over seeds; None for a single seed."""
        values = [float((np.array(cell["ranks"]) < k).mean()) for cell in self.cells[name]]
        return statistics.stdev(values) if len(values) > 1 else None

    def difference(self, one: str, other: str, k: int) -> Difference:
        """Return how much more often the first cell finds the hidden elements among its k best."""
        hits = self.hits(one, k) - self.hits(other, k)
        return Difference.of(hits, self.row(hits))

    def document(self) -> dict[str, Any]:
        """Return all results for JSON, with one character per rank."""
        cells = [cell | {"ranks": coded(cell["ranks"])} for seeds in self.cells.values() for cell in seeds]
        for cell in cells:
            cell.pop("ranks by sum", None)
        return {"settings": self.settings, "yardsticks": self.yardsticks, "costs": self.costs, "cells": cells}


def cell_of(name: str) -> str:
    """Return the cell of a row: its name without the score by which it ranks."""
    return name.removesuffix(BY_SUM).removesuffix(BY_PROBABILITY)


def coded(ranks: list[int]) -> str:
    """Encode ranks from 0 to 20 as the characters 0 to 9 and a to k.

    >>> coded([0, 9, 10, 20])
    '09ak'
    """
    return "".join("0123456789abcdefghijk"[min(rank, max(KS))] for rank in ranks)
