"""One line about whether a model is worth its training: is it ahead of the best answers that only count?"""

from __future__ import annotations

from typing import Any

from superbloom.corpus import Corpus
from superbloom.evaluate.counting import best_ranks, counting
from superbloom.evaluate.held_out import HeldOut
from superbloom.memory import Events, can_remember

RECALL = "10"  # the figure that is compared
REMEDY = "train longer (--minutes)"


def verdict(figures: dict[str, Any]) -> str | None:
    """The line for the figures of `evaluate`, of text for those of content words; None if they hold no yardsticks.

    >>> low, high = ({"10": {"value": value}} for value in (0.2, 0.25))
    >>> verdict({"recall": high, "yardsticks": {"counting": low}})
    'ahead of every yardstick: recall@10 0.250, counting 0.200'
    """
    figures = figures.get("content", figures)
    yardsticks = figures.get("yardsticks")
    if not yardsticks:
        return None
    best = best_yardstick(yardsticks)
    return comparison(figures["recall"][RECALL]["value"], best, yardsticks[best][RECALL]["value"])


def best_yardstick(yardsticks: dict[str, Any]) -> str:
    """The name of the yardstick with the highest recall@10."""
    return max(yardsticks, key=lambda name: yardsticks[name][RECALL]["value"])


def comparison(own: float, name: str, other: float) -> str:
    """The comparison of a model with one yardstick.

    >>> comparison(0.2, "counting", 0.25)
    'behind counting: recall@10 0.200, counting 0.250; train longer (--minutes)'
    """
    found = f"recall@10 {own:.3f}, {name} {other:.3f}"
    return f"ahead of every yardstick: {found}" if own >= other else f"behind {name}: {found}; {REMEDY}"


def counting_on_validation(corpus: Corpus, seq_len: int, draws: int, filter_seen: bool = False) -> float | None:
    """recall@10 of counting on validation rows, with options chosen on the same rows; None where it cannot count."""
    if not can_remember(corpus) or not len(corpus.rows("valid")):
        return None
    held_out = HeldOut.of(corpus, "valid", seq_len, draws=draws)
    events = Events.of(corpus)
    ranks = best_ranks(counting, events, held_out, events, held_out, filter_seen)
    return float((ranks < int(RECALL)).mean())
