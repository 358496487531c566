"""How much should a memory keep, and what does each part know?   python -m benchmarks.neighbours DATA WORK [NAME …]

Each corpus of benchmarks/corpora.py, without training: the frequency of names stands in for the network, and weights
are fitted to the validation elements that are asked. Four tables are written to docs/memory.md: by the number of
neighbours per name, by the number of places per name, by the share of the rows that are kept, and by part, each alone.
benchmarks/results/neighbours.json keeps what is measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.corpora import PREPARE, corpus_of
from superbloom import Corpus
from superbloom.config import ModelConfig, TrainConfig
from superbloom.evaluate import HeldOut, memory_probabilities
from superbloom.evaluate.counting import rank_of
from superbloom.memory import PARTS, Events, Memory, Pairs, Rows, remember
from superbloom.memory.parts import parts_of
from superbloom.memory.rows import PLACES_PER_NAME
from tools.record import between_marks, keep, markdown, report

DOC = Path(__file__).parents[1] / "docs" / "memory.md"
RESULTS = Path(__file__).parent / "results" / "neighbours.json"
SIZES = {"neighbours": (8, 16, 32, 64, 128), "places": (100, 400, 1000), "rows": (5, 20, 50, 100)}
SETTINGS = {
    "neighbours": [(neighbours, PLACES_PER_NAME, 100) for neighbours in SIZES["neighbours"]],
    "places": [(TrainConfig.neighbours, places, 100) for places in SIZES["places"]],
    "rows": [(TrainConfig.neighbours, PLACES_PER_NAME, percent) for percent in SIZES["rows"]],
}
FIRST = {"neighbours": "neighbours per name", "places": "places per name", "rows": "% of the rows"}
NAMES = ("wikispeedia", "enwik8-20000", "nowplaying")
ELEMENTS = 1500  # hidden in validation rows
CHUNK_ROWS = 64


def measured(corpus: Corpus, neighbours: int, places: int, percent: int) -> dict[str, Any]:
    """Recall, likelihood and size of a memory with this number of neighbours and places per name and share of rows."""
    events = Events.of(corpus)
    kept = len(events.ids) * percent // 100
    memory = Memory(Pairs.count(events, neighbours), Rows.keep(events, places, kept))
    held_out = HeldOut.of(corpus, "valid", ModelConfig.seq_len, draws=ELEMENTS)
    prior = corpus.id_counts("train") + 1.0
    prior /= prior.sum()
    parts = memory_probabilities(memory, held_out, corpus.num_ids, CHUNK_ROWS)
    memory = memory.weighed(prior[held_out.targets], parts, len(corpus.rows("valid")))
    ranks, likelihood = [], 0.0
    for ids, asked, targets in held_out.parts(CHUNK_ROWS):
        recalled = memory.recall(ids.numpy(), asked[:, 0].numpy(), corpus.num_ids)
        scores = recalled.network[:, None] * prior
        query, column = np.nonzero(recalled.ids >= 0)
        scores[query, recalled.ids[query, column]] += recalled.share[query, column]
        own = scores[np.arange(len(targets)), targets.numpy()][:, None]
        is_ahead = (scores > own) | ((scores == own) & (np.arange(corpus.num_ids) < targets.numpy()[:, None]))
        ranks.append(is_ahead.sum(axis=1))
        likelihood += float(np.log(own).sum())
    rank = np.concatenate(ranks)
    assert memory.pairs is not None
    assert memory.rows is not None
    return {
        "recall": {str(k): float((rank < k).mean()) for k in (1, 10, 20)},
        "negative log-likelihood": -likelihood / len(rank),
        "pairs": len(memory.pairs.ids),
        "places": len(memory.rows.places),
        "weights": dict(memory.weights),
    }


def parts_alone(corpus: Corpus) -> dict[str, dict[str, float]]:
    """Recall of each part of the default memory, with nothing else."""
    memory = remember(corpus, "both")
    assert memory is not None
    held_out = HeldOut.of(corpus, "valid", ModelConfig.seq_len, draws=ELEMENTS)
    ranks: dict[str, list[int]] = {part: [] for part in memory.parts[1:]}
    for ids, asked, targets in held_out.parts(CHUNK_ROWS):
        evidence = memory.evidence(ids.numpy(), asked[:, 0].numpy(), corpus.num_ids)
        bounds = np.searchsorted(evidence.query, np.arange(len(targets) + 1))
        for part, values in parts_of(evidence).items():
            for target, a, b in zip(targets.tolist(), bounds[:-1], bounds[1:], strict=True):
                is_known = values[a:b] > 0
                ranks[part].append(rank_of(target, evidence.ids[a:b][is_known], values[a:b][is_known]))
    return {part: {str(k): float((np.array(rank) < k).mean()) for k in (1, 10)} for part, rank in ranks.items()}


def shown(figures: dict[str, Any]) -> str:
    recall = f"{figures['recall']['10']:.3f}".lstrip("0")
    return f"{recall} ({figures['negative log-likelihood']:.3f})"


def alone(recall: dict[str, float]) -> str:
    return " / ".join(f"{recall[k]:.3f}".lstrip("0") for k in ("1", "10"))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PREPARE)}; default: {', '.join(NAMES)}")
    given = parser.parse_args(arguments)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"corpora": {}, "parts": {}}
    for name in given.names or NAMES:
        corpus = corpus_of(name, given.data, given.work)
        results["corpora"][name] = {
            _key(*sizes): measured(corpus, *sizes) for sizes in sorted(set(chain.from_iterable(SETTINGS.values())))
        }
        results["parts"][name] = parts_alone(corpus)
        keep(RESULTS, results)
    headers = {table: [FIRST[table], *map(str, sizes)] for table, sizes in SIZES.items()}
    rows = {
        table: [[name, *(shown(found[_key(*sizes)]) for sizes in asked)] for name, found in results["corpora"].items()]
        for table, asked in SETTINGS.items()
    }
    headers["parts"] = ["recall@1 / 10 of each part alone", *PARTS[1:]]
    rows["parts"] = [[name, *(alone(found[part]) for part in PARTS[1:])] for name, found in results["parts"].items()]
    between_marks(DOC, {table: f"\n{markdown(headers[table], rows[table])}\n" for table in headers})
    for table in ("places", "rows", "parts"):
        print(f"{markdown(headers[table], rows[table])}\n")
    report("recall@10 (negative log-likelihood)", headers["neighbours"], rows["neighbours"], results["corpora"])


def _key(neighbours: int, places: int, percent: int) -> str:
    return f"{neighbours} neighbours, {places} places, {percent}% of rows"


if __name__ == "__main__":
    main(sys.argv[1:])
