"""Checkpoints of a run: their names, the newest whole one, and whether it belongs to this model and corpus.

    step-000000500-1f3a9c0d5b7e2a64.ckpt

is the state after 500 steps. The rest of the name is the first 16 digits of the file's sha256, so name and content
show whether the file is whole. Checkpoints are read without pickle. checkpoint_io.py writes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from superbloom.corpus import Corpus
from superbloom.errors import InputError, room_for
from superbloom.model import Model
from superbloom.storage import sha256
from superbloom.training.choice import CHOSEN

CHECKPOINT_NAME = re.compile(r"step-(\d+)-([0-9a-f]{16})\.ckpt")
IDENTITY = "superbloom"  # key in a checkpoint: the model and the corpus it belongs to


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, newest first, whole or damaged."""
    found = [file for file in run.glob("step-*.ckpt") if CHECKPOINT_NAME.fullmatch(file.name)]
    return sorted(found, key=step_of, reverse=True)


def checkpoint_name(step: int, checksum: str) -> str:
    """The file name of a checkpoint.

    >>> checkpoint_name(500, "1f3a9c0d5b7e2a64" + 48 * "0")
    'step-000000500-1f3a9c0d5b7e2a64.ckpt'
    """
    return f"step-{step:09d}-{checksum[:16]}.ckpt"


def step_of(checkpoint: Path) -> int:
    match = CHECKPOINT_NAME.fullmatch(checkpoint.name)
    assert match
    return int(match[1])


def newest_whole(run: Path, notice: Callable[[str], None]) -> Path | None:
    """The newest checkpoint that is as it was written. Calls `notice` with a line for each damaged newer one."""
    for file in checkpoints(run):
        if sha256(file)[:16] in file.name:
            return file
        notice(f"skipping {file}: it is damaged or was cut off, its content does not match the sum in its name")
    return None


def identity(model: Model, corpus: Corpus) -> dict[str, Any]:
    """What must be the same to resume from a checkpoint: the model, its hash functions and the corpus."""
    blooms = {"hash functions": model.bloom, "target hash functions": model.target_bloom}
    return {
        **asdict(model.config),
        **{name: bloom.checksum() for name, bloom in blooms.items()},
        **corpus.counts(),
        **corpus.checksums,
    }


def sizes_of_run(run: Path) -> dict[str, Any]:
    """The sizes of the model that a run trains; empty if it has no whole checkpoint."""
    checkpoint = newest_whole(run, lambda _: None)
    facts = {} if checkpoint is None else read_checkpoint(checkpoint, mmap=True).get(IDENTITY)
    return {name: facts[name] for name in CHOSEN if name in facts} if isinstance(facts, dict) else {}


def check_identity(checkpoint: Path, now: dict[str, Any]) -> dict[str, Any]:
    """The content of a checkpoint. InputError with the differences if it belongs to another model or corpus."""
    content = read_checkpoint(checkpoint, mmap=True)
    began = content.get(IDENTITY)
    if not isinstance(began, dict):
        raise InputError(f"{checkpoint} was not written by superbloom; train without --resume into another --out")
    changed = differences(began, now)
    if changed:
        raise InputError(f"the run began with {changed}; give what it began with, or start over with --overwrite")
    return content


def differences(began: dict[str, Any], now: dict[str, Any]) -> str:
    """The values that differ between two sets of facts; empty if none does.

    >>> differences({"alpha": 4, "dim": 32}, {"alpha": 4, "dim": 64})
    'dim=32 where now dim=64'
    """
    changed = [name for name in began | now if began.get(name) != now.get(name)]
    then, today = (", ".join(f"{name}={_short(facts.get(name))}" for name in changed) for facts in (began, now))
    return f"{then} where now {today}" if changed else ""


def _short(value: Any) -> str:
    text = f"{value:,}" if type(value) is int else str(value)
    return text if len(text) < 20 else f"{text[:12]}…"


def read_checkpoint(path: Path, **options: Any) -> dict[str, Any]:
    """The content of a checkpoint, without running code from it. options are those of torch.load."""
    try:
        with room_for(f"the checkpoint {path}", "end other programs, and run again"):
            content: dict[str, Any] = torch.load(path, weights_only=True, **options)
    except (OSError, InputError):
        raise
    except Exception as error:
        raise InputError(f"{path} is not a checkpoint ({type(error).__name__}); move it away and run again") from error
    return content
