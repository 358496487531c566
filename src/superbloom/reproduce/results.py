"""What was measured so far, and how two models compare on the same hidden elements."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

import numpy as np

from superbloom.evaluate import KS, share
from superbloom.reproduce.cells import SAMPLERS

Z = 1.959964  # of a 95 % interval


class Difference(NamedTuple):
    """How much more often one finds what is hidden than the other, with its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, differences: np.ndarray) -> Difference:
        """The mean of one difference for each hidden element.

        >>> Difference.of(np.array([1.0, 0.0, 0.0, 1.0]))
        Difference(value=0.5, low=-0.065..., high=1.065...)
        """
        value = float(differences.mean())
        spread = Z * float(differences.std(ddof=1)) / len(differences) ** 0.5
        return cls(value, value - spread, value + spread)

    def __str__(self) -> str:
        return f"{100 * self.value:+.1f} ({100 * self.low:+.1f} to {100 * self.high:+.1f})"


class Results:
    """The cells that are done, by name; with several seeds, a hit is the share of seeds that hit."""

    def __init__(self, settings: dict[str, Any], found: list[dict[str, Any]], **beside: dict[str, Any] | None) -> None:
        self.settings, self.beside = settings, beside
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

    def validation(self, name: str) -> float:
        """The best rec@10 on validation rows."""
        return statistics.mean(max(point["recall_at_10"] for point in c["history"]) for c in self.cells[name])

    def hits(self, name: str, k: int) -> np.ndarray:
        """Of each hidden element, the share of seeds that have it among the k best."""
        return np.mean([np.array(cell["ranks"]) < k for cell in self.cells[name]], axis=0)

    def recall(self, name: str, k: int) -> dict[str, float]:
        hits = self.hits(name, k)
        return share(round(float(hits.sum())), len(hits))

    def spread(self, name: str, k: int) -> float | None:
        """The standard deviation over seeds."""
        values = [cell["recall"][str(k)]["value"] for cell in self.cells[name]]
        return statistics.stdev(values) if len(values) > 1 else None

    def difference(self, one: str, other: str, k: int) -> Difference:
        return Difference.of(self.hits(one, k) - self.hits(other, k))

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
