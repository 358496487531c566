"""What a model is and how it is trained, as two dataclasses; the paper's twelve models as PRESETS, one for sequences.

Every default lives here and nowhere else. A config that cannot work is refused with all its faults in one line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from superbloom.config.option import is_number, is_seed, option
from superbloom.errors import InputError

MOST_HASHES, LONGEST_SEGMENT = 256, 100_000  # so that a small model folder cannot take hours to read, or to ask
SIZES = {"num_ids", "num_target_ids", "buckets"}  # what a corpus decides, or the model that is extended


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes and choices that fix a model's parameters and its answers.

    >>> ModelConfig(num_ids=1000, alpha=4).num_buckets
    250
    """

    num_ids: int
    num_hashes: int = option(2, "hash functions m: tokens per id")
    alpha: int = option(4, "ids that share a bucket; 1 is no hashing")
    hash_seed: int = option(0, "seed of the hash functions")
    spread: bool = option(True, "keep frequent ids out of each other's buckets; without, hashes are fully random")
    coherent: int = option(0, "of the hash functions, how many put ids together that go together: 0, 1 or 2 (App. D)")
    # [PAD] [MASK] [CLS] [SEP]; text models reserve more, as BERT does.
    num_special: int = option(4, "special ids, each with m tokens of its own")
    dim: int = option(128, "width d of the embeddings")
    heads: int = option(4, "attention heads; they divide dim")
    ffn_dim: int = option(512, "width of the feed-forward layers")
    layers: int = option(2, "Transformer layers L")
    attend: bool = option(True, "learn what to attend to; without, all elements count alike: a bag of digests")
    seq_len: int = option(32, "longest segment n")
    dropout: float = option(0.1, "dropout in training")
    norm: Literal["pre", "post"] = option("pre", "normalise before each part of a layer, or after it as the paper")
    inputs: Literal["sum", "tokens"] = option("sum", "read an id as the sum of its m tokens, or as m elements")
    mask_as: Literal["question", "element", "next"] = option(
        "question",
        "masks are one element, asked from each place in the last layer; or each an element, as in BERT; or each is "
        "told from what stands before it, and every element is to learn from",
    )
    distance: bool = option(True, "heads learn how much near elements count (n² numbers each); without, a row is a set")
    positions: bool = option(False, "learn a position per element")
    next_sentence: bool = option(False, "of text, also learn whether the second part of a segment follows the first")
    tied: bool = option(True, "use the input embedding as output embedding")
    transform: bool = option(False, "BERT's dense layer and norm before the output")
    output_bias: bool = option(True, "a bias per output token")
    softmax: Literal["per-hash", "joint"] = option("per-hash", "softmax over the buckets of each hash, or over all")
    buckets: int | None = None  # of a hash, if not num_ids / alpha: a model that was extended keeps those it had
    # A second vocabulary to predict, hashed by functions of its own (h differs from η, Sec. 2.3).
    num_target_ids: int | None = None
    target_alpha: int | None = option(None, "alpha of a second vocabulary, if rows carry targets (default: alpha)")

    def __post_init__(self) -> None:
        at_least_one = ("num_ids", "num_hashes", "alpha", "dim", "heads", "ffn_dim", "layers", "seq_len")
        faults = [f"{name}={getattr(self, name)}: 1 or more is allowed" for name in at_least_one if self._low(name, 1)]
        for name, most in (("num_hashes", MOST_HASHES), ("seq_len", LONGEST_SEGMENT)):
            if not faults and getattr(self, name) > most:
                faults.append(f"{name}={getattr(self, name)}: up to {most:,} is allowed")
        if not faults and self.dim % self.heads:
            divisors = [h for h in range(1, min(self.dim, 64) + 1) if self.dim % h == 0]
            faults.append(f"heads={self.heads} does not divide dim={self.dim}: choose one of {divisors}")
        for name in ("num_target_ids", "target_alpha", "buckets"):
            if getattr(self, name) is not None and self._low(name, 1):
                faults.append(f"{name}={getattr(self, name)}: 1 or more, or None, is allowed")
        if type(self.coherent) is not int or not 0 <= self.coherent <= 2:
            faults.append(f"coherent={self.coherent!r}: 0, 1 or 2 is allowed")
        elif not faults and self.coherent > self.num_hashes:
            faults.append(
                f"coherent={self.coherent} with num_hashes={self.num_hashes}: no more than there are is allowed"
            )
        if not is_seed(self.hash_seed):
            faults.append(f"hash_seed={self.hash_seed}: a whole number is allowed, 0 to 2^63 − 1")
        for name in ("spread", "attend", "distance", "positions", "next_sentence", "tied", "transform", "output_bias"):
            if type(getattr(self, name)) is not bool:
                faults.append(f"{name}={getattr(self, name)!r}: True or False is allowed")
        if self._low("num_special", 4):
            faults.append(f"num_special={self.num_special}: 4 or more is allowed")
        if not is_number(self.dropout) or not 0 <= self.dropout < 1:
            faults.append(f"dropout={self.dropout}: from 0 to below 1 is allowed")
        choices = (
            ("inputs", ("sum", "tokens")),
            ("mask_as", ("question", "element", "next")),
            ("norm", ("pre", "post")),
            ("softmax", ("per-hash", "joint")),
        )
        for name, allowed in choices:
            if getattr(self, name) not in allowed:
                faults.append(f"{name}={getattr(self, name)!r}: {' or '.join(map(repr, allowed))} is allowed")
        if self.next_sentence is True and self.mask_as == "next":
            faults.append("next_sentence=True with mask_as='next': what is read in order tells it anyway; leave it out")
        if self.num_target_ids is not None and self.tied:
            faults.append("tied=True with a second vocabulary: its tokens need an embedding of their own, tied=False")
        if faults:
            raise InputError("; ".join(faults))

    def _low(self, name: str, lowest: int) -> bool:
        value = getattr(self, name)
        return type(value) is not int or value < lowest

    @property
    def num_buckets(self) -> int:
        return self.buckets or -(-self.num_ids // self.alpha)

    @property
    def distinguishing_hashes(self) -> int:
        """Number of hash functions that must tell ids apart: two coherent ones share no pair of ids, and suffice."""
        return 2 if self.coherent == 2 else self.num_hashes

    @property
    def num_tokens(self) -> int:
        """Rows of the input embedding E^I."""
        return self.num_hashes * (self.num_buckets + self.num_special)

    @property
    def output_buckets(self) -> int:
        """Buckets of one hash of the output space."""
        if self.num_target_ids is None:
            return self.num_buckets
        return -(-self.num_target_ids // (self.target_alpha or self.alpha))
