"""Should answers include names of the context?   python -m benchmarks.repeats DATA WORK [NAME …]

For each corpus of benchmarks/corpora.py: the share of training targets that stand in their own context (repeats.py),
and what counting finds in ten answers on validation rows when names of the context may be answers, and when they may
not. The table is written to docs/decisions.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.corpora import PREPARE, corpus_of
from superbloom.config import RARELY_REPEATED, ModelConfig
from superbloom.evaluate import counting_on_validation
from tools.record import between_marks, markdown, report

DOC = Path(__file__).parents[1] / "docs" / "decisions.md"
NAMES = (
    "pypi",
    "linux-calls",
    "ml-1m",
    "beauty",
    "book-crossing",
    "nowplaying",
    "enwik8",
    "enwik8-20000",
    "wikispeedia",
)
ELEMENTS = 1000  # hidden in validation rows


def measured(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """The share of a corpus as it is measured now, whatever its folder says, and recall@10 by both rules."""
    corpus = corpus_of(name, given.data, given.work)
    corpus.__dict__.pop("repeats", None)
    found = [counting_on_validation(corpus, ModelConfig.seq_len, ELEMENTS, leave_out) for leave_out in (False, True)]
    return {"repeats": corpus.repeats, "included": found[0], "left out": found[1]}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("names", nargs="*", help=", ".join(PREPARE))
    given = parser.parse_args(arguments)
    figures = {name: measured(name, given) for name in given.names or NAMES}
    header = ["corpus", "targets in their own context", "rec@10 of counting, context included", "left out", "default"]
    table = [
        [
            name,
            f"{found['repeats']:.2%}",
            f"{found['included']:.3f}",
            f"{found['left out']:.3f}",
            "left out" if found["repeats"] < RARELY_REPEATED else "included",
        ]
        for name, found in sorted(figures.items(), key=lambda item: item[1]["repeats"])
    ]
    between_marks(DOC, {"repeats": markdown(header, table)})
    report("the share of repeats, and recall@10 of counting on validation rows", header, table, figures)


if __name__ == "__main__":
    main(sys.argv[1:])
