"""What do RecTools' BERT4Rec and SASRec reach in so many minutes?   python rectools_fit.py EVENTS --model sasrec

EVENTS is what benchmarks/recommend.py exports of a corpus, a CSV file of user, item, at (the place in the row) and
part: `train` is learnt from, `history` is read when a user is asked, `target` is what is asked. So the split is that of
the corpus. Both models have the full softmax; other settings are the library's, width, layers and length as given.

Minutes are those of the processor, so that on one thread other work does not count; they run from when the model is
made and are looked at after every step. The whole catalogue is ranked. With --filter-seen a user's history is left out,
but not what is asked, if that was there before. Targets that training did not see are misses. What does not fit into
the free memory ends in one line (exit code 1).
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytorch_lightning as lightning
import torch
from measuring import highest, within_memory
from rectools import Columns
from rectools.dataset import Dataset
from rectools.models import BERT4RecModel, SASRecModel

MODELS = {"bert4rec": BERT4RecModel, "sasrec": SASRecModel}
KS = (1, 10, 20)
AT_ONCE = 8192  # users that are asked: the scores of all their items lie in memory


class Clock(lightning.Callback):
    """Ends training when the time is up."""

    def __init__(self, minutes: float) -> None:
        self.started, self.minutes, self.steps = (time.perf_counter(), time.process_time()), minutes, 0

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self.steps = trainer.global_step
        self.seconds, self.cpu = time.perf_counter() - self.started[0], time.process_time() - self.started[1]
        trainer.should_stop = self.cpu >= 60 * self.minutes


def trainer(minutes: float) -> lightning.Trainer:
    """RecTools' own trainer, on the CPU and until the time is up."""
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    return lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=-1, enable_checkpointing=False, callbacks=[Clock(minutes)], **quiet
    )


def dataset(events: pd.DataFrame) -> Dataset:
    start = np.datetime64("2020-01-01", "ns")
    log = {Columns.User: events["user"], Columns.Item: events["item"], Columns.Weight: 1.0}
    return Dataset.construct(pd.DataFrame(log | {Columns.Datetime: start + events["at"].astype("timedelta64[s]")}))


def ranks(model: Any, events: pd.DataFrame, filter_seen: bool) -> np.ndarray:
    """The rank of each target from 0, max(KS) if it is beyond that or not answered at all."""
    targets = events[events["part"] == "target"].set_index("user")["item"]
    before = events[(events["part"] != "target") & events["user"].isin(targets.index)]
    known = dataset(before)
    again = before.index[before["item"].to_numpy() == targets[before["user"]].to_numpy()]
    had = np.unique(before.loc[again, "user"])  # users who are asked for what they have had
    rank = pd.Series(max(KS), index=targets.index)
    for users, filter_viewed in ((targets.index.difference(had), filter_seen), (had, False)):
        if not len(users):
            continue
        deepest = max(KS)
        if filter_seen and not filter_viewed:
            deepest += before[before["user"].isin(users)].groupby("user")["item"].nunique().max()
        parts = [np.array(users[start : start + AT_ONCE]) for start in range(0, len(users), AT_ONCE)]
        options = {"k": deepest, "filter_viewed": filter_viewed, "on_unsupported_targets": "ignore"}
        found = pd.concat([model.recommend(part, known, **options) for part in parts], ignore_index=True)
        found = found.rename(columns={Columns.User: "user", Columns.Item: "item"})
        found["target"] = targets[found["user"]].to_numpy()
        if filter_seen and not filter_viewed:
            seen = before[["user", "item"]].drop_duplicates().assign(seen=True)
            found = found.merge(seen, how="left", on=["user", "item"])
            found = found[found["seen"].isna() | (found["item"] == found["target"])]
        found["place"] = found.groupby("user").cumcount()
        hit = found[found["item"] == found["target"]].set_index("user")["place"]
        rank.loc[hit.index] = hit
    return rank.to_numpy()


def measure(given: argparse.Namespace) -> dict[str, Any]:
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    torch.set_num_threads(given.threads)
    lightning.seed_everything(0, verbose=False)
    events = pd.read_csv(given.events)
    log = dataset(events[events["part"] == "train"])
    model = MODELS[given.model](
        n_factors=given.dim,
        n_blocks=given.layers,
        n_heads=given.heads,
        session_max_len=given.length,
        batch_size=given.batch,
        loss="softmax",
        get_trainer_func=trainer,
        get_trainer_func_kwargs={"minutes": given.minutes},
    )
    model.fit(log)
    clock = next(one for one in model.fit_trainer.callbacks if isinstance(one, Clock))
    network = model.lightning_model.torch_model
    figures = {
        "parameters": sum(weight.numel() for weight in network.parameters()),
        "steps": clock.steps,
        "epochs": clock.steps / len(model.data_preparator.get_dataloader_train()),
        "minutes": clock.seconds / 60,
        "CPU minutes": clock.cpu / 60,
        "training peak GB": highest() / 1e3,
    }
    rank = ranks(model, events, given.filter_seen)
    return figures | {
        "asked": len(rank),
        "recall": {k: float((rank < k).mean()) for k in KS},
        "ndcg": {k: float(np.where(rank < k, 1 / np.log2(2 + rank), 0).mean()) for k in KS},
        "mrr": {k: float(np.where(rank < k, 1 / (1 + rank), 0).mean()) for k in KS},
        "peak GB": highest() / 1e3,
        "library": f"rectools {version('rectools')}",
        "torch": torch.__version__,
        "settings": {name: getattr(given, name) for name in ("dim", "layers", "heads", "length", "batch", "threads")},
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("events", type=Path)
    options.add_argument("--model", choices=MODELS, required=True)
    options.add_argument("--minutes", type=float, default=8)
    options.add_argument("--filter-seen", action="store_true")
    options.add_argument("--dim", type=int, default=128)
    options.add_argument("--layers", type=int, default=2)
    options.add_argument("--heads", type=int, default=4)
    options.add_argument("--length", type=int, default=50)
    options.add_argument("--batch", type=int, default=128)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--memory", type=float, help="GB it may take; what is free, if not given")
    given = options.parse_args()
    print(json.dumps(within_memory(given.memory, f"{given.model} on {given.events.name}", lambda: measure(given))))


if __name__ == "__main__":
    main()
