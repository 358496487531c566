"""Logs that cannot be used are refused in one line that names the file, the column or the remedy."""

import gzip
import sys
from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from superbloom.errors import InputError
from superbloom.prepare.interactions import from_interactions, prepare_interactions
from tests.support.logs import LOG, LOOSE, table


def wrong(tmp_path: Path, name: str, content: bytes | str) -> Path:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


CSV = "user_id,item_id,ts\nu,a,1\nu,b,2\n"


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (CSV, {"user": "user"}, "has no column 'user'; it has 'user_id', 'item_id', 'ts'; closest: 'user_id'"),
        (CSV, {"time": "time"}, "has no column 'time'; .*closest: 'item_id'"),
        (
            CSV,
            {"user": "x", "item": "y"},
            "no column 'x'; its first line is 'user_id', .* give numbers: --user 0 --item 1",
        ),
        (CSV, {"user": 0, "item": 7}, "has no column '7'"),
        (CSV + "u,a\n", {}, r"row 4 of '.*log' has 2 fields where 3 are expected: 'u,a'; fix or remove it"),
        (CSV.replace("a", "\xe9").encode("latin-1"), {}, r"log' is not UTF-8; name its encoding: --encoding latin-1"),
        (CSV.encode("utf-16"), {}, "is not text; .*for UTF-16 give --encoding utf-16"),
        ("å".encode("latin-1"), {"encoding": "utf-16"}, "is not utf-16"),
        (CSV, {"encoding": "latin-99"}, "encoding 'latin-99' is unknown; utf-8, latin-1"),
        (CSV, {"format": "json"}, "format='json': 'auto' or 'table' or 'lines' or 'sessions' or 'jsonl' is allowed"),
        ("u a b\nv a\n", {"time": "ts"}, "has lines `user item item …`, without times; leave out --time"),
        ("u,a;b\nv\n", {}, "is not a table: its first line is 'u,a;b'"),
        ("u a b\nv a\n", {"format": "table"}, "is not a table: .*give --format lines"),
        ("user_id,user_id,item_id\nu,u,a\n", {}, "has 2 columns 'user_id'; give every column its own name"),
        (
            CSV,
            {"time": "item_id"},
            "none of the times in column 'item_id' can be read; one is 'a'; numbers, timestamps",
        ),
        ("user_id,item_id,ts\nu,a,1\nu,b,2020-01-01\n", {"time": "ts"}, "both numbers and dates among its times"),
        ("user_id,item_id\n", {}, "the log holds no events"),
        ("", {}, "the log holds no events"),
        ("\n\n", {}, "the log holds no events"),
        ("user_id,item_id\n,a\n,b\n", {}, "all 2 events lack a user or an item; is --user the right column"),
        ("user_id,item_id\nu,a\nv,a\n", LOOSE, "the log holds 1 distinct items; at least 2 are needed"),
        (CSV, {}, "0 of 2 items are left by min_item_count=5, max_names=None; .* most frequent has 1 events"),
        (CSV, LOOSE | {"min_user_count": 3}, "no user has 3 events left; lower --min-user-count"),
        (CSV, LOOSE | {"max_names": 1}, "1 of 2 items are left"),
        (CSV, {"min_item_count": 0}, "min_item_count=0: 1 or more is allowed"),
        (CSV, {"max_names": 2.5}, "max_names=2.5: 1 or more is allowed"),
        (CSV, {"split": "random"}, "split='random': 'last' or 'time' or 'user' is allowed"),
        (CSV, {"split": "time"}, "split='time' needs a column of times; name it: --time"),
        (CSV, {"engine": "flink"}, "engine='flink': 'duckdb' or 'spark' is allowed"),
        (CSV, {"memory": 2}, r"memory=2: 250,000,000 to .* bytes \(0.25 to 100,000 GB\) is allowed"),
        (
            CSV,
            {"min_items": 2},
            r"unknown options \['min_items'\]; user, item, time, time_format, rating, min_rating, .* are allowed",
        ),
        (CSV, {"split": "random", "engine": "flink"}, "split='random': .*; engine='flink': "),
        (gzip.compress(CSV.encode() * 1000)[:-9], {}, "is damaged or cut short"),
        (b"PK\x03\x04", {}, "is a zip archive; unpack it"),
        (b"PAR1 and no more", {}, "is not a valid Parquet file"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(tmp_path, content, options, message):
    path = wrong(tmp_path, "log", content)
    with pytest.raises(InputError, match=message) as error:
        prepare_interactions([path], tmp_path / "corpus", **options)
    assert "\n" not in str(error.value)
    assert [file.name for file in tmp_path.iterdir()] == ["log"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing.csv", "cannot be read: No such file"),
        ("file:///no/such/file", "'file:///no/such/file' does not exist"),
        ("nosuch://x/y", "'nosuch://x/y' cannot be fetched"),
        (".", "is a folder without files"),
    ],
)
def test_files_that_are_not_there_are_named(tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        prepare_interactions([path], "corpus")
    assert not list(tmp_path.iterdir())


def test_spark_without_pyspark_or_java_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    with pytest.raises(InputError, match="needs Java 17; apt install openjdk-17-jre-headless .*or use DuckDB"):
        from_interactions(table(LOG), engine="spark")
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(InputError, match=r"needs PySpark; pip install 'superbloom\[spark\]', or use DuckDB"):
        from_interactions(table(LOG), engine="spark")


def test_no_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="no file given"):
        prepare_interactions([], tmp_path / "corpus")


AB = ["a", "b"]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ({"user_id": [1.5, 2.0], "item_id": AB}, "column 'user_id' holds 1.5, which is not whole; give text or whole"),
        ({"user_id": [1e17, 2.0], "item_id": AB}, "holds 1e[+]17, which a float does not hold exactly"),
        ({"user_id": [float("inf"), 2.0], "item_id": AB}, "holds inf"),
        (
            {"user_id": [True, False], "item_id": AB},
            "column 'user_id' of the table is bool; give text or whole numbers",
        ),
        ({"user_id": AB, "item_id": [[1], [2]]}, "column 'item_id' of the table is (large_)?list"),
        ({"user_id": AB, "item_id": [datetime(2020, 1, 1)] * 2}, "column 'item_id' of the table is timestamp"),
        ({"user": AB, "item_id": AB}, "the table has no column 'user_id'; it has 'user', 'item_id'; closest: 'user'"),
        ({"user_id": pd.Series([1, (2,)], dtype=object), "item_id": AB}, r"holds \(2,\) of type tuple"),
        ({"user_id": pd.Series([1, np.arange(2)], dtype=object), "item_id": AB}, "of type ndarray"),
        ({"user_id": pd.Series(["\ud800", 1], dtype=object), "item_id": AB}, "a lone surrogate"),
        ({"user_id": AB, "item_id": AB, "ts": [True, False]}, "column 'ts' of the table is bool; give numbers, timest"),
    ],
)
def test_columns_that_hold_no_names_are_refused(frame, message):
    time = "ts" if "ts" in frame else None
    kinds = [pd.DataFrame] if isinstance(frame.get("user_id"), pd.Series) else [pa.table, pl.DataFrame]
    for kind in kinds:
        with pytest.raises(InputError, match=message):
            from_interactions(kind(frame), time=time, **LOOSE)


@pytest.mark.parametrize("thing", [[1, 2], "log.csv", None, {"user_id": [1]}])
def test_what_is_no_table_is_refused(thing):
    with pytest.raises(InputError, match=f"{type(thing).__name__} given; a DataFrame of pandas, polars or Arrow"):
        from_interactions(thing)
