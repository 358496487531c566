"""A network with the hash functions and names that give its tokens a meaning (Sec. 2.1).

    ids (batch, n), special ids allowed, and places (batch, p)  →  y (batch, p, m, d), or log-probabilities

`encode` prepares what the network reads: which elements a segment has, where they stand, and which element answers for
each place. This depends on `mask_as`: "question", "element" or "next".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from superbloom.config import ModelConfig
from superbloom.corpus import Corpus, Vocab
from superbloom.errors import InputError
from superbloom.hashing import BloomHash
from superbloom.model.network import NO_PLACE, Network
from superbloom.model.prior import Prior
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

    def encode(self, ids: Tensor, places: Tensor) -> Tensor:
        """y (batch, p, m, d) for ids (batch, n), special ids allowed, at places (batch, p)."""
        device = self.network.embedding.weight.device  # the hash tables stay where they were loaded
        if self.config.mask_as == "question":
            elements, where = _with_one_mask(ids)
            asked, padding = torch.zeros_like(places), elements == Special.PAD
        elif self.config.mask_as == "next":
            # [CLS] comes first. Only masks are padding: attention looks back, so [PAD] at the end is never attended to.
            elements, where = F.pad(ids, (1, 0), value=Special.CLS), torch.arange(NO_PLACE, ids.shape[1])[None]
            padding = elements == Special.MASK
            known = torch.arange(elements.shape[1], device=ids.device).masked_fill(padding, 0).cummax(1).values
            asked = known.gather(1, places)  # the last element before each place that is not a mask
        else:
            elements, asked, where = ids, places, torch.arange(ids.shape[1], device=ids.device)[None]
            padding = elements == Special.PAD
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
        return self.network.log_probs(self.encode_only(ids, places))


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


def _with_one_mask(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Elements and their places: one [MASK] without a place, then the known ids. Other masks and most padding are cut.

    >>> _with_one_mask(torch.tensor([[Special.MASK, 7, Special.MASK, 5], [4, Special.PAD, Special.PAD, Special.PAD]]))
    (tensor([[-2,  7,  5],
            [-2,  4, -1]]), tensor([[-1,  1,  3],
            [-1,  0,  1]]))
    """
    seen = (ids != Special.PAD) & (ids != Special.MASK)
    places = (~seen).byte().argsort(dim=1, stable=True)[:, : int(seen.sum(1).max())]
    elements = ids.gather(1, places).masked_fill(~seen.gather(1, places), Special.PAD)
    return F.pad(elements, (1, 0), value=Special.MASK), F.pad(places, (1, 0), value=NO_PLACE)
