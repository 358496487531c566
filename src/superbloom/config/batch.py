"""Where `recommend` computes the answers of many users."""

from __future__ import annotations

from dataclasses import dataclass

from superbloom.config.option import option, settle, whole


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """Processes on this machine, or Spark."""

    processes: int = option(
        1, "Processes on this machine that share the users; each computes with one thread.", whole(1)
    )
    master: str | None = option(
        None, "With --engine spark: the master, spark://HOST:PORT, local[N], yarn …", shown_default="Spark's own"
    )
    ship_model: bool = option(
        False,
        "With --engine spark: send the model to the workers. (default: they read the folder, on a disk they share)",
        flag="--ship-model",
    )

    def __post_init__(self) -> None:
        settle(self)
