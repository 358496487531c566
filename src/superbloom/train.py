"""Training (Sec. 2.4, 3.2) on Lightning: Adam, warm-up then inverse-square-root decay, clipping, checkpoints.

A step is a function of the weights, the optimizer's state, the seed and the step number, nothing else: batches
and dropout are drawn anew from (seed, step). `fit` trains a Model in place and keeps its checkpoint and logs in a
run folder; an interrupted run goes on from there.
"""

from __future__ import annotations

import io
import math
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.plugins.io import CheckpointIO
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from superbloom.batches import Batch, Batches
from superbloom.config import TrainConfig
from superbloom.corpus import Corpus
from superbloom.errors import InputError
from superbloom.evaluate import HeldOut, check_vocabulary, ranks
from superbloom.folder import write_atomically
from superbloom.loss import Sampler, full_softmax_loss, sampled_softmax_loss
from superbloom.model import Model
from superbloom.predict import Predictor
from superbloom.progress import TrainingProgress

CHECKPOINT = "checkpoint.ckpt"
LOG_EVERY = 25  # steps between two entries of the logs


def fit(
    model: Model,
    corpus: Corpus,
    config: TrainConfig,
    *,
    run: Path | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Train a model in place; returns steps done, seconds, the history of validation, and whether it was stopped.

    run is where checkpoint and logs are kept (nowhere if None); resume goes on from the checkpoint there.
    """
    check_vocabulary(Predictor(model), corpus)
    config.check_with(model.config)
    checkpoint = _checkpoint_path(run, resume)
    training = Training(model, corpus, config)
    progress = TrainingProgress(config, quiet)
    watch = Watch(model, corpus, config, progress)
    callbacks: list[L.Callback] = [watch]
    if run is not None:
        callbacks.append(Saving(run / CHECKPOINT, config.save_every))
    with _quiet_lightning():
        trainer = L.Trainer(
            accelerator="auto",
            devices=1,
            max_steps=config.steps or -1,
            max_epochs=-1,
            max_time=None if config.minutes is None else timedelta(minutes=config.minutes),
            precision="bf16-mixed" if config.precision == "bf16" else "32-true",
            gradient_clip_val=config.clip,
            logger=[] if run is None else _loggers(run),
            callbacks=callbacks,
            plugins=[AtomicCheckpoints()],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        with stop_on_interrupt(trainer) as interrupted, progress:
            model.network.train()  # Lightning keeps the mode it finds
            trainer.fit(training, ckpt_path=checkpoint, weights_only=True)
        if run is not None:
            trainer.save_checkpoint(run / CHECKPOINT)
    model.network.eval()
    return {
        "steps": trainer.global_step,
        "seconds": watch.seconds,
        "history": watch.history,
        "interrupted": interrupted.is_set(),
    }


@torch.no_grad()
def start_from_frequencies(model: Model, corpus: Corpus) -> None:
    """Set the output bias to log token frequencies, so that training does not begin by learning them."""
    if model.network.bias is None:
        return
    counts = torch.from_numpy(corpus.id_counts("train")).float()
    table = model.target_bloom.table.long()
    bias_of_hash = model.network.bias.unflatten(0, (model.config.num_hashes, -1))
    for bias, buckets in zip(bias_of_hash, table.T, strict=True):
        frequency = torch.ones_like(bias).index_add_(0, buckets, counts)
        bias.copy_(torch.log(frequency / frequency.mean()))


class Training(L.LightningModule):
    """One training step and its optimizer."""

    def __init__(self, model: Model, corpus: Corpus, config: TrainConfig) -> None:
        super().__init__()
        self.network = model.network
        self.model, self.corpus, self.config = model, corpus, config
        self.sampler: Sampler | None = None
        if config.loss == "sampled":
            self.sampler = Sampler(config.proposal, self._token_counts(), config.samples)

    def train_dataloader(self) -> DataLoader[Batch]:
        # subtle: called after a checkpoint is restored, so that the step it carries reaches the batches.
        batches = Batches(
            self.corpus,
            seq_len=self.model.config.seq_len,
            batch_size=self.config.batch_size,
            mask_share=self.config.mask_share,
            seed=self.config.seed,
            rank=self.trainer.global_rank,
            ranks=self.trainer.world_size,
        )
        return DataLoader(_Stream(batches, self.trainer.global_step), batch_size=None)

    def training_step(self, batch: Batch, _: int) -> Tensor:
        if self.model.config.dropout:
            torch.manual_seed(_mix(self.config.seed, self.global_step, self.global_rank))
        y = self.model.encode(batch.ids, batch.places)
        loss = self.loss(y[batch.targets >= 0], batch.targets[batch.targets >= 0])
        if not torch.isfinite(loss):
            raise InputError(
                f"the loss became {loss.item()} at step {self.global_step}; lower learning_rate="
                f"{self.config.learning_rate} and go on from the last checkpoint with --resume"
            )
        return loss

    def loss(self, y: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of the tokens of targets (q,) under y (q, m, d)."""
        weight, bias = self.network.output_layer()  # (m, buckets, d), (m, buckets)
        bloom = self.model.target_bloom
        tokens = bloom.buckets(targets.to(bloom.table.device)).to(y.device)  # (q, m)
        if self.model.config.softmax == "joint":
            m, buckets, dim = weight.shape
            tokens = (tokens + buckets * torch.arange(m, device=tokens.device)).reshape(1, -1)
            weight, bias = weight.reshape(1, -1, dim), None if bias is None else bias.reshape(1, -1)
            y = y.reshape(1, -1, dim)
        else:
            y, tokens = y.transpose(0, 1), tokens.T
        if self.sampler is None:
            total = full_softmax_loss(y, weight, bias, tokens, self.config.logits_mb)
        else:
            seed = _mix(self.config.seed, self.global_step)  # the same negatives on every rank
            total = sampled_softmax_loss(y, weight, bias, tokens, self.sampler, self.config.logits_mb, seed)
        return total / tokens.numel()

    def on_train_start(self) -> None:
        """After a resume: the options given now hold, not those the checkpoint carries."""
        rate, scale = self.config.learning_rate, inverse_root(self.trainer.global_step, self.config.warmup)
        self.trainer.lr_scheduler_configs[0].scheduler.base_lrs = [rate]
        for group in self.trainer.optimizers[0].param_groups:
            group.update(initial_lr=rate, lr=rate * scale, weight_decay=self.config.weight_decay)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(
            self.network.parameters(),
            lr=self.config.learning_rate,
            weight_decay=self.config.weight_decay,
            fused=self.config.precision == "fp32",  # Lightning clips no gradients of a fused optimizer under autocast
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: inverse_root(step, self.config.warmup))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _token_counts(self) -> np.ndarray:
        """How often each output token of a group is a target."""
        by_bucket: np.ndarray = self.corpus.id_counts("train")[self.model.target_bloom.order[0].numpy()]
        return by_bucket


def inverse_root(step: int, warmup: int) -> float:
    """The factor on the learning rate: rises over the warm-up, then falls with the square root of the step.

    >>> [round(inverse_root(step, warmup=100), 2) for step in (0, 49, 99, 399)]
    [0.01, 0.5, 1.0, 0.5]
    """
    return min((step + 1) / warmup, math.sqrt(warmup / (step + 1)))


def _mix(*numbers: int) -> int:
    """One seed out of several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


class Watch(L.Callback):
    """Validation recall during training, logs, and the progress bar."""

    def __init__(self, model: Model, corpus: Corpus, config: TrainConfig, progress: TrainingProgress) -> None:
        self.predictor, self.config, self.progress = Predictor(model), config, progress
        self.history: list[dict[str, float]] = []
        self.earlier = self.seconds = self.validated = 0.0
        split = "valid" if len(corpus.rows("valid")) else None
        self.held_out = split and HeldOut.of(corpus, split, model.config.seq_len, limit=config.valid_rows)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.started = time.monotonic()
        self.validated = self.seconds

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, *_: Any) -> None:
        step, loss = trainer.global_step, float(outputs["loss"])
        self.seconds = self.earlier + time.monotonic() - self.started
        # A run of so many minutes also validates after each tenth of them: its steps may be few.
        due = self.config.minutes is not None and self.seconds - self.validated >= 6 * self.config.minutes
        if step % self.config.valid_every == 0 or due:
            self._validate(trainer)
        if step % LOG_EVERY == 0:
            rate = trainer.optimizers[0].param_groups[0]["lr"]
            self._log(trainer, {"loss": loss, "learning_rate": rate})
        valid = self.history[-1]["recall_at_10"] if self.history else None
        self.progress.update(step, self.seconds, loss, valid)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not self.history or self.history[-1]["step"] != trainer.global_step:
            self._validate(trainer)

    def _validate(self, trainer: L.Trainer) -> None:
        self.validated = self.seconds
        if self.held_out:
            recall = float((ranks(self.predictor, self.held_out).rank < 10).mean())
            entry = {"step": trainer.global_step, "seconds": round(self.seconds, 1), "recall_at_10": recall}
            self.history.append(entry)
            self._log(trainer, {"valid/recall_at_10": recall})

    def _log(self, trainer: L.Trainer, figures: dict[str, float]) -> None:
        for logger in trainer.loggers:
            logger.log_metrics(figures, trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history, "seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history = state_dict["history"]
        self.seconds = self.earlier = state_dict["seconds"]


class Saving(L.Callback):
    """A checkpoint every so many steps."""

    def __init__(self, path: Path, every: int) -> None:
        self.path, self.every = path, every

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step % self.every == 0:
            trainer.save_checkpoint(self.path)


class AtomicCheckpoints(CheckpointIO):
    """Checkpoints under a temporary name in the same folder, then renamed; read back without pickle."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        if storage_options is not None:
            raise TypeError("storage_options are not supported")
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(Path(path), buffer.getvalue())

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        try:
            checkpoint: dict[str, Any] = torch.load(path, map_location=map_location or "cpu", weights_only=True)
        except Exception as error:
            raise InputError(
                f"{path} is not a whole checkpoint ({type(error).__name__}, weights_only={weights_only}); "
                "delete it and train without --resume"
            ) from error
        return checkpoint

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


class _Stream(IterableDataset[Batch]):
    def __init__(self, batches: Batches, step: int) -> None:
        self.batches, self.step = batches, step

    def __iter__(self) -> Iterator[Batch]:
        return self.batches.starting_at(self.step)


@contextmanager
def stop_on_interrupt(trainer: L.Trainer) -> Iterator[threading.Event]:
    """Ctrl-C ends training after the current step, so that it can be saved; a second one ends it at once."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return

    def handle(*_: Any) -> None:
        signal.signal(signal.SIGINT, previous)
        sys.stderr.write("\nstopping after this step; Ctrl-C again ends at once, without saving\n")
        interrupted.set()
        trainer.should_stop = True

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Keep Lightning's hints about hardware and workers out of what a user reads."""
    import logging

    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _loggers(run: Path) -> list[Logger]:
    """A CSV log and TensorBoard events; a resumed run gets files of its own, since both would begin anew."""
    parts = len(list(run.glob("csv*")))
    suffix = f"-{parts + 1}" if parts else ""
    return [
        CSVLogger(run, name="", version=f"csv{suffix}"),
        TensorBoardLogger(run, name="", version=f"tensorboard{suffix}"),
    ]


def _checkpoint_path(run: Path | None, resume: bool) -> Path | None:
    if not resume:
        return None
    if run is None or not (run / CHECKPOINT).is_file():
        raise InputError(f"there is no {CHECKPOINT} in {run} to go on from; train without --resume")
    return run / CHECKPOINT
