"""What does a training step of RecBole's BERT4Rec cost?   python recbole_step.py --items 100000 --steps 10

A step is the body of the loop in RecBole's Trainer: forward, full softmax (loss_type CE), backward, Adam; making the
batch is not timed. A batch is 128 sequences of 32 items, none padded. RecBole would make every prefix of a history a
sequence; its own way to take sequences as they are is benchmark_filename, used here. Each item is masked with
probability .15. RecBole predicts int(.15 × 32) = 4 positions of a sequence, so logits have 128 × 4 rows: of more masked
items it takes the last 4; where there are fewer, or the first position is masked, a row is computed and left out of the
loss. ft_ratio is 0: no batch masks the last item only. The feed-forward layers are 4 × dim wide, dropout is the
library's (.2).

Each item is in the random log at least once. MB are 10⁶ bytes; growth is counted from just before the model is built,
when the log, its ids and the loader exist. Memory is limited to what is free, so that a model that does not fit ends in
one line (exit code 1) and not in the kernel's out-of-memory killer.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import itertools
import json
import resource
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from recbole.config import Config
from recbole.data.dataloader import TrainDataLoader
from recbole.data.dataset import SequentialDataset
from recbole.model.sequential_recommender import BERT4Rec
from recbole.utils import get_trainer, init_seed

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


class TimedLoader(TrainDataLoader):
    """The library's loader; it stops after some batches and times what is done between two of them."""

    def __init__(self, steps: int, config: Config, dataset: SequentialDataset) -> None:
        super().__init__(config, dataset, None, shuffle=True)
        self.steps = steps
        self.seconds: list[float] = []
        self.masked: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        for batch in itertools.islice(super().__iter__(), self.steps):
            self.shape = batch["Mask_item_id_list"].shape
            self.rows = batch["MASK_INDEX"].numel()
            self.masked.append(int((batch["MASK_INDEX"] > 0).sum()))
            start = time.perf_counter()
            yield batch
            self.seconds.append(time.perf_counter() - start)


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


def write_log(folder: Path, num_items: int, length: int, users: int) -> None:
    """A user's `length` items and the next one on a line; RecBole wants a second and a third file beside the first."""
    rng = np.random.default_rng(0)
    users = max(users, -(-num_items // length))
    items = np.concatenate([rng.permutation(num_items) for _ in range(-(-users * length // num_items))])
    rows = items[: users * length].reshape(users, length).tolist()
    lines = [f"{user}\t{' '.join(map(str, row))}\t{row[0]}\n" for user, row in enumerate(rows)]
    folder.mkdir()
    for part, some in (("train", lines), ("valid", lines[:1]), ("test", lines[:1])):
        header = "user_id:token\titem_id_list:token_seq\titem_id:token\n"
        (folder / f"random.{part}.inter").write_text(header + "".join(some))


def configuration(given: argparse.Namespace) -> Config:
    settings = {
        "data_path": str(Path.cwd()),
        "benchmark_filename": ["train", "valid", "test"],
        "alias_of_item_id": ["item_id_list"],
        "load_col": {"inter": ["user_id", "item_id_list", "item_id"]},
        "MAX_ITEM_LIST_LENGTH": given.length,
        "hidden_size": given.dim,
        "inner_size": 4 * given.dim,
        "n_layers": given.layers,
        "n_heads": given.heads,
        "mask_ratio": given.mask,
        "ft_ratio": 0,
        "loss_type": "CE",
        "train_neg_sample_args": None,
        "train_batch_size": given.batch,
        "epochs": 1,
        "use_gpu": False,
        "show_progress": False,
    }
    sys.argv[1:] = []  # RecBole would read them as its own settings
    return Config(model="BERT4Rec", dataset="random", config_dict=settings)


def measure(given: argparse.Namespace) -> dict[str, Any]:
    write_log(Path("random"), given.items, given.length, given.batch * given.steps)
    config = configuration(given)
    init_seed(config["seed"], config["reproducibility"])
    torch.set_num_threads(given.threads)
    dataset = SequentialDataset(config)
    loader = TimedLoader(given.steps, config, dataset.build()[0])
    memory = Memory()
    memory.start()
    model = BERT4Rec(config, loader.dataset).to(config["device"])
    trainer = get_trainer(config["MODEL_TYPE"], config["model"])(config, model)
    trainer.fit(loader, saved=False, verbose=False)
    assert dataset.item_num == given.items + 1  # padding
    assert loader.shape == (given.batch, given.length)
    assert len(loader.seconds) == given.steps
    return {
        "items": given.items,
        "seconds_per_step": statistics.median(loader.seconds[WARM_UP:]),
        "steps": given.steps,
        "peak_mb": highest(),
        "before_mb": memory.before,
        "growth_mb": memory.growth(),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "predicted_per_step": statistics.mean(loader.masked),
        "softmax_rows_per_step": loader.rows,
        "library": f"recbole {version('recbole')}",
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
    limit_memory(given.memory)
    try:
        # RecBole writes folders of its own where it runs.
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.redirect_stdout(sys.stderr):
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
