"""From a context in ids to the best ids: the model, its output layer, its prior and the search, on one device.

ids (batch, n), places (batch, p)  →  token log-probabilities (batch · p, m, buckets)  →  certified top-k
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from superbloom.config import HeadOptions
from superbloom.model import Head, Model
from superbloom.predict.query import Query, padded
from superbloom.search import IdPrior, TopK, is_posterior, log_probability, top_k

# Memory for the token log-probabilities of the queries that are ranked together, and the most such queries.
MAX_LOG_PROB_BYTES = 128 * 2**20
MAX_QUERIES_TOGETHER = 256


class Searcher:
    """Computes and searches distributions with a model.

    precision says how the output weights are held: fp32, bf16 or int8 (docs/search.md). prior=False leaves out the
    frequency of ids that is weighed in after training.
    """

    def __init__(
        self, model: Model, *, precision: str = HeadOptions.precision, prior: bool = HeadOptions.prior
    ) -> None:
        self.model, self.prior = model, prior
        self.head = Head(model.network, precision)
        self._bloom = model.target_bloom

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles carry the model. What is computed from it is computed again."""
        return partial(type(self), precision=self.head.precision, prior=self.prior), (self.model,)

    @property
    def chunk(self) -> int:
        """Number of queries to rank together: one matrix product reads the output embedding once for all of them."""
        config = self.model.config
        return max(1, min(MAX_QUERIES_TOGETHER, MAX_LOG_PROB_BYTES // (4 * config.num_hashes * config.output_buckets)))

    @cached_property
    def id_prior(self) -> IdPrior:
        """How frequent each id is, relative to its buckets; all ids alike without a prior."""
        bloom, prior = self.model.target_bloom, self.model.prior
        return IdPrior.uniform(bloom) if prior is None or not self.prior else prior.of_ids(bloom)

    def log_probs(self, ids: Tensor, places: Tensor) -> Tensor:
        """Token log-probabilities at each place, (batch · p, m, buckets)."""
        return self.head.log_probs(self.model.encode_only(ids, places))

    def search(self, log_probs: Tensor, k: int | Tensor, *, combine: Any = None, **options: Any) -> TopK:
        """The k best ids of each query, from its token log-probabilities (queries, m, buckets); options of top_k."""
        self._move_to(log_probs.device)
        prior = self.id_prior if self.is_posterior(combine) else None
        return top_k(log_probs, self._bloom, k, combine=self._combine(combine), prior=prior, **options)

    def log_probability(self, log_probs: Tensor, ids: Tensor) -> Tensor:
        """The logarithm of the probability of ids (queries, any); −inf for fills of −1."""
        self._move_to(log_probs.device)
        return log_probability(log_probs, self._bloom, ids, self.id_prior)

    def _move_to(self, device: torch.device) -> None:
        """Move the tables to the device of the distributions."""
        if self._bloom.table.device != device:
            self._bloom, self.id_prior = self._bloom.to(device), self.id_prior.to(device)

    def is_posterior(self, combine: Any) -> bool:
        """Whether scores are logarithms of probabilities."""
        return is_posterior(self._combine(combine))

    def _combine(self, combine: Any) -> Any:
        """How a query is scored: as it says, or as the model was made."""
        return self.model.config.score if combine is None else combine

    def search_options(self, group: Sequence[Query]) -> dict[str, Any]:
        """Options of one search for all masks of queries that are searched together; filters have a row per mask."""
        first, masks = group[0], torch.tensor([len(query.places) for query in group])
        exclude = [query.exclude for query in group]
        floors = [self._floor(query) for query in group]
        has_floor = floors.count(-torch.inf) < len(floors)
        return {
            "k": first.k,
            "beam": first.options.beam,
            "max_rounds": first.options.max_rounds,
            "combine": first.options.combine,
            "exclude": padded(exclude, -1).repeat_interleave(masks, dim=0) if any(exclude) else None,
            "allow": None if first.allow is None else torch.tensor(first.allow, dtype=torch.long),
            "min_score": torch.tensor(floors).repeat_interleave(masks) if has_floor else None,
        }

    def _floor(self, query: Query) -> float:
        """The lowest score of an answer; the min_score of a posterior is a probability."""
        lowest = query.options.min_score
        if lowest is None:
            return -math.inf
        if not self.is_posterior(query.options.combine):
            return lowest
        return math.log(lowest) if lowest > 0 else -math.inf

    def name(self, id_: int) -> str:
        """The name of a predicted id; in text, two words are joined by an underscore as in the paper."""
        name = self.model.target_vocab.name(id_)
        return name.replace(" ", "_") if self.model.target_vocab.is_text else name
