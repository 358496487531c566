"""The figures of a run: log.csv for reading, tensorboard/ for TensorBoard.

When a run resumes, lines beyond its checkpoint are removed. So the log is the same however often the run was killed.
"""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path

from superbloom.errors import InputError
from superbloom.storage import write_atomically

LOG_FILE, TENSORBOARD_FOLDER = "log.csv", "tensorboard"
COLUMNS = ("step", "loss", "learning_rate", "gradient_norm", "valid_recall_at_10", "seconds")


class Log:
    """Writes the log of a run that has done `step` steps."""

    def __init__(self, run: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if (run / TENSORBOARD_FOLDER).is_symlink():
            raise InputError(f"{run / TENSORBOARD_FOLDER} is a link; remove it, so that nothing is written elsewhere")
        run.mkdir(parents=True, exist_ok=True)
        path = run / LOG_FILE
        write_atomically(path, _up_to(path.read_text(errors="replace") if path.is_file() else "", step).encode())
        self._file = path.open("a", newline="")
        self._rows = csv.DictWriter(self._file, COLUMNS, lineterminator="\n")
        # purge_step: TensorBoard hides figures of earlier files from this step on.
        self._tensorboard = SummaryWriter(str(run / TENSORBOARD_FOLDER), purge_step=step + 1)

    def write(self, step: int, seconds: float, **figures: float) -> None:
        self._rows.writerow({"step": step, "seconds": round(seconds, 3), **figures})
        self._file.flush()
        for name, value in figures.items():
            self._tensorboard.add_scalar(name, value, step)

    def sync(self) -> None:
        """Force the log to disk. Call it before a checkpoint is written, so that the log is never behind."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
        self._tensorboard.close()


def _up_to(text: str, step: int) -> str:
    """The header and the complete lines of a log up to a step.

    >>> _up_to("step,loss\\n25,3.5\\n50,3.1\\n75,2", step=60).splitlines()[1:]
    ['25,3.5', '50,3.1']
    """
    whole = text[: text.rfind("\n") + 1]
    kept = [line for line in io.StringIO(whole) if line.split(",")[0].isdecimal() and int(line.split(",")[0]) <= step]
    return ",".join(COLUMNS) + "\n" + "".join(kept)
