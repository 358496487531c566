"""The memory of a model: what it holds, the weights of its parts, and what it recalls for a context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from superbloom.config import TrainConfig
from superbloom.corpus import Corpus
from superbloom.errors import InputError
from superbloom.memory.events import Events
from superbloom.memory.evidence import Context, Evidence, columns_of
from superbloom.memory.mixture import NETWORK, PARTS, fit_weights
from superbloom.memory.pairs import Pairs
from superbloom.memory.parts import parts_of
from superbloom.memory.ranker import SMALLEST, Ranker
from superbloom.memory.rows import Rows

MAX_NAMES = 400  # a memory brings at most this many names for a query: those with the largest share
TINY = np.finfo(np.float64).tiny


class Recalled(NamedTuple):
    """The names that a memory brings for q queries, those with the largest share first; −1 fills."""

    ids: np.ndarray  # (q, names)
    share: np.ndarray  # (q, names) the memory's share of the mixture
    parts: np.ndarray  # (q, names, parts − 1) the probability by each part, in the order of Memory.parts
    network: np.ndarray  # (q,) the weight that is left to the network
    evidence: np.ndarray  # (q, names, columns) what is known about each name
    lengths: np.ndarray  # (q,) the number of known elements


@dataclass(frozen=True)
class Memory:
    """Counted pairs, kept rows, and the weight of each part; without weights it is not used yet."""

    pairs: Pairs | None
    rows: Rows | None
    weights: Mapping[str, float] = field(default_factory=dict)
    ranker: Ranker | None = None
    neighbours: int = TrainConfig.neighbours  # the most names that are kept for a name
    corpus: str = ""  # the fingerprint of the corpus that was counted, and of those that were added
    half_life: float | None = None  # in events: what that many events of its row follow counts half

    @property
    def parts(self) -> list[str]:
        """The parts that this memory has, the network first."""
        missing = set() if self.pairs is not None else {"pairs", "pairs squared"}
        missing |= set() if self.rows is not None else {"rows", "places", "row repeats"}
        return [part for part in PARTS if part not in missing]

    @property
    def columns(self) -> list[str]:
        """The kinds of evidence that this memory has."""
        return columns_of(self.pairs is not None, self.rows is not None)

    @property
    def kind(self) -> str:
        """What is remembered: "pairs", "rows" or "both"."""
        return "rows" if self.pairs is None else "pairs" if self.rows is None else "both"

    @property
    def _memory_weights(self) -> np.ndarray:
        """The weights of the parts that are not the network."""
        return np.array([self.weights[part] for part in self.parts[1:]])

    def evidence(self, ids: np.ndarray, places: np.ndarray, num_ids: int) -> Evidence:
        """All that is known about contexts (q, n) and the place asked for in each (q,)."""
        return Evidence.of(Context.of(ids, places, num_ids), self.pairs, self.rows)

    def recall(self, ids: np.ndarray, places: np.ndarray, num_ids: int) -> Recalled:
        """The names that the memory brings for contexts (q, n) and the place asked for in each (q,)."""
        found = self.evidence(ids, places, num_ids)
        parts = parts_of(found)
        named = [parts[part] for part in self.parts[1:]]
        share = np.zeros(len(found.ids))
        for weight, part in zip(self._memory_weights, named, strict=True):
            share += weight * part
        order = np.lexsort((found.ids, -share, found.query))
        counts = np.bincount(found.query, minlength=len(ids))
        column = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        kept, column = order[column < MAX_NAMES], column[column < MAX_NAMES]
        slot = found.query[kept], column
        # subtle: the same width for every batch, because sums over more columns may round differently
        names = min(MAX_NAMES, num_ids)

        def padded(*values: np.ndarray, fill: float = 0.0) -> np.ndarray:
            """The values of the names that are kept, (q, names, number of values)."""
            table = np.full((len(ids), names, len(values)), fill, values[0].dtype)
            for number, value in enumerate(values):
                table[*slot, number] = value[kept]
            return table

        said = [np.bincount(found.query, part, len(ids)) > 0 for part in named]
        network = np.maximum(1 - np.stack(said, axis=1) @ self._memory_weights, self.weights[NETWORK])
        columns = padded(*(found.columns[column] for column in self.columns))
        lengths = (ids >= 0).sum(axis=1)
        recalled = padded(found.ids, fill=-1)[..., 0], padded(share)[..., 0], padded(*named)
        return Recalled(*recalled, network, columns, lengths)

    def scores(self, recalled: Recalled, log_network: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log p(s) of the recalled names, (q, names), and log of the factor of the network's p for all others, (q,).

        log_network (q, names) is what the network alone gives to the recalled names; fills have −inf.
        """
        seen = self._network_of_known(recalled, log_network)
        scores = mixture = self.mixture(recalled, seen)
        if self.ranker is not None:
            scores = mixture + self.ranker(self.features(recalled, seen, mixture))
        rest = recalled.network * np.maximum(TINY, 1 - np.exp(log_network).sum(axis=1))
        with np.errstate(invalid="ignore"):  # a damaged folder may hold weights that are not finite
            # Sums of logarithms, because exp of a large factor would overflow.
            total = np.logaddexp(np.logaddexp.reduce(scores, axis=1), np.log(rest))
        return scores - total[:, None], np.log(recalled.network) - total

    def _network_of_known(self, recalled: Recalled, log_network: np.ndarray) -> np.ndarray:
        """log_network, in which names that were added after training have what the memory gives them.

        That the network finds a name unlikely which it has never seen says nothing about it.
        """
        is_new = recalled.ids >= (np.inf if self.ranker is None else self.ranker.known[0])
        if not is_new.any():
            return log_network
        remembered = recalled.share / np.maximum(TINY, 1 - recalled.network[:, None])
        return np.where(is_new, np.log(np.maximum(TINY, remembered)), log_network)

    def mixture(self, recalled: Recalled, log_network: np.ndarray) -> np.ndarray:
        """log Σ_k w_k p_k of the recalled names, (q, names); fills have −inf."""
        found = np.log(np.maximum(TINY, recalled.share + recalled.network[:, None] * np.exp(log_network)))
        return np.where(recalled.ids >= 0, found, -np.inf)

    def features(self, recalled: Recalled, log_network: np.ndarray, mixture: np.ndarray) -> np.ndarray:
        """What the ranker sees of each name, (q, names, features): the name's own numbers, then those of its query."""
        is_name = recalled.ids >= 0
        own = [np.where(is_name, log_network, 0.0), np.where(is_name, mixture, 0.0)]
        best = [np.where(is_name, values, -np.inf).max(axis=1, initial=-99.0) for values in (log_network, mixture)]
        query = np.stack([*best, np.log1p(recalled.lengths)], axis=1)[:, None]
        query = np.broadcast_to(query, (*is_name.shape, query.shape[-1]))
        evidence, parts = np.log(recalled.evidence + SMALLEST), np.log(recalled.parts + SMALLEST / 10)
        is_present = recalled.evidence[..., self.columns.index("repeats"), None] > 0
        return np.concatenate([np.stack(own, axis=2), evidence, parts, is_present, query], axis=2)

    @property
    def num_features(self) -> int:
        return 2 + len(self.columns) + len(self.parts) - 1 + 1 + 3

    def probabilities_of(self, targets: np.ndarray, ids: np.ndarray, places: np.ndarray, num_ids: int) -> np.ndarray:
        """The probability that each part gives to targets (q,), in the order of `parts` without the network.

        NaN where a part has nothing to say.
        """
        found = self.evidence(ids, places, num_ids)
        parts, query = parts_of(found), np.arange(len(targets))
        keys, wanted = found.query * num_ids + found.ids, query * num_ids + targets
        at = np.minimum(np.searchsorted(keys, wanted), max(0, len(keys) - 1))
        is_there = keys[at] == wanted if len(keys) else np.zeros(len(targets), bool)
        columns = []
        for part in self.parts[1:]:
            values = np.where(is_there, parts[part][at], 0.0) if len(keys) else np.zeros(len(targets))
            has_any = np.bincount(found.query, parts[part], len(targets)) > 0
            columns.append(np.where(has_any, values, np.nan))
        return np.stack(columns, axis=1)

    def shares(
        self, ids: np.ndarray, place: int, answers: np.ndarray, num_ids: int
    ) -> tuple[float, dict[str, np.ndarray]]:
        """The weight of the network, and what each part adds to the mixture of answers (k,), for one context (n,)."""
        found = self.recall(ids[None], np.array([place]), num_ids)
        is_answer = found.ids[0] == answers[:, None]  # (k, names)
        parts = zip(self.parts[1:], self._memory_weights, found.parts[0].T, strict=True)
        return float(found.network[0]), {part: weight * (is_answer @ values) for part, weight, values in parts}

    def as_in(self, other: Memory) -> Memory:
        """The same memory with the weights and the ranker of another."""
        return replace(self, weights=other.weights, ranker=other.ranker)

    def again(self, corpus: Corpus, splits: Sequence[str], **counting: Any) -> Memory | None:
        """Another corpus, counted as this one was, with the same weights; None if it cannot be remembered.

        counting: where pairs are counted, as remember takes it.
        """
        has_keys, half_life = self.rows is not None and self.rows.key_starts is not None, self.half_life
        counted = remember(
            corpus, self.kind, splits, self.neighbours, row_keys=has_keys, half_life=half_life, **counting
        )
        return None if counted is None else counted.as_in(self)

    def weighed(self, network: np.ndarray, parts: np.ndarray, rows: int) -> Memory:
        """The same memory with weights fitted to hidden names of `rows` different rows.

        network (n,) and parts (n, parts − 1) are the probabilities that they have, NaN as in probabilities_of.
        """
        parts = np.where(np.isnan(parts), network[:, None], parts)
        weights = fit_weights(np.column_stack([network, parts]), min(rows, len(network)))
        return replace(self, weights=dict(zip(self.parts, weights.tolist(), strict=True)), ranker=None)


def can_remember(corpus: Corpus) -> bool:
    """Whether pairs and rows can be counted: not in text, whose documents are long, nor with a second vocabulary."""
    return corpus.target_vocab is None and not corpus.vocab.is_text


def check_half_life(half_life: float | None, corpus: Corpus) -> None:
    """Raise InputError if rows are to fade but have no order of time."""
    if half_life is not None and not corpus.is_ordered:
        raise InputError(
            f"half_life={half_life:g} given, but the rows of this corpus are not in the order of time, so nothing in "
            "them is older; leave it out, or prepare a log of events: superbloom prepare interactions"
        )


def remember(
    corpus: Corpus,
    what: str,
    splits: Sequence[str] = ("train",),
    neighbours: int = TrainConfig.neighbours,
    *,
    engine: str = TrainConfig.count_engine,
    master: str | None = TrainConfig.count_master,
    megabytes: int = TrainConfig.count_mb,
    row_keys: bool = TrainConfig.row_keys,
    half_life: float | None = TrainConfig.half_life,
) -> Memory | None:
    """Count the memory of a corpus: "pairs", "rows" or "both"; None for "none".

    None as well if the corpus cannot be remembered (see can_remember). engine, master and megabytes are the options
    count_engine, count_master and count_mb of TrainConfig. row_keys: keep the keys of rows. half_life: an event that
    this many others follow in its row counts half. It needs rows in the order of time, or raises InputError.

    >>> memory = remember(Corpus.from_sequences([["a", "b"], ["a", "b"], ["b", "c"]]), "both")
    >>> memory.parts
    ['network', 'pairs', 'pairs squared', 'rows', 'places', 'repeats', 'row repeats']
    """
    check_half_life(half_life, corpus)
    if what == "none" or not can_remember(corpus):
        return None
    events = Events.of(corpus, splits)
    if half_life is not None:
        half_life = float(np.float32(half_life))  # as the file holds it, so that a saved model answers as before
        events = events.fading(half_life)
    pairs = count_pairs(events, neighbours, engine, master, megabytes) if what in ("pairs", "both") else None
    keys = corpus.sequences["key"].chunk(0) if row_keys else None
    rows = Rows.keep(events, keys=keys) if what in ("rows", "both") else None
    if rows is not None and half_life is not None:
        rows = rows.fading(half_life)
    return Memory(pairs, rows, neighbours=neighbours, corpus=corpus.fingerprint(), half_life=half_life)


def count_pairs(
    events: Events,
    neighbours: int,
    engine: str = TrainConfig.count_engine,
    master: str | None = TrainConfig.count_master,
    megabytes: int = TrainConfig.count_mb,
) -> Pairs:
    """Count pairs where the options count_engine, count_master and count_mb say."""
    if engine == "numpy":
        return Pairs.count(events, neighbours)
    if events.freshness is not None:
        raise InputError(f"a half-life and count_engine={engine} given; with a half-life, pairs are counted by numpy")
    from superbloom.memory.sql import count_in_sql  # DuckDB takes a while to import

    return count_in_sql(events, neighbours, engine, master, megabytes)
