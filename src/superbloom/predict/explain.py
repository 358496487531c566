"""Why an answer: its tokens, the ids that share its buckets, the elements of the context it depends on, and the proof.

log-probabilities of the context, and of the context without each element  →  parts of each score, a Certificate

The certificate is Figure 2 of the paper in numbers. Each id is a point with one value per hash, and their sum is its
score. Buckets with values above an edge were opened. An id in no opened bucket has all its values below the edges.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from superbloom.answers import Bucket, Certificate, Dependence, Explanation, NameFacts, Point, Token, Why
from superbloom.hashing import BloomHash
from superbloom.model import Model
from superbloom.predict.query import Query
from superbloom.predict.searcher import Searcher
from superbloom.search import Filter

MAX_MATES = 8  # names shown of those that share a bucket
PROOF_ROUNDS = 4  # rounds of opening buckets; an answer that is not proved then is ranked
# Ids shown beside the answers: the best others, and a sample of the opened and of the unopened ones.
BEST_SHOWN, SAMPLE_SHOWN = 100, 150
MEMBERS_SHOWN = 2000  # members of the best opened buckets to choose from, per hash


def facts_of(model: Model, name: str) -> NameFacts:
    """What a model knows about a name that it reads; UnknownNameError if there is no such name."""
    id_ = model.vocab.id(name)
    buckets = _buckets(model.bloom, id_, model.vocab.name)
    tokens = [bucket.token for bucket in buckets]
    return NameFacts(model.vocab.name(id_), id_, model.vocab.count(id_), tokens, buckets)


def _buckets(bloom: BloomHash, id_: int, name_of: Callable[[int], str]) -> list[Bucket]:
    found = []
    for j, (bucket, token) in enumerate(zip(bloom.buckets(id_).tolist(), bloom.digest(id_).tolist(), strict=True)):
        members = bloom.members[j][bucket]
        mates = [other for other in members[: MAX_MATES + 1].tolist() if other != id_][:MAX_MATES]
        found.append(Bucket(j, bucket, token, len(members), [name_of(mate) for mate in mates]))
    return found


def explain(searcher: Searcher, query: Query, mask: int, ids: Tensor, log_probs: Tensor) -> Explanation:
    """Explain the ids found for a mask.

    log_probs (1 + elements, masks, m, buckets) are of the whole context, then of the context without each element.
    """
    ids, log_probs = ids.cpu(), log_probs[:, mask].cpu()
    return Explanation(_why(searcher, query, ids, log_probs), _certificate(searcher, query, mask, ids, log_probs[0]))


def _why(searcher: Searcher, query: Query, ids: Tensor, log_probs: Tensor) -> list[Why]:
    model, bloom, bonus = searcher.model, searcher.model.target_bloom, searcher.bonus
    buckets, hashes = bloom.buckets(ids), torch.arange(bloom.num_hashes)
    values = log_probs[:, hashes, buckets]  # (1 + elements, k, m)
    parts, scores = values[0].tolist(), values.sum(dim=2)
    ranks = [(1 + (log_probs[0] > value[:, None]).sum(dim=1)).tolist() for value in values[0]]
    differences = (scores[0] - scores[1:]).T.tolist()
    context = [(place - query.frame, model.vocab.name(query.ids[place])) for place in query.elements]
    return [
        Why(
            [
                Token(**vars(bucket), log_prob=log_prob, rank=rank)
                for bucket, log_prob, rank in zip(
                    _buckets(bloom, id_, searcher.name), parts[row], ranks[row], strict=True
                )
            ],
            0.0 if bonus is None else float(bonus.of_id[id_]),
            [
                Dependence(place, name, difference)
                for (place, name), difference in zip(context, differences[row], strict=True)
            ],
        )
        for row, id_ in enumerate(ids.tolist())
    ]


def _certificate(searcher: Searcher, query: Query, mask: int, ids: Tensor, log_probs: Tensor) -> Certificate:
    """Search again by opening buckets, even where ranking all ids is faster."""
    bloom, bonus = searcher.model.target_bloom, searcher.bonus
    options = searcher.search_options([query])
    for name in ("exclude", "min_score"):  # a row for each mask
        options[name] = None if options[name] is None else options[name][mask : mask + 1]
    found = searcher.search(log_probs[None], **options | {"max_rounds": query.options.max_rounds or PROOF_ROUNDS})
    if query.options.max_rounds is None and not bool(found.certified):
        found = searcher.search(log_probs[None], **options)
    edge, bound = found.edge[0].cpu(), float(found.bound)
    upper = log_probs if bonus is None else log_probs + bonus.of_bucket.cpu()
    opened = upper > edge[:, None]

    shown = _shown(bloom, ids, upper, opened)
    buckets = bloom.buckets(shown)
    hashes = torch.arange(bloom.num_hashes)
    values = log_probs[hashes, buckets]
    if bonus is not None:
        values = values + (bonus.of_id.cpu()[shown] / bloom.num_hashes)[:, None]
    is_open, is_answer = opened[hashes, buckets].any(dim=1), torch.isin(shown, ids)
    best = torch.where(is_open & ~is_answer, values.sum(dim=1), -torch.inf).topk(min(BEST_SHOWN, len(shown))).indices
    sampled = [where.nonzero()[:, 0] for where in (is_open & ~is_answer, ~is_open)]
    sampled = [where[:: -(-len(where) // SAMPLE_SHOWN) or 1] for where in sampled]
    kept = torch.cat([is_answer.nonzero()[:, 0], best, *sampled]).unique()
    shown, values, is_open, is_answer = (part[kept] for part in (shown, values, is_open, is_answer))
    permitted = Filter(options["exclude"], options["allow"], 1, bloom.num_ids, shown.device).permits(
        torch.zeros(1, dtype=torch.long), shown[None]
    )
    excluded = torch.zeros_like(is_open) if permitted is None else ~permitted[0]
    names = map(searcher.name, shown.tolist())
    columns = (names, *(part.tolist() for part in (values, is_open, is_answer, excluded)))
    full = len(ids) == query.k
    kth = float(found.scores[0, query.k - 1]) if full else query.options.min_score
    return Certificate(
        kth,
        None if bound == -torch.inf else bound,
        None if bound == -torch.inf else edge.tolist(),
        opened.sum(dim=1).tolist(),
        bloom.num_buckets,
        [Point(*row) for row in zip(*columns, strict=True)],
    )


def _shown(bloom: BloomHash, ids: Tensor, upper: Tensor, opened: Tensor) -> Tensor:
    """Ids to choose points from: the answers, the members of the best opened buckets, and a sample of all ids."""
    per_bucket = max(1, bloom.num_ids // bloom.num_buckets)
    few = min(bloom.num_buckets, -(-MEMBERS_SHOWN // per_bucket))
    members = [ids, torch.arange(0, bloom.num_ids, max(1, bloom.num_ids // (4 * SAMPLE_SHOWN)))]
    for j, (best, buckets) in enumerate(zip(*upper.topk(few, dim=1), strict=True)):
        there = opened[j][buckets] & best.isfinite()
        members += [bloom.members[j][bucket] for bucket in buckets[there].tolist()]
    return torch.cat([part.long() for part in members]).unique()
