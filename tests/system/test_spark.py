"""Spark makes of a log the corpus that DuckDB makes of it, byte for byte; its workers ask a model."""

import os
import shutil
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from superbloom import Superbloom
from superbloom.corpus import Corpus
from superbloom.errors import InputError
from superbloom.prepare.interactions import from_interactions, from_sessions, prepare_interactions
from superbloom.store import model_folder as store
from tests.support import serving
from tests.support.logs import LOG, described, lines, reference, table

pytest.importorskip("pyspark", reason="PySpark is absent; pip install 'superbloom[spark]'")

pytestmark = pytest.mark.system
if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
    pytest.skip("Java is absent; apt install openjdk-17-jre-headless", allow_module_level=True)


@pytest.fixture(scope="module", autouse=True)
def session():
    """One session for all tests; the code uses the one that is active."""
    from pyspark.sql import SparkSession

    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.log.level": "ERROR"}
    # Java would spend more time on making code fast than on these small logs.
    settings |= {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    settings |= {"spark.ui.showConsoleProgress": "false"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)  # of its workers
        session = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    yield session
    session.stop()


def odd_events(size: int = 400) -> list[tuple]:
    """Names whose order depends on what compares them, some missing; times with ties, some missing."""
    rng = np.random.default_rng(0)
    names = [
        "a",
        "B",
        "b",
        "Ä",
        "ß",
        "z",
        "[MASK]",
        "1",
        "10",
        "9",
        " a",
        "a ",
        "\t",
        "\0",
        "￿",
        "\U0001f33c",
        "",
        None,
    ]
    users, items = rng.integers(len(names), size=(2, size)).tolist()
    times = [None if time == 30 else time - 10 for time in rng.integers(31, size=size).tolist()]
    return [(names[user], names[item], time) for user, item, time in zip(users, items, times, strict=True)]


def test_both_engines_hold_out_what_tables_say():
    events = odd_events()
    tables = {name: table(events[at::5]) for name, at in (("valid", 3), ("test", 4))}
    train = table([event for at, event in enumerate(events) if at % 5 < 3])
    by_spark, by_duck = (
        from_interactions(train, **tables, time="ts", min_item_count=30, engine=engine)
        for engine in ("spark", "duckdb")
    )
    assert described(by_spark) == described(by_duck)
    assert by_spark.info["held out"] == by_duck.info["held out"]
    pairs = [
        from_sessions([["a", "b"], ["b"]], test=[(["a", "b"], "a")], engine=engine) for engine in ("spark", "duckdb")
    ]
    assert pairs[0].checksums == pairs[1].checksums


@pytest.mark.parametrize(
    "options",
    [
        {"time": "ts", "split": "time"},
        {"time": "ts", "split": "user", "drop_repeats": True},
        {"max_names": 7, "min_user_count": 20},
    ],
)
def test_both_engines_give_the_corpus_of_the_reference(options):
    events = odd_events()
    one, other = (from_interactions(table(events), engine=engine, **options) for engine in ("duckdb", "spark"))
    slow = {name: value for name, value in options.items() if name != "time"}
    assert described(other) == described(one) == reference(events, timed="time" in options, **slow)
    assert other.checksums == one.checksums
    assert other.sequences.equals(one.sequences)
    assert other.vocab.table.equals(one.vocab.table)
    assert other.info == one.info


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_plain_parquet_with_timestamps_and_numbers_is_used_in_place(tmp_path, zone):
    """Also in a folder whose name is a pattern, with temporary files in another one."""
    folder = tmp_path / "day=1 [x] {y} *" / "log=2 [x] {y} *"
    folder.mkdir(parents=True)
    log = table(LOG)
    log = log.set_column(0, "user_id", pa.array([int(user[1:]) for user, *_ in LOG], pa.uint32()))
    log = log.set_column(2, "ts", log["ts"].cast(pa.timestamp("s")).cast(pa.timestamp("us", zone)))
    for number in range(3):
        pq.write_table(log.slice(200 * number, 200), folder / f"part-{number}.parquet")
    one, other = (folder.with_name(engine) for engine in ("duckdb", "spark"))
    for out in (one, other):
        prepare_interactions([folder], out, time="ts", split="time", engine=out.name)
    one, other = Corpus.open(one), Corpus.open(other)
    assert described(one) == reference([(user[1:], item, time) for user, item, time in LOG], split="time")
    assert described(other) == described(one)
    assert len(list(folder.iterdir())) == 3
    assert len(list(folder.parent.iterdir())) == 3


def test_fractions_of_seconds_from_a_csv(tmp_path):
    events = [(user, item, time / 8) for user, item, time in LOG]
    (tmp_path / "log.csv").write_text(lines(",", "user_id,item_id,ts\n", events=events))
    prepare_interactions([tmp_path / "log.csv"], tmp_path / "corpus", time="ts", split="time", engine="spark")
    assert described(Corpus.open(tmp_path / "corpus")) == reference(events, split="time")


def test_a_log_of_which_nothing_is_left_is_refused():
    with pytest.raises(InputError, match="no user has 10000 events left"):
        from_interactions(table(LOG), engine="spark", min_user_count=10_000)


def test_workers_ask_a_model_that_their_function_holds(session, tmp_path):
    store.save(serving.of_names().model, tmp_path / "model", training={}, metrics={})
    model = Superbloom.from_pretrained(tmp_path / "model")
    names = model.model.vocab.names(range(40))

    def best(batches):
        for batch in batches:
            found = [model.predict([name], k=1)[0].name for name in batch["name"].to_pylist()]
            yield pa.RecordBatch.from_pydict({"name": batch["name"], "best": found})

    rows = session.createDataFrame([(name,) for name in names], "name string").repartition(4)
    expected = {name: model.predict([name], k=1)[0].name for name in names}
    assert {row.name: row.best for row in rows.mapInArrow(best, "name string, best string").collect()} == expected
    partly = rows.rdd.mapPartitions(lambda part: [(row.name, model.predict([row.name], k=1)[0].name) for row in part])
    assert dict(partly.collect()) == expected


def test_a_session_that_was_there_stays_as_it_was(session):
    zone = session.conf.get("spark.sql.session.timeZone")
    session.conf.set("spark.sql.session.timeZone", "Europe/Copenhagen")
    from_interactions(table(LOG), engine="spark")
    assert session.conf.get("spark.sql.session.timeZone") == "Europe/Copenhagen"
    session.conf.set("spark.sql.session.timeZone", zone)
    assert session.range(3).count() == 3
