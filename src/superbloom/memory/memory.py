"""The memory of a model: what it holds, the weights of its parts, and what it recalls for a context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from scipy import sparse

from superbloom.config import TrainConfig
from superbloom.corpus import Corpus
from superbloom.errors import InputError
from superbloom.memory.events import Events
from superbloom.memory.mixture import NETWORK, PARTS, fit_weights
from superbloom.memory.pairs import Pairs
from superbloom.memory.parts import Context, distributions
from superbloom.memory.rows import Rows


class Recalled(NamedTuple):
    """What the memory recalls for q queries."""

    probabilities: sparse.csr_matrix  # (q, num_ids): the memory's share of p(s)
    network: np.ndarray  # (q,) the weight that is left to the network


@dataclass(frozen=True)
class Memory:
    """Counted pairs, kept rows, and the weight of each part; without weights it is not used yet."""

    pairs: Pairs | None
    rows: Rows | None
    weights: Mapping[str, float] = field(default_factory=dict)
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
    def kind(self) -> str:
        """What is remembered: "pairs", "rows" or "both"."""
        return "rows" if self.pairs is None else "pairs" if self.rows is None else "both"

    def recall(self, ids: np.ndarray, places: np.ndarray, num_ids: int) -> Recalled:
        """The memory's share of p(s) for contexts (q, n) and the place asked for in each (q,)."""
        found = distributions(Context.of(ids, places, num_ids), self.pairs, self.rows)
        total = sparse.csr_matrix((len(ids), num_ids))
        network = np.ones(len(ids))
        for part, matrix in found.items():
            if weight := self.weights.get(part, 0.0):
                total = total + weight * matrix
                network -= weight * (np.diff(matrix.indptr) > 0)
        total = total.tocsr()
        total.sort_indices()
        return Recalled(total, np.maximum(network, self.weights[NETWORK]))

    def probabilities_of(self, targets: np.ndarray, ids: np.ndarray, places: np.ndarray, num_ids: int) -> np.ndarray:
        """The probability that each part gives to targets (q,), in the order of `parts` without the network.

        NaN where a part has nothing to say.
        """
        found = distributions(Context.of(ids, places, num_ids), self.pairs, self.rows)
        own, number, columns = targets.copy(), np.arange(len(targets)), []  # scipy refuses an array of torch's
        for part in self.parts[1:]:
            values = np.asarray(found[part][number, own]).ravel()
            columns.append(np.where(np.diff(found[part].indptr) > 0, values, np.nan))
        return np.stack(columns, axis=1)

    def shares(self, ids: np.ndarray, place: int, answers: np.ndarray, num_ids: int) -> dict[str, np.ndarray]:
        """What each part adds to the probability of answers (k,) for one context (n,)."""
        found = distributions(Context.of(ids[None], np.array([place]), num_ids), self.pairs, self.rows)
        return {part: self.weights[part] * np.asarray(found[part][0, answers].todense()).ravel() for part in found}

    def again(self, corpus: Corpus, splits: Sequence[str]) -> Memory | None:
        """Another corpus, counted as this one was, with the same weights; None if it cannot be remembered."""
        has_keys = self.rows is not None and self.rows.key_starts is not None
        half_life = self.half_life
        counted = remember(corpus, self.kind, splits, self.neighbours, row_keys=has_keys, half_life=half_life)
        return None if counted is None else replace(counted, weights=self.weights)

    def weighed(self, network: np.ndarray, parts: np.ndarray, rows: int) -> Memory:
        """The same memory with weights fitted to hidden names of `rows` different rows.

        network (n,) and parts (n, parts − 1) are the probabilities that they have, NaN as in probabilities_of.
        """
        parts = np.where(np.isnan(parts), network[:, None], parts)
        weights = fit_weights(np.column_stack([network, parts]), min(rows, len(network)))
        return replace(self, weights=dict(zip(self.parts, weights.tolist(), strict=True)))


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
    row_keys: bool = TrainConfig.row_keys,
    half_life: float | None = TrainConfig.half_life,
) -> Memory | None:
    """Count the memory of a corpus: "pairs", "rows" or "both"; None for "none".

    None as well if the corpus cannot be remembered (see can_remember). row_keys: keep the keys of rows. half_life: an
    event that this many others follow in its row counts half. It needs rows in the order of time, or raises InputError.

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
    pairs = Pairs.count(events, neighbours) if what in ("pairs", "both") else None
    keys = corpus.sequences["key"].chunk(0) if row_keys else None
    rows = Rows.keep(events, keys=keys) if what in ("rows", "both") else None
    if rows is not None and half_life is not None:
        rows = rows.fading(half_life)
    return Memory(pairs, rows, neighbours=neighbours, corpus=corpus.fingerprint(), half_life=half_life)
