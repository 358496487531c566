"""The examples run."""

from pathlib import Path

import pytest

from tests.support import launch

pytestmark = pytest.mark.system

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = """
import runpy, sys, warnings
warnings.simplefilter("error", UserWarning)
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def run(name: str, folder: Path) -> str:
    """What an example prints, trained for a moment."""
    done = launch.python(SCRIPT, EXAMPLES / name, cwd=folder, environment={"MINUTES": "0.01"})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_recommend_runs(tmp_path):
    said = run("recommend.py", tmp_path)
    assert "HR@10" in said
    assert said.count("True") == 12  # all certified: 2 users, a list, and a new item's neighbour
    assert said.count("pairs") == 3  # similar items


def test_the_papers_queries_run(tmp_path):
    said = run("paper.py", tmp_path)
    assert said.count("(certified)") >= 5
    assert "Tunisia : Tunis = Thailand : Bangkok?  rank " in said
