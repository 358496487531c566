"""One training step as a LightningModule: batches, loss, gradient clipping, learning rate and optimizer (Sec. 3.2).

A step is a function of the weights, the optimizer's state, the seed and the step number, and of nothing else. Batches,
learning rate and dropout follow from (seed, step), so a resumed run repeats an uninterrupted one (docs/training.md).
"""

from __future__ import annotations

import copy
import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.utils.data import DataLoader

from superbloom.config import TrainConfig
from superbloom.corpus import Corpus
from superbloom.errors import InputError, room_for
from superbloom.model import Model
from superbloom.runtime import is_main_process
from superbloom.training.arithmetic import bf16_products
from superbloom.training.batches import Batch, Batches, BatchStream
from superbloom.training.checkpoints import IDENTITY
from superbloom.training.distributed import detach_worker
from superbloom.training.objective import Objective
from superbloom.training.optimizer import RowAdam, clip, cooled, inverse_root


class Training(L.LightningModule):
    """One training step and its optimizer. `identity` is stored in every checkpoint."""

    def __init__(
        self, model: Model, corpus: Corpus, config: TrainConfig, identity: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.model, self.corpus, self.config, self.identity = model, corpus, config, identity
        self.objective = Objective(model, config, corpus)
        self.norm = 0.0  # of the last gradient, before it was clipped
        self.done = 0.0  # the share of the training that is done; the callback sets it
        self.rate = 0.0  # the learning rate of the last step

    @property
    def sharded(self) -> bool:
        return self.objective.network is not self.model.network

    def configure_model(self) -> None:
        """For strategy fsdp: shard a copy of the model. Each process keeps its share, and whole layers only in use."""
        if isinstance(self.trainer.strategy, ModelParallelStrategy) and not self.sharded:
            from torch.distributed.fsdp import fully_shard

            whole = replace(self.model, network=copy.deepcopy(self.model.network))
            self.objective = Objective(whole, self.config, self.corpus)
            mesh = self.trainer.strategy.device_mesh["data_parallel"]
            for layer in self.objective.network.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(self.objective, mesh=mesh)

    def gather_sharded_weights(self) -> None:
        """Copy sharded weights into the model of the main process. All processes have to call it."""
        if self.sharded:
            state = self.trainer.strategy.lightning_module_state_dict()
            if is_main_process():
                prefix = "objective.network."
                self.model.network.load_state_dict({name.removeprefix(prefix): value for name, value in state.items()})

    def batches(self, rank: int = 0, ranks: int = 1) -> Batches:
        return Batches.of(self.corpus, self.model.config, self.config, rank, ranks)

    def train_dataloader(self) -> DataLoader[Batch]:
        # subtle: Lightning calls this after it has restored a checkpoint, so global_step is the step to resume at.
        batches = self.batches(self.trainer.global_rank, self.trainer.world_size)
        stream = BatchStream(batches, self.trainer.global_step)
        return DataLoader(stream, batch_size=None, num_workers=self.config.workers, worker_init_fn=detach_worker)

    def training_step(self, batch: Batch, _: int) -> Tensor:
        step, seed = self.global_step, self.config.seed
        if self.model.config.dropout:
            torch.manual_seed(_mix(seed, step, 1 + self.global_rank))
        schedule = inverse_root(step, self.config.warmup) * cooled(self.done, self.config.cooldown)
        self.rate = self.config.learning_rate * schedule
        for group in self.trainer.optimizers[0].param_groups:
            group.update(lr=self.rate, weight_decay=self.config.weight_decay)
        with self._products():
            self.last = self.objective(batch, self.trainer.world_size, _mix(seed, step))
        return self.last

    def _products(self) -> AbstractContextManager[None]:
        """The arithmetic of products in a step."""
        return bf16_products() if self.config.precision == "auto" else nullcontext()

    def backward(self, loss: Tensor, *_: Any, **__: Any) -> None:
        with room_for("the gradients", "lower --batch-size or --dim, or raise --alpha"), self._products():
            loss.backward()

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Clip, and raise InputError before a gradient that is not finite reaches the weights.

        All processes have the same gradient, so all of them raise.
        """
        self.norm = clip(self.objective.parameters(), self.config.clip)
        if not math.isfinite(self.norm):
            raise InputError(
                f"the loss became {self.last.item():.4g}, its gradient {self.norm}, at step {self.global_step}; lower "
                f"learning_rate={self.config.learning_rate} and continue from the last checkpoint with --resume"
            )

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        with room_for("Adam's moments", "lower --dim or raise --alpha"):
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        network, by_row = self.objective.network, list[Any]()
        if self.config.loss == "sampled":  # a step has gradients for few rows of the output embedding
            alone = self._trainer is None or self.trainer.world_size == 1  # sparse gradients cannot be sent
            network.embedding.sparse = alone and network.output is None
            by_row = [network.embedding.weight if network.output is None else network.output]
        average = 0.0 if by_row else self.config.average
        self.optimizer = RowAdam(self.objective.parameters(), self.config.learning_rate, by_row, average)
        return self.optimizer

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[IDENTITY] = self.identity


def _mix(*numbers: int) -> int:
    """One seed made from several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])
