"""The table of the checks in docs/results/checks.md, and the figures of overload in docs/reliability.md.

make slow SUPERBLOOM_FIGURES=benchmarks/results/reliability.json      runs them and keeps what they measured
python -m benchmarks.reliability                                      writes both
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.checks import CHECKS
from tools.record import between_marks, markdown

HERE = Path(__file__).parent
SERVING = (4, 5, 6)  # overload, health, drain
FIGURES, DOCS = HERE / "results" / "reliability.json", HERE.parent / "docs"


def main() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (HERE.parent / "tests").rglob("test_*.py"))
    figures = [
        figure
        for figure in json.loads(FIGURES.read_text(encoding="utf-8"))
        if f"def {figure['test'].split('::')[-1].split('[')[0]}(" in sources  # not of a test that is gone
    ]
    rows = []
    for number, name in CHECKS.items():
        told = [figure for figure in figures if figure["number"] == number]
        measured = [figure["figure"] for figure in told if "broken" not in figure]
        twins = [f"{figure['broken']}: {figure['figure']}" for figure in told if "broken" in figure]
        tests = sorted({figure["test"].split("::")[0].removeprefix("tests/") for figure in told})
        rows.append([str(number), name, *("<br>".join(part) or "–" for part in (measured, twins)), ", ".join(tests)])
    table = markdown(["", "check", "measured", "broken on purpose: noticed by", "in tests/"], rows)
    commits, *where = (
        ", ".join(sorted({figure[name] for figure in figures})) for name in ("commit", "hardware", "python", "torch")
    )
    told = "Commit {}; {}, Python {}, torch {}.".format(commits, *where)
    overload = [f"- {figure['figure']}" for figure in figures if figure["number"] in SERVING and "broken" not in figure]
    between_marks(DOCS / "results" / "checks.md", {"checks": f"{told}\n\n{table}"})
    between_marks(DOCS / "reliability.md", {"overload": "\n".join(overload)})


if __name__ == "__main__":
    main()
