"""From a context in ids to the best ids: the model, its output layer, its prior and the search, on one device.

ids (batch, n), places (batch, p)  →  Beliefs (batch · p): token log-probabilities and memory  →  certified top-k
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Self

import torch
from torch import Tensor

from superbloom.config import HeadOptions
from superbloom.memory import Memory, Recalled
from superbloom.model import Head, Model
from superbloom.predict.beliefs import Beliefs, Remembered
from superbloom.predict.query import Query, padded
from superbloom.search import IdPrior, TopK, is_posterior, log_probability, log_probability_with, top_k

# Memory for the token log-probabilities of the queries that are ranked together, and the most such queries.
MAX_LOG_PROB_BYTES = 128 * 2**20
MAX_QUERIES_TOGETHER = 256


class Searcher:
    """Computes and searches distributions with a model.

    precision says how the output weights are held: fp32, bf16 or int8 (docs/search.md). prior=False leaves out the
    frequency of ids that is weighed in after training, network_only=True leaves out the memory.
    """

    def __init__(
        self,
        model: Model,
        *,
        precision: str = HeadOptions.precision,
        prior: bool = HeadOptions.prior,
        network_only: bool = HeadOptions.network_only,
    ) -> None:
        self.model, self.prior, self.network_only = model, prior, network_only
        self.head = Head(model.network, precision)
        self._bloom = model.target_bloom

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles carry the model. What is computed from it is computed again."""
        kind = partial(type(self), precision=self.head.precision, prior=self.prior, network_only=self.network_only)
        return kind, (self.model,)

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

    @property
    def memory(self) -> Memory | None:
        """The memory that answers use, if the model has one with weights."""
        memory = self.model.memory
        return None if self.network_only or memory is None or not memory.weights else memory

    def with_memory(self, memory: Memory | None) -> Self:
        """The same with another memory."""
        same, _ = self.__reduce__()
        twin: Self = same(replace(self.model, memory=memory))
        return twin

    def beliefs(self, ids: Tensor, places: Tensor) -> Beliefs:
        """What the model believes about each place of each context, in this order: batch · p queries."""
        return self._believed(ids, places, None)

    def network(self, ids: Tensor, places: Tensor) -> Tensor:
        """Token log-probabilities of the network alone, (batch · p, m, buckets)."""
        return self._believed(ids, places, None, network_only=True).log_probs

    def _believed(self, ids: Tensor, places: Tensor, wanted: Tensor | None, *, network_only: bool = False) -> Beliefs:
        """The same for some places only: wanted (batch · p,)."""
        y, context, places = self.model.encode_only(ids, places), self.model.context(ids, places), places.flatten()
        if wanted is not None:
            y, context, places = y[wanted.to(y.device)], context[wanted], places[wanted]
        log_probs = self.model.repeated(self.head.log_probs(y), context, places)
        if network_only or self.memory is None:
            return Beliefs(log_probs)
        recalled = self.memory.recall(context.cpu().numpy(), places.cpu().numpy(), self._bloom.num_ids)
        return Beliefs(log_probs, self._remembered(self.memory, recalled, log_probs))

    def _remembered(self, memory: Memory, recalled: Recalled, log_probs: Tensor) -> Remembered:
        """The names that a memory recalls, with their scores."""
        self._move_to(device := log_probs.device)
        ids = torch.from_numpy(recalled.ids).to(device)
        network = log_probability(log_probs, self._bloom, ids, self.id_prior)
        scores, log_network = memory.scores(recalled, network.double().cpu().numpy())
        return Remembered(ids, *(torch.from_numpy(part).to(device) for part in (recalled.share, scores, log_network)))

    def search(
        self,
        beliefs: Beliefs,
        k: int | Tensor,
        *,
        combine: Any = None,
        min_score: Tensor | None = None,
        **options: Any,
    ) -> TopK:
        """The k best ids of each query; options of top_k. The score of a posterior is the log-probability."""
        self._move_to(beliefs.log_probs.device)
        if not self.is_posterior(combine):
            combine = self._combine(combine)
            return top_k(beliefs.log_probs, self._bloom, k, combine=combine, min_score=min_score, **options)
        # Scores are in units of the network's factor. Adding its logarithm makes them logarithms of probabilities.
        shift = beliefs.log_network
        found = top_k(
            beliefs.log_probs,
            self._bloom,
            k,
            prior=self.id_prior,
            given=beliefs.given(),
            min_score=None if min_score is None else _below(min_score.to(shift.device) - shift),
            **options,
        )
        ids, scores = found.ids, found.scores + shift[:, None]
        if min_score is not None:
            left_out = scores < min_score.to(shift.device)[:, None]
            ids, scores = ids.masked_fill(left_out, -1), scores.masked_fill(left_out, -torch.inf)
        return replace(found, ids=ids, scores=scores, bound=found.bound + shift)

    def log_probability(self, beliefs: Beliefs, ids: Tensor) -> Tensor:
        """The logarithm of the probability of ids (queries, any); −inf for fills of −1."""
        self._move_to(beliefs.log_probs.device)
        given = beliefs.given()
        if given is None:
            return log_probability(beliefs.log_probs, self._bloom, ids, self.id_prior)
        found = log_probability_with(beliefs.log_probs, self._bloom, ids, given, self.id_prior)
        return found + beliefs.log_network[:, None]

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


def _below(scores: Tensor) -> Tensor:
    """A little less than scores: they were shifted, and each shift rounds."""
    return scores - 1e-5 * scores.abs().clamp(min=1)
