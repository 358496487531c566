"""`recommend --engine spark` on a standalone cluster, with a worker killed: the rows are those of one process."""

import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from superbloom import Corpus, Superbloom
from tests.support.launch import command as superbloom
from tests.support.launch import start

pytest.importorskip("pyspark", reason="PySpark is absent; pip install 'superbloom[spark]'")
if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
    pytest.skip("Java is absent; apt install openjdk-17-jre-headless", allow_module_level=True)
from tests.support.cluster import LOOPBACK, cluster, executors_of, kill

pytestmark = pytest.mark.slow
USERS, NAMES = 6000, 300
SECONDS = 900.0


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A model, and a log of users in two Parquet files, in no order."""
    home = tmp_path_factory.mktemp("cluster")
    rng = np.random.default_rng(0)
    rows = [[f"n{(start + 3 * i) % NAMES}" for i in range(12)] for start in rng.integers(0, NAMES, 200)]
    shape = {"mask_as": "next", "alpha": 4, "dim": 16, "heads": 2, "ffn_dim": 16, "seq_len": 8}
    Superbloom(**shape).fit(Corpus.from_sequences(rows), steps=5, quiet=True).save_pretrained(home / "model")
    user, item = rng.integers(0, USERS, 5 * USERS), rng.integers(0, NAMES + 20, 5 * USERS)
    names = {"user_id": [f"u{u}" for u in user], "item_id": [f"n{i}" for i in item], "ts": np.arange(5 * USERS)}
    table = pa.table(names).take(rng.permutation(5 * USERS))
    (home / "log").mkdir()
    for part in range(2):
        pq.write_table(table.slice(part * len(table) // 2, len(table) // 2), home / "log" / f"part-{part}.parquet")
    superbloom("recommend", "model", "log", "--time", "ts", "--out", "alone.parquet", cwd=home)
    return home


def rows(path: Path) -> pa.Table:
    return pq.read_table(path).sort_by([("user", "ascending"), ("rank", "ascending")])


def test_a_worker_that_is_killed_costs_no_row_and_adds_none(home):
    asked = ("recommend", "model", "log", "--time", "ts", "--engine", "spark", "--out", "table", "--ship-model")
    with cluster(home / "cluster") as (master, workers):
        job = start(home, *asked, "--master", master, SPARK_LOCAL_IP=LOOPBACK)
        until = time.monotonic() + SECONDS
        while not list(home.glob("*table*/table/_temporary/0/task*/*.parquet")):  # the first task is committed
            assert job.is_alive(), (home / "output.txt").read_text()
            assert time.monotonic() < until
            time.sleep(0.05)
        for process in executors_of(workers[0]):
            os.kill(process, signal.SIGKILL)
        kill(workers[0])
        assert job.is_alive()  # it was killed in the middle
        job.join(SECONDS)
        assert job.exitcode == 0, (home / "output.txt").read_text()
    assert rows(home / "table").equals(rows(home / "alone.parquet"))
    assert (home / "table" / "_SUCCESS").is_file()
    assert sorted(path.name for path in home.iterdir() if "table" in path.name) == ["table"]
