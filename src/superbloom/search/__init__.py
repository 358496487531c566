"""From token log-probabilities to the best ids, with a certificate (Sec. 2.5)."""

from superbloom.search.certified import TopK, exhaustive, top_k
from superbloom.search.filters import Filter
from superbloom.search.reference import reference_top_k
from superbloom.search.scoring import COMBINES, Bonus, Combine, is_sum

__all__ = [
    "COMBINES",
    "Bonus",
    "Combine",
    "Filter",
    "TopK",
    "exhaustive",
    "is_sum",
    "reference_top_k",
    "top_k",
]
