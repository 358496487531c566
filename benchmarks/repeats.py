"""Should answers include names of the context?   python -m benchmarks.repeats DATA WORK [NAME …] [--counting]

For each corpus of benchmarks/corpora.py: the share of training targets that stand in their own context. With --counting
also what counting finds in ten answers on validation rows when names of the context may be answers, and when not. The
table of shares is written to docs/decisions.md.
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
SEQ_LEN = ModelConfig.seq_len
NAMES = ("pypi", "linux-calls", "linux-identifiers", "ml-1m", "beauty", "book-crossing")
NAMES += ("nowplaying", "enwik8", "enwik8-20000", "wikispeedia")
ELEMENTS = 1000  # hidden in validation rows


def measured(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """The share of a corpus as it is measured now, whatever its folder says, and recall@10 by both rules."""
    corpus = corpus_of(name, given.data, given.work)
    corpus.__dict__.pop("repeats", None)
    found: dict[str, Any] = {"repeats": corpus.repeats}
    if given.counting:
        for rule, leave_out in (("included", False), ("left out", True)):
            found[rule] = counting_on_validation(corpus, SEQ_LEN, ELEMENTS, leave_out)
    return found


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("names", nargs="*", help=", ".join(PREPARE))
    parser.add_argument("--counting", action="store_true", help="also what counting finds; minutes per corpus")
    given = parser.parse_args(arguments)
    figures = {name: measured(name, given) for name in given.names or NAMES}
    rows = sorted(figures.items(), key=lambda item: item[1]["repeats"])
    shares = [[name, f"{found['repeats']:.2%}", rule(found["repeats"])] for name, found in rows]
    header = ["corpus", "targets in their own context", "context"]
    if not given.counting:
        between_marks(DOC, {"repeats": f"\n{markdown(header, shares)}\n"})
    recalls = [[f"{found[of]:.3f}" for of in ("included", "left out") if of in found] for _, found in rows]
    header += ["recall@10 of counting, included", "left out"] if given.counting else []
    table = [share + recall for share, recall in zip(shares, recalls, strict=True)]
    report("the share of repeats in training rows", header, table, figures)


def rule(repeats: float) -> str:
    return "left out" if repeats < RARELY_REPEATED else "included"


if __name__ == "__main__":
    main(sys.argv[1:])
