"""Makes a made-up world once, asks the oracle about its test rows, and trains and measures one model in it."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from superbloom.api import Superbloom
from superbloom.config import SyntheticOptions
from superbloom.corpus import Corpus
from superbloom.evaluate import DEEPEST, KS, deciles
from superbloom.evaluate.metrics import recall
from superbloom.prepare.synthetic import Oracle, synthetic_corpus, world_of
from superbloom.reproduce.cells import Cell
from superbloom.reproduce.laboratory.probe import ceiling, probe
from superbloom.reproduce.workbench import Workbench
from superbloom.storage import MANIFESTS

KINDS = ("country", "capital", "list")


class LabBench(Workbench):
    """A world, and the folder that keeps what is measured in it."""

    @classmethod
    def of_world(cls, world: str, options: SyntheticOptions, folder: Path, share_minutes: float) -> LabBench:
        """Draw the rows of a world, or open them if an earlier call drew them."""
        path = folder / "worlds" / file_of(world)
        if not (path / MANIFESTS["corpus"]).is_file() or Corpus.open(path, verify=False).info["world"] != asdict(
            options
        ):
            synthetic_corpus(options).save(path)
        bench = cls(Corpus.open(path, verify=False), folder, share_minutes)
        name = f"worlds/{file_of(world)}"
        if (bench.kept(name) or {}).get("options") != asdict(options):
            bench.keep(name, {"world": world, "options": asdict(options), **bench.best()})
        return bench

    def best(self) -> dict[str, Any]:
        """Return what the oracle knows about the hidden elements that every model is asked for."""
        world = world_of(self.corpus)
        assert world is not None
        held_out, names = self.held_out(world.options.longest), self.corpus.vocab.names(range(self.corpus.num_ids))
        number_of = {name: number for number, name in enumerate(world.names)}
        numbers = np.array([number_of[name] for name in names])
        probability = Oracle(world).probabilities([numbers[row[row >= 0]] for row in held_out.ids])
        ordered = np.argsort(-probability, axis=1, kind="stable")[:, :DEEPEST]
        hit = ordered == numbers[held_out.targets][:, None]
        rank = np.where(hit.any(axis=1), hit.argmax(axis=1), DEEPEST)
        highest = np.take_along_axis(probability, ordered, 1)
        frequency = self.corpus.id_counts("train")[held_out.targets]
        return {
            "counts": self.corpus.counts(),
            "best": {str(k): float(highest[:, :k].sum(axis=1).mean()) for k in KS},
            "recall": recall(rank),
            "ranks": rank.tolist(),
            "deciles": deciles(rank, frequency),
            "kinds": [KINDS.index(names[target].split()[0]) for target in held_out.targets],
            "frequency": frequency.tolist(),
        }

    def more(self, cell: Cell, superbloom: Superbloom) -> dict[str, Any]:
        """Return beams for Table 6, and the layer probe of models of Table 3."""
        found = super().more(cell, superbloom)
        if {"table3", "alpha"} & {*cell.parts}:
            found["probe"] = {"read": probe(superbloom.model, self.corpus), **ceiling(superbloom.model, self.corpus)}
        return found


def file_of(world: str) -> str:
    """The name of a world's files.

    >>> file_of("1,000 rows")
    '1000-rows'
    """
    return re.sub(r"[^\w]+", "-", world.replace(",", "")).strip("-")
