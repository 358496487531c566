"""What was measured so far, and how two models compare on the same hidden elements."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

import numpy as np

from superbloom.evaluate import KS, share
from superbloom.reproduce.cells import AS_IN_PAPER, SAMPLERS

Z = 1.959964  # of a 95 % interval
NO_PRIOR = ", without the prior"


class Difference(NamedTuple):
    """How much more often one finds what is hidden than the other, with its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, differences: np.ndarray, row: np.ndarray) -> Difference:
        """The mean of one difference for each hidden element; those of one row are taken as one thing.

        >>> hits = np.array([1.0, 0.0, 0.0, 1.0])
        >>> Difference.of(hits, row=np.arange(4))
        Difference(value=0.5, low=0.01..., high=0.98...)
        >>> Difference.of(hits.repeat(9), row=np.arange(4).repeat(9)) == Difference.of(hits, np.arange(4))
        True
        """
        value = float(differences.mean())
        spread = Z * error_of(differences, row)
        return cls(value, value - spread, value + spread)

    def __str__(self) -> str:
        return f"{100 * self.value:+.1f} ({100 * self.low:+.1f} to {100 * self.high:+.1f})"


def error_of(values: np.ndarray, row: np.ndarray) -> float:
    """The standard error of the mean of values, where those of one row go together."""
    sums = np.bincount(row, weights=values - values.mean())
    return float(np.sqrt((sums**2).sum()) / len(values))


class Results:
    """The cells that are done, by name; with several seeds, a hit is the share of seeds that hit.

    Of test rows there are `rows`: hidden element i is of row i modulo rows.
    """

    def __init__(
        self, settings: dict[str, Any], found: list[dict[str, Any]], rows: int, **beside: dict[str, Any] | None
    ) -> None:
        self.settings, self.rows, self.beside = settings, rows, beside
        self.cells: dict[str, list[dict[str, Any]]] = {}
        for result in found:
            self.cells.setdefault(result["cell"], []).append(result)

    def __contains__(self, name: str) -> bool:
        return name in self.cells

    def have(self, *names: str) -> bool:
        return all(name in self.cells for name in names)

    def first(self, name: str) -> dict[str, Any]:
        return self.cells[name][0]

    @property
    def sampled(self) -> str | None:
        """The sampled softmax that was best on validation rows."""
        names = [name for name in (f"sampled-softmax, {sampler}" for sampler in SAMPLERS) if name in self]
        return max(names, key=self.validation, default=None)

    def with_coherent(self, alpha: int, functions: int) -> str:
        """The cell of Table 7 with so many coherent functions; without any, the hashed model of Table 2 may be it."""
        of_table_2 = "superbloom" in self and self.first("superbloom")["model"]["alpha"] == alpha
        return "superbloom" if functions == 0 and of_table_2 else f"hash{alpha}-{functions}"

    def validation(self, name: str) -> float:
        """The best rec@10 on validation rows."""
        best = [max((point["recall_at_10"] for point in c["history"]), default=0.0) for c in self.cells[name]]
        return statistics.mean(best)

    def hits(self, name: str, k: int) -> np.ndarray:
        """Of each hidden element, the share of seeds that have it among the k best; read as in the paper, no prior."""
        ranks = "ranks without prior" if name.startswith(AS_IN_PAPER) or name.endswith(NO_PRIOR) else "ranks"
        cells = self.cells[name.removesuffix(NO_PRIOR)]
        return np.mean([np.array(cell[ranks]) < k for cell in cells], axis=0)

    def row(self, hits: np.ndarray) -> np.ndarray:
        return np.arange(len(hits)) % self.rows

    def recall(self, name: str, k: int) -> dict[str, float]:
        """With Wilson's interval for as many elements as, were they of rows of their own, would tell as much."""
        hits = self.hits(name, k)
        p, error = float(hits.mean()), error_of(hits, self.row(hits))
        worth = min(len(hits), max(1, round(p * (1 - p) / error**2))) if error > 0 else min(len(hits), self.rows)
        return share(p * worth, worth)

    def spread(self, name: str, k: int) -> float | None:
        """The standard deviation over seeds."""
        values = [float((np.array(cell["ranks"]) < k).mean()) for cell in self.cells[name]]
        return statistics.stdev(values) if len(values) > 1 else None

    def difference(self, one: str, other: str, k: int) -> Difference:
        hits = self.hits(one, k) - self.hits(other, k)
        return Difference.of(hits, self.row(hits))

    def document(self) -> dict[str, Any]:
        """All of it, for JSON; ranks as one character each."""
        cells = [cell | {"ranks": coded(cell["ranks"])} for seeds in self.cells.values() for cell in seeds]
        for cell in cells:
            cell.pop("ranks without prior", None)
        return {"settings": self.settings, **self.beside, "cells": cells}


def coded(ranks: list[int]) -> str:
    """Ranks from 0 to 20 as characters 0 to 9 and a to k.

    >>> coded([0, 9, 10, 20])
    '09ak'
    """
    return "".join("0123456789abcdefghijk"[min(rank, max(KS))] for rank in ranks)
