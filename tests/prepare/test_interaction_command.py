"""The command `superbloom prepare interactions`, also on a log of many times the memory it may take."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from superbloom.corpus.corpus import Corpus
from tests.support import launch
from tests.support.logs import TEXTS

COMMAND = """
import os, sys
from superbloom.cli import main

os.environ.pop("SPARK_REMOTE", None)
sys.argv[0] = "superbloom"
main()
"""


def run(*arguments: object, cwd: Path, code: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    done = launch.python(COMMAND, "prepare", "interactions", *arguments, cwd=cwd, **options)
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


def test_the_command_tells_what_was_left_out_and_leaves_only_the_corpus(tmp_path, expected):
    text = TEXTS["csv"][0] + ",i1,1\nu1,,1\n"
    (tmp_path / "log.csv").write_text(text)
    done = run("log.csv", "--out", "corpus", "--time", "ts", cwd=tmp_path)
    assert "            1  events without a user: left out\n" in done.stdout
    assert "superbloom train corpus --out corpus-model --preset sequence --minutes 5" in done.stdout
    assert done.stderr == ""
    assert Corpus.open(tmp_path / "corpus").checksums == expected["timed"]
    piped = run("-", "--out", "piped", "--time", "ts", "--json", cwd=tmp_path, given=text)
    document = json.loads(piped.stdout)
    assert document["dropped"]["without an item"] == 1
    assert document["counts"] == Corpus.open(tmp_path / "corpus").counts()
    assert {path.name for path in tmp_path.iterdir()} == {"corpus", "log.csv", "piped"}


def test_the_command_says_one_line_and_leaves_nothing_when_it_fails(tmp_path):
    (tmp_path / "log.csv").write_text(TEXTS["csv"][0])
    done = run("log.csv", "--out", "new/corpus", "--item", "item", cwd=tmp_path, code=2)
    assert done.stderr.startswith("error: 'log.csv' has no column 'item'; it has 'user_id'")
    assert len(done.stderr.splitlines()) == 1
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    done = run("log.csv", "--out", "mine", cwd=tmp_path, code=2)
    assert "exists and is not a corpus folder" in done.stderr
    assert not list(tmp_path.rglob(".*"))


def test_the_command_says_so_too_if_java_is_not_where_it_should_be(tmp_path):
    (tmp_path / "log.csv").write_text(TEXTS["csv"][0])
    environment = {"JAVA_HOME": "/nowhere"}
    done = run("log.csv", "--out", "corpus", "--engine", "spark", cwd=tmp_path, code=2, environment=environment)
    assert done.stderr.startswith("error: Spark needs Java 17")
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


BIG = """
import sys
from pathlib import Path
from superbloom.prepare.interactions import prepare_interactions

report = prepare_interactions(sys.argv[1], sys.argv[2], time="ts", memory=250_000_000, split="time")
# Not ru_maxrss, which begins with that of the process that started this one.
most = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
print(report.counts["ids"], int(most) * 1024)
"""


@pytest.mark.system
@pytest.mark.parametrize(
    ("pieces", "times", "most"), [(6, 2.5, 0.55e9), pytest.param(20, 8, 0.75e9, marks=pytest.mark.slow)]
)
def test_a_log_of_many_times_the_memory_is_prepared(tmp_path, pieces, times, most):
    """Events that would take so many times the 125 MB that DuckDB may have; without a limit it takes twice as much."""
    size, users = 250_000, 200_000
    rng = np.random.default_rng(0)
    schema = pa.schema({"user_id": pa.string(), "item_id": pa.string(), "ts": pa.int64()})
    plain = 0
    with pq.ParquetWriter(tmp_path / "log.parquet", schema) as writer:
        for _ in range(pieces):
            user = pa.array(rng.integers(users, size=size)).cast(pa.string())
            item = pa.array((20_000 * rng.random(size) ** 3).astype(int)).cast(pa.string())
            padding = pa.scalar("x" * 100)
            piece = [pa.compute.binary_join_element_wise(padding, column, "") for column in (user, item)]
            piece = pa.table([*piece, pa.array(rng.integers(10**9, size=size))], schema=schema)
            plain += piece.nbytes
            writer.write_table(piece)
    assert plain > times * 0.125e9
    command = [sys.executable, "-c", BIG, str(tmp_path / "log.parquet"), str(tmp_path / "corpus")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    events, taken = done.stdout.split()
    assert int(events) > 0.98 * pieces * size
    assert int(taken) < most
    assert {path.name for path in tmp_path.iterdir()} == {"log.parquet", "corpus"}
