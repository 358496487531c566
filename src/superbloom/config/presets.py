"""Presets: the paper's twelve models (Tables 1, 3 and 4), and our recipes for sequences and for text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from superbloom.config.model import SIZES, ModelConfig
from superbloom.errors import InputError


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
_PRESETS = {"warm_start": False, "mask_share": 0.15, "average": 0.0, "patience": 0, "remember": "none"}
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
        score="sum",
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
# Users and what they chose, in the order of time: each item is predicted from those before it (docs/recommendation.md).
SEQUENCE = {"mask_as": "next", "positions": True, "seq_len": 50}
# Text: masks as in BERT. No start from co-occurrence: it costs more time than it saves (docs/log.md).
TEXT = {"positions": True, "seq_len": 64}
TEXT_TRAINING = {"mask_share": 0.15, "batch_size": 64, "warm_start": False}
RECIPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "entities": ({}, {}),  # rows of names, such as the links of a page: the defaults
    "sequence": (SEQUENCE, {}),
    "text": (TEXT, TEXT_TRAINING),
}
PRESET_NAMES = (*RECIPES, *PRESETS)


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split options into those of the model and those of its training."""
    shape = {field.name for field in fields(ModelConfig)}
    given = options.items()
    return {name: value for name, value in given if name in shape}, {n: value for n, value in given if n not in shape}


def preset_options(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The model options and the training options of a preset."""
    if name not in PRESET_NAMES:
        raise InputError(f"preset {name!r} given; {', '.join(PRESET_NAMES)} are allowed")
    if name in RECIPES:
        model, training = RECIPES[name]
        return dict(model), dict(training)
    return {k: v for k, v in asdict(PRESETS[name].config).items() if k not in SIZES}, PRESETS[name].training
