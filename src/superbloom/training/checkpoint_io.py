"""How Lightning writes and reads checkpoints: each is written whole or not at all, and the last two are kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO

import torch
from lightning.pytorch.plugins.io import CheckpointIO

from superbloom.storage import fsync, sha256
from superbloom.training.checkpoints import checkpoint_name, checkpoints, read_checkpoint, step_of

MAX_KEPT_CHECKPOINTS = 2


class AtomicCheckpoints(CheckpointIO):
    """Writes under a temporary name, forces the file to disk, renames it, then removes older checkpoints."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write into the folder of `path`. The file name is made from step and content, not from `path`."""
        if storage_options is not None:
            raise TypeError("storage_options are not supported")
        run, step = Path(path).parent, checkpoint["global_step"]
        run.mkdir(parents=True, exist_ok=True)
        temporary = run / ".checkpoint"  # one name per run: the next save replaces what a killed process left
        temporary.unlink(missing_ok=True)  # in a folder from elsewhere it may be a link to anything
        try:
            with temporary.open("wb") as stream:
                _write(checkpoint, stream)
                stream.flush()
                os.fsync(stream.fileno())
            written = run / checkpoint_name(step, sha256(temporary))
            temporary.replace(written)
        finally:
            temporary.unlink(missing_ok=True)
        fsync(run)
        # Checkpoints of later steps are damaged; otherwise the run would have resumed from them.
        kept = [written, *(file for file in checkpoints(run) if step_of(file) < step)][:MAX_KEPT_CHECKPOINTS]
        for file in set(checkpoints(run)) - set(kept):
            file.unlink()

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: Any = None) -> dict[str, Any]:
        return read_checkpoint(Path(path), map_location=map_location or "cpu")

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


def _write(checkpoint: dict[str, Any], stream: BinaryIO) -> None:
    """torch.save, but a failing disk raises its OSError. torch would replace it with another error."""
    try:
        torch.save(checkpoint, stream)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
