"""What a model is and how it is trained, as two dataclasses; the paper's twelve models as PRESETS, one for sequences.

Every default lives here and nowhere else. A config that cannot work is refused with all its faults in one line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from superbloom.errors import InputError

MOST_HASHES, LONGEST_SEGMENT = 256, 100_000  # so that a small model folder cannot take hours to read, or to ask
SIZES = {"num_ids", "num_target_ids", "buckets"}  # what a corpus decides, or the model that is extended


def option(default: Any, help_: str) -> Any:
    """A field with a default and the sentence the command line shows for it."""
    return field(default=default, metadata={"help": help_})


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
        if not _seed(self.hash_seed):
            faults.append(f"hash_seed={self.hash_seed}: a whole number is allowed, 0 to 2^63 − 1")
        for name in ("spread", "attend", "distance", "positions", "next_sentence", "tied", "transform", "output_bias"):
            if type(getattr(self, name)) is not bool:
                faults.append(f"{name}={getattr(self, name)!r}: True or False is allowed")
        if self._low("num_special", 4):
            faults.append(f"num_special={self.num_special}: 4 or more is allowed")
        if not _number(self.dropout) or not 0 <= self.dropout < 1:
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
    def telling(self) -> int:
        """Hash functions that have to tell ids apart: two coherent ones share no pair, and do it alone."""
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


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a model is trained; the defaults suit small models on a few cores (docs/log.md)."""

    steps: int | None = option(None, "train this many steps in all")
    minutes: float | None = option(None, "train this many minutes in all")
    batch_size: int = option(128, "segments per step, over all processes")
    learning_rate: float = option(2e-3, "highest learning rate")
    warmup: int = option(200, "steps until the highest learning rate; it falls with 1/sqrt(step) after")
    weight_decay: float = option(0.0, "decoupled weight decay")
    clip: float = option(1.0, "largest norm of the gradient")
    average: float = option(0.998, "share of the past in the running mean of the weights that is the model; 0: none")
    patience: int = option(
        20, "stop after so many validations without a better one; 0: take the last weights, not the best"
    )
    mask_share: float = option(0.3, "share of a segment that is masked")
    warm_start: bool = option(True, "begin with embeddings from counted co-occurrence; without, with noise")
    seed: int = option(0, "seed of weights, batches and dropout")
    precision: Literal["fp32", "bf16"] = option("fp32", "arithmetic of the layers")
    loss: Literal["full", "sampled"] = option("full", "softmax over all tokens, or a sample of them (unhashed only)")
    samples: int = option(8192, "negatives of the sampled softmax")
    proposal: Literal["log-uniform", "empirical"] = option("log-uniform", "how those negatives are drawn")
    logits_mb: int = option(128, "megabytes of logits held at a time")
    valid_every: int = option(250, "steps between validations")
    valid_rows: int = option(1000, "hidden elements of a validation")
    save_every: int = option(500, "steps between checkpoints")
    devices: int | None = option(None, "processes on this machine, one a device (default: 1, or as torchrun says)")
    strategy: Literal["ddp", "fsdp"] = option("ddp", "what several processes hold: the whole model, or a share each")
    workers: int = option(0, "processes beside each that make batches ahead; 0 makes them in turn")

    def __post_init__(self) -> None:
        faults = []
        if (self.steps is None) == (self.minutes is None):
            faults.append(f"steps={self.steps}, minutes={self.minutes}: give one of them")
        at_least_one = ("batch_size", "warmup", "samples", "logits_mb", "valid_every", "valid_rows", "save_every")
        for name in (*at_least_one, *(name for name in ("steps", "devices") if getattr(self, name) is not None)):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                faults.append(f"{name}={getattr(self, name)}: 1 or more is allowed")
        for name in ("learning_rate", "clip", *(("minutes",) if self.minutes is not None else ())):
            if not _number(getattr(self, name)) or not 0 < getattr(self, name) < math.inf:
                faults.append(f"{name}={getattr(self, name)}: more than 0 is allowed")
        if self.minutes is not None and self.minutes > 1e6:
            faults.append(f"minutes={self.minutes}: up to a million is allowed")
        if not _number(self.weight_decay) or not 0 <= self.weight_decay < math.inf:
            faults.append(f"weight_decay={self.weight_decay}: from 0 is allowed")
        if not _number(self.average) or not 0 <= self.average < 1:
            faults.append(f"average={self.average}: from 0 to below 1 is allowed")
        if type(self.warm_start) is not bool:
            faults.append(f"warm_start={self.warm_start!r}: True or False is allowed")
        if type(self.patience) is not int or self.patience < 0:
            faults.append(f"patience={self.patience}: 0 or more is allowed")
        if type(self.workers) is not int or not 0 <= self.workers <= 256:
            faults.append(f"workers={self.workers}: 0 to 256 is allowed")
        if not _seed(self.seed):
            faults.append(f"seed={self.seed}: 0 to 2^63 − 1 is allowed")
        if not _number(self.mask_share) or not 0 < self.mask_share < 1:
            faults.append(f"mask_share={self.mask_share}: between 0 and 1 is allowed")
        choices = (
            ("precision", ("fp32", "bf16")),
            ("loss", ("full", "sampled")),
            ("proposal", ("log-uniform", "empirical")),
            ("strategy", ("ddp", "fsdp")),
        )
        for name, allowed in choices:
            if getattr(self, name) not in allowed:
                faults.append(f"{name}={getattr(self, name)!r}: {' or '.join(map(repr, allowed))} is allowed")
        if faults:
            raise InputError("; ".join(faults))

    def check_with(self, model: ModelConfig) -> None:
        """Raise InputError if this training does not suit a model."""
        if self.loss == "sampled" and model.num_hashes > 1:
            raise InputError(
                f"loss='sampled' with num_hashes={model.num_hashes}: sampling is the unhashed baseline's; "
                "use loss='full' or num_hashes=1, alpha=1"
            )


def _seed(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class Preset:
    """A row of the paper's tables: the model, and the size printed there (its M is 2^20, its G 2^30)."""

    table: int
    printed: str
    config: ModelConfig
    training: dict[str, Any] = field(default_factory=dict)

    @property
    def printed_parameters(self) -> float:
        return float(self.printed[:-1]) * {"M": 2**20, "G": 2**30}[self.printed[-1]]


# Sec. 3.2: Adam with inverse-square-root decay, these learning rates and batches. Sec. 4 does not give them.
_PRESETS = {"warm_start": False, "mask_share": 0.15, "average": 0.0, "patience": 0}
_FULL = _PRESETS | {"learning_rate": 1e-4, "batch_size": 1024}
_TOP = _PRESETS | {"learning_rate": 2e-4, "batch_size": 4096}
WIKIPEDIA_IDS = 5_281_889
TOP_IDS = 500_000
TEXT_IDS = 1_000_000
TEXT_RESERVED = 999  # BERT's vocabulary file has about as many [unused] and special entries


def _paper(num_ids: int, alpha: int, dim: int, heads: int, ffn_dim: int, layers: int, **other: Any) -> ModelConfig:
    """The paper's architecture (Sec. 2, App. A) with BERT's transform and bias, not its dropout within layers."""
    return ModelConfig(
        num_ids=num_ids,
        num_hashes=1 if alpha == 1 else 2,
        alpha=alpha,
        dim=dim,
        heads=heads,
        ffn_dim=ffn_dim,
        layers=layers,
        dropout=0.1,
        spread=False,
        inputs="tokens",
        mask_as="element",
        distance=False,
        norm="post",
        transform=True,
        softmax="joint",
        **other,
    )


def _text(alpha: int, dim: int, heads: int, ffn_dim: int, layers: int) -> ModelConfig:
    text = {"positions": True, "seq_len": 512, "num_special": TEXT_RESERVED}
    return _paper(TEXT_IDS - TEXT_RESERVED, alpha, dim, heads, ffn_dim, layers, **text)


PRESETS = {
    "baseline": Preset(1, "248M", _paper(WIKIPEDIA_IDS, 1, 48, 4, 1024, 12), _FULL),
    "sampled-softmax": Preset(
        1, "2.6G", _paper(WIKIPEDIA_IDS, 1, 512, 8, 2048, 12), _FULL | {"loss": "sampled", "samples": 131_072}
    ),
    "superbloom": Preset(1, "229M", _paper(WIKIPEDIA_IDS, 50, 768, 12, 3072, 12), _FULL),
    "baseline-l1": Preset(3, "123M", _paper(TOP_IDS, 1, 256, 1, 1024, 1), _TOP),
    "baseline-l12": Preset(3, "132M", _paper(TOP_IDS, 1, 256, 8, 1024, 12), _TOP),
    "superbloom-d256l1": Preset(3, "13M", _paper(TOP_IDS, 20, 256, 1, 1024, 1), _TOP),
    "superbloom-d384l1": Preset(3, "21M", _paper(TOP_IDS, 20, 384, 1, 1536, 1), _TOP),
    "superbloom-d256l12": Preset(3, "21M", _paper(TOP_IDS, 20, 256, 8, 1024, 12), _TOP),
    "baseline-h64": Preset(4, "62.6M", _text(1, 64, 4, 256, 12), _PRESETS),
    "baseline-h256": Preset(4, "254.4M", _text(1, 256, 8, 1024, 12), _PRESETS),
    "hash40-h512": Preset(4, "62.3M", _text(40, 512, 8, 2048, 12), _PRESETS),
    "hash20-h1024": Preset(4, "246.3M", _text(20, 1024, 16, 4096, 12), _PRESETS),
}
# Users and what they chose, in the order of time: told from what stands before it (docs/recommend.md).
SEQUENCE = {"mask_as": "next", "positions": True, "seq_len": 50}
# Text: masks as in BERT, and no start from co-occurrence, which takes longer than what it brings (docs/log.md).
TEXT = {"positions": True, "seq_len": 64}
TEXT_TRAINING = {"mask_share": 0.15, "batch_size": 64, "warm_start": False}
OURS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {"sequence": (SEQUENCE, {}), "text": (TEXT, TEXT_TRAINING)}
PRESET_NAMES = (*PRESETS, *OURS)


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What of these options is the model's, and what its training's."""
    shape = {field.name for field in fields(ModelConfig)}
    given = options.items()
    return {name: value for name, value in given if name in shape}, {n: value for n, value in given if n not in shape}


def preset_options(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a preset decides of a model, all but its names for one of the paper, and of its training."""
    if name not in PRESET_NAMES:
        raise InputError(f"preset {name!r} given; {', '.join(PRESET_NAMES)} are allowed")
    if name in OURS:
        model, training = OURS[name]
        return dict(model), dict(training)
    return {k: v for k, v in asdict(PRESETS[name].config).items() if k not in SIZES}, PRESETS[name].training
