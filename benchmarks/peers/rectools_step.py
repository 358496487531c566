"""What does a training step of RecTools' BERT4Rec cost?   python rectools_step.py --items 100000 --steps 10

A step is what Lightning does with a batch: forward, full softmax, backward, Adam; making the batch is not timed. A
batch is 128 sequences of 32 items, none padded, each item masked with probability .15. RecTools computes the logits of
all 128 × 32 positions, masked or not. The feed-forward layers are 4 × dim wide, dropout is the library's (.2).

Each item is in the random log at least once. MB are 10⁶ bytes; growth is counted from just before the model is built,
when the log, its ids and the loader exist. Memory is limited to what is free, so that a model that does not fit ends in
one line (exit code 1) and not in the kernel's out-of-memory killer.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd
import pytorch_lightning as lightning
import torch
from measuring import WARM_UP, Memory, highest, main, random_items
from rectools import Columns
from rectools.dataset import Dataset
from rectools.models import BERT4RecModel
from rectools.models.nn.transformers.bert4rec import BERT4RecDataPreparator

MEMORY = Memory()


class Preparator(BERT4RecDataPreparator):
    """The library's, but the loader is ready before the model is built, and memory is watched from there on."""

    def process_dataset_train(self, dataset: Dataset) -> None:
        super().process_dataset_train(dataset)
        self.loader = super().get_dataloader_train()
        MEMORY.start()

    def get_dataloader_train(self) -> torch.utils.data.DataLoader:
        return self.loader


class Clock(lightning.Callback):
    """Seconds of each step, and how many positions it had to predict."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.masked: list[int] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: dict[str, torch.Tensor], number: int) -> None:  # noqa: ARG002
        self.shape = batch["x"].shape
        self.masked.append(int((batch["y"] != 0).sum()))
        self.start = time.perf_counter()

    def on_train_batch_end(self, *_: Any) -> None:
        self.seconds.append(time.perf_counter() - self.start)


def trainer(steps: int) -> lightning.Trainer:
    """RecTools' own trainer, on the CPU and for so many steps."""
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    return lightning.Trainer(
        accelerator="cpu", devices=1, max_steps=steps, enable_checkpointing=False, callbacks=[Clock()], **quiet
    )


def random_log(num_items: int, length: int, users: int) -> Dataset:
    """Users of exactly `length` interactions (of more, RecTools would drop the first ones and items with them)."""
    items = random_items(num_items, length, users)
    log = {Columns.User: np.repeat(np.arange(len(items)), length), Columns.Item: items.ravel()}
    log[Columns.Weight] = np.ones(items.size)
    log[Columns.Datetime] = np.datetime64("2020-01-01", "ns") + np.arange(items.size).astype("timedelta64[s]")
    return Dataset.construct(pd.DataFrame(log))


def measure(given: argparse.Namespace) -> dict[str, Any]:
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    torch.set_num_threads(given.threads)
    lightning.seed_everything(0, verbose=False)
    log = random_log(given.items, given.length, given.batch * given.steps)
    model = BERT4RecModel(
        n_factors=given.dim,
        n_blocks=given.layers,
        n_heads=given.heads,
        session_max_len=given.length,
        batch_size=given.batch,
        mask_prob=given.mask,
        loss="softmax",
        data_preparator_type=Preparator,
        transformer_layers_kwargs={"ff_factors_multiplier": 4},
        get_trainer_func=trainer,
        get_trainer_func_kwargs={"steps": given.steps},
    )
    model.fit(log)
    clock = next(one for one in model.fit_trainer.callbacks if isinstance(one, Clock))
    network = model.lightning_model.torch_model
    assert network.item_model.n_items == given.items + 2  # padding and mask
    assert clock.shape == (given.batch, given.length)
    assert len(clock.seconds) == given.steps
    return {
        "items": given.items,
        "seconds_per_step": statistics.median(clock.seconds[WARM_UP:]),
        "steps": given.steps,
        "peak_mb": highest(),
        "before_mb": MEMORY.before,
        "growth_mb": MEMORY.growth(),
        "parameters": sum(weight.numel() for weight in network.parameters()),
        "predicted_per_step": statistics.mean(clock.masked),
        "softmax_rows_per_step": given.batch * given.length,
        "library": f"rectools {version('rectools')}",
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    main(__doc__, measure)
