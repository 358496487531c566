"""Fit what the context says about its own buckets (model/repetition.py) to validation rows, after training.

    model, corpus  →  the Repetition under which the hidden ids of validation rows are most likely

Only few probabilities depend on these numbers: those of the buckets of the context, and of the members of the buckets
of the hidden id. They are kept for each row, and everything else is computed once.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from superbloom.corpus import Corpus
from superbloom.evaluate import HeldOut
from superbloom.hashing import BloomHash
from superbloom.model import Model, Repetition
from superbloom.model.repetition import DISTANCES, distance_classes, nearest
from superbloom.predict import Predictor

MIN_ROWS = 100  # validation rows; with fewer, nothing is fitted
SPREAD = 3.0  # standard deviation of each number before anything is seen, in nats
MAX_STEPS = 50  # of the fit
DIGITS = 3  # of the fitted numbers


class _Rows(NamedTuple):
    """What is kept of some validation rows. Classes are those of distance; the last one stands for none."""

    context: Tensor  # (q, m, n) log p_j of the buckets of the context
    context_classes: Tensor  # (q, m, n)
    values: Tensor  # (q, m, s, m) log p_i of all buckets of the members of each bucket of the hidden id
    classes: Tensor  # (q, m, s, m) of these buckets
    surplus: Tensor  # (q, m, s) of the members; −inf fills
    hidden: Tensor  # (q, m) the slot of the hidden id among the members

    def log_probability(self, by_distance: Tensor) -> Tensor:
        """log p of the hidden ids (q,), as the search computes it (search/posterior.py)."""
        terms, m = torch.cat([by_distance, by_distance.new_zeros(1)]), self.values.shape[-1]
        added = (self.context.exp() * terms[self.context_classes].expm1()).sum(-1)
        values = self.values + terms[self.classes] - added.clamp(min=-1 + 1e-9).log1p()[:, None, None]
        weights = self.surplus + values.sum(-1)
        hidden = self.hidden[..., None]
        shares = weights.gather(2, hidden).squeeze(2) - weights.logsumexp(-1)
        own_values = values.diagonal(dim1=1, dim2=3).transpose(1, 2)  # (q, m, s): log p_j of the bucket itself
        return (own_values.gather(2, hidden).squeeze(2) + shares).logsumexp(-1) - math.log(m)


def fit_repetition(model: Model, corpus: Corpus, rows: int) -> Repetition | None:
    """The numbers that make up to `rows` hidden ids of validation rows most likely; None if they cannot be fitted."""
    has_one_vocab, config = model.target_vocab is model.vocab, model.config
    if config.score != "posterior" or not has_one_vocab or len(corpus.rows("valid")) < MIN_ROWS:
        return None
    held_out = HeldOut.of(corpus, "valid", config.seq_len, draws=rows)
    predictor = Predictor(replace(model, repetition=None))
    count = 1 + len(DISTANCES) if config.distance or config.positions else 1
    parts = [_kept(predictor, *part, count) for part in held_out.parts(predictor.chunk)]
    numbers = torch.zeros(count, dtype=torch.double, requires_grad=True)
    optimizer = torch.optim.LBFGS([numbers], max_iter=MAX_STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        total = (numbers / SPREAD).square().sum() / 2
        for part in parts:
            total = total - part.log_probability(numbers).clamp(min=-1e4).sum()
        mean = total / len(held_out)
        torch.autograd.backward(mean)
        return mean

    with torch.enable_grad():
        optimizer.step(loss)
    # In float32, as the model folder holds them: a loaded model gives the same scores, to the bit.
    fitted = numbers.detach().round(decimals=DIGITS).float()
    return Repetition(fitted) if bool(fitted.isfinite().all()) else None


@torch.no_grad()
def _kept(predictor: Predictor, ids: Tensor, places: Tensor, targets: Tensor, count: int) -> _Rows:
    """What the likelihood of some hidden ids depends on."""
    log_probs, context = predictor.network(ids, places).cpu(), predictor.model.context(ids, places)
    bloom, prior = predictor.model.bloom, predictor.id_prior
    classes = distance_classes(context, places[:, 0], count)
    buckets, classes = nearest(bloom.buckets(context.clamp(min=0)), classes, count)
    class_of = torch.full(log_probs.shape, count, dtype=torch.long).scatter_reduce_(2, buckets, classes, "amin")
    members, is_member = _members(bloom, targets)
    all_buckets = bloom.buckets(members)  # (q, m, s, m)
    at = all_buckets.flatten(1, 2).transpose(1, 2)
    values, member_classes = (
        part.gather(2, at).transpose(1, 2).view(all_buckets.shape) for part in (log_probs.double(), class_of)
    )
    return _Rows(
        log_probs.double().gather(2, buckets),
        classes,
        values,
        member_classes,
        prior.surplus.double()[members].masked_fill(~is_member, -torch.inf),
        (members == targets[:, None, None]).int().argmax(-1),
    )


def _members(bloom: BloomHash, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The members of the m buckets of ids (q,): (q, m, largest bucket), and which of them are members."""
    buckets, hashes = bloom.buckets(ids), torch.arange(bloom.num_hashes)
    first, last = bloom.starts[hashes, buckets], bloom.starts[hashes, buckets + 1]
    at = first[..., None] + torch.arange(bloom.largest_bucket)
    is_member = at < last[..., None]
    at = at.clamp(max=bloom.num_ids - 1)
    return bloom.order[hashes[None, :, None], at].long(), is_member
