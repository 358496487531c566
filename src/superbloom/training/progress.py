"""Progress of training, as a bar in a terminal or as a line now and then elsewhere."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from superbloom.config import TrainConfig

PLAIN_LINE_SECONDS = 30.0  # between two lines of progress where there is no terminal


class TrainingProgress:
    """Shows the share of steps or minutes done, with loss and validation recall."""

    def __init__(self, config: TrainConfig, quiet: bool) -> None:
        self.minutes, self.quiet = config.minutes, quiet
        self.total = config.steps if self.minutes is None else self.minutes * 60
        self.console = Console(stderr=True)
        self.printed = time.monotonic()
        self.bar = Progress(
            TextColumn("training"),
            BarColumn(),
            TextColumn("step {task.fields[step]:,}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            TextColumn("loss {task.fields[loss]}  recall@10 {task.fields[valid]}"),
            console=self.console,
            disable=quiet or not self.console.is_terminal,
        )
        self.task = self.bar.add_task("", total=self.total, step=0, loss="–", valid="–")

    def __enter__(self) -> TrainingProgress:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def update(self, step: int, seconds: float, loss: float, valid: float | None) -> None:
        done = step if self.minutes is None else seconds
        shown: dict[str, Any] = {"step": step, "loss": f"{loss:.3f}", "valid": "–" if valid is None else f"{valid:.3f}"}
        if not self.console.is_terminal and not self.quiet and time.monotonic() - self.printed > PLAIN_LINE_SECONDS:
            self.printed = time.monotonic()
            share = f"{done / self.total:.0%}" if self.total else ""
            self.console.print(f"training {share} step {step:,}  loss {shown['loss']}  recall@10 {shown['valid']}")
        elif not self.bar.disable:
            self.bar.update(self.task, completed=done, **shown)

    def print_line(self, line: str) -> None:
        if not self.quiet:
            self.console.print(line, markup=False, highlight=False)
