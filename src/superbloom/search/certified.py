"""Certified top-k for batches: from m token distributions to the best ids (Sec. 2.5, Alg. 1, App. C).

    log_probs (batch, m, num_buckets), row j over the buckets of hash j  →  ids, scores (batch, k)

reference.py has the same algorithm for one query in plain code. A round opens the best buckets of each hash and scores
their members. An id in no opened bucket scores at most `bound`, the combined values of the best unopened bucket of each
hash. If the k-th best score lies above the bound, no other id can enter the answer: it is certified. The other queries
open more buckets, or rank every id if that is cheaper (cost.py). Higher score first, then the smaller id, everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from superbloom.errors import check_whole
from superbloom.hashing import BloomHash
from superbloom.search.arguments import check_bonus
from superbloom.search.combined import CombinedSearch
from superbloom.search.cost import WIDTH_GROWTH
from superbloom.search.given import Given, top_k_with
from superbloom.search.opening import Limits, Opening, TopK
from superbloom.search.posterior import PosteriorSearch
from superbloom.search.queries import Queries
from superbloom.search.scoring import Bonus, Combine, IdPrior, is_posterior


def top_k(
    log_probs: Tensor,
    bloom: BloomHash,
    k: int | Tensor,
    *,
    beam: int | None = None,
    max_rounds: int | None = None,
    combine: str | Sequence[float] | Combine = "posterior",
    exclude: Tensor | None = None,
    allow: Tensor | None = None,
    min_score: float | Tensor | None = None,
    prior: IdPrior | None = None,
    bonus: Bonus | None = None,
    given: Given | None = None,
) -> TopK:
    """The k best ids of each query. Exact, unless max_rounds stops the search before it is certified.

    k: a number, or one for each query.
    beam: the first width, the paper's B. max_rounds=1 is the paper's approximate search.
    combine: "posterior", the probability of each id (posterior.py); or how the log-probabilities of an id's buckets are
    combined: "sum" (the paper), "min", "max", a positive weight for each hash, or any function of (..., m) that is
    increasing in each argument (exact up to its own rounding).
    prior: how frequent ids are, for the posterior; without it, all ids count alike.
    bonus: a term added to the score of each id, with "sum".
    given: the scores of some ids, with "posterior"; they count instead of the network's.
    exclude, allow: ids (−1 fills) or masks over the catalogue; one for all queries, or a row for each query.
    min_score: ids with a lower score are left out. The score of a posterior is the logarithm of the probability.

    >>> import torch
    >>> bloom = BloomHash.random(num_ids=200_000, num_hashes=2, alpha=20, seed=1)
    >>> log_probs = (3 * torch.randn(1, 2, 10_000, generator=torch.manual_seed(0))).log_softmax(-1)
    >>> found = top_k(log_probs, bloom, k=3)
    >>> torch.equal(found.ids, exhaustive(log_probs, bloom, k=3).ids), bool(found.certified), int(found.scored) < 10_000
    (True, True, True)
    """
    limits = Limits(k, exclude, allow, min_score)
    if given is not None and is_posterior(combine):

        def of_network(limits: Limits) -> TopK:
            return top_k(log_probs, bloom, beam=beam, max_rounds=max_rounds, prior=prior, **vars(limits))

        return top_k_with(bloom, limits, given, len(log_probs), of_network)
    search: Opening
    if is_posterior(combine):
        check_bonus(bonus, bloom, combine)
        search = PosteriorSearch(log_probs, bloom, limits, prior)
    else:
        search = CombinedSearch(log_probs, bloom, limits, combine, bonus)
    width = search.cost.first_width(search.largest_k) if beam is None else beam
    check_whole(beam=width, max_rounds=1 if max_rounds is None else max_rounds)
    queries, done = search.start(), []
    if search.filter.lists is not None or not len(queries):  # there is nothing to search for
        search.rank_all(queries)
        return search.answer(queries)
    for round_ in range(1, 1 + (max_rounds or bloom.num_buckets)):  # line 3
        direct = max_rounds is None and search.cost.is_direct_cheaper(len(queries), width)
        if direct or width >= bloom.num_buckets or width * bloom.largest_bucket > bloom.num_ids:
            search.rank_all(queries)
            break
        queries = search.open_buckets(queries, width)  # lines 4 to 7
        if round_ == max_rounds or bool(queries.certified.all()):
            break
        if max_rounds is None and bool((hopeless := search.is_hopeless(queries, width)).any()):
            done.append(queries[hopeless])
            search.rank_all(done[-1])
            queries = queries[~hopeless]
        if bool(queries.certified.any()):
            done.append(queries[queries.certified])
            queries = queries[~queries.certified]
        if not len(queries):
            break
        width *= WIDTH_GROWTH  # Departs from the paper: the width grows by a factor, not by B.
    # Where all buckets tie, none is the best, and none was opened. Where min_score is above all bounds, none has to be.
    if max_rounds is not None and bool((untouched := (queries.scored == 0) & ~queries.certified).any()):
        done.append(queries[~untouched])
        search.rank_all(queries := queries[untouched])
    return search.answer(Queries.join([*done, queries]))  # line 10


def exhaustive(log_probs: Tensor, bloom: BloomHash, k: int | Tensor, **options: Any) -> TopK:
    """The same answer by scoring every id; takes the options of top_k except beam and max_rounds.

    >>> import torch
    >>> bloom = BloomHash.random(num_ids=10, num_hashes=2, alpha=2)
    >>> int(exhaustive(torch.zeros(1, 2, 5).log_softmax(-1), bloom, k=3).scored)
    10
    """
    return top_k(log_probs, bloom, k, beam=bloom.num_buckets, **options)  # a width of all buckets ranks every id
