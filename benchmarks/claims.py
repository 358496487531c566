"""What do all corpora say to the paper's claims?   python -m benchmarks.claims

Reads docs/results/*/results.json, which `superbloom reproduce` wrote, and puts one table of claims and verdicts between
the marks of docs/results/index.md.
"""

from __future__ import annotations

import json
from pathlib import Path

from superbloom.evaluate.tables import markdown
from tools.record import between_marks

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def main() -> None:
    reports = [json.loads(file.read_text()) for file in RESULTS.glob("*/results.json")]
    reports = [report for report in reports if "counts" in report["settings"]]  # a laboratory has a report of its own
    reports.sort(key=lambda report: report["settings"]["counts"]["names"])
    rows: dict[tuple[str, str], list[str]] = {}
    for column, report in enumerate(reports):
        for claim in report["claims"]:
            row = rows.setdefault((claim["where"], claim["text"]), [claim["printed"], *["–"] * len(reports)])
            row[1 + column] = f"**{claim['verdict']}**: {claim['found']}"
    corpora = [f"{r['settings']['name']}, {r['settings']['counts']['names']:,} names" for r in reports]
    table = markdown(["", "claim", "the paper", *corpora], [[*names, *row] for names, row in rows.items()])
    between_marks(RESULTS / "index.md", {"claims": table})


if __name__ == "__main__":
    main()
