"""The examples run."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, folder: Path) -> str:
    """What an example prints, trained for some seconds."""
    command = [sys.executable, "-W", "error::UserWarning", EXAMPLES / name]
    done = subprocess.run(
        command, env=os.environ | {"MINUTES": "0.1"}, cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_recommend_runs(tmp_path):
    said = run("recommend.py", tmp_path)
    assert "HR@10" in said
    assert said.count("True") == 15  # all certified: 2 users, a list, an item, and a new one's neighbour


def test_the_papers_queries_run(tmp_path):
    said = run("paper.py", tmp_path)
    assert said.count("(certified)") >= 5
    assert "Tunisia : Tunis = Thailand : Bangkok?  rank " in said
