"""A folder that the tests of the commands share."""

import json
from pathlib import Path

import pytest

from tests.support.launch import command as run

MASK_ROWS = ["Copenhagen\tDenmark\tOslo\tNorway", "Oslo\tNorway\tDenmark", "Copenhagen\tDenmark\tAarhus"] * 30


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A folder with a text file, the corpus made of it, and a model trained on that, all by the command line."""
    home = tmp_path_factory.mktemp("home")
    (home / "rows.tsv").write_text("\n".join(MASK_ROWS) + "\n")
    run("prepare", "sequences", "rows.tsv", "--out", "corpus", cwd=home)
    options = ("--alpha", 2, "--dim", 16, "--heads", 2, "--steps", 20, "--batch-size", 16)
    trained = run("train", "corpus", "--out", "model", *options, "--json", cwd=home)
    assert json.loads(trained.stdout)["steps"] == 20
    return home
