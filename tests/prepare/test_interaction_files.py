"""Every kind of file and table with the same log gives the same corpus."""

import bz2
import gzip
import lzma
from collections import defaultdict
from datetime import UTC, datetime

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from superbloom.errors import InputError
from superbloom.prepare.interactions import from_interactions
from tests.support.logs import LOG, LOOSE, TEXTS, described, table


@pytest.mark.parametrize("kind", TEXTS)
def test_every_kind_of_text_gives_the_same_corpus(tmp_path, expected, kind, prepared):
    text, options = TEXTS[kind]
    (tmp_path / "log").write_text(text, newline="")
    assert prepared([tmp_path / "log"], **options).checksums == expected["timed"]
    assert prepared([tmp_path / "log"], **options | {"time": None}).checksums == expected["untimed"]


@pytest.mark.parametrize("separator", [",", "\t"])
def test_a_quotation_mark_that_is_never_closed_is_told(tmp_path, separator, prepared):
    """It would swallow all events that follow, of which nobody would know."""
    rows = [["user_id", "item_id", "title"], *([f"u{n % 9}", f"i{n}", f"title {n}"] for n in range(4000))]
    rows[3][2], rows[2001][2] = '"title 3"', '"the 5 inch disk'
    rows[7][2] = '"one title\nin two lines, and 12"" long"'
    text = "\n".join(map(separator.join, rows))
    (tmp_path / "log").write_text(text)
    with pytest.raises(InputError, match=r"row 2,002 of '.*log' opens a quotation mark that is never closed"):
        prepared([tmp_path / "log"], **LOOSE)
    (tmp_path / "log").write_text(text.replace("inch disk", 'inch disk"'))
    assert prepared([tmp_path / "log"], **LOOSE).num_ids == 4000


PACKINGS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize("packing", ["gz", "bz2", "xz", "zst"])
def test_packed_text_is_read_as_it_is(tmp_path, expected, packing, prepared):
    path = tmp_path / "log.csv"  # whatever its name
    if packing == "zst":
        with pa.CompressedOutputStream(str(path), "zstd") as stream:
            stream.write(TEXTS["csv"][0].encode())
    else:
        path.write_bytes(PACKINGS[packing](TEXTS["csv"][0].encode()))
    assert prepared(path, time="ts").checksums == expected["timed"]


@pytest.mark.parametrize("separator", [" ", "\t"])
def test_lines_of_a_user_and_items_in_order(tmp_path, expected, separator, prepared):
    rows: dict = defaultdict(list)
    for user, item, _ in LOG:
        rows[user].append(item)
    text = "".join(f"{user}{separator}{separator.join(items)}\n" for user, items in rows.items())
    (tmp_path / "log.txt").write_text(text + "alone\n\n")
    for kind in ("lines", "auto"):
        assert prepared([tmp_path / "log.txt"], format=kind).checksums == expected["untimed"]


def test_names_of_lines_with_tabs_may_hold_spaces(tmp_path, prepared):
    (tmp_path / "log.txt").write_text("Ann Lee\tMiles Davis\tBill Evans\nBo\tMiles Davis\n")
    corpus = prepared([tmp_path / "log.txt"], format="lines", **LOOSE)
    assert described(corpus)["rows"] == {"Ann Lee": ["Miles Davis", "Bill Evans"], "Bo": ["Miles Davis"]}


def test_parquet_with_columns_of_any_type_gives_the_same_corpus(tmp_path, expected, prepared):
    log = table(LOG).append_column("title", pa.array(["x"] * len(LOG)))
    stamps = log["ts"].cast(pa.timestamp("s")).cast(pa.timestamp("us"))
    kinds = {
        "plain": log,
        "dictionary": log.set_column(1, "item_id", log["item_id"].dictionary_encode()),
        "large": log.set_column(0, "user_id", log["user_id"].cast(pa.large_string())),
        "binary": log.set_column(0, "user_id", log["user_id"].cast(pa.binary())),
        "timestamp": log.set_column(2, "ts", stamps),
        "nanoseconds": log.set_column(2, "ts", stamps.cast(pa.timestamp("ns", "Europe/Copenhagen"))),
        "float": log.set_column(2, "ts", log["ts"].cast(pa.float64())),
        "decimal": log.set_column(2, "ts", log["ts"].cast(pa.decimal128(20, 0))),
        "text": log.set_column(2, "ts", log["ts"].cast(pa.string())),
        "nested beside": log.append_column("list", pa.array([[1]] * len(LOG))),
        "upper and lower": log.append_column("ITEM_ID", pa.array(["x"] * len(LOG))),
    }
    for name, kind in kinds.items():
        pq.write_table(kind, tmp_path / "log", row_group_size=100)
        assert prepared([tmp_path / "log"], time="ts").checksums == expected["timed"], name
        assert prepared([tmp_path / "log"]).checksums == expected["untimed"], name


@pytest.mark.parametrize("kind", ["csv", "parquet", "both"])
def test_a_folder_of_part_files_is_read_in_order_of_names(tmp_path, expected, kind, prepared):
    folder = tmp_path / "[log] *"
    folder.mkdir()
    for number in range(3):
        part = table(LOG).slice(200 * number, 200)
        path = folder / f"part-{number}"
        if kind == "csv" or (kind == "both" and number == 1):
            pacsv.write_csv(part, path)
        else:
            pq.write_table(part, path)
    (folder / "_SUCCESS").touch()
    (folder / ".part-0.crc").write_text("no data")
    for given_files in ([folder], sorted(folder.glob("part-*")), [folder.as_uri()]):
        assert prepared(given_files).checksums == expected["untimed"]
        assert prepared(given_files, time="ts").checksums == expected["timed"]


def test_a_file_may_be_given_by_its_address(tmp_path, expected, prepared):
    (tmp_path / "a log.csv").write_text(TEXTS["csv"][0])
    assert prepared([(tmp_path / "a log.csv").as_uri()], time="ts").checksums == expected["timed"]


def test_folders_named_by_a_column_give_its_values(tmp_path, prepared):
    for day, item in (("2020-01-02", "b"), ("2020-01-01", "a"), ("__HIVE_DEFAULT_PARTITION__", "c")):
        folder = tmp_path / "log" / f"day={day}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"user_id": ["u", "v"], "item_id": [item, item]}), folder / "part-0.parquet")
    found = described(prepared([tmp_path / "log"], time="day", **LOOSE))
    assert found["rows"] == {"u": ["a", "b"], "v": ["a", "b"]}
    assert found["dropped"] == {"without a time": 2}


def frames() -> dict:
    pandas = table(LOG).to_pandas()
    return {
        "pandas": pandas,
        "pandas objects": pandas.astype(object),
        "pandas category": pandas.astype({"item_id": "category"}),
        "polars": pl.from_arrow(table(LOG)),
        "polars lazy": pl.from_arrow(table(LOG)).lazy(),
        "arrow": table(LOG),
        "shuffled": pandas.sample(frac=1, random_state=0),
        "times": pandas.assign(ts=pd.to_datetime(pandas["ts"], unit="s")),
        "datetimes": pandas.assign(ts=pd.Series([datetime.fromtimestamp(t, UTC) for *_, t in LOG], dtype=object)),
    }


@pytest.mark.parametrize("kind", frames())
def test_every_kind_of_table_gives_the_same_corpus(expected, kind):
    frame = frames()[kind]
    assert from_interactions(frame, time="ts").checksums == expected["timed"]
    if kind != "shuffled":
        assert from_interactions(frame).checksums == expected["untimed"]
