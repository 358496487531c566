"""Trains and measures one cell at a time.

A finished cell is a JSON file in cells/, and an interrupted one resumes from its checkpoint in runs/. All cells of a
corpus are measured on the same hidden elements of test rows.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from superbloom.api import Superbloom
from superbloom.corpus import Corpus
from superbloom.corpus.cooccurrence import similarity
from superbloom.errors import InputError
from superbloom.evaluate import DEEPEST, HeldOut, cooccurrence, deciles, popularity, ranks, share
from superbloom.evaluate.metrics import recall
from superbloom.predict import Predictor
from superbloom.reproduce import paper
from superbloom.reproduce.cells import Cell, Shapes
from superbloom.reproduce.results import BY_PROBABILITY
from superbloom.special import MASK_TEXT
from superbloom.storage import read_json, write_atomically
from superbloom.training.checkpoints import checkpoints
from superbloom.version import __version__

HIDDEN_ELEMENTS = 3_000  # of test rows
TRAINING_OPTIONS = {"valid_rows": 1000, "save_every": 250}
BEAM_WIDTHS = (1, 10, 20, 100)
MAX_RESULT_BYTES = 2**24  # of one JSON file
MAX_COUNTED_IDS = 20_000_000  # of a corpus whose co-occurrences are counted


class Stopped(Exception):  # noqa: N818 (it is no error)
    """Training was interrupted, and its checkpoint is saved."""


class Workbench:
    """A corpus, and the folder that keeps what is measured on it."""

    def __init__(self, corpus: Corpus, folder: Path, share_minutes: float) -> None:
        self.corpus, self.folder, self.share_minutes = corpus, folder, share_minutes

    def minutes(self, cell: Cell) -> float:
        return self.share_minutes * cell.shares

    def result(self, cell: Cell) -> dict[str, Any] | None:
        """Return what was measured of a cell; None if nothing was, or if an earlier release gave it other options."""
        found = self.kept(f"cells/{cell.file}")
        asked = {"model": cell.model, "training": cell.training, "minutes": self.minutes(cell)}
        return found if found is not None and asked.items() <= found.items() else None

    def kept(self, name: str) -> dict[str, Any] | None:
        return kept(self.folder, name)

    def keep(self, name: str, found: dict[str, Any]) -> None:
        keep(self.folder, name, found)

    def attempt(self, cell: Cell, label: str, quiet: bool, notice: Callable[[str], None]) -> bool:
        """Run a cell, or leave it out if it fails. Returns False if the user stopped it."""
        try:
            self.run(cell, quiet)
        except Stopped:
            notice("stopped; run the same command to resume")
            return False
        except InputError as error:
            notice(f"{label} failed and is left out: {error}")
        return True

    def run(self, cell: Cell, quiet: bool = False) -> None:
        """Train and measure a cell; raises Stopped if interrupted. A checkpoint that does not fit is deleted."""
        run = self.run_of(cell)
        has_checkpoint = bool(checkpoints(run))
        try:
            self._run(cell, run, quiet)
        except InputError:
            if not has_checkpoint:
                raise
            shutil.rmtree(run)
            self._run(cell, run, quiet)

    def run_of(self, cell: Cell) -> Path:
        """Return the folder of a cell's checkpoints."""
        return self.folder / "runs" / cell.file

    def _run(self, cell: Cell, run: Path, quiet: bool) -> None:
        before = time.process_time()
        superbloom = Superbloom(**cell.model)
        training: dict[str, Any] = TRAINING_OPTIONS | cell.training | {"minutes": self.minutes(cell), "seed": cell.seed}
        superbloom.fit(self.corpus, run=run, resume=bool(checkpoints(run)), quiet=quiet, **training)
        if superbloom.training["interrupted"]:
            raise Stopped
        found = {
            "cell": cell.name,
            "superbloom": __version__,
            "seed": cell.seed,
            "model": cell.model,
            "training": cell.training,
            "minutes": self.minutes(cell),
            "parameters": superbloom.model.network.num_parameters(),
            **{name: superbloom.training[name] for name in ("steps", "taken", "seconds")},
            "processor seconds": round(time.process_time() - before, 1),
            "history": superbloom.metrics["history"],
            **self.measured(superbloom.predictor),
        }
        self.keep(f"cells/{cell.file}", found | self.more(cell, superbloom))
        shutil.rmtree(run)

    def more(self, cell: Cell, superbloom: Superbloom) -> dict[str, Any]:
        """Return what only some parts measure: beams for Table 6, examples."""
        found: dict[str, Any] = {}
        if "table6" in cell.parts and cell.seed == 0:
            found["beams"] = self.beams(superbloom)
        if "examples" in cell.parts and cell.seed == 0:
            found |= self.examples(superbloom)
            superbloom.save_pretrained(self.folder / "models" / cell.file)
        return found

    def held_out(self, seq_len: int) -> HeldOut:
        return HeldOut.of(self.corpus, "test", seq_len, draws=HIDDEN_ELEMENTS)

    def measured(self, predictor: Predictor) -> dict[str, Any]:
        """Return recall on test rows with and without the prior, and the rank of each hidden element."""
        held_out = self.held_out(predictor.model.config.seq_len)
        found = ranks(predictor, held_out, apart=True, filter_seen=False)  # the paper ranks all ids
        frequency = self.corpus.id_counts("train")[held_out.targets]
        return {
            "hidden": len(held_out),
            "recall": recall(found.rank),
            "by sum": recall(found.by_sum),
            "tokens": share(int(found.tokens.sum()), found.tokens.size),
            "certified": float(found.certified.mean()),
            "deciles": deciles(found.rank, frequency),
            "ranks": found.rank.tolist(),
            "ranks by sum": found.by_sum.tolist(),
        }

    def beams(self, superbloom: Superbloom) -> dict[str, Any]:
        """Return recall for Table 6: one round of Algorithm 1 per width, and until certified by sum and probability."""
        held_out, found = self.held_out(superbloom.model.config.seq_len), {}
        ways: dict[str, dict[str, Any]] = {
            **{str(beam): {"combine": "sum", "beam": beam, "max_rounds": 1} for beam in BEAM_WIDTHS},
            "certified": {"combine": "sum"},
            "certified" + BY_PROBABILITY: {"combine": "posterior"},
        }
        for name, options in ways.items():
            seen = ranks(superbloom.predictor, held_out, with_probabilities=False, filter_seen=False, **options)
            found[name] = {
                "recall": recall(seen.rank),
                "certified": float(seen.certified.mean()),
            }
        return found

    def examples(self, superbloom: Superbloom) -> dict[str, Any]:
        """Return the ten best answers to the paper's queries and analogies whose names the corpus has."""
        if self.corpus.vocab.is_text:
            texts = {text: superbloom.predictor.predict(text, k=10) for text in paper.SENTENCES}
            return {"examples": {text: [_answers(found) for found in masks] for text, masks in texts.items()}}
        examples, analogies = {}, []
        for context in paper.CONTEXTS:
            names = [self.known(name) for name in context]
            if all(names):
                examples[" · ".join(map(str, names))] = [_answers(self._ask(superbloom, names))]
        for one, other in pairwise(paper.CAPITALS):
            *names, right = (self.known(name) for name in (*one, *other))
            if all(names) and right is not None and right in (self.corpus.target_vocab or self.corpus.vocab):
                found = [answer.name for answer in self._ask(superbloom, names)]
                rank = found.index(right) + 1 if right in found else None
                analogies.append({"asked": names, "right": right, "rank": rank, "first": found[0]})
        return {"examples": examples, "analogies": analogies}

    def _ask(self, superbloom: Superbloom, names: list[Any]) -> list[Any]:
        (found,) = superbloom.predictor.predict([*names, MASK_TEXT], k=10, exclude_context=True)
        return found

    def known(self, name: str) -> str | None:
        """Return a name of the paper as the corpus spells it; None if the corpus does not have it."""
        return next((n for n in (name, name.replace(" ", "_")) if n in self.corpus.vocab), None)

    def yardsticks(self) -> dict[str, Any]:
        """Return recall of popularity and co-occurrence, which need no training, and the frequencies of names."""
        held_out = self.held_out(Superbloom(**Shapes(self.corpus)()).config_for(self.corpus).seq_len)
        found = {"popularity": recall(popularity(self.corpus, held_out, DEEPEST))}
        if not self.corpus.vocab.is_text and not self.corpus.is_ordered and len(self.corpus.ids) <= MAX_COUNTED_IDS:
            similar = similarity(self.corpus)
            for name, near in (("co-occurrence", False), ("co-occurrence, near", True)):
                found[name] = recall(cooccurrence(similar, held_out, DEEPEST, near))
        frequency = self.corpus.id_counts("train")
        counts = np.sort(frequency)[::-1]
        tenth = max(1, len(counts) // 10)
        most_frequent = {"100": int(counts[:100].sum()), "tenth": int(counts[:tenth].sum())}
        return {
            "recall": found,
            "share of links": {name: n / max(1, int(counts.sum())) for name, n in most_frequent.items()},
            "frequency": frequency[held_out.targets].tolist(),  # of each hidden element
        }


def kept(folder: Path, name: str) -> dict[str, Any] | None:
    """Read a JSON file of a report's folder; None if there is none."""
    path = folder / f"{name}.json"
    return read_json(path, MAX_RESULT_BYTES) if path.is_file() else None


def keep(folder: Path, name: str, found: dict[str, Any]) -> None:
    """Write a JSON file into a report's folder."""
    path = folder / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(found, ensure_ascii=False).encode(errors="backslashreplace"))


def _answers(found: list[Any]) -> dict[str, Any]:
    return {"names": [answer.name for answer in found], "certified": bool(found and found[0].certified)}
