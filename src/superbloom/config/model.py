"""What a model is: sizes and choices that fix its parameters and its answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from superbloom.config.option import BELOW_ONE, POSITIVE, SEED, faults, option, refuse, whole

# Limits for files from elsewhere: a small model folder must not take hours to read or to ask.
MAX_HASHES, MAX_SEQ_LEN = 256, 100_000
MAX_DIVISORS_SHOWN = 64
CHOSEN_BY_TRAIN = "as catalogue, time and memory allow; see superbloom plan"
SIZE = {"allowed": whole(1)}  # a field without help is no option of the command line
SIZES = {"num_ids", "num_target_ids", "buckets"}  # decided by the corpus, or by the model that is extended


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes and choices that fix a model's parameters and its answers.

    >>> ModelConfig(num_ids=1000, alpha=4).num_buckets
    250
    """

    num_ids: int = field(metadata=SIZE)
    num_hashes: int = option(
        2, "hash functions m: tokens per id", whole(1, MAX_HASHES), shown_default="2; 1 without hashing"
    )
    alpha: int = option(
        4, "ids that share a bucket; 1 is no hashing", whole(1), shown_default=CHOSEN_BY_TRAIN, common=True
    )
    hash_seed: int = option(0, "seed of the hash functions", SEED)
    spread: bool = option(True, "keep frequent ids out of each other's buckets; without, hashes are fully random")
    coherent: int = option(
        0, "hash functions that put ids together that occur together: 0, 1 or 2 (App. D)", whole(0, 2)
    )
    # [PAD] [MASK] [CLS] [SEP]; text models reserve more, as BERT does.
    num_special: int = option(4, "special ids, each with m tokens of its own", whole(4))
    dim: int = option(128, "width d of the embeddings", whole(1), shown_default=CHOSEN_BY_TRAIN, common=True)
    heads: int = option(4, "attention heads; they divide dim", whole(1), shown_default="one per 64 columns, at least 4")
    ffn_dim: int = option(512, "width of the feed-forward layers", whole(1), shown_default="4 · dim")
    layers: int = option(2, "Transformer layers L", whole(1), common=True)
    attend: bool = option(True, "learn what to attend to; without, all elements count alike: a bag of digests")
    seq_len: int = option(32, "longest segment n", whole(1, MAX_SEQ_LEN), common=True)
    dropout: float = option(0.1, "dropout in training", BELOW_ONE)
    embedding_std: float = option(
        0.02,
        "standard deviation of embeddings that start from noise; larger ones keep their identity in deep models",
        POSITIVE,
    )
    norm: Literal["pre", "post"] = option("pre", "normalise before each part of a layer, or after it as in the paper")
    inputs: Literal["sum", "tokens"] = option("sum", "read an id as the sum of its m tokens, or as m elements")
    mask_as: Literal["question", "element", "next"] = option(
        "question",
        "how [MASK] is modelled. question: one shared mask, queried per position in the last layer. element: one mask "
        "per position, as in BERT. next: predict each element from those before it",
    )
    distance: bool = option(True, "heads learn how much near elements count (n² numbers each); without, a row is a set")
    positions: bool = option(False, "learn a position per element")
    next_sentence: bool = option(False, "for text: also learn whether the second part of a segment follows the first")
    tied: bool = option(True, "use the input embedding as output embedding")
    transform: bool = option(False, "BERT's dense layer and norm before the output")
    output_bias: bool = option(True, "a bias per output token")
    softmax: Literal["per-hash", "joint"] = option("per-hash", "softmax over the buckets of each hash, or over all")
    score: Literal["posterior", "sum"] = option(
        "posterior", "how names are scored. posterior: the probability of each name. sum: the paper's sum over hashes"
    )
    buckets: int | None = field(
        default=None, metadata=SIZE
    )  # per hash, if not num_ids / alpha: an extended model keeps those it had
    # A second vocabulary to predict, hashed by functions of its own (h differs from η, Sec. 2.3).
    num_target_ids: int | None = field(default=None, metadata=SIZE)
    target_alpha: int | None = option(
        None, "alpha of a second vocabulary, if rows carry targets (default: alpha)", whole(1)
    )

    def __post_init__(self) -> None:
        refuse(faults(self) or self._conflicts())

    def _conflicts(self) -> list[str]:
        """Values that are allowed each, but not together."""
        found = []
        if self.dim % self.heads:
            divisors = [h for h in range(1, min(self.dim, MAX_DIVISORS_SHOWN) + 1) if self.dim % h == 0]
            found.append(f"heads={self.heads} does not divide dim={self.dim}: choose one of {divisors}")
        if self.coherent > self.num_hashes:
            found.append(
                f"coherent={self.coherent} with num_hashes={self.num_hashes}: no more than there are is allowed"
            )
        if self.next_sentence and self.mask_as == "next":
            found.append("next_sentence=True with mask_as='next': reading in order learns that anyway; leave it out")
        if self.num_target_ids is not None and self.tied:
            found.append("tied=True with a second vocabulary: its tokens need an embedding of their own, tied=False")
        return found

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


def with_proportions(options: dict[str, Any]) -> dict[str, Any]:
    """The options with heads and ffn_dim in the paper's proportion to dim, unless they are given."""
    dim = options.get("dim")
    if type(dim) is not int or dim < 1:
        return options
    heads = next(h for h in range(max(4, dim // 64), 0, -1) if dim % h == 0)
    return {"heads": heads, "ffn_dim": 4 * dim} | options
