"""A network with the hash functions and names that give its tokens a meaning (Sec. 2.1).

    ids (batch, n), special ids allowed, and places (batch, p)  →  y (batch, p, m, d), or log-probabilities

masks.py decides what the network reads: which elements a segment has, where they stand, and which element answers for
each place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from superbloom.config import RARELY_REPEATED, ModelConfig
from superbloom.corpus import Corpus, Vocab
from superbloom.errors import InputError
from superbloom.hashing import BloomHash
from superbloom.memory import Memory
from superbloom.model.network import Network
from superbloom.model.prior import Prior
from superbloom.model.repetition import Repetition, distance_classes
from superbloom.special import Special


@dataclass(frozen=True)
class Model:
    """A network with the hash functions and names that give its tokens a meaning."""

    network: Network
    bloom: BloomHash
    vocab: Vocab
    target_bloom: BloomHash  # the same objects as above, unless the model predicts a second vocabulary
    target_vocab: Vocab
    prior: Prior | None = None  # for the predicted ids; None until a model is trained
    repetition: Repetition | None = None  # None if it was not fitted, or if the model predicts a second vocabulary
    memory: Memory | None = None  # pairs and rows of training; None if the model remembers none
    repeats: float | None = None  # share of training targets that stand in their own context; None if unknown

    @classmethod
    def create(
        cls, config: ModelConfig, vocab: Vocab, target_vocab: Vocab | None = None, *, corpus: Corpus | None = None
    ) -> Model:
        """An untrained model. Weights come from torch's global random state, hash functions from config.hash_seed.

        A second vocabulary has its own hash functions. With config.coherent, they are made from the corpus (App. D).
        """

        def hashes(of: Vocab, alpha: int, seed: int, num_special: int, targets: bool) -> BloomHash:
            m, spread = config.num_hashes, config.spread
            if not config.coherent:
                return BloomHash.random(len(of), m, alpha, seed, num_special, spread)
            assert corpus is not None
            return BloomHash.coherent(corpus, m, alpha, config.coherent, seed, num_special, spread, targets=targets)

        seed = config.hash_seed
        bloom = target_bloom = hashes(vocab, config.alpha, seed, config.num_special, targets=False)
        if target_vocab is not None:
            alpha = config.target_alpha or config.alpha
            target_bloom = hashes(target_vocab, alpha, seed + 1, len(Special), targets=True)
        return cls(Network(config), bloom, vocab, target_bloom, target_vocab or vocab)

    @property
    def config(self) -> ModelConfig:
        return self.network.config

    @property
    def leaves_out_context(self) -> bool:
        """Whether answers leave out names of the context, unless a query says otherwise: rows rarely repeat a name."""
        return self.repeats is not None and self.repeats < RARELY_REPEATED

    def encode(self, ids: Tensor, places: Tensor) -> Tensor:
        """y (batch, p, m, d) for ids (batch, n), special ids allowed, at places (batch, p)."""
        device = self.network.embedding.weight.device  # the hash tables stay where they were loaded
        elements, where, padding, asked = self.network.scheme.read(ids, places)
        tokens = self.bloom.digest(elements.to(self.bloom.table.device))
        ends = ids == Special.SEP
        sides = (ends.cumsum(1) - ends.long()).clamp(max=1)  # 1 after the first [SEP]
        parts = (tokens, where, padding, asked, places, sides)
        return self.network.encode(*(part.to(device) for part in parts))

    @torch.inference_mode()
    def encode_only(self, ids: Tensor, places: Tensor) -> Tensor:
        """y at each place, (batch · p, m, d), without dropout or gradients."""
        training = self.network.training
        self.network.eval()
        try:
            # subtle: an expanded y has strides of 0, and then torch's products take four times as long
            return self.encode(ids, places).flatten(0, 1).contiguous()
        finally:
            self.network.train(training)

    @torch.inference_mode()
    def log_probs(self, ids: Tensor, places: Tensor) -> Tensor:
        """Token log-probabilities at each place, (batch · p, m, buckets), without dropout or gradients."""
        log_probs = self.network.log_probs(self.encode_only(ids, places))
        return self.repeated(log_probs, self.context(ids, places), places.flatten())

    def context(self, ids: Tensor, places: Tensor) -> Tensor:
        """The known ids that each place sees, (batch · p, n), each in its column; −1 elsewhere."""
        return self.network.scheme.context(ids, places).flatten(0, 1)

    def repeated(self, log_probs: Tensor, context: Tensor, places: Tensor) -> Tensor:
        """log_probs (q, m, buckets) of the network with what repetition adds, given contexts (q, n) and places (q,)."""
        if self.repetition is None:
            return log_probs
        classes = distance_classes(context, places, len(self.repetition.by_distance))
        buckets = self.bloom.buckets(context.clamp(min=0).to(self.bloom.table.device))
        return self.repetition.adjust(log_probs, buckets.to(log_probs.device), classes.to(log_probs.device))


def check_vocabulary(model: Model, corpus: Corpus) -> None:
    """Raise InputError unless a model and a corpus have the same names."""
    for ours, theirs in (
        (model.vocab, corpus.vocab),
        (model.target_vocab, corpus.target_vocab or corpus.vocab),
    ):
        if not ours.table["name"].equals(theirs.table["name"]):
            raise InputError(
                f"the model knows {len(ours):,} names, the corpus {len(theirs):,}, and they differ; "
                "evaluate on the corpus the model was trained on, or one prepared with the same names"
            )
