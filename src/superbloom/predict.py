"""Names in, names out: the one way to ask a model, used by Python, the command line and the evaluation.

names with [MASK]  →  ids (1, n)  →  token log-probabilities  →  certified top-k  →  names, one list a mask
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from superbloom.errors import InputError
from superbloom.hashing import Special
from superbloom.model import Model
from superbloom.search import Combine, TopK, top_k

MASK = Special.MASK
MASK_TEXT = "[MASK]"
# Memory for the token log-probabilities of queries that are ranked together, and how many those are at most.
CHUNK_BYTES = 128 * 2**20
CHUNK = 256


@dataclass(frozen=True)
class Prediction:
    name: str
    score: float
    certified: bool


class Predictor:
    """Answers queries with a model.

    A text "[MASK]" means the mask unless the catalogue has that very name; MASK always means it.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._bloom = model.target_bloom

    def predict(
        self,
        context: Sequence[str | Special],
        k: int = 10,
        *,
        beam: int | None = None,
        max_rounds: int | None = None,
        combine: str | Combine = "sum",
        exclude: Sequence[str] = (),
    ) -> list[list[Prediction]]:
        """The k best names for each [MASK] of the context, in order; without a [MASK], for one more element."""
        if isinstance(exclude, str):
            raise InputError(f"the text {exclude!r} given as exclude; give a list of names")
        ids = self._ids(context)
        if Special.MASK not in ids:
            ids.append(Special.MASK)
        k = min(k, len(self.model.target_vocab))  # more are not there
        seq_len = self.model.config.seq_len
        if len(ids) > seq_len:
            raise InputError(f"{len(ids)} elements given; this model reads up to {seq_len}: shorten the context")
        places = [place for place, id_ in enumerate(ids) if id_ == Special.MASK]
        unwanted = [self.model.target_vocab.id(name) for name in exclude]
        exclude_ids = torch.tensor([unwanted] * len(places)) if unwanted else None
        log_probs = self.model.log_probs(torch.tensor([ids]), torch.tensor([places]))
        found = self.search(log_probs, k, beam=beam, max_rounds=max_rounds, combine=combine, exclude=exclude_ids)
        return [self._predictions(found, row) for row in range(len(places))]

    @property
    def chunk(self) -> int:
        """How many queries to rank together: one matmul reads the output embedding once for all of them."""
        config = self.model.config
        return max(1, min(CHUNK, CHUNK_BYTES // (4 * config.num_hashes * config.output_buckets)))

    def search(
        self,
        log_probs: Tensor,
        k: int,
        *,
        beam: int | None = None,
        max_rounds: int | None = None,
        combine: str | Combine = "sum",
        exclude: Tensor | None = None,
    ) -> TopK:
        """The k best ids of each query, from its token log-probabilities (queries, m, buckets)."""
        if self._bloom.table.device != log_probs.device:
            self._bloom = self._bloom.to(log_probs.device)
        return top_k(log_probs, self._bloom, k, beam=beam, max_rounds=max_rounds, combine=combine, exclude=exclude)

    def _ids(self, context: Sequence[str | Special]) -> list[int]:
        if isinstance(context, str):
            raise InputError(f"the text {context!r} given as context; give a list of names")
        vocab = self.model.vocab
        return [
            int(Special.MASK)
            if name is Special.MASK or (name == MASK_TEXT and name not in vocab)
            else vocab.id(str(name))
            for name in context
        ]

    def _predictions(self, found: TopK, row: int) -> list[Prediction]:
        certified = bool(found.certified[row])
        pairs = zip(found.ids[row].tolist(), found.scores[row].tolist(), strict=True)
        return [Prediction(self.model.target_vocab.name(id_), score, certified) for id_, score in pairs if id_ >= 0]
