"""What `prepare wikipedia` counts: pages, and why links are left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from superbloom.corpus import Vocab
from superbloom.prepare.report import Report

# Why links are left out, in the order of the checks.
DROPPED = (
    "in other namespaces",
    "to other wikis",
    "that name no page",
    "of repeated titles",
    "to missing pages",
    "to redirects that end at no article",
    "to disambiguation pages",
    "to the page itself",
    "repeated on a page",
    "to entities left out",
)
# The same shares of the links of English Wikipedia (Sec. 3.1).
PAPER_TOP_100, PAPER_TOP_TENTH = 0.038, 0.60


@dataclass
class WikipediaReport(Report):
    """top_100, top_tenth: the shares of links that lead to the 100 most frequent entities, and to the first tenth."""

    top_100: float = 0.0
    top_tenth: float = 0.0

    def add_shares(self, vocab: Vocab) -> None:
        frequency = vocab.counts
        self.top_100 = float(frequency[:100].sum() / frequency.sum())
        self.top_tenth = float(frequency[: -(-len(frequency) // 10)].sum() / frequency.sum())

    def table(self) -> list[tuple[str, str]]:
        counts = Counter(self.counts)
        rows = [(name, name) for name in ("pages", "articles", "redirects")]
        rows += [(name, name) for name in ("disambiguations", "repeated titles", "unreadable pages") if counts[name]]
        rows += [("links", "links written in articles")]
        rows += [(name, f"  left out {name}") for name in DROPPED if counts[name]]
        rows += [("kept", "links kept"), ("distinct targets", "distinct targets"), ("entities", "entities")]
        rows += [("rows", "rows: articles with links")]
        shares = [
            (f"{self.top_100:.1%}", f"of the links to the 100 most frequent entities (paper: {PAPER_TOP_100:.1%})"),
            (f"{self.top_tenth:.1%}", f"of the links to the most frequent tenth (paper: {PAPER_TOP_TENTH:.0%})"),
        ]
        return [(f"{counts[name]:,}", text) for name, text in rows] + shares

    def document(self) -> dict[str, Any]:
        return super().document() | {"top_100": self.top_100, "top_tenth": self.top_tenth, "damage": self.damage}
