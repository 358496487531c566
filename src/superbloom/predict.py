"""Names in, names out: the one way to ask a model, used by Python, the command line and the evaluation.

names with [MASK]  →  ids (1, n)  →  token log-probabilities  →  certified top-k  →  names, one list a mask

A model of text also takes a text: it is segmented (text.py) and stands between [CLS] and [SEP], as in training.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from superbloom.errors import InputError
from superbloom.hashing import Special
from superbloom.head import Head
from superbloom.model import Model
from superbloom.scoring import Bonus, Combine, is_sum
from superbloom.search import TopK, top_k

MASK = Special.MASK
MASK_TEXT = "[MASK]"
MASKS = re.compile(r"\[MASK\d*\]")  # in a text; the paper numbers them: [MASK1], [MASK2]
# Memory for the token log-probabilities of queries that are ranked together, and how many those are at most.
CHUNK_BYTES = 128 * 2**20
CHUNK = 256


@dataclass(frozen=True)
class Prediction:
    """A name with its score.

    Its share of the probability of all names that may be answered lies between at_least and probability: the second
    is its share of what was scored, the first counts all that was not scored as if it were as likely as it can be.
    """

    name: str
    score: float
    certified: bool
    probability: float
    at_least: float


class Predictor:
    """Answers queries with a model.

    precision is how the output weights are held: fp32, bf16 or int8 (docs/search.md). prior=False leaves out the
    frequency of ids that was weighed in after training. A text "[MASK]" means the mask unless the catalogue has
    that very name; MASK always means it.
    """

    def __init__(self, model: Model, *, precision: str = "fp32", prior: bool = True) -> None:
        self.model, self.prior = model, prior
        self.head = Head(model.network, precision)
        self._bloom = model.target_bloom

    def predict(
        self,
        context: Sequence[str | Special] | str,
        k: int = 10,
        *,
        beam: int | None = None,
        max_rounds: int | None = None,
        combine: str | Sequence[float] | Combine = "sum",
        exclude: Iterable[str] = (),
        allow: Iterable[str] | None = None,
        min_score: float | None = None,
    ) -> list[list[Prediction]]:
        """The k best names for each [MASK] of the context, in order; without a [MASK], for one more element.

        The context is a list of names, or of a model of text, a text with [MASK]. There a name of two words is answered
        as in the paper: miles_davis.

        exclude are names that may not be answered, allow the only ones that may; none that scores less than
        min_score is. The prior is a term of the sum: with another combine it is left out.
        """
        ids = self._text_ids(context) if isinstance(context, str) else self._ids(context)
        if Special.MASK not in ids:
            ids.append(Special.MASK)
        if self.model.vocab.kinds is not None:
            ids = [Special.CLS, *ids, Special.SEP]
        seq_len = self.model.config.seq_len
        if len(ids) > seq_len:
            raise InputError(f"{len(ids)} elements given; this model reads up to {seq_len}: shorten the context")
        places = [place for place, id_ in enumerate(ids) if id_ == Special.MASK]
        found = self.search(
            self.log_probs(torch.tensor([ids]), torch.tensor([places])),
            min(k, len(self.model.target_vocab)),  # more are not there
            beam=beam,
            max_rounds=max_rounds,
            combine=combine,
            exclude=self._target_ids("exclude", exclude),
            allow=None if allow is None else self._target_ids("allow", allow),
            min_score=min_score,
            temperature=self.temperature,
        )
        return [self._predictions(found, row) for row in range(len(places))]

    def log_probs(self, ids: Tensor, places: Tensor) -> Tensor:
        """Token log-probabilities at each place, (batch · p, m, buckets), by the head of this precision."""
        return self.head.log_probs(self.model.encode_only(ids, places))

    @property
    def temperature(self) -> float:
        return float(self.model.config.num_hashes) if self.model.prior is None else self.model.prior.temperature

    @property
    def chunk(self) -> int:
        """How many queries to rank together: one matmul reads the output embedding once for all of them."""
        config = self.model.config
        return max(1, min(CHUNK, CHUNK_BYTES // (4 * config.num_hashes * config.output_buckets)))

    def search(self, log_probs: Tensor, k: int | Tensor, **options: Any) -> TopK:
        """The k best ids of each query, from its token log-probabilities (queries, m, buckets); options of top_k."""
        if self._bloom.table.device != log_probs.device:
            self._bloom = self._bloom.to(log_probs.device)
            self.bonus = None if self.bonus is None else self.bonus.to(log_probs.device)
        if is_sum(options.get("combine", "sum")):
            options.setdefault("bonus", self.bonus)
        return top_k(log_probs, self._bloom, k, **options)

    @cached_property
    def bonus(self) -> Bonus | None:
        """What the prior adds to the score of each id."""
        prior = self.model.prior
        return prior.bonus(self.model.target_bloom) if prior is not None and self.prior else None

    def _text_ids(self, text: str) -> list[int]:
        if self.model.vocab.kinds is None:
            raise InputError(f"the text {text!r} given as context; give a list of names")
        parts = MASKS.split(text)
        if len(parts) == 1:
            raise InputError(f"{text!r:.80} has no {MASK_TEXT}; put one where something is to be filled in")
        found = [self.model.vocab.segmenter.segment(part) for part in parts]
        pairs = zip(parts, found, strict=True)
        if unknown := [part[slice(*span)] for part, segments in pairs for span in segments.unknown]:
            warnings.warn(f"{unknown[0]!r} cannot be read with these word pieces; left out", UserWarning, stacklevel=3)
        ids = [id_ for segments in found for id_ in (*segments.ids.tolist(), int(Special.MASK))]
        return ids[:-1]

    def _ids(self, context: Sequence[str | Special]) -> list[int]:
        vocab = self.model.vocab
        return [
            int(Special.MASK)
            if name is Special.MASK or (name == MASK_TEXT and name not in vocab)
            else vocab.id(str(name))
            for name in context
        ]

    def _target_ids(self, option: str, names: Iterable[str]) -> Tensor:
        if isinstance(names, str):
            raise InputError(f"the text {names!r} given as {option}; give a list of names")
        return torch.tensor([self.model.target_vocab.id(name) for name in names], dtype=torch.long)

    def _predictions(self, found: TopK, row: int) -> list[Prediction]:
        assert found.mass is not None
        assert found.unscored is not None
        certified = bool(found.certified[row])
        scaled = found.scores[row] / self.temperature
        shares = (scaled - found.mass[row]).exp().tolist()
        lowest = (scaled - torch.logaddexp(found.mass[row], found.unscored[row])).exp().tolist()
        answers = zip(found.ids[row].tolist(), found.scores[row].tolist(), shares, lowest, strict=True)
        vocab = self.model.target_vocab
        name = vocab.name if vocab.kinds is None else lambda id_: vocab.name(id_).replace(" ", "_")
        return [Prediction(name(id_), score, certified, share, low) for id_, score, share, low in answers if id_ >= 0]
