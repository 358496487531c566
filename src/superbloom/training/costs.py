"""What a model costs, by formulas: bytes of training and serving, operations of a step (docs/sizes.md)."""

from __future__ import annotations

from superbloom.config import ModelConfig, Settings, TrainConfig
from superbloom.model import piece_shape
from superbloom.model.head import BYTES_PER_WEIGHT
from superbloom.model.masks import SCHEMES
from superbloom.training.limits import BYTES_PER_COPY

PROGRAM_BYTES = 450 * 2**20  # of Python and the libraries, before there is a model


def train_memory(config: ModelConfig, training: TrainConfig, size: int) -> dict[str, int]:
    """Peak bytes of each part of training, without the corpus, which is memory-mapped."""
    elements, asked = _elements(config, training)
    queries = asked * training.batch_size * (config.num_hashes if config.softmax == "joint" else 1)
    tokens = config.output_buckets * softmaxes_joined(config)
    if training.loss == "sampled":
        tokens = min(tokens, training.samples)
    rows, width = piece_shape(queries, tokens, training.logits_mb)
    each = elements * (12 * config.dim + 2 * config.ffn_dim) + 3 * config.heads * elements**2 * config.distance
    parts = {
        "weights": 4 * size,
        # A tied embedding has a gradient from the input and one from the output before they are added.
        "gradients": 4 * size + (4 * config.num_tokens * config.dim if config.tied else 0),
        "optimizer": 8 * size,
        "average": BYTES_PER_COPY * size * bool(training.average),
        "best weights": BYTES_PER_COPY * size * bool(training.patience),
        "logits": 4 * rows * width,
        "activations": 4 * training.batch_size * (config.layers * each + 4 * asked * config.num_hashes * config.dim),
        "hash tables": _tables(config),
        "program": PROGRAM_BYTES,
    }
    processes = training.devices or 1
    return {name: processes * value for name, value in parts.items()}


def serve_memory(config: ModelConfig, size: int) -> dict[str, int]:
    """Bytes of a serving process for each precision of the output weights.

    bf16 and int8 weights are made from the fp32 file, which stays memory-mapped. A tied embedding takes memory only for
    the rows that are read.
    """
    output = output_weights(config)
    batch = Settings().batch
    fixed = PROGRAM_BYTES + _tables(config) + 4 * (config.num_ids * config.num_hashes + 2 * config.num_ids)
    fixed += 2 * 4 * batch * config.num_hashes * config.output_buckets * softmaxes_joined(config)
    return {name: fixed + 4 * (size - output) + bytes_ * output for name, bytes_ in BYTES_PER_WEIGHT.items()}


def operations(config: ModelConfig, training: TrainConfig, filled: float = 1.0) -> dict[str, float]:
    """Floating-point operations of a step: the products of the forward pass, and twice that number backward.

    filled: the share of a segment that is no padding. Padding is read, but not predicted.
    """
    elements, asked = _elements(config, training)
    d, f = config.dim, config.ffn_dim
    each = config.num_hashes if config.inputs == "tokens" else 1
    whole = 2 * elements * (4 * d * d + 2 * d * f) + 4 * elements**2 * d
    queries = asked * each
    last = 2 * queries * (2 * d * d + 2 * d * f) + 4 * elements * d * d + 4 * queries * elements * d
    if SCHEMES[config.mask_as].is_ordered:
        last = whole
    tokens = config.output_buckets * softmaxes_joined(config)
    if training.loss == "sampled":
        tokens = min(tokens, training.samples)
    output = 2 * filled * asked * config.num_hashes * tokens * d
    return {
        "layers": 3.0 * training.batch_size * ((config.layers - 1) * whole + last),
        "output": 3.0 * training.batch_size * output,
    }


def _elements(config: ModelConfig, training: TrainConfig) -> tuple[int, int]:
    """The number of elements of a segment that the layers read, and the number of places that are predicted."""
    n = config.seq_len
    each = config.num_hashes if config.inputs == "tokens" else 1
    elements, predicted = SCHEMES[config.mask_as].sizes(n, max(1, round(training.mask_share * n)))
    return each * elements, predicted


def softmaxes_joined(config: ModelConfig) -> int:
    return config.num_hashes if config.softmax == "joint" else 1


def output_weights(config: ModelConfig) -> int:
    return config.num_hashes * config.output_buckets * config.dim


def _tables(config: ModelConfig) -> int:
    return 2 * 4 * config.num_ids * config.num_hashes + 8 * config.num_hashes * (config.num_buckets + 1)
