"""Whether a command may replace what it finds where it writes."""

from __future__ import annotations

from dataclasses import dataclass

from superbloom.config.option import option, settle


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """What happens to a finished model, corpus, report or table at the place of the new one."""

    overwrite: bool = option(
        False, "Replace what an earlier command wrote to --out. (default: refuse)", flag="--overwrite"
    )

    def __post_init__(self) -> None:
        settle(self)
