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
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from measuring import WARM_UP, Memory, highest, main, random_items
from recbole.config import Config
from recbole.data.dataloader import TrainDataLoader
from recbole.data.dataset import SequentialDataset
from recbole.model.sequential_recommender import BERT4Rec
from recbole.utils import get_trainer, init_seed


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


def write_log(folder: Path, num_items: int, length: int, users: int) -> None:
    """A user's `length` items and the next one on a line; RecBole wants a second and a third file beside the first."""
    rows = random_items(num_items, length, users).tolist()
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
    # RecBole writes folders of its own where it runs.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return measure_here(given)


def measure_here(given: argparse.Namespace) -> dict[str, Any]:
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


if __name__ == "__main__":
    main(__doc__, measure)
