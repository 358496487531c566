"""The table of the twenty checks in docs/reliability.md.

make slow SUPERBLOOM_FIGURES=benchmarks/results/reliability.json      runs them and keeps what they measured
python benchmarks/reliability.py                                      writes the table
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from record import between_marks, markdown, surroundings

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from checks import CHECKS  # noqa: E402

FIGURES, DOC = HERE / "results" / "reliability.json", HERE.parent / "docs" / "reliability.md"


def main() -> None:
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    rows = []
    for number, name in CHECKS.items():
        told = [figure for figure in figures if figure["number"] == number]
        measured = [figure["figure"] for figure in told if "broken" not in figure]
        twins = [f"{figure['broken']}: {figure['figure']}" for figure in told if "broken" in figure]
        tests = sorted({figure["test"].split("::")[0].removeprefix("tests/") for figure in told})
        rows.append([str(number), name, *("<br>".join(part) or "–" for part in (measured, twins)), ", ".join(tests)])
    table = markdown(["", "check", "measured", "broken on purpose: noticed by", "in tests/"], rows)
    commits = sorted({figure["commit"] for figure in figures})
    machine = surroundings()
    where = f"{machine['hardware']}, Python {machine['python']}, torch {machine['versions']['torch']}"
    between_marks(DOC, {"checks": f"Commit {', '.join(commits)}; {where}.\n\n{table}"})


if __name__ == "__main__":
    main()
