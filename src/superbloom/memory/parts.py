"""The parts of a memory: what it knows about a context as distributions over names.

pairs           neighbours of the context's names, near elements first
pairs squared   the same, surer of the strongest neighbours
rows            names of similar rows that the context lacks
places          names that stand in similar rows where the question stands in the context, times pairs
repeats         names of the context, near elements first
row repeats     names of the context that similar rows repeat
"""

from __future__ import annotations

import numpy as np

from superbloom.memory.evidence import Evidence


def parts_of(evidence: Evidence) -> dict[str, np.ndarray]:
    """The probability of each name by each part, (names,). A query sums to one, or to 0 if the part knows nothing."""
    columns = evidence.columns
    is_new = columns["repeats"] == 0
    found: dict[str, np.ndarray] = {}
    if "pairs" in columns:
        found |= {"pairs": columns["pairs"], "pairs squared": columns["pairs"] ** 2}
    if "rows" in columns:
        found["rows"] = columns["rows"] * is_new
        found["places"] = columns["places"] * is_new * columns.get("pairs", 1)
    found["repeats"] = columns["repeats"]
    if "rows" in columns:
        found["row repeats"] = columns["rows"] * ~is_new
    return {part: _normalised(values, evidence) for part, values in found.items()}


def _normalised(values: np.ndarray, evidence: Evidence) -> np.ndarray:
    totals = np.bincount(evidence.query, values, evidence.num_queries)
    return values / np.where(totals > 0, totals, 1)[evidence.query]
