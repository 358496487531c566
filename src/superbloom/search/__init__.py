"""The best ids for token log-probabilities, with a proof that no other id scores higher (Sec. 2.5, Alg. 1, App. C).

    log_probs (batch, m, num_buckets)  →  ids, scores (batch, k)

Read reference.py first: Algorithm 1 in plain code. certified.py is the fast search, with cost.py (open more buckets, or
rank every id?), filters.py (which ids may be returned), scoring.py (what a score is) and mass.py (probabilities).
"""

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
