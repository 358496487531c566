"""Checkpoints of a run: written whole or not at all, found again newest first, read without pickle.

    step-000000500-1f3a9c0d5b7e2a64.ckpt

is the state after 500 steps; the rest of the name is the beginning of the file's sha256, so that one glance at name
and content tells whether it is whole. The last two are kept.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import torch
from lightning.pytorch.plugins.io import CheckpointIO

from superbloom.corpus import Corpus
from superbloom.errors import InputError, room_for
from superbloom.model import Model
from superbloom.storage import fsync, sha256

KEPT = 2
NAME = re.compile(r"step-(\d+)-([0-9a-f]{16})\.ckpt")
IDENTITY = "superbloom"  # the key in a checkpoint under which stands what it belongs to


def checkpoints(run: Path) -> list[Path]:
    """Those of a run, newest first, whole or not."""
    found = [file for file in run.glob("step-*.ckpt") if NAME.fullmatch(file.name)]
    return sorted(found, key=step_of, reverse=True)


def step_of(checkpoint: Path) -> int:
    match = NAME.fullmatch(checkpoint.name)
    assert match
    return int(match[1])


def newest_whole(run: Path, notice: Callable[[str], None]) -> Path | None:
    """The newest checkpoint that is as it was written; of each newer one that is not, a line to `notice`."""
    for file in checkpoints(run):
        if sha256(file)[:16] in file.name:
            return file
        notice(f"skipping {file}: it is damaged or was cut off, its content does not match the sum in its name")
    return None


def identity(model: Model, corpus: Corpus) -> dict[str, Any]:
    """What has to be the same for a checkpoint to make sense: the model, its hash functions, the corpus."""
    blooms = {"hash functions": model.bloom, "target hash functions": model.target_bloom}
    return {
        **asdict(model.config),
        **{name: bloom.checksum() for name, bloom in blooms.items()},
        **corpus.counts(),
        **corpus.checksums,
    }


def check_identity(checkpoint: Path, now: dict[str, Any]) -> dict[str, Any]:
    """The content of a checkpoint; InputError, with the difference, if it belongs to another model or corpus."""
    content = _read(checkpoint, mmap=True)
    began = content.get(IDENTITY)
    if not isinstance(began, dict):
        raise InputError(f"{checkpoint} was not written by superbloom; train without --resume into another --out")
    changed = differences(began, now)
    if changed:
        raise InputError(f"the run began with {changed}; give what it began with, or train anew with --overwrite")
    return content


def differences(began: dict[str, Any], now: dict[str, Any]) -> str:
    """What differs between two sets of facts.

    >>> differences({"alpha": 4, "dim": 32}, {"alpha": 4, "dim": 64})
    'dim=32 where now dim=64'
    """
    changed = [name for name in began | now if began.get(name) != now.get(name)]
    then, today = (", ".join(f"{name}={_short(facts.get(name))}" for name in changed) for facts in (began, now))
    return f"{then} where now {today}" if changed else ""


def _short(value: Any) -> str:
    text = f"{value:,}" if type(value) is int else str(value)
    return text if len(text) < 20 else f"{text[:12]}…"


class AtomicCheckpoints(CheckpointIO):
    """Lightning's checkpoints under a temporary name, forced to disk, then renamed; older ones are removed after."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        if storage_options is not None:
            raise TypeError("storage_options are not supported")
        run, step = Path(path).parent, checkpoint["global_step"]
        run.mkdir(parents=True, exist_ok=True)
        temporary = run / ".checkpoint"  # one a run: what a killed process leaves is replaced by the next
        temporary.unlink(missing_ok=True)  # in a folder that came from elsewhere it may be a link to anything
        try:
            with temporary.open("wb") as stream:
                _write(checkpoint, stream)
                stream.flush()
                os.fsync(stream.fileno())
            written = run / f"step-{step:09d}-{sha256(temporary)[:16]}.ckpt"
            temporary.replace(written)
        finally:
            temporary.unlink(missing_ok=True)
        fsync(run)
        # Those of a later step are damaged, or we would have gone on from there.
        kept = [written, *(file for file in checkpoints(run) if step_of(file) < step)][:KEPT]
        for file in set(checkpoints(run)) - set(kept):
            file.unlink()

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: Any = None) -> dict[str, Any]:
        return _read(Path(path), map_location=map_location or "cpu")

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


def _write(checkpoint: dict[str, Any], stream: BinaryIO) -> None:
    """torch.save, whose own complaint about a file that is not whole hides what the disk said before."""
    try:
        torch.save(checkpoint, stream)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def _read(path: Path, **options: Any) -> dict[str, Any]:
    try:
        with room_for(f"the checkpoint {path}", "end other programs, and run again"):
            content: dict[str, Any] = torch.load(path, weights_only=True, **options)
    except (OSError, InputError):
        raise
    except Exception as error:
        raise InputError(f"{path} is not a checkpoint ({type(error).__name__}); move it away and run again") from error
    return content
