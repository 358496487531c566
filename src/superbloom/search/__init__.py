"""The best ids for token log-probabilities, with a proof that no other id scores higher (Sec. 2.5, Alg. 1, App. C).

    log_probs (batch, m, num_buckets)  →  ids, scores (batch, k)

Read reference.py first: Algorithm 1 in plain code. certified.py is the fast search, with cost.py (open more buckets, or
rank every id?), filters.py (which ids may be returned), combined.py and posterior.py (what a score is), and given.py
(scores that are known already).
"""

from superbloom.search.certified import exhaustive, top_k
from superbloom.search.filters import Filter
from superbloom.search.given import Given, log_probability_with
from superbloom.search.opening import TopK
from superbloom.search.posterior import bucket_shares, log_contributions, log_probability
from superbloom.search.reference import reference_top_k
from superbloom.search.scoring import COMBINES, Bonus, Combine, IdPrior, is_posterior, is_sum

__all__ = [
    "COMBINES",
    "Bonus",
    "Combine",
    "Filter",
    "Given",
    "IdPrior",
    "TopK",
    "bucket_shares",
    "exhaustive",
    "is_posterior",
    "is_sum",
    "log_contributions",
    "log_probability",
    "log_probability_with",
    "reference_top_k",
    "top_k",
]
