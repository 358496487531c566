"""Makes a made-up world once, asks the oracle about its test rows, and trains and measures one model in it."""

from __future__ import annotations

import re
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from superbloom.api import Superbloom
from superbloom.config import SyntheticOptions
from superbloom.corpus import Corpus
from superbloom.evaluate import DEEPEST, KS, HeldOut, deciles
from superbloom.evaluate.metrics import recall
from superbloom.hashing import BloomHash
from superbloom.prepare.synthetic import Oracle, synthetic_corpus, world_of
from superbloom.reproduce.cells import Cell
from superbloom.reproduce.laboratory.probe import ceiling, probe
from superbloom.reproduce.workbench import Workbench
from superbloom.storage import MANIFESTS

TINIEST = 1e-300  # instead of a probability of 0, before its logarithm
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

    @cached_property
    def hidden(self) -> HeldOut:
        """The hidden elements that every model is asked for."""
        return self.held_out(self.corpus.info["world"]["longest"])

    @cached_property
    def probabilities(self) -> np.ndarray:
        """The oracle's probability of each id for each hidden element, (elements, ids)."""
        world = world_of(self.corpus)
        assert world is not None
        number_of = {name: number for number, name in enumerate(world.names)}
        numbers = np.array([number_of[name] for name in self.corpus.vocab.names(range(self.corpus.num_ids))])
        return Oracle(world).probabilities([numbers[row[row >= 0]] for row in self.hidden.ids])[:, numbers]

    def best(self) -> dict[str, Any]:
        """Return what the oracle knows about the hidden elements."""
        targets, names = self.hidden.targets, self.corpus.vocab.names(range(self.corpus.num_ids))
        rank = rank_by(self.probabilities, targets)
        highest = -np.partition(-self.probabilities, DEEPEST, axis=1)[:, :DEEPEST]
        highest = -np.sort(-highest, axis=1)
        frequency = self.corpus.id_counts("train")[targets]
        return {
            "counts": self.corpus.counts(),
            "best": {str(k): float(highest[:, :k].sum(axis=1).mean()) for k in KS},
            "recall": recall(rank),
            "ranks": rank.tolist(),
            "deciles": deciles(rank, frequency),
            "kinds": [KINDS.index(names[target].split()[0]) for target in targets],
            "frequency": frequency.tolist(),
        }

    def more(self, cell: Cell, superbloom: Superbloom) -> dict[str, Any]:
        """Return beams for Table 6, the layer probe, and the most that answers by the sum over hashes can find."""
        found = super().more(cell, superbloom) | {"through buckets": self.through_buckets(superbloom.model.bloom)}
        if {"table3", "alpha"} & {*cell.parts}:
            found["probe"] = {"read": probe(superbloom.model, self.corpus), **ceiling(superbloom.model, self.corpus)}
        return found

    def through_buckets(self, bloom: BloomHash) -> dict[str, Any]:
        """Return the recall of perfect probabilities of buckets, ranked by the paper's sum over hashes.

        A model predicts the buckets of each hash apart, so names that share buckets with likely ones rise (ghosts).
        """
        buckets = bloom.table[: self.corpus.num_ids].numpy()
        scores = np.zeros_like(self.probabilities)
        for own in buckets.T:
            of_bucket = sparse.csr_matrix((np.ones(len(own)), (np.arange(len(own)), own)))
            scores += np.log(np.maximum((of_bucket.T @ self.probabilities.T).T[:, own], TINIEST))
        return recall(rank_by(scores, self.hidden.targets))


def rank_by(scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the rank of each target, at most DEEPEST; of equal scores the smaller id is ahead.

    >>> rank_by(np.array([[0.1, 0.5, 0.4], [0.3, 0.3, 0.4]]), np.array([2, 1]))
    array([1, 2])
    """
    own = np.take_along_axis(scores, targets[:, None], 1)
    is_ahead = (scores > own) | ((scores == own) & (np.arange(scores.shape[1]) < targets[:, None]))
    return np.minimum(is_ahead.sum(axis=1), DEEPEST)


def file_of(world: str) -> str:
    """The name of a world's files.

    >>> file_of("1,000 rows")
    '1000-rows'
    """
    return re.sub(r"[^\w]+", "-", world.replace(",", "")).strip("-")
