"""Training (Sec. 2.4, 3.2) on Lightning: Adam, warm-up then inverse-square-root decay, clipping.

A step is a function of the weights, the optimizer's state, the seed and the step number, nothing else: batches, rate
and dropout are drawn anew from (seed, step). `fit` trains a Model in place and keeps checkpoints and log in a run
folder; a run that was killed goes on from there and ends in the same weights (docs/training.md).
"""

from __future__ import annotations

import copy
import math
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from superbloom.config import TrainConfig
from superbloom.corpus import Corpus
from superbloom.errors import InputError, room_for
from superbloom.model import Model, Sampler, check_vocabulary, full_softmax_loss, sampled_softmax_loss
from superbloom.runtime import main_process
from superbloom.training.batches import Batch, Batches
from superbloom.training.callback import Watch, enough_waited
from superbloom.training.checkpoints import (
    IDENTITY,
    AtomicCheckpoints,
    check_identity,
    checkpoints,
    identity,
    newest_whole,
    step_of,
)
from superbloom.training.distributed import detach_worker, leave_process_group, lock_run, placement
from superbloom.training.initialise import start_from_cooccurrence, start_from_frequencies
from superbloom.training.optimizer import RowAdam, clip
from superbloom.training.progress import TrainingProgress
from superbloom.training.stop import Stop


def fit(
    model: Model,
    corpus: Corpus,
    config: TrainConfig,
    *,
    run: Path | None = None,
    resume: bool = False,
    quiet: bool = False,
    begin: Callable[[], None] | None = None,
    ready: bool = False,
) -> dict[str, Any]:
    """Train a model in place; returns steps done, seconds, the history of validation, and whether it was stopped.

    Weights begin as config.warm_start says, or as they are if they are ready. They end as their running average, if
    config.average asks for one, and with config.patience as that which was best in validation.

    run is where checkpoints and log are kept (nowhere if None); resume goes on from the newest whole checkpoint
    there. SIGTERM ends the process, with exit code 0, once the step is done and saved; without a run it is left alone.
    begin is called by the main process once nothing is left that could be refused, to make way in the run folder. Of
    processes that share the weights (strategy fsdp) only the main one has the trained model in the end.
    """
    check_vocabulary(model, corpus)
    config.check_with(model.config)
    facts = identity(model, corpus)
    training = Training(model, corpus, config, facts)
    training.batches()  # refuses a corpus without rows to train on
    place = placement(config.devices, config.strategy, config.batch_size)
    progress = TrainingProgress(config, quiet or not main_process())
    held = nullcontext() if run is None else lock_run(run)
    with held, _quiet_lightning(), Stop(terminate=run is not None) as stop:
        checkpoint, steps = _to_go_on_from(run, resume, facts, config, fresh=begin is not None)
        began = time.monotonic()
        if checkpoint is None and not ready:
            start_from_frequencies(model, corpus)
            if config.warm_start:
                with room_for("counting co-occurrences", "train with --no-warm-start"):
                    start_from_cooccurrence(model, corpus)
        watch = Watch(model, corpus, config, run, stop, progress, seconds=time.monotonic() - began)
        trainer = _trainer(config, watch, steps, run, place)
        if begin is not None and main_process():
            begin()
        try:
            with progress:
                model.network.train()  # Lightning keeps the mode it finds
                trainer.fit(training, ckpt_path=checkpoint, weights_only=True)
            training.optimizer.exchange()
            training.gather_sharded_weights()
            watch.take_best()
        finally:
            watch.close()
            model.network.embedding.sparse = False
            leave_process_group()
    model.network.eval()
    if watch.stopped == signal.SIGTERM:
        _notice(f"told to terminate: step {trainer.global_step:,} is saved in {run}; go on with --resume")
        sys.exit(0)
    return {
        "steps": trainer.global_step,
        "seconds": watch.seconds,
        "history": watch.history,
        "taken": watch.taken or trainer.global_step,
        "interrupted": bool(watch.stopped),
    }


def _to_go_on_from(
    run: Path | None, resume: bool, facts: dict[str, Any], config: TrainConfig, fresh: bool
) -> tuple[Path | None, int]:
    """The checkpoint to resume, if that is wanted and there is one, and the step to train to (-1: until time is up)."""
    steps = config.steps or -1
    if not resume:
        if run is not None and not fresh and main_process() and checkpoints(run):
            last = step_of(checkpoints(run)[0])
            raise InputError(f"{run} holds a run of {last:,} steps; go on with resume=True, or choose another folder")
        return None, steps
    if run is None:
        raise InputError("resume=True without a run folder; give run=, the folder of the run to go on from")
    checkpoint = newest_whole(run, _notice)
    if checkpoint is None:
        _notice(f"no checkpoint in {run}: starting at step 0")
        return None, steps
    content, done = check_identity(checkpoint, facts), step_of(checkpoint)
    if checkpoint != checkpoints(run)[0]:
        _notice(f"going on from step {done:,}")
    before = content["callbacks"]["Watch"]
    seconds = before["seconds"]
    if done >= steps > 0 or (config.minutes is not None and seconds >= 60 * config.minutes):
        _notice(f"the run has done its {done:,} steps in {seconds / 60:.1f} minutes; for more, give more --steps")
        return checkpoint, done
    if before.get("best") and enough_waited(before["history"], before["improved"], config.patience):
        _notice(
            f"the run has ended at step {done:,}, {config.patience} validations after its best; give more --patience"
        )
        return checkpoint, done
    return checkpoint, steps


def _trainer(config: TrainConfig, watch: Watch, steps: int, run: Path | None, place: dict[str, Any]) -> L.Trainer:
    place["plugins"].append(AtomicCheckpoints())
    try:
        return L.Trainer(
            accelerator="auto",
            **place,
            max_steps=steps,
            max_epochs=-1,
            precision="bf16-mixed" if config.precision == "bf16" else "32-true",
            logger=False,
            default_root_dir=run,  # under SLURM Lightning looks for checkpoints of its own there
            callbacks=[watch],
            use_distributed_sampler=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
    except MisconfigurationException as error:  # more devices than there are, mostly
        reason = " ".join(str(error).split())
        raise InputError(f"devices={config.devices}, strategy={config.strategy!r}: {reason}") from None


class Training(L.LightningModule):
    """One training step and its optimizer."""

    def __init__(self, model: Model, corpus: Corpus, config: TrainConfig, facts: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.model, self.corpus, self.config, self.facts = model, corpus, config, facts
        self.objective = Objective(model, config, corpus)
        self.norm = 0.0  # of the last gradient, before it was clipped

    @property
    def sharded(self) -> bool:
        return self.objective.network is not self.model.network

    def configure_model(self) -> None:
        """Of a model to be sharded, take a copy apart: every process keeps its share, and whole parts only in use."""
        if isinstance(self.trainer.strategy, ModelParallelStrategy) and not self.sharded:
            from torch.distributed.fsdp import fully_shard

            whole = replace(self.model, network=copy.deepcopy(self.model.network))
            self.objective = Objective(whole, self.config, self.corpus)
            mesh = self.trainer.strategy.device_mesh["data_parallel"]
            for layer in self.objective.network.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(self.objective, mesh=mesh)

    def gather_sharded_weights(self) -> None:
        """Gather sharded weights in the model, in the main process."""
        if self.sharded:
            state = self.trainer.strategy.lightning_module_state_dict()
            if main_process():
                prefix = "objective.network."
                self.model.network.load_state_dict({name.removeprefix(prefix): value for name, value in state.items()})

    def batches(self, rank: int = 0, ranks: int = 1) -> Batches:
        return Batches(
            self.corpus,
            seq_len=self.model.config.seq_len,
            batch_size=self.config.batch_size,
            mask_share=self.config.mask_share,
            seed=self.config.seed,
            perturb=self.model.config.mask_as == "element",
            every=self.model.config.mask_as == "next",
            next_sentence=self.model.config.next_sentence,
            rank=rank,
            ranks=ranks,
        )

    def train_dataloader(self) -> DataLoader[Batch]:
        # subtle: called after a checkpoint is restored, so that the step it carries reaches the batches.
        batches = self.batches(self.trainer.global_rank, self.trainer.world_size)
        stream = _Stream(batches, self.trainer.global_step)
        return DataLoader(stream, batch_size=None, num_workers=self.config.workers, worker_init_fn=detach_worker)

    def training_step(self, batch: Batch, _: int) -> Tensor:
        step, seed = self.global_step, self.config.seed
        if self.model.config.dropout:
            torch.manual_seed(_mix(seed, step, 1 + self.global_rank))
        for group in self.trainer.optimizers[0].param_groups:
            group.update(lr=self.rate(step), weight_decay=self.config.weight_decay)
        self.last = self.objective(batch, self.trainer.world_size, _mix(seed, step))
        return self.last

    def rate(self, step: int) -> float:
        return self.config.learning_rate * inverse_root(step, self.config.warmup)

    def backward(self, loss: Tensor, *_: Any, **__: Any) -> None:
        with room_for("the gradients", "lower --batch-size or --dim, or raise --alpha"):
            loss.backward()

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Clip; and stop before a gradient that is no number reaches the weights. All processes see the same one."""
        self.norm = clip(self.objective.parameters(), self.config.clip)
        if not math.isfinite(self.norm):
            raise InputError(
                f"the loss became {self.last.item():.4g}, its gradient {self.norm}, at step {self.global_step}; lower "
                f"learning_rate={self.config.learning_rate} and go on from the last checkpoint with --resume"
            )

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        with room_for("Adam's moments", "lower --dim or raise --alpha"):
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        network, by_row = self.objective.network, list[Any]()
        if self.config.loss == "sampled":  # a step has a gradient for few rows; for those alone, if it need not be sent
            alone = self._trainer is None or self.trainer.world_size == 1
            network.embedding.sparse = alone and network.output is None
            by_row = [network.embedding.weight if network.output is None else network.output]
        average = 0.0 if by_row else self.config.average
        self.optimizer = RowAdam(self.objective.parameters(), self.config.learning_rate, by_row, average)
        return self.optimizer

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[IDENTITY] = self.facts


class Objective(nn.Module):
    """The loss of a batch. One module, from digests to loss, so that what is sharded is whole while it runs."""

    def __init__(self, model: Model, config: TrainConfig, corpus: Corpus) -> None:
        super().__init__()
        self.network = model.network
        self.model, self.config = model, config
        self.sampler: Sampler | None = None
        if config.loss == "sampled":
            counts = corpus.id_counts("train")[model.target_bloom.order[0].numpy()]  # of each output token
            self.sampler = Sampler(config.proposal, counts, config.samples)

    def forward(self, batch: Batch, processes: int, seed: int) -> Tensor:
        """This process's part of the mean over the targets of all, times processes: gradients will be averaged."""
        ids, places, targets, total, follows = batch
        if follows is not None:  # asked of [CLS]
            places = F.pad(places, (1, 0))
        with room_for(f"the activations of {len(ids)} segments", "lower --batch-size, --seq-len, --dim or --layers"):
            y = self.model.encode(ids, places)
        asked = y if follows is None else y[:, 1:]
        with room_for("the loss", "lower --logits-mb or --batch-size, or raise --alpha"):
            loss = self.loss(asked[targets >= 0], targets[targets >= 0], seed)
        loss = loss * (processes / (total * self.model.config.num_hashes))
        if follows is not None:
            assert self.network.follows is not None
            told = F.cross_entropy(self.network.follows(y[:, 0, 0]), follows, ignore_index=-1, reduction="sum")
            loss = loss + told * (processes / self.config.batch_size)
        return loss

    def loss(self, y: Tensor, targets: Tensor, seed: int) -> Tensor:
        """Summed cross-entropy of the tokens of targets (q,) under y (q, m, d)."""
        network, bloom, config = self.network, self.model.target_bloom, self.model.config
        table = network.embedding.weight if network.output is None else network.output
        tokens = bloom.buckets(targets.to(bloom.table.device)).to(y.device).T  # (m, q)
        y = y.transpose(0, 1)  # (m, q, d)
        if self.sampler is not None:  # one hash; the same negatives in every process
            budget, sparse = self.config.logits_mb, network.embedding.sparse
            return sampled_softmax_loss(y[0], table, network.bias, tokens[0], self.sampler, budget, seed, sparse)
        size = config.output_buckets
        if config.softmax == "joint":
            tokens = (tokens + size * torch.arange(config.num_hashes, device=tokens.device)[:, None]).reshape(1, -1)
            y, size = y.reshape(1, -1, config.dim), size * config.num_hashes
        return full_softmax_loss(y, table, network.bias, tokens, size, self.config.logits_mb)


def inverse_root(step: int, warmup: int) -> float:
    """The factor on the learning rate: rises over the warm-up, then falls with the square root of the step.

    >>> [round(inverse_root(step, warmup=100), 2) for step in (0, 49, 99, 399)]
    [0.01, 0.5, 1.0, 0.5]
    """
    return min((step + 1) / warmup, math.sqrt(warmup / (step + 1)))


def _mix(*numbers: int) -> int:
    """One seed out of several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


class _Stream(IterableDataset[Batch]):
    """Batches from a step on; the w-th of several workers makes every so many-th, and the loader takes turns."""

    def __init__(self, batches: Batches, step: int) -> None:
        self.batches, self.step = batches, step

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        first, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return self.batches.starting_at(self.step + first, stride)


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Keep Lightning's hints about hardware and TensorBoard's failing threads out of what a user reads."""
    import logging
    import threading

    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        hook = threading.excepthook
        # A full disk also fails where we write, and is told there.
        threading.excepthook = lambda failed: None if isinstance(failed.exc_value, OSError) else hook(failed)
        try:
            yield
        finally:
            threading.excepthook = hook
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _notice(line: str) -> None:
    if main_process():
        sys.stderr.write(f"{line}\n")
