"""The checks of docs/reliability.md: what each measured, and whether it notices its broken twin.

A test that is part of a check asks for `check` and tells its figure; one that runs the same measurement on something
broken on purpose tells what it noticed:

    def test_a_hundred_kills_change_nothing(check):
        check(12, f"{resumed} of 100 resumed, {inside} inside a save")

    def test_a_save_that_is_not_atomic_is_noticed(check):
        check.twin(12, "a save under the final name", f"{lost} of 20 kills lost the model")

Figures are printed after the run. With SUPERBLOOM_FIGURES=FILE they are put into that JSON file, too, from which
benchmarks/reliability.py makes the table of the page.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tools.record import surroundings

CHECKS = {
    1: "batches are gathered",
    2: "gathering at 5.28M names",
    3: "a neighbour never changes an answer",
    4: "overload",
    5: "health under load",
    6: "drain",
    7: "clients that vanish",
    8: "schema fuzz",
    9: "limits",
    10: "soak",
    11: "safe defaults",
    12: "kills while training",
    13: "resume",
    14: "failing disk",
    15: "damaged files",
    16: "hostile folder",
    17: "no pickle",
    18: "bombs and broken dumps",
    19: "certified = exhaustive",
    20: "the page",
    21: "raw bytes",
    22: "beside a busy neighbour",
    23: "model processes",
}


class Check:
    """Tells figures of the test that asked for it."""

    def __init__(self, node: pytest.Item) -> None:
        self.node = node

    def __call__(self, number: int, figure: str) -> None:
        self._tell(number, figure=figure)

    def twin(self, number: int, broken: str, noticed: str) -> None:
        """The check flagged what is broken on purpose; called once that was asserted."""
        self._tell(number, broken=broken, figure=noticed)

    def _tell(self, number: int, **told: str) -> None:
        assert number in CHECKS
        self.node.user_properties.append(("check", {"number": number, **told}))


@pytest.fixture
def check(request: pytest.FixtureRequest) -> Check:
    return Check(request.node)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Runs where the tests end, which under xdist is the process that started the others."""
    found: dict[int, list[tuple[str, dict[str, str]]]] = defaultdict(list)
    for report in terminalreporter.stats.get("passed", []):
        for name, told in report.user_properties if report.when == "call" else []:
            if name == "check":
                found[told["number"]].append((report.nodeid, told))
    if not found:
        return
    terminalreporter.section("reliability checks")
    for number, told in sorted(found.items()):
        terminalreporter.line(f"{number:2} {CHECKS[number]}")
        for _, figure in sorted(told, key=lambda pair: "broken" in pair[1]):
            twin = f"   twin: {figure['broken']}: " if "broken" in figure else "   "
            terminalreporter.line(twin + figure["figure"])
    if path := os.environ.get("SUPERBLOOM_FIGURES"):
        keep(Path(path), found)


def keep(path: Path, found: dict[int, list[tuple[str, dict[str, str]]]]) -> None:
    """A test's figures replace those it told before; those of tests that did not run stay."""
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    here = surroundings()
    where = {name: here[name] for name in ("commit", "hardware", "python")} | {"torch": here["versions"]["torch"]}
    fresh = [{"test": test, **figure, **where} for told in found.values() for test, figure in told]
    ran = {figure["test"] for figure in fresh}
    kept = [figure for figure in kept if figure["test"] not in ran] + fresh
    kept.sort(key=lambda figure: (figure["number"], "broken" in figure, figure["test"]))
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
