"""Recall on held-out rows, and the yardsticks that a model has to beat."""

from superbloom.evaluate.held_out import HeldOut
from superbloom.evaluate.metrics import DECILES, DEEPEST, KS, deciles, share
from superbloom.evaluate.recall import evaluate, ranks
from superbloom.evaluate.tables import (
    cell,
    markdown,
    plot_calibration,
    plot_deciles,
    recall_rows,
    recall_table,
    rule,
)
from superbloom.evaluate.verdict import best_yardstick, comparison, counting_on_validation, verdict
from superbloom.evaluate.weights import memory_probabilities, network_probabilities, ranking_examples
from superbloom.evaluate.yardsticks import cooccurrence, popularity

__all__ = [
    "DECILES",
    "DEEPEST",
    "KS",
    "HeldOut",
    "best_yardstick",
    "cell",
    "comparison",
    "cooccurrence",
    "counting_on_validation",
    "deciles",
    "evaluate",
    "markdown",
    "memory_probabilities",
    "network_probabilities",
    "plot_calibration",
    "plot_deciles",
    "popularity",
    "ranking_examples",
    "ranks",
    "recall_rows",
    "recall_table",
    "rule",
    "share",
    "verdict",
]
