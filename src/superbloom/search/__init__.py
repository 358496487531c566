"""The best ids for token log-probabilities, with a proof that no other id scores higher (Sec. 2.5, Alg. 1, App. C).

    log_probs (batch, m, num_buckets)  →  ids, scores (batch, k)

Read reference.py first: Algorithm 1 in plain code. certified.py is the fast search, with cost.py (open more buckets, or
rank every id?), filters.py (which ids may be returned), combined.py and posterior.py (what a score is), and boosted.py
(what a memory adds).
"""

from superbloom.search.boosted import Boosts, boosted_log_probability
from superbloom.search.certified import exhaustive, top_k
from superbloom.search.filters import Filter
from superbloom.search.opening import TopK
from superbloom.search.posterior import bucket_shares, log_contributions, log_probability
from superbloom.search.reference import reference_top_k
from superbloom.search.scoring import COMBINES, Bonus, Combine, IdPrior, is_posterior, is_sum

__all__ = [
    "COMBINES",
    "Bonus",
    "Boosts",
    "Combine",
    "Filter",
    "IdPrior",
    "TopK",
    "boosted_log_probability",
    "bucket_shares",
    "exhaustive",
    "is_posterior",
    "is_sum",
    "log_contributions",
    "log_probability",
    "reference_top_k",
    "top_k",
]
