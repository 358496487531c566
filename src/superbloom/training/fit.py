"""Training (Sec. 2.4, 3.2) on Lightning: Adam, warm-up then inverse-square-root decay, gradient clipping.

`fit` trains a Model in place and keeps checkpoints and log in a run folder (run_folder.py). A run that was killed
resumes from there and ends in the same weights as one that never stopped (docs/training.md).
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import lightning as L
from lightning.fabric.utilities.exceptions import MisconfigurationException

from superbloom.config import TrainConfig
from superbloom.corpus import Corpus
from superbloom.errors import InputError, room_for
from superbloom.memory import remember
from superbloom.model import Model, check_vocabulary
from superbloom.runtime import freed_memory_kept, is_main_process
from superbloom.training.callback import TrainingCallback, patience_exhausted
from superbloom.training.checkpoint_io import AtomicCheckpoints
from superbloom.training.checkpoints import check_identity, checkpoints, identity, newest_whole, step_of
from superbloom.training.distributed import leave_process_group, placement
from superbloom.training.initialise import initialise_from_cooccurrence, initialise_from_frequencies
from superbloom.training.lightning_module import Training
from superbloom.training.progress import TrainingProgress
from superbloom.training.run_folder import RunFolder, lock_run
from superbloom.training.stop import Stop

UNTIL_TIME_IS_UP = -1  # Lightning's max_steps without a limit


def fit(
    model: Model,
    corpus: Corpus,
    config: TrainConfig,
    *,
    run: RunFolder | None = None,
    resume: bool = False,
    quiet: bool = False,
    initialised: bool = False,
) -> dict[str, Any]:
    """Train a model in place. Returns steps, seconds, history, step of the weights, if interrupted, and the memory.

    Training starts from config.warm_start, or from the weights as they are if they are initialised. The model ends with
    the running average of the weights if config.average is set, and with the best validated ones if config.patience is.

    run keeps checkpoints and log (nothing is kept if None). resume continues from the newest whole checkpoint there.
    With a run, SIGTERM saves the current step and ends the process with exit code 0; without one, SIGTERM is not
    handled. With strategy fsdp only the main process has the trained model in the end.
    """
    if resume and run is None:
        raise InputError("resume=True without a run folder; give run=, the folder of the run to continue")
    check_vocabulary(model, corpus)
    config.check_with(model.config)
    facts = identity(model, corpus)
    training = Training(model, corpus, config, facts)
    training.batches()  # refuses a corpus without training rows
    place = placement(config.devices, config.strategy, config.batch_size)
    progress = TrainingProgress(config, quiet or not is_main_process())
    path = None if run is None else run.path
    lock = nullcontext() if path is None else lock_run(path)
    with lock, _quiet_lightning(), Stop(on_sigterm=run is not None) as stop:
        checkpoint, last_step = None, config.steps or UNTIL_TIME_IS_UP
        if path is not None and resume:
            checkpoint, last_step = _resume_point(path, facts, config)
        elif run is not None:
            run.check_new()
        started = time.monotonic()
        if checkpoint is None and not initialised:
            initialise_from_frequencies(model, corpus)
            if config.warm_start:
                with room_for("counting co-occurrences", "train with --no-warm-start"):
                    initialise_from_cooccurrence(model, corpus)
        counting = time.monotonic()
        memory = None
        if is_main_process():
            with room_for("counting pairs and rows", "train with --count-engine duckdb, or with --remember none"):
                memory = remember(corpus, config.remember, **config.memory_options)
        counted = time.monotonic()
        seconds = counted - started
        callback = TrainingCallback(model, corpus, config, memory, path, stop, progress, seconds)
        trainer = _trainer(config, callback, last_step, path, place)
        if run is not None:
            run.begin(resume)  # from here on nothing is refused
        try:
            with progress:
                callback.report_memory(counted - counting)
                model.network.train()  # Lightning keeps the mode it finds
                with freed_memory_kept():
                    trainer.fit(training, ckpt_path=checkpoint, weights_only=True)
            training.optimizer.exchange()
            training.gather_sharded_weights()
            callback.take_best()
        finally:
            callback.close()
            model.network.embedding.sparse = False
            leave_process_group()
    model.network.eval()
    if callback.stopped == signal.SIGTERM:
        _notice(f"received SIGTERM: step {trainer.global_step:,} is saved in {path}; continue with --resume")
        sys.exit(0)
    return {
        "steps": trainer.global_step,
        "seconds": callback.seconds,
        "history": callback.history,
        "taken": callback.taken or trainer.global_step,
        "interrupted": bool(callback.stopped),
        "memory": memory,
    }


def _resume_point(run: Path, facts: dict[str, Any], config: TrainConfig) -> tuple[Path | None, int]:
    """The checkpoint to resume from, None if there is none, and the step to train to."""
    last_step = config.steps or UNTIL_TIME_IS_UP
    checkpoint = newest_whole(run, _notice)
    if checkpoint is None:
        _notice(f"no checkpoint in {run}: starting at step 0")
        return None, last_step
    content, done = check_identity(checkpoint, facts), step_of(checkpoint)
    if checkpoint != checkpoints(run)[0]:
        _notice(f"resuming from step {done:,}")
    before = content["callbacks"][TrainingCallback.state_key]
    seconds = before["seconds"]
    if done >= last_step > 0 or (config.minutes is not None and seconds >= 60 * config.minutes):
        _notice(f"the run has done its {done:,} steps in {seconds / 60:.1f} minutes; for more, give more --steps")
        return checkpoint, done
    if before.get("best") and patience_exhausted(before["history"], before["improved"], config.patience):
        _notice(
            f"the run has ended at step {done:,}, {config.patience} validations after its best; give more --patience"
        )
        return checkpoint, done
    return checkpoint, last_step


def _trainer(
    config: TrainConfig, callback: TrainingCallback, last_step: int, run: Path | None, place: dict[str, Any]
) -> L.Trainer:
    place["plugins"].append(AtomicCheckpoints())
    try:
        return L.Trainer(
            accelerator="auto",
            **place,
            max_steps=last_step,
            max_epochs=-1,
            precision="bf16-mixed" if config.precision == "bf16" else "32-true",
            logger=False,
            default_root_dir=run,  # under SLURM Lightning looks there for checkpoints of its own
            callbacks=[callback],
            use_distributed_sampler=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
    except MisconfigurationException as error:  # usually more devices than there are
        reason = " ".join(str(error).split())
        raise InputError(f"devices={config.devices}, strategy={config.strategy!r}: {reason}") from None


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Hide Lightning's hints about hardware, and the tracebacks of TensorBoard's threads when the disk is full."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        hook = threading.excepthook
        # A full disk also fails where we write, and is reported there.
        threading.excepthook = lambda failed: None if isinstance(failed.exc_value, OSError) else hook(failed)
        try:
            yield
        finally:
            threading.excepthook = hook
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _notice(line: str) -> None:
    if is_main_process():
        sys.stderr.write(f"{line}\n")
