"""The run folder, MODEL.run beside a model folder: what training keeps while it runs, and who may write there.

    run.json       settings of `superbloom train`, and whether the run has finished
    log.csv        figures for reading (logs.py)
    tensorboard/   the same figures for TensorBoard
    step-….ckpt    the last two checkpoints (checkpoints.py)
    .lock          held while a process trains here

`superbloom train` writes run.json and may clear an earlier run. `Superbloom.fit(run=…)` writes no run.json and clears
nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from superbloom.config import COUNT_OPTIONS
from superbloom.errors import InputError
from superbloom.runtime import is_main_process
from superbloom.storage import locked, read_json, write_atomically
from superbloom.training.checkpoints import checkpoints, step_of
from superbloom.training.logs import LOG_FILE, TENSORBOARD_FOLDER

SETTINGS_FILE = "run.json"
LOCK_FILE = ".lock"
# How many processes train and what counts pairs may differ each time a run is resumed. These options are not stored.
PLACEMENT_OPTIONS = {"devices", "strategy", "workers"} | COUNT_OPTIONS
LENGTH_OPTIONS = {"steps", "minutes"}


@dataclass(frozen=True)
class RunSettings:
    """The options of `superbloom train`: enough to resume a run without repeating them."""

    preset: str | None
    from_model: str | None  # an absolute path
    model: dict[str, Any]
    train: dict[str, Any]

    @classmethod
    def read(cls, run: Path) -> RunSettings:
        """The settings in run.json; InputError if it holds anything else."""
        file = run / SETTINGS_FILE
        stored = {"preset": None, "from_model": None} | read_json(file)
        kinds = {"preset": str | None, "from_model": str | None, "model": dict, "train": dict}
        # subtle: we write absolute paths; any other name would be looked up on the Hugging Face hub
        is_relative = isinstance(stored["from_model"], str) and not Path(stored["from_model"]).is_absolute()
        if is_relative or not all(isinstance(stored.get(name), kind) for name, kind in kinds.items()):
            raise InputError(f"{file} was not written by superbloom, or is damaged; train without --resume")
        return cls(**{name: stored[name] for name in kinds})

    def with_training(self, given: dict[str, Any]) -> RunSettings:
        """These settings with other training options.

        >>> settings = RunSettings(None, None, {}, {"steps": 100, "clip": 0.5})
        >>> settings.with_training({"minutes": 2}).train              # one length replaces the other
        {'clip': 0.5, 'minutes': 2}
        """
        replaced = LENGTH_OPTIONS if LENGTH_OPTIONS & given.keys() else set[str]()
        kept = {name: value for name, value in self.train.items() if name not in replaced}
        return replace(self, train=kept | given)


@dataclass(frozen=True)
class RunFolder:
    """A run folder as one training uses it.

    settings: those of `superbloom train`, written to run.json; a new run then clears an earlier one that has finished.
    overwrite: also clear an interrupted one. Without settings, a new run needs a folder without checkpoints.
    """

    path: Path
    settings: RunSettings | None = None
    overwrite: bool = False

    def check_new(self) -> None:
        """Raise InputError if a new run in this folder would destroy something."""
        if not is_main_process():  # the main process may already be writing here
            return
        found = checkpoints(self.path)
        if self.settings is None:
            if found:
                raise InputError(
                    f"{self.path} holds a run of {step_of(found[0]):,} steps; continue it with resume=True, or choose "
                    "another folder"
                )
            return
        own = {SETTINGS_FILE, LOG_FILE, TENSORBOARD_FOLDER, *(file.name for file in found)}
        strangers = {file.name for file in self.path.glob("*") if not file.name.startswith(".")} - own
        if strangers:
            raise InputError(
                f"{self.path} also holds {min(strangers)!r}, no part of a run; move it away or choose another --out"
            )
        if found and not self.overwrite and not self._is_finished():
            raise InputError(
                f"{self.path} holds an interrupted run; --resume continues it, --overwrite deletes it and starts over"
            )

    def is_begun(self) -> bool:
        """Whether there is a run to resume. It was allowed to replace the model when it began."""
        return bool(checkpoints(self.path)) or ((self.path / SETTINGS_FILE).is_file() and not self._is_finished())

    def begin(self, resume: bool) -> None:
        """Make the folder ready for training. fit calls it when nothing is left that could be refused."""
        if self.settings is None or not is_main_process():
            return
        if not resume:
            self._clear()
        self._write_settings(finished=False)

    def mark_finished(self) -> None:
        """Let the next `superbloom train` clear this run without --overwrite."""
        if is_main_process():
            self._write_settings(finished=True)

    def _clear(self) -> None:
        """Remove an earlier run: checkpoints first, so that a half-removed run is not mistaken for one to resume."""
        for part in (*checkpoints(self.path), *map(self.path.joinpath, (LOG_FILE, TENSORBOARD_FOLDER, SETTINGS_FILE))):
            if part.is_dir():
                shutil.rmtree(part)
            else:
                part.unlink(missing_ok=True)

    def _is_finished(self) -> bool:
        file = self.path / SETTINGS_FILE
        return file.is_file() and bool(read_json(file).get("finished"))

    def _write_settings(self, finished: bool) -> None:
        assert self.settings is not None
        stored = asdict(self.settings)
        stored["train"] = {name: value for name, value in stored["train"].items() if name not in PLACEMENT_OPTIONS}
        data = json.dumps(stored | {"finished": finished}, indent=2).encode()
        write_atomically(self.path / SETTINGS_FILE, data)


@contextmanager
def lock_run(run: Path) -> Iterator[None]:
    """Lock a run folder against other trainings until the block or the process ends."""
    if not is_main_process():
        yield
        return
    run.mkdir(parents=True, exist_ok=True)
    with locked(run / LOCK_FILE, f"another process is training in {run}; wait for it, or choose another --out"):
        yield
