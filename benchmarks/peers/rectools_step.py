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
import contextlib
import ctypes
import gc
import json
import logging
import resource
import statistics
import sys
import threading
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytorch_lightning as lightning
import torch
from rectools import Columns
from rectools.dataset import Dataset
from rectools.models import BERT4RecModel
from rectools.models.nn.transformers.bert4rec import BERT4RecDataPreparator

SECONDS = 0.02  # between two looks at the memory
WARM_UP = 2  # steps that are not counted


class Memory(threading.Thread):
    """Watches the resident memory, in MB, from start() on."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = self.peak = self.highest = 0.0

    def start(self) -> None:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what making the log has freed must not hide what the model takes
        self.before = self.peak = resident()
        self.highest = highest()
        super().start()

    def run(self) -> None:
        while True:
            self.peak = max(self.peak, resident())
            time.sleep(SECONDS)

    def growth(self) -> float:
        """Looks can miss the peak; the system does not, but its peak counts only if it came after the start."""
        peak = highest()
        return (peak if peak > self.highest else self.peak) - self.before


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


def resident() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024 / 1e6


def highest() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def limit_memory(gigabytes: float | None) -> None:
    """Beyond it allocations fail; without a figure it is what the machine has free."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 1024
    limit = int(gigabytes * 1e9) if gigabytes else free
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def random_log(num_items: int, length: int, users: int) -> Dataset:
    """Users of exactly `length` interactions (of more, RecTools would drop the first ones and items with them)."""
    rng = np.random.default_rng(0)
    users = max(users, -(-num_items // length))
    items = np.concatenate([rng.permutation(num_items) for _ in range(-(-users * length // num_items))])
    log = {Columns.User: np.repeat(np.arange(users), length), Columns.Item: items[: users * length]}
    log[Columns.Weight] = np.ones(users * length)
    log[Columns.Datetime] = np.datetime64("2020-01-01", "ns") + np.arange(users * length).astype("timedelta64[s]")
    return Dataset.construct(pd.DataFrame(log))


def measure(given: argparse.Namespace) -> dict[str, Any]:
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


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--items", type=int, default=100_000)
    options.add_argument("--dim", type=int, default=128)
    options.add_argument("--layers", type=int, default=2)
    options.add_argument("--heads", type=int, default=4)
    options.add_argument("--length", type=int, default=32)
    options.add_argument("--batch", type=int, default=128)
    options.add_argument("--mask", type=float, default=0.15)
    options.add_argument("--steps", type=int, default=10, help=f"more than {WARM_UP}, which are not counted")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--memory", type=float, help="GB it may take; what is free, if not given")
    options.add_argument("--json", action="store_true", help="only the JSON line, nothing for people on stderr")
    given = options.parse_args()
    if given.steps <= WARM_UP:
        options.error(f"--steps must be more than {WARM_UP}")
    warnings.simplefilter("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    torch.set_num_threads(given.threads)
    lightning.seed_everything(0, verbose=False)
    limit_memory(given.memory)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            figures = measure(given)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        sys.exit(f"error: out of memory with {given.items:,} items: {str(error).splitlines()[0]}")
    if not given.json:
        text = "{library}, {items:,} items: {seconds_per_step:.3f} s a step, {growth_mb:,.0f} MB above the log"
        print(text.format(**figures), file=sys.stderr)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
