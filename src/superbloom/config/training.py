"""How a model is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from superbloom.config.model import ModelConfig
from superbloom.config.option import (
    BELOW_ONE,
    BETWEEN_0_AND_1,
    FROM_0_TO_1,
    NOT_NEGATIVE,
    POSITIVE,
    SEED,
    faults,
    make,
    option,
    refuse,
    whole,
)
from superbloom.errors import InputError

DEFAULT_MINUTES = 5.0
MAX_MINUTES = 1e6
COUNT_OPTIONS = {"count_engine", "count_master", "count_mb"}  # where pairs are counted says nothing about the model


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a model is trained; the defaults suit small models on a few cores (docs/log.md)."""

    steps: int | None = option(None, "train this many steps in all", whole(1), common=True)
    minutes: float | None = option(None, "train this many minutes in all", POSITIVE, common=True)
    batch_size: int = option(128, "segments per step, over all processes", whole(1))
    learning_rate: float = option(2e-3, "highest learning rate", POSITIVE)
    warmup: int = option(200, "steps until the highest learning rate; it falls with 1/sqrt(step) after", whole(1))
    cooldown: float = option(
        0.0, "last share of the training in which the learning rate also falls linearly to 0; 0: none", FROM_0_TO_1
    )
    weight_decay: float = option(0.0, "decoupled weight decay", NOT_NEGATIVE)
    clip: float = option(1.0, "largest norm of the gradient", POSITIVE)
    average: float = option(
        0.998, "share of the past in the running mean of the weights that is the model; 0: none", BELOW_ONE
    )
    patience: int = option(
        20, "stop after this many validations without a better one; 0: take the last weights, not the best", whole(0)
    )
    mask_share: float = option(0.3, "share of a segment that is masked", BETWEEN_0_AND_1)
    warm_start: bool = option(True, "begin with embeddings from counted co-occurrence; without, with noise")
    remember: Literal["both", "pairs", "rows", "none"] = option(
        "both",
        "what the model keeps beside the network: names that stood together, training rows, both or none",
        common=True,
    )
    neighbours: int = option(64, "names kept for each name, with pairs: those that stood nearest most often", whole(1))
    count_engine: Literal["numpy", "duckdb", "spark"] = option(
        "numpy", "what counts pairs: numpy in memory, duckdb on disk, or spark; all give the same"
    )
    count_master: str | None = option(
        None,
        "the Spark master, with spark: spark://HOST:7077, local[4] …",
        shown_default="as Spark is configured, or this machine",
    )
    count_mb: int = option(2000, "megabytes of memory of duckdb, or of Spark's driver", whole(250))
    row_keys: bool = option(
        True, "with rows: keep the key of each row, such as its page, user or file, to name it in explanations"
    )
    half_life: float | None = option(
        None,
        "what the model remembers counts half after this many more events of the same row; needs a log of events",
        POSITIVE,
        shown_default="none: old events count as much as new ones",
    )
    seed: int = option(0, "seed of weights, batches and dropout", SEED, common=True)
    precision: Literal["auto", "fp32", "bf16"] = option(
        "auto",
        "arithmetic. auto: fp32, with products in bf16 where the CPU has AMX instructions. fp32: all in fp32. "
        "bf16: layers in bf16, for accelerators",
    )
    loss: Literal["full", "sampled"] = option("full", "softmax over all tokens, or a sample of them (unhashed only)")
    samples: int = option(8192, "negatives of the sampled softmax", whole(1))
    proposal: Literal["log-uniform", "empirical"] = option("log-uniform", "how those negatives are drawn")
    log_q: bool = option(True, "lower the logit of a negative by the log of how often it is drawn; without, learn that")
    logits_mb: int = option(128, "megabytes of logits held at a time", whole(1))
    valid_every: int = option(250, "steps between validations", whole(1))
    valid_rows: int = option(1000, "hidden elements of a validation", whole(1))
    save_every: int = option(500, "steps between checkpoints", whole(1))
    devices: int | None = option(
        None, "processes on this machine, one per device (default: 1, or as torchrun says)", whole(1)
    )
    strategy: Literal["ddp", "fsdp"] = option("ddp", "what several processes hold: the whole model, or a share each")
    workers: int = option(0, "extra processes per training process that make batches ahead; 0: none", whole(0, 256))

    def __post_init__(self) -> None:
        found = faults(self)
        if (self.steps is None) == (self.minutes is None):
            found.insert(0, f"steps={self.steps}, minutes={self.minutes}: give one of them")
        elif not found and self.minutes is not None and self.minutes > MAX_MINUTES:
            found.append(f"minutes={self.minutes}: up to a million is allowed")
        if self.count_master is not None and self.count_engine != "spark":
            found.append(f"count_master={self.count_master!r:.80}: only with count_engine='spark'")
        refuse(found)

    @property
    def counting(self) -> dict[str, Any]:
        """Where pairs are counted, as remember takes it."""
        return {"engine": self.count_engine, "master": self.count_master, "megabytes": self.count_mb}

    @property
    def memory_options(self) -> dict[str, Any]:
        """How a memory is counted, as remember takes it."""
        kept = {"neighbours": self.neighbours, "row_keys": self.row_keys, "half_life": self.half_life}
        return kept | self.counting

    def check_with(self, model: ModelConfig) -> None:
        """Raise InputError if this training does not suit a model."""
        if self.loss == "sampled" and model.num_hashes > 1:
            raise InputError(
                f"loss='sampled' with num_hashes={model.num_hashes}: sampling is the unhashed baseline's; "
                "use loss='full' or num_hashes=1, alpha=1"
            )


def train_config(**options: Any) -> TrainConfig:
    """The training that these options describe; five minutes unless they say how long."""
    if options.get("steps") is None and options.get("minutes") is None:
        options["minutes"] = DEFAULT_MINUTES
    return make(TrainConfig, options)
