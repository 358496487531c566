"""Why an answer: its buckets and who shares them, the elements of the context it depends on, and the proof.

beliefs about the context, and about the context without each element  →  parts of each probability, a Certificate

The certificate is Figure 2 of the paper in numbers. Each id is a point: what each hash adds to its probability. An
id in no opened bucket gets from each hash at most the edge.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from superbloom.answers import (
    Beside,
    Bucket,
    Certificate,
    Dependence,
    Explanation,
    NameFacts,
    Point,
    SimilarRow,
    Token,
    Why,
)
from superbloom.hashing import BloomHash
from superbloom.memory import NETWORK, Alike, Context, most_similar, together
from superbloom.model import Model
from superbloom.predict.beliefs import Beliefs
from superbloom.predict.query import Query
from superbloom.predict.searcher import Searcher
from superbloom.search import Filter, bucket_shares, log_contributions

SIMILAR_SHOWN, HOLDING_SHOWN = 5, 3  # similar rows shown of all, and of those that hold an answer
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


def explain(searcher: Searcher, query: Query, mask: int, ids: Tensor, beliefs: Beliefs) -> Explanation:
    """Explain the ids found for a mask.

    beliefs are about all masks of the whole context, then about all masks of the context without each element.
    """
    own = beliefs.rows(slice(mask, None, len(query.places)))
    ids, own = ids.cpu(), own._replace(log_probs=own.log_probs.cpu())
    has_proof = searcher.is_posterior(query.options.combine)
    certificate = _certificate(searcher, query, mask, ids, own.rows(slice(1))) if has_proof else None
    place = query.places[mask]
    seen = searcher.model.context(torch.tensor([query.ids]), torch.tensor([[place]]))[0].numpy()
    similar = _similar(searcher, seen, place, ids)
    shown = [_row(searcher, one) for one in similar[:SIMILAR_SHOWN]]
    return Explanation(_why(searcher, query, mask, ids, own, seen, similar), certificate, shown)


def _why(
    searcher: Searcher,
    query: Query,
    mask: int,
    ids: Tensor,
    beliefs: Beliefs,
    seen: np.ndarray,
    similar: list[Alike],
) -> list[Why]:
    """seen (n,) are the ids that the place sees, −1 elsewhere."""
    model, bloom, prior = searcher.model, searcher.model.target_bloom, searcher.id_prior
    whole = beliefs.log_probs[0]
    values = whole[torch.arange(bloom.num_hashes), bloom.buckets(ids)]  # (k, m)
    ranks = [(1 + (whole > value[:, None]).sum(dim=1)).tolist() for value in values]
    scores = searcher.log_probability(beliefs, ids.expand(beliefs.size, -1))
    differences = (scores[0] - scores[1:]).T.tolist()
    parts = _parts(searcher, seen, query.places[mask], ids, beliefs.rows(slice(1)))
    beside = _beside(searcher, seen, query.frame, ids)
    context = [(place - query.frame, model.vocab.name(query.ids[place])) for place in query.elements]
    return [
        Why(
            [
                _token(searcher, whole, id_, *part)
                for part in enumerate(zip(values[row].tolist(), ranks[row], strict=True))
            ],
            float(prior.surplus[id_]),
            [
                Dependence(place, name, difference)
                for (place, name), difference in zip(context, differences[row], strict=True)
            ],
            parts[row],
            beside[row],
            [_row(searcher, one) for one in similar if id_ in one.held][:HOLDING_SHOWN],
        )
        for row, id_ in enumerate(ids.tolist())
    ]


def _parts(searcher: Searcher, seen: np.ndarray, place: int, ids: Tensor, beliefs: Beliefs) -> list[dict[str, float]]:
    """What the network and each part of the memory add to the probability of each answer.

    The ranker multiplies all parts of a name alike.
    """
    network = searcher.log_probability(Beliefs(beliefs.log_probs), ids[None])[0].double().exp().numpy()
    named = {NETWORK: network}
    if searcher.memory is not None:
        num_ids = searcher.model.target_bloom.num_ids
        weight, shares = searcher.memory.shares(seen, place, ids.numpy(), num_ids)
        named = {NETWORK: weight * network} | shares
    probability = searcher.log_probability(beliefs, ids[None])[0].double().exp().numpy()
    factor = probability / np.maximum(sum(named.values()), np.finfo(float).tiny)
    return [{part: float(factor[row] * values[row]) for part, values in named.items()} for row in range(len(ids))]


def _beside(searcher: Searcher, seen: np.ndarray, frame: int, ids: Tensor) -> list[list[Beside]]:
    """For each answer, the elements of the context that it stood near in training, in the order of the context."""
    if searcher.memory is None:
        return [[] for _ in ids]
    pairs, rows, num_ids = searcher.memory.pairs, searcher.memory.rows, searcher.model.target_bloom.num_ids
    places, answers = np.flatnonzero(seen >= 0), ids.numpy()
    near: dict[tuple[int, int], tuple[float, float, float]] = {}  # (answer, element): weight, share, follows
    if pairs is not None:
        of, names, weights, after = pairs.of(seen[places], num_ids)
        totals = np.bincount(of, weights, len(places))
        for at in np.flatnonzero(np.isin(names, answers)).tolist():
            weight, number = float(weights[at]), int(of[at])
            share = weight / max(1e-9, float(totals[number]))
            near[int(names[at]), number] = weight, share, float(after[at])
    different, which = np.unique(seen[places], return_inverse=True)
    counted = None if rows is None else together(rows, different, answers, num_ids)
    found: list[list[Beside]] = [[] for _ in ids]
    for row, id_ in enumerate(answers.tolist()):
        for number, place in enumerate(places.tolist()):
            evidence: tuple[int | None, int | None] = (None, None)
            if counted is not None:
                count, nearest = (int(part[row, which[number]]) for part in counted)
                evidence = count, nearest or None
            if evidence[0] or (id_, number) in near:
                name = searcher.model.vocab.name(int(seen[place]))
                pair = near.get((id_, number), (None, None, None))
                found[row].append(Beside(place - frame, name, *evidence, *pair))
    return found


def _similar(searcher: Searcher, seen: np.ndarray, place: int, ids: Tensor) -> list[Alike]:
    """The remembered rows that are most similar to what a place sees, the most similar first."""
    if searcher.memory is None or searcher.memory.rows is None:
        return []
    context = Context.of(seen[None], np.array([place]), searcher.model.target_bloom.num_ids)
    return most_similar(searcher.memory.rows, context, ids.numpy())


def _row(searcher: Searcher, one: Alike) -> SimilarRow:
    memory = searcher.memory
    assert memory is not None
    assert memory.rows is not None
    return SimilarRow(memory.rows.key(one.row), one.similarity, searcher.model.vocab.names(one.shared.tolist()))


def _token(searcher: Searcher, log_probs: Tensor, id_: int, hash_: int, value: tuple[float, int]) -> Token:
    """One bucket of an answer, and its members by their share of the bucket's probability."""
    bloom = searcher.model.target_bloom
    bucket, token = int(bloom.buckets(id_)[hash_]), int(bloom.digest(id_)[hash_])
    members, shares = bucket_shares(log_probs, bloom, searcher.id_prior, hash_, bucket)
    order = shares.argsort(descending=True, stable=True)
    mates = [at for at in order[: MAX_MATES + 1].tolist() if int(members[at]) != id_][:MAX_MATES]
    return Token(
        hash_,
        bucket,
        token,
        len(members),
        [searcher.name(int(members[at])) for at in mates],
        log_prob=value[0],
        rank=value[1],
        share=float(shares[members == id_]),
        mate_shares=[float(shares[at]) for at in mates],
    )


def _certificate(searcher: Searcher, query: Query, mask: int, ids: Tensor, beliefs: Beliefs) -> Certificate:
    """Search again by opening buckets, even where ranking all ids is faster."""
    bloom, log_probs, weight = searcher.model.target_bloom, beliefs.log_probs[0], float(beliefs.log_network.exp())
    options = searcher.search_options([query])
    for name in ("exclude", "min_score"):  # a row for each mask
        options[name] = None if options[name] is None else options[name][mask : mask + 1]
    found = searcher.search(beliefs, **options | {"max_rounds": query.options.max_rounds or PROOF_ROUNDS})
    if query.options.max_rounds is None and not bool(found.certified):
        found = searcher.search(beliefs, **options)
    edge, bound = found.edge[0].cpu(), float(found.bound)
    opened = log_probs > edge[:, None]
    shown = _shown(bloom, ids, log_probs, opened)
    buckets = bloom.buckets(shown)
    values = weight * log_contributions(log_probs[None], bloom, shown[None], searcher.id_prior)[0].exp()
    memory = searcher.log_probability(beliefs, shown[None])[0].exp() - values.sum(dim=1)
    is_known = torch.isin(shown, shown[:0] if beliefs.remembered is None else beliefs.remembered.ids)
    memory = torch.where(is_known, memory, 0.0)
    is_open, is_answer = opened[torch.arange(bloom.num_hashes), buckets].any(dim=1), torch.isin(shown, ids)
    others = torch.where(is_open & ~is_answer, values.sum(dim=1) + memory, -torch.inf)
    best = others.topk(min(BEST_SHOWN, len(shown))).indices
    sampled = [where.nonzero()[:, 0] for where in (is_open & ~is_answer, ~is_open)]
    sampled = [where[:: -(-len(where) // SAMPLE_SHOWN) or 1] for where in sampled]
    kept = torch.cat([is_answer.nonzero()[:, 0], best, *sampled]).unique()
    shown, values, memory, is_open, is_answer = (part[kept] for part in (shown, values, memory, is_open, is_answer))
    permitted = Filter(options["exclude"], options["allow"], 1, bloom.num_ids, shown.device).permits(
        torch.zeros(1, dtype=torch.long), shown[None]
    )
    excluded = torch.zeros_like(is_open) if permitted is None else ~permitted[0]
    names = map(searcher.name, shown.tolist())
    columns = (names, *(part.tolist() for part in (values, memory, is_open, is_answer, excluded)))
    is_full, is_whole, lowest = len(ids) == query.k, bound == -torch.inf, query.options.min_score or 0
    return Certificate(
        math.exp(found.scores[0, query.k - 1]) if is_full else lowest if lowest > 0 else None,
        None if is_whole else math.exp(bound),
        None if is_whole else (weight * edge.exp() / bloom.num_hashes).tolist(),
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
