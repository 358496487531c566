"""The checks themselves: each measures something, and each is tried on something broken."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checks import CHECKS

ROOT = Path(__file__).parents[2]
OTHERS = [path for path in (ROOT / "tests").rglob("test_*.py") if path.name != Path(__file__).name]
SOURCES = "".join(path.read_text(encoding="utf-8") for path in OTHERS)


@pytest.mark.parametrize("number", CHECKS)
def test_every_check_has_a_figure_and_a_twin(number):
    assert re.search(rf"\bcheck\(\s*{number},", SOURCES)
    assert re.search(rf"\bcheck\.twin\(\s*{number},", SOURCES)


MADE = """
import sys

sys.path.insert(0, {root!r})
from tests.support.checks import check, pytest_terminal_summary
"""

TESTS = """
import pytest


@pytest.mark.parametrize("number", [1, 2])
def test_holds(check, number):
    check(number, f"figure {number}")


def test_twin(check):
    check.twin(1, "broken", "noticed")


def test_fails(check):
    check(3, "told too early")
    assert False
"""


@pytest.mark.system
@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "several"])
def test_figures_are_printed_and_kept_until_they_are_measured_again(tmp_path, options):
    (tmp_path / "conftest.py").write_text(MADE.format(root=str(ROOT)))
    (tmp_path / "test_it.py").write_text(TESTS)
    kept = tmp_path / "figures.json"
    kept.write_text(
        json.dumps([{"test": test, "number": 1, "figure": "old"} for test in ("test_it.py::gone", "other")])
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, str(tmp_path)]
    alike = os.environ | {"SUPERBLOOM_FIGURES": str(kept), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=tmp_path, env=alike, capture_output=True, text=True, check=False)
    assert "3 passed" in done.stdout, done.stdout
    for line in (" 1 batches are gathered", "   figure 1", "   twin: broken: noticed", "   figure 2"):
        assert line in done.stdout.splitlines()
    assert "told too early" not in done.stdout.split("reliability checks")[1].split("short test summary")[0]
    found = json.loads(kept.read_text())
    assert [figure["figure"] for figure in found] == ["old", "old", "figure 1", "noticed", "figure 2"]
