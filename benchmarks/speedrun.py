"""How soon does a hashed model beat co-occurrence on two cores, and why?   python -m benchmarks.speedrun --help

    curves    each model on each corpus for so many minutes, with a validation about every ten seconds
    changes   half a minute of training with each change alone, with all, and with all but one
    profile   where the time of a step goes, before the changes and after
    report    tables and pictures of what was measured, into docs/training.md

Time is that of `fit`: start, training and validation; hidden elements of validation pages, a thousand and a half, are
the same for models and yardstick. Test pages are looked at once a cell, at its end. What is measured is kept in
benchmarks/results/speedrun.json; curves go on where they were, from runs kept in --work.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from superbloom import Corpus, Superbloom
from superbloom.config.model import ModelConfig
from superbloom.config.training import TrainConfig
from superbloom.corpus.cooccurrence import similarity
from superbloom.evaluate.held_out import HeldOut
from superbloom.evaluate.metrics import DEEPEST, KS, recall
from superbloom.evaluate.yardsticks import cooccurrence
from superbloom.model.model import Model
from superbloom.prepare.bundled import LINKS
from superbloom.prepare.sequences import read_sequences
from superbloom.training.lightning_module import Training
from superbloom.training.limits import num_parameters
from superbloom.training.optimizer import clip
from tools.record import between_marks, keep

HERE = Path(__file__).parent
RESULTS, DOC = HERE / "results" / "speedrun.json", HERE.parent / "docs" / "training.md"
WIKISPEEDIA = "wiki/wikispeedia_page_links_in_order.tsv.xz"
CORPORA = ("wikispeedia", "enwik8-5000", "enwik8-20000")
MINUTES = (5, 15, 60)
WATCH = {"valid_rows": 1500, "valid_every": 100, "quiet": True}
WIDTH = 128  # the default of ModelConfig, and of the unhashed model of the same width
# The recipe before, and what each change is.
BEFORE = {"spread": False, "inputs": "tokens", "mask_as": "element", "distance": False, "dropout": 0.0}
BEFORE_TRAINING = {"warm_start": False, "average": 0.0, "mask_share": 0.15}
CHANGES = {
    "start from co-occurrence": {"warm_start": True},
    "attention by distance": {"distance": True},
    "an id is the sum of its tokens": {"inputs": "sum"},
    "[MASK] as a question, 30 % masked": {"mask_as": "question", "mask_share": TrainConfig(steps=1).mask_share},
    "frequent ids spread": {"spread": True},
    "dropout": {"dropout": ModelConfig(num_ids=2).dropout},
    "average of the weights": {"average": TrainConfig(steps=1).average},
}
CHANGES_ON, CHANGES_MINUTES = ("enwik8-5000", 10), 0.5
PROFILED = 20  # steps


def corpus_of(name: str, data: Path | None) -> Corpus:
    if name == "wikispeedia":
        if data is None or not (data / WIKISPEEDIA).is_file():
            sys.exit(f"{WIKISPEEDIA} is not in --data {data}; give the folder that holds it, or other --corpora")
        return Corpus.from_keyed(read_sequences([data / WIKISPEEDIA], keyed=True))
    return Corpus.from_keyed(read_sequences([LINKS], keyed=True), max_names=int(name.split("-")[1]))


def models(num_ids: int) -> dict[str, dict[str, Any]]:
    """Options of each model by its name; unhashed ones of the same size have the width that gives it."""
    unhashed = {"num_hashes": 1, "alpha": 1}
    found: dict[str, dict[str, Any]] = {f"α={alpha}": {"alpha": alpha} for alpha in (4, 10)}
    found["unhashed, same width"] = unhashed
    for alpha in (4, 10):
        size = num_parameters(ModelConfig(num_ids=num_ids, alpha=alpha))
        widths = [unhashed | {"dim": dim, "ffn_dim": 4 * dim} for dim in range(4, WIDTH + 1, 4)]
        found[f"unhashed, size of α={alpha}"] = min(
            widths, key=lambda width: abs(num_parameters(ModelConfig(num_ids=num_ids, **width)) - size)
        )
    return found


def yardsticks(corpus: Corpus) -> dict[str, dict[str, float]]:
    """Recall of co-occurrence, plain and near, on the hidden elements that models are validated on."""
    similar = similarity(corpus)
    held_out = HeldOut.of(corpus, "valid", ModelConfig(num_ids=2).seq_len, draws=WATCH["valid_rows"])
    ranked = {"yardstick": False, "near": True}
    found = {name: recall(cooccurrence(similar, held_out, DEEPEST, near)) for name, near in ranked.items()}
    return {name: {k: share["value"] for k, share in shares.items()} for name, shares in found.items()}


def curves(given: argparse.Namespace, results: dict[str, Any]) -> None:
    for minutes in given.minutes:
        for name in given.corpora:
            corpus = corpus_of(name, given.data)
            cells = results["curves"].setdefault(name, {"models": {}})
            cells |= yardsticks(corpus)
            for model, options in models(corpus.num_ids).items():
                cell = cells["models"].setdefault(model, {"options": options, "after": {}})
                if (given.models and model not in given.models) or str(minutes) in cell["after"]:
                    continue
                superbloom = Superbloom(**options)
                run = given.work / f"{name} {model}".replace(" ", "-")
                superbloom.fit(corpus, run=run, resume=True, minutes=minutes, **WATCH)
                cell["parameters"] = superbloom.model.network.num_parameters()
                cell.setdefault("history", superbloom.metrics["history"])  # of the first: it tells when it passes
                test = superbloom.evaluate(corpus)
                cell["after"][str(minutes)] = {
                    "steps": superbloom.training["steps"],
                    "seconds": superbloom.training["seconds"],
                    "threads": torch.get_num_threads(),
                    "history": superbloom.metrics["history"],
                    "validation": taken(superbloom),
                    "test": {k: share["value"] for k, share in test["recall"].items()},
                    "test yardsticks": {
                        name: {k: share["value"] for k, share in shares.items()}
                        for name, shares in test["yardsticks"].items()
                    },
                }
                passed = passes(superbloom.metrics["history"], cells["yardstick"])
                shown = {part: cell["after"][str(minutes)][part] for part in ("steps", "validation", "test")}
                print(f"{name}, {model}, {minutes} min: {shown}, passed: {passed}", flush=True)
                keep(RESULTS, results)


def taken(superbloom: Superbloom) -> dict[int, float]:
    """Validation recall of the weights that became the model."""
    point = next(p for p in superbloom.metrics["history"] if p["step"] == superbloom.training["taken"])
    return {k: point[f"recall_at_{k}"] for k in KS}


def passes(history: list[dict[str, float]], least: dict[str, float]) -> float | None:
    """Minutes until recall@10 first exceeds the yardstick's."""
    return next((point["seconds"] / 60 for point in history if point["recall_at_10"] > least["10"]), None)


def changes(given: argparse.Namespace, results: dict[str, Any]) -> None:
    name, alpha = CHANGES_ON
    corpus = corpus_of(name, given.data)
    results["changes"] |= yardsticks(corpus) | {"minutes": CHANGES_MINUTES}
    settings = {"none": {}, **{f"only: {change}": CHANGES[change] for change in CHANGES}}
    everything = {option: value for change in CHANGES.values() for option, value in change.items()}
    settings["all"] = everything
    for change, options in CHANGES.items():
        settings[f"all but: {change}"] = {name: value for name, value in everything.items() if name not in options}
    for setting, options in settings.items():
        if setting in results["changes"].setdefault("runs", {}):
            continue
        chosen = BEFORE | BEFORE_TRAINING | options
        training = {option: chosen.pop(option) for option in BEFORE_TRAINING}
        superbloom = Superbloom(alpha=alpha, **chosen).fit(corpus, minutes=CHANGES_MINUTES, **training, **WATCH)
        results["changes"]["runs"][setting] = {
            "steps": superbloom.training["steps"],
            "validation": taken(superbloom),
        }
        print(setting, results["changes"]["runs"][setting], flush=True)
        keep(RESULTS, results)


def profile(given: argparse.Namespace, results: dict[str, Any]) -> None:
    corpus = corpus_of("enwik8-20000", given.data)
    for label, options, training in (("before", BEFORE, BEFORE_TRAINING), ("after", {}, {})):
        step = Step(corpus, options, training)
        for number in range(5):
            step(number)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            for number in range(5, 5 + PROFILED):
                step(number)
        events, scale = seen.key_averages(), 1000 * PROFILED
        parts = {e.key[6:]: e.cpu_time_total / scale for e in events if e.key.startswith("part: ")}
        operators = sorted((e.self_cpu_time_total / scale, e.key) for e in events if not e.key.startswith("part: "))
        results["profile"][label] = {
            "milliseconds": parts,
            "operators": {key: round(time, 2) for time, key in operators[:-13:-1]},
            "targets": int(np.mean([step.batches[number].total for number in range(5, 5 + PROFILED)])),
        }
        print(label, json.dumps(results["profile"][label], indent=1), flush=True)
    keep(RESULTS, results)


class Step:
    """A training step whose parts the profiler can tell apart."""

    def __init__(self, corpus: Corpus, options: dict[str, Any], training: dict[str, Any]) -> None:
        self.config = TrainConfig(steps=1, **training)
        self.model = Model.create(ModelConfig(num_ids=corpus.num_ids, **options), corpus.vocab)
        whole = Training(self.model, corpus, self.config)
        self.batches, self.optimizer, self.loss = whole.batches(), whole.configure_optimizers(), whole.objective.loss

    def __call__(self, number: int) -> None:
        part = torch.profiler.record_function
        with part("part: batch"):
            ids, places, targets, total, _ = self.batches[number]
        with part("part: layers, forward"):
            y = self.model.encode(ids, places)
        with part("part: loss and its gradient"):
            loss = self.loss(y[targets >= 0], targets[targets >= 0], 0) / (total * self.model.config.num_hashes)
        with part("part: layers, backward"):
            loss.backward()
        with part("part: clipping, Adam, average"):
            clip(self.model.network.parameters(), self.config.clip)
            self.optimizer.step()
            self.optimizer.zero_grad()


def report(_: argparse.Namespace, results: dict[str, Any]) -> None:
    """Write tables between the marks of docs/training.md, and the pictures beside it."""
    from benchmarks.speedrun_report import pictures, tables

    between_marks(DOC, tables(results))
    pictures(results, DOC.parent)


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("curves", "changes", "profile", "report"))
    parser.add_argument("--data", type=Path, default=os.environ.get("SUPERBLOOM_DATA"), help="folder of the real data")
    parser.add_argument("--work", type=Path, default=Path("speedrun-runs"), help="folder for runs to go on from")
    parser.add_argument("--corpora", nargs="*", default=list(CORPORA), choices=CORPORA)
    parser.add_argument("--models", nargs="*", help="only these")
    parser.add_argument("--minutes", nargs="*", type=int, default=list(MINUTES))
    given = parser.parse_args()
    stored = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    results = {part: stored.get(part, {}) for part in ("curves", "changes", "profile")}
    {"curves": curves, "changes": changes, "profile": profile, "report": report}[given.what](given, results)


if __name__ == "__main__":
    main()
