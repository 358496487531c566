"""Do network and memory together beat counting?   python -m benchmarks.memory DATA WORK [NAME …] [--minutes 5]

Each corpus of benchmarks/corpora.py: a model is trained for some minutes, then asked with the network alone, with the
memory alone and with both, beside the yardsticks of `evaluate`, whose options are chosen on validation rows. Names of
the context are left out if rows of the corpus rarely repeat one. A name like enwik8@50 is a corpus with another alpha.

Models are kept in WORK, so a run that is interrupted continues. What is measured is kept in
benchmarks/results/memory.json, and the table is written to docs/memory.md. --again measures a corpus again, with a kept
model or a new one; yardsticks depend on the corpus alone, so they are kept.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.corpora import PREPARE, corpus_of
from superbloom import Superbloom
from superbloom.config import train_config
from superbloom.training.finish import finished
from tools.record import between_marks, keep, markdown, report

DOC = Path(__file__).parents[1] / "docs" / "memory.md"
RESULTS = Path(__file__).parent / "results" / "memory.json"
SEQUENCE: dict[str, Any] = {"preset": "sequence"}
# The kind of rows decides the options; `train` chooses the sizes.
MODELS: dict[str, dict[str, Any]] = {
    "wikispeedia": {},
    "enwik8-5000": {},
    "enwik8-20000": {},
    "enwik8": {},
    "pypi": {},
    "linux-calls": {},
    "file-sessions": SEQUENCE,
    "ml-1m": SEQUENCE,
    "beauty": SEQUENCE,
    "nowplaying": SEQUENCE,
    "book-crossing": {"positions": False, "distance": False},
}
ASKED_ROWS = 5_000  # at most
KS = ("1", "10", "20")


def measured(name: str, given: argparse.Namespace, yardsticks: dict[str, Any] | None) -> dict[str, Any]:
    """Train a model, unless WORK has it, and ask it. yardsticks: those that were measured before, by the same rule."""
    of, _, alpha = name.partition("@")
    corpus, folder = corpus_of(of, given.data, given.work), given.work / "models" / name
    if folder.exists():
        superbloom = Superbloom.from_pretrained(folder)
    else:
        options = MODELS[of] | ({"alpha": int(alpha)} if alpha else {})
        superbloom = Superbloom(**options).fit(corpus, minutes=given.minutes, quiet=True)
        superbloom.save_pretrained(folder)
    if given.refit:  # the memory and its weights again, with the network as it is
        superbloom._use(finished(superbloom.model, corpus, train_config(**superbloom.training["config"])))
    figures = superbloom.evaluate(corpus, rows=ASKED_ROWS, yardsticks=yardsticks is None)
    figures.setdefault("yardsticks", yardsticks)
    return {
        "names": corpus.num_ids,
        "alpha": superbloom.model.config.alpha,
        "steps": superbloom.training["steps"],
        "minutes": superbloom.training["seconds"] / 60,
        **{key: value for key, value in figures.items() if key != "deciles"},
    }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("names", nargs="*", help=", ".join(PREPARE))
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--again", action="store_true", help="measure what was measured before")
    parser.add_argument("--refit", action="store_true", help="the same, and count the memory of kept models again")
    parser.add_argument("--yardsticks", action="store_true", help="measure the yardsticks again as well")
    given = parser.parse_args(arguments)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"corpora": {}}
    for name in given.names or MODELS:
        kept = results["corpora"].get(name, {})
        if given.refit or given.again or not kept:
            results["corpora"][name] = measured(name, given, None if given.yardsticks else kept.get("yardsticks"))
            keep(RESULTS, results)
            print(name, {row: shown(figures) for row, figures in rows_of(results["corpora"][name]).items()}, flush=True)
    header = ["corpus", "model", "both", "network", "memory", "best yardstick", "recall@10 to the best yardstick"]
    table = [[name, size(figures), *summary(figures)] for name, figures in results["corpora"].items()]
    between_marks(DOC, {"results": f"\n{markdown(header, table)}\n"})
    report("recall@1 / 10 / 20 of test rows", header, table, results["corpora"])


def size(figures: dict[str, Any]) -> str:
    hashed = f"α={figures['alpha']}" if figures["alpha"] > 1 else "not hashed"
    return f"{hashed}, {figures['steps']:,} steps"


def rows_of(figures: dict[str, Any]) -> dict[str, dict[str, Any]]:
    own = {"both": figures["recall"], "network": figures["network"], "memory": figures["memory"]}
    return own | figures["yardsticks"]


def summary(figures: dict[str, Any]) -> list[str]:
    yardsticks = figures["yardsticks"]
    best = max(yardsticks, key=lambda name: yardsticks[name]["10"]["value"])
    ratio = figures["recall"]["10"]["value"] / max(1e-9, yardsticks[best]["10"]["value"])
    own = [shown(figures[row]) for row in ("recall", "network", "memory")]
    return [*own, f"{shown(yardsticks[best])} ({best})", f"{ratio:.2f}"]


def shown(recall: dict[str, Any]) -> str:
    return " / ".join(f"{recall[k]['value']:.3f}".lstrip("0") for k in KS)


if __name__ == "__main__":
    main(sys.argv[1:])
