"""The examples run."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_recommend_runs(tmp_path):
    command = [sys.executable, "-W", "error::UserWarning", EXAMPLES / "recommend.py"]
    done = subprocess.run(
        command, env=os.environ | {"MINUTES": "0.1"}, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "HR@10" in done.stdout
    assert done.stdout.count("True") == 15  # all certified: 2 users, a list, an item, and a new one's neighbour
