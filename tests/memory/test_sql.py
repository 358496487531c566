"""Pairs in SQL: DuckDB and Spark give the pairs that NumPy and three plain loops count, to the last bit."""

import os
import shutil
import sys
from collections import Counter

import numpy as np
import pytest

from superbloom import Superbloom, TrainConfig
from superbloom.config import train_config
from superbloom.corpus import Corpus
from superbloom.errors import InputError
from superbloom.memory import Events, Pairs, remember, sql
from superbloom.memory.pairs import UNITS, WINDOW_IDS, stored
from superbloom.memory.sql import count_in_sql
from superbloom.training.run_folder import PLACEMENT_OPTIONS

MEGABYTES = TrainConfig.count_mb


def events_of(rows: list[list[int]], num_ids: int) -> Events:
    ids = np.array([id_ for row in rows for id_ in row], np.int32)
    return Events(ids, np.arange(len(rows)), np.cumsum([0, *map(len, rows)]), num_ids)


def random_rows(rows: int, longest: int, names: int, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(names, size=rng.integers(1, longest + 1)).tolist() for _ in range(rows)]


CASES = {
    "random": events_of(random_rows(200, 40, 60, 0), 60),
    "short rows": events_of(random_rows(300, 3, 20, 1), 20),
    "rows of one id": events_of([[3], [1], [3]], 5),  # no pair at all
    "ties": events_of([[7, 5, 7], [5, 6], [6, 5], [7, 9, 8], [8, 9, 7]] * 4, 12),
    "repeated ids": events_of([[2] * 30, [2, 2, 1, 1], [0, 0]], 3),
    "a long row": events_of([*random_rows(1, 5000, 9, 2), np.arange(9).tolist() * 300], 9),
    "names that never occur": events_of(random_rows(20, 15, 8, 3), 40),
}


def recount(events: Events, neighbours: int) -> Pairs:
    whole, after = Counter(), Counter()
    for begin, end in zip(events.starts[:-1], events.starts[1:], strict=True):
        row = events.ids[begin:end].tolist()
        for i, name in enumerate(row):
            for j in range(max(0, i - WINDOW_IDS), min(len(row), i + WINDOW_IDS + 1)):
                if i != j:
                    whole[name, row[j]] += UNITS // abs(i - j)
                    after[name, row[j]] += UNITS // (j - i) if j > i else 0
    ordered = sorted(whole, key=lambda pair: (pair[0], -whole[pair], pair[1]))
    seen, kept = Counter(), []
    for pair in ordered:
        seen[pair[0]] += 1
        if seen[pair[0]] <= neighbours:
            kept.append(pair)
    names, ids = np.array(kept, np.int64).reshape(-1, 2).T
    sums = (np.array([found[pair] for pair in kept], np.int64) for found in (whole, after))
    lengths, counts = np.bincount(names, minlength=events.num_ids), events.counts()
    return Pairs.of_lists(lengths, ids.astype(np.int32), *stored(*sums, counts[names]), counts)


def are_equal(one: Pairs, other: Pairs) -> bool:
    columns = zip(vars(one).values(), vars(other).values(), strict=True)
    return all(mine.dtype == theirs.dtype and np.array_equal(mine, theirs) for mine, theirs in columns)


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """Where temporary files go. Nothing is left there."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield tmp_path
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("neighbours", [2, 64])
@pytest.mark.parametrize("case", CASES)
def test_duckdb_and_numpy_give_the_pairs_of_a_plain_recount(case, neighbours, scratch):
    expected = recount(CASES[case], neighbours)
    assert are_equal(Pairs.count(CASES[case], neighbours), expected)
    assert are_equal(count_in_sql(CASES[case], neighbours, "duckdb", None, MEGABYTES), expected)


def test_batches_and_files_of_any_size_give_the_same(monkeypatch, scratch):
    monkeypatch.setattr(sql, "BATCH_ROWS", 7)
    assert are_equal(count_in_sql(CASES["random"], 5, "duckdb", None, MEGABYTES), recount(CASES["random"], 5))


WRONG = {
    "the larger id of a tie": ("whole DESC, other", "whole DESC, other DESC"),
    "the weakest": ("whole DESC", "whole"),
    "one neighbour fewer": ("place <= 2", "place <= 1"),
    "a neighbour at the wrong distance": ("lead(id, 10)", "lead(id, 9)"),
    "a wrong direction": ("SELECT other, name, weight, 0", "SELECT other, name, weight, weight"),
    "one direction": ("SELECT other, name, weight, 0", "SELECT other, name, 0, 0"),
    "a weight off by one": (f"({WINDOW_IDS}, {UNITS // WINDOW_IDS})", f"({WINDOW_IDS}, {UNITS // WINDOW_IDS - 1})"),
    "across rows": ("PARTITION BY line ORDER BY place)", "ORDER BY line, place)"),
    "pairs without repeats": ("sum(weight)", "max(weight)"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_query_that_is_a_little_wrong_is_noticed(wrong, monkeypatch, scratch):
    right, twin = WRONG[wrong], sql.query(2)
    assert right[0] in twin
    monkeypatch.setattr(sql, "query", lambda _: twin.replace(*right))
    counted = {case: count_in_sql(CASES[case], 2, "duckdb", None, MEGABYTES) for case in ("random", "ties")}
    assert not all(are_equal(pairs, recount(CASES[case], 2)) for case, pairs in counted.items())


def test_too_little_memory_is_one_line_and_leaves_nothing(monkeypatch, scratch):
    monkeypatch.setattr(sql, "MB", 1000)
    with pytest.raises(InputError, match=r"DuckDB gave up: .*; raise --count-mb, or make room") as raised:
        count_in_sql(CASES["a long row"], 5, "duckdb", None, MEGABYTES)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count_engine": "flink"}, "count_engine='flink': 'numpy' or 'duckdb' or 'spark' is allowed"),
        ({"count_master": "local[2]"}, r"count_master='local\[2\]': only with count_engine='spark'"),
        ({"count_mb": 1}, "count_mb=1: 250 or more is allowed"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        train_config(**options)


def test_spark_without_pyspark_says_what_to_install(monkeypatch, scratch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(InputError, match=r"needs PySpark; pip install 'superbloom\[spark\]', or use DuckDB"):
        count_in_sql(CASES["ties"], 5, "spark", None, MEGABYTES)


def test_a_model_remembers_the_same_whatever_counts():
    rows = [[f"n{id_}" for id_ in row] for row in random_rows(200, 12, 30, 4)]
    corpus = Corpus.from_sequences(rows)
    models = [
        Superbloom(dim=16, heads=2, alpha=2).fit(corpus, steps=2, quiet=True, count_engine=engine)
        for engine in ("numpy", "duckdb")
    ]
    one, other = (model.model.memory for model in models)
    assert are_equal(one.pairs, other.pairs)
    assert one.weights == other.weights
    assert not [name for name in models[1].training["config"] if name.startswith("count_")]
    assert {"count_engine", "count_master", "count_mb"} <= PLACEMENT_OPTIONS
    newer = Corpus.from_sequences(rows[::-1][:150])
    models[0].remember(newer, engine="duckdb")
    models[1].remember(newer)
    assert are_equal(*(model.model.memory.pairs for model in models))


@pytest.fixture(scope="module")
def session():
    """One Spark session for all tests; the code uses the one that is active."""
    pytest.importorskip("pyspark", reason="PySpark is absent; pip install 'superbloom[spark]'")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Java is absent; apt install openjdk-17-jre-headless")
    from pyspark.sql import SparkSession

    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.log.level": "ERROR"}
    # Java would spend more time on making code fast than on these small tables.
    settings |= {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    session = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    yield session
    session.stop()


@pytest.mark.system
@pytest.mark.parametrize("case", CASES)
def test_spark_gives_the_pairs_of_a_plain_recount(case, session, scratch):
    assert are_equal(count_in_sql(CASES[case], 2, "spark", None, MEGABYTES), recount(CASES[case], 2))


@pytest.mark.system
def test_a_master_is_refused_where_a_session_is_active(session, scratch):
    with pytest.raises(InputError, match="a session is active; stop it, or give no master"):
        count_in_sql(CASES["ties"], 5, "spark", "local[2]", MEGABYTES)


@pytest.mark.parametrize(
    ("master", "message"),
    [
        ("nonsense", r"Spark master 'nonsense' given; spark://HOST:PORT, local\[N\], yarn or k8s://URL is allowed"),
        ("spark://127.0.0.1:1", "no Spark master answers at spark://127.0.0.1:1; start it, or use DuckDB"),
        ("spark://127.0.0.1:1,127.0.0.1:99999", "no Spark master answers at"),
    ],
)
def test_a_master_that_cannot_be_is_one_line(master, message, scratch, monkeypatch):
    pytest.importorskip("pyspark", reason="PySpark is absent; pip install 'superbloom[spark]'")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")  # nothing is started
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    with pytest.raises(InputError, match=message):
        count_in_sql(CASES["ties"], 5, "spark", master, MEGABYTES)


def test_the_memory_of_a_corpus_does_not_depend_on_the_engine():
    corpus = Corpus.from_sequences([["a", "b", "c", "a"], ["b", "c"], ["c", "a"]] * 20)
    one, other = (remember(corpus, "both", engine=engine) for engine in ("numpy", "duckdb"))
    assert are_equal(one.pairs, other.pairs)
