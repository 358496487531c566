"""What the README says works when it is pasted."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_python_block_runs_as_pasted(tmp_path):
    (code,) = blocks("python")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert all(line.endswith("True") for line in lines)
    assert (tmp_path / "my-model" / "config.json").is_file()


def test_the_commands_run_as_pasted_on_small_files(tmp_path):
    rows = ["Miles Davis\tJazz\tJohn Coltrane", "Jazz\tPiano\tMiles Davis", "Piano\tBach\tOrgan"] * 40
    import gzip

    (tmp_path / "jazz.txt").write_text("John Coltrane\nJazz\n")
    (tmp_path / "playlists.tsv.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    (commands,) = blocks("sh")
    ran = 0
    for line in commands.splitlines():
        words = shlex.split(line, comments=True)
        assert words[0] == "superbloom"
        if words[2] == "wikipedia":  # needs a dump; tests/test_cli.py reads one
            continue
        # As pasted, but for a catalogue of six names alpha has to be smaller, and half an hour is long.
        words = [{"10": "2", "30": "0.02"}.get(word, word) for word in words]
        done = subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        ran += 1
    assert ran == 6
    assert json.loads((tmp_path / "report" / "metrics.json").read_text())["split"] == "test"


@pytest.mark.parametrize("path", re.findall(r"\]\(([\w/.-]+)\)", README))
def test_links_lead_somewhere(path):
    assert (Path(__file__).parents[1] / path).exists()


def test_the_file_tree_lists_every_module():
    package = Path(__file__).parents[1] / "src" / "superbloom"
    for module in package.glob("*.py"):
        if not module.name.startswith("__") and module.name != "errors.py":
            assert module.name in README, module.name
