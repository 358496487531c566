"""Interaction logs of every shape become the corpus that a few lines of plain Python make of them."""

import bz2
import gzip
import json
import lzma
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import launch
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from conftest import CASES
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from superbloom.corpus import Corpus, split_of
from superbloom.errors import InputError
from superbloom.prepare.interactions import from_interactions, prepare_interactions

LOOSE = {"min_item_count": 1, "min_user_count": 1}


def described(corpus: Corpus) -> dict:
    """A corpus as plain lists."""
    table = corpus.sequences
    return {
        "names": corpus.vocab.names(range(corpus.num_ids)),
        "counts": corpus.vocab.counts.tolist(),
        "rows": {key: corpus.vocab.names(corpus.row(number)) for number, key in enumerate(table["key"].to_pylist())},
        "places": list(zip(*(table[name].to_pylist() for name in ("split", "valid_from", "test_from")), strict=True)),
        "dropped": corpus.info["dropped"],
    }


def reference(
    events: list[tuple],
    *,
    timed: bool = True,
    min_item_count: int = 5,
    min_user_count: int = 2,
    max_names: int | None = None,
    split: str = "last",
    drop_repeats: bool = False,
) -> dict | None:
    """The same of (user, item, time) events, the slow way; None if fewer than two items are left."""
    dropped: Counter = Counter()
    whole = []
    for place, (user, item, time) in enumerate(events):
        if not user:
            dropped["without a user"] += 1
        elif not item:
            dropped["without an item"] += 1
        elif timed and time is None:
            dropped["without a time"] += 1
        else:
            whole.append((user, time if timed else place, item))
    kept = sorted(set(whole), key=lambda event: (event[0], event[1], event[2].encode()))
    if drop_repeats:
        seen: set = set()
        kept = [e for e in kept if not ((e[0], e[2]) in seen or seen.add((e[0], e[2])))]
    dropped["repeated"] = len(whole) - len(kept)

    def cut(reason: str, keep) -> None:
        nonlocal kept
        before, kept = len(kept), [event for event in kept if keep(event)]
        dropped[reason] = before - len(kept)

    counts = Counter(item for *_, item in kept)
    cut(f"of items with fewer than {min_item_count} events", lambda event: counts[event[2]] >= min_item_count)
    ranked = sorted({item for *_, item in kept}, key=lambda item: (-counts[item], item.encode()))
    chosen = set(ranked[:max_names])
    cut("of items beyond the most frequent", lambda event: event[2] in chosen)
    if len(chosen) < 2:
        return None
    users = Counter(user for user, *_ in kept)
    cut(f"of users with fewer than {min_user_count} events", lambda event: users[event[0]] >= min_user_count)
    left = Counter(item for *_, item in kept)
    if len(left) < 2:
        return None
    rows: dict = defaultdict(list)
    for event in sorted(kept, key=lambda event: (event[0].encode(), event[1], event[2].encode())):
        rows[event[0]].append(event)
    times = sorted(time for _, time, _ in kept)
    places = []
    for user, row in rows.items():
        n = len(row)
        if split == "last":
            places.append((0, n - 2, n - 1) if n >= 3 else (0, n, n))
        elif split == "user":
            code = int(split_of([user])[0])
            places.append((code, *{0: (n, n), 1: (n - 1, n), 2: (n - 1, n - 1)}[code]))
        else:
            valid, test = times[len(times) * 855 // 1000], times[len(times) * 9 // 10]
            places.append((0, sum(e[1] < valid for e in row), sum(e[1] < test for e in row)))
    names = sorted(left, key=lambda item: (-left[item], item.encode()))
    return {
        "names": names,
        "counts": [left[name] for name in names],
        "rows": {user: [item for *_, item in row] for user, row in rows.items()},
        "places": places,
        "dropped": {reason: count for reason, count in dropped.items() if count},
    }


NAMES = st.one_of(
    st.sampled_from(["a", "b", "c", "d", "e", "Ä", "ß", "z", "Z", "[MASK]", "1", "10", "9", "\U0001f33c", "￿"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    st.none(),
)
TIMES = st.one_of(st.integers(0, 6), st.integers(-(2**62), 2**62), st.none())
EVENTS = st.lists(st.tuples(NAMES, NAMES, TIMES), min_size=1, max_size=60)


def table(events: list[tuple]) -> pa.Table:
    users, items, times = zip(*events, strict=True)
    columns = {"user_id": pa.array(users, pa.string()), "item_id": pa.array(items, pa.string())}
    return pa.table(columns | {"ts": pa.array(times, pa.int64())})


@settings(max_examples=CASES // 40)
@given(
    EVENTS,
    st.booleans(),
    st.booleans(),
    st.integers(1, 3),
    st.integers(1, 3),
    st.one_of(st.none(), st.integers(2, 5)),
    st.sampled_from(["last", "user", "time"]),
)
def test_a_log_becomes_what_the_reference_makes_of_it(
    events, timed, drop_repeats, min_item_count, min_user_count, max_names, split
):
    assume(timed or split != "time")
    options = {
        "min_item_count": min_item_count,
        "min_user_count": min_user_count,
        "max_names": max_names,
        "split": split,
        "drop_repeats": drop_repeats,
    }
    expected = reference(events, timed=timed, **options)
    time = "ts" if timed else None
    if expected is None:
        with pytest.raises(InputError, match="at least|events lack|can be read|no user has"):
            from_interactions(table(events), time=time, **options)
    else:
        assert described(from_interactions(table(events), time=time, **options)) == expected


def log_of(num_users: int = 40, num_items: int = 25, events: int = 600, seed: int = 0) -> list[tuple]:
    """Events of users u0…, items i0… and times with ties and a few repeats."""
    rng = np.random.default_rng(seed)
    users, items = rng.integers(num_users, size=events), (num_items * rng.random(events) ** 2).astype(int)
    times = 1_600_000_000 + rng.integers(0, 200, size=events)
    return [(f"u{u}", f"i{i}", t) for u, i, t in zip(users.tolist(), items.tolist(), times.tolist(), strict=True)]


LOG = log_of()


@pytest.fixture(scope="module")
def expected() -> dict:
    """The checksums of LOG with times, and without them."""
    timed, untimed = (from_interactions(table(LOG), time=time) for time in ("ts", None))
    assert described(timed) == reference(LOG)
    assert described(untimed) == reference(LOG, timed=False)
    return {"timed": timed.checksums, "untimed": untimed.checksums}


def lines(separator: str, header: str = "", quote: str = "", events: list[tuple] = LOG) -> str:
    rows = (separator.join(f"{quote}{value}{quote}" for value in event) for event in events)
    return header + "".join(f"{row}\n" for row in rows)


BY_NUMBER = {"user": 0, "item": "1", "time": 2}


def utc(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()


TEXTS = {
    "csv": (lines(",", "user_id,item_id,ts\n"), {"time": "ts"}),
    "tsv": (lines("\t", "user_id\titem_id\tts\n"), {"time": "ts"}),
    "quoted": (lines(";", '"User-ID";"ISBN";"ts"\n', '"'), {"user": "User-ID", "item": "ISBN", "time": "ts"}),
    "quoted tsv": (lines("\t", '"user_id"\t"item_id"\t"ts"\n', '"'), {"time": "ts"}),
    "inter": (lines("\t", "user_id:token\titem_id:token\tts:float\n"), {"time": "ts"}),
    "colons": (lines("::"), BY_NUMBER),
    "spaces": (lines("  "), BY_NUMBER),
    "no header": (lines(","), BY_NUMBER),
    "windows": ("\ufeff" + lines(",", "user_id,item_id,ts\n").replace("\n", "\r\n"), {"time": "ts"}),
    "no last line end": (lines(",", "user_id,item_id,ts\n").rstrip("\n"), {"time": "ts"}),
    "other columns": (
        "title,user_id,ts,item_id\n" + "".join(f'"a ""b"",\nc",{u},{t},{i}\n' for u, i, t in LOG),
        {"time": "ts"},
    ),
    "seconds with fractions": (
        "user_id,item_id,ts\n" + "".join(f"{u},{i},{t / 8}\n" for u, i, t in LOG),
        {"time": "ts"},
    ),
    "ISO": ("user_id,item_id,ts\n" + "".join(f"{u},{i},{utc(t)}\n" for u, i, t in LOG), {"time": "ts"}),
    "ISO in zones": (
        "user_id,item_id,ts\n"
        + "".join(f"{u},{i},{utc(t + 3600 * (n % 2))}{['Z', '+01:00'][n % 2]}\n" for n, (u, i, t) in enumerate(LOG)),
        {"time": "ts"},
    ),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_every_kind_of_text_gives_the_same_corpus(tmp_path, expected, kind):
    text, options = TEXTS[kind]
    (tmp_path / "log").write_text(text, newline="")
    assert prepare_interactions([tmp_path / "log"], **options).checksums == expected["timed"]
    assert prepare_interactions([tmp_path / "log"], **options | {"time": None}).checksums == expected["untimed"]


@pytest.mark.parametrize("separator", [",", "\t"])
def test_a_quotation_mark_that_is_never_closed_is_told(tmp_path, separator):
    """It would swallow all events that follow, of which nobody would know."""
    rows = [["user_id", "item_id", "title"], *([f"u{n % 9}", f"i{n}", f"title {n}"] for n in range(4000))]
    rows[3][2], rows[2001][2] = '"title 3"', '"the 5 inch disk'
    rows[7][2] = '"one title\nin two lines, and 12"" long"'
    text = "\n".join(map(separator.join, rows))
    (tmp_path / "log").write_text(text)
    with pytest.raises(InputError, match=r"row 2,002 of '.*log' opens a quotation mark that is never closed"):
        prepare_interactions([tmp_path / "log"], **LOOSE)
    (tmp_path / "log").write_text(text.replace("inch disk", 'inch disk"'))
    assert prepare_interactions([tmp_path / "log"], **LOOSE).num_ids == 4000


PACKINGS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize("packing", ["gz", "bz2", "xz", "zst"])
def test_packed_text_is_read_as_it_is(tmp_path, expected, packing):
    path = tmp_path / "log.csv"  # whatever its name
    if packing == "zst":
        with pa.CompressedOutputStream(str(path), "zstd") as stream:
            stream.write(TEXTS["csv"][0].encode())
    else:
        path.write_bytes(PACKINGS[packing](TEXTS["csv"][0].encode()))
    assert prepare_interactions(path, time="ts").checksums == expected["timed"]


@pytest.mark.parametrize("separator", [" ", "\t"])
def test_lines_of_a_user_and_items_in_order(tmp_path, expected, separator):
    rows: dict = defaultdict(list)
    for user, item, _ in LOG:
        rows[user].append(item)
    text = "".join(f"{user}{separator}{separator.join(items)}\n" for user, items in rows.items())
    (tmp_path / "log.txt").write_text(text + "alone\n\n")
    for kind in ("lines", "auto"):
        assert prepare_interactions([tmp_path / "log.txt"], format=kind).checksums == expected["untimed"]


def test_names_of_lines_with_tabs_may_hold_spaces(tmp_path):
    (tmp_path / "log.txt").write_text("Ann Lee\tMiles Davis\tBill Evans\nBo\tMiles Davis\n")
    corpus = prepare_interactions([tmp_path / "log.txt"], format="lines", **LOOSE)
    assert described(corpus)["rows"] == {"Ann Lee": ["Miles Davis", "Bill Evans"], "Bo": ["Miles Davis"]}


def test_parquet_with_columns_of_any_type_gives_the_same_corpus(tmp_path, expected):
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
        assert prepare_interactions([tmp_path / "log"], time="ts").checksums == expected["timed"], name
        assert prepare_interactions([tmp_path / "log"]).checksums == expected["untimed"], name


@pytest.mark.parametrize("kind", ["csv", "parquet", "both"])
def test_a_folder_of_part_files_is_read_in_order_of_names(tmp_path, expected, kind):
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
        assert prepare_interactions(given_files).checksums == expected["untimed"]
        assert prepare_interactions(given_files, time="ts").checksums == expected["timed"]


def test_a_file_may_be_given_by_its_address(tmp_path, expected):
    (tmp_path / "a log.csv").write_text(TEXTS["csv"][0])
    assert prepare_interactions([(tmp_path / "a log.csv").as_uri()], time="ts").checksums == expected["timed"]


def test_folders_named_by_a_column_give_its_values(tmp_path):
    for day, item in (("2020-01-02", "b"), ("2020-01-01", "a"), ("__HIVE_DEFAULT_PARTITION__", "c")):
        folder = tmp_path / "log" / f"day={day}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"user_id": ["u", "v"], "item_id": [item, item]}), folder / "part-0.parquet")
    found = described(prepare_interactions([tmp_path / "log"], time="day", **LOOSE))
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


def test_rows_and_files_may_lie_in_any_order_if_there_are_times(tmp_path, expected):
    shuffled = [LOG[place] for place in np.random.default_rng(1).permutation(len(LOG))]
    (tmp_path / "b.csv").write_text(lines(",", "user_id,item_id,ts\n", events=shuffled[:250] + shuffled[:50]))
    pq.write_table(table(shuffled[250:]), tmp_path / "a.parquet")
    for names in (("a.parquet", "b.csv"), ("b.csv", "a.parquet")):
        corpus = prepare_interactions([tmp_path / name for name in names], time="ts")
        assert corpus.checksums == expected["timed"]


@pytest.mark.parametrize(
    ("users", "keys"),
    [
        (pa.array([1, 2, 10]), ["1", "10", "2"]),
        (pa.array([1.0, 2.0, None]), ["1", "2"]),
        (pd.Series([1, None, 30]), ["1", "30"]),
        (pd.Series([1, "1", 2.0], dtype=object), ["1", "2"]),
        (pd.Series([np.int64(7), float("nan"), pd.NA], dtype=object), ["7"]),
        (pd.Series([7, None, pd.NaT], dtype=object), ["7"]),
        (pa.array([2**60, -1, 0], pa.int64()), ["-1", "0", str(2**60)]),
        (pa.array([2**64 - 1, 1, 0], pa.uint64()), ["0", "1", str(2**64 - 1)]),
        (pa.array(["", "x", None]), ["x"]),
        (pa.array(["007", "7", "[PAD]"]), ["007", "7", "[PAD]"]),
        (pl.Series(["b", "b", "a"], dtype=pl.Categorical), ["a", "b"]),
    ],
)
def test_users_and_items_become_text(users, keys):
    items = ["x"] * 3 + ["y"] * 3
    if isinstance(users, pa.Array):
        frame = pa.table({"user_id": pa.concat_arrays([users, users]), "item_id": items})
    elif isinstance(users, pl.Series):
        frame = pl.DataFrame({"user_id": pl.concat([users, users]), "item_id": items})
    else:
        frame = pd.DataFrame({"user_id": pd.concat([users, users], ignore_index=True), "item_id": items})
    corpus = from_interactions(frame, **LOOSE)
    assert corpus.sequences["key"].to_pylist() == keys
    missing = 6 - len(corpus.ids)
    assert corpus.info["dropped"] == ({"without a user": missing} if missing else {})


def test_what_is_missing_is_left_out_and_counted(tmp_path):
    rows = [
        "u,a,1",
        ",a,2",
        "u,,3",
        "u,b,",
        "u,c,soon",
        ",,",
        "v,a,5",
        "v,b,1e3",
        "v,b,1000.0",
        "v,b,1000.5",
        "v,c,inf",
    ]
    (tmp_path / "log.csv").write_text("user_id,item_id,ts\n" + "\n".join(rows))
    found = described(prepare_interactions([tmp_path / "log.csv"], time="ts", **LOOSE))
    assert found["rows"] == {"u": ["a"], "v": ["a", "b", "b"]}
    assert found["dropped"] == {
        "without a user": 2,
        "without an item": 1,
        "without a time": 1,
        "with a time that cannot be read": 2,
        "repeated": 1,
    }


def test_dates_are_read_one_by_one_where_some_cannot(tmp_path):
    times = ["2020-01-03", "2020-01-02T10:00:00.5Z", "2020-13-01", "2020-01-02 11:00:00+02:00", "2020-01-01T00", "nan"]
    (tmp_path / "log.csv").write_text("user_id,item_id,ts\n" + "".join(f"u,{n},{t}\n" for n, t in enumerate(times)))
    found = described(prepare_interactions([tmp_path / "log.csv"], time="ts", **LOOSE))
    assert found["rows"] == {"u": ["4", "3", "1", "0"]}
    assert found["dropped"] == {"with a time that cannot be read": 2}


def test_times_beyond_a_float_are_told_apart():
    base = 2**60
    frame = table([("u", "b", base + 1), ("u", "a", base + 2), ("u", "c", base)])
    assert described(from_interactions(frame, time="ts", **LOOSE))["rows"] == {"u": ["c", "b", "a"]}


def test_dates_of_parquet_and_python_order_events():
    days = [date(2020, 1, 2), date(1969, 12, 31), None]
    frame = {"user_id": ["u"] * 3, "item_id": ["b", "a", "c"], "ts": days}
    for kind in (pa.table(frame), pd.DataFrame(frame), pl.DataFrame(frame)):
        assert described(from_interactions(kind, time="ts", **LOOSE))["rows"] == {"u": ["a", "b"]}


def test_latin_1_is_read_if_it_is_said(tmp_path):
    text = '"User-ID";"ISBN"\n"å";"ø"\n"å";"é"\n'
    path = tmp_path / "log.csv"
    for encoding in ("latin-1", "utf-16", "cp1252"):
        path.write_bytes(text.encode(encoding))
        corpus = prepare_interactions([path], user="User-ID", item="ISBN", encoding=encoding, **LOOSE)
        assert described(corpus)["rows"] == {"å": ["ø", "é"]}


def test_only_what_is_used_has_to_be_utf_8(tmp_path):
    (tmp_path / "log.csv").write_bytes(b"user_id,item_id,title\nu,a,Caf\xe9\nu,b,x\n")
    assert described(prepare_interactions([tmp_path / "log.csv"], **LOOSE))["rows"] == {"u": ["a", "b"]}


def test_places_of_the_three_splits_by_hand():
    events = [(user, item, time) for time, (user, item) in enumerate(["ua", "ub", "va", "uc", "vb", "wa", "ud", "vc"])]
    events += [("w", "b", 8), ("u", "a", 9)]
    found = {
        split: described(from_interactions(table(events), time="ts", split=split, **LOOSE))["places"]
        for split in ("last", "time")
    }
    assert found["last"] == [(0, 3, 4), (0, 1, 2), (0, 2, 2)]
    # u has times 0 1 3 6 9, v 2 4 7, w 5 8; events 8 (of 10) and 9 begin validation and test
    assert found["time"] == [(0, 4, 4), (0, 3, 3), (0, 1, 2)]
    users = [str(user) for user in range(100)]
    corpus = from_interactions(table([(u, i, 0) for u in users for i in "ab"]), split="user", min_item_count=1)
    codes = split_of(sorted(users)).tolist()
    expected = [(code, *{0: (2, 2), 1: (1, 2), 2: (1, 1)}[code]) for code in codes]
    assert described(corpus)["places"] == expected
    assert set(codes) == {0, 1, 2}


def test_a_corpus_outlives_its_temporary_files_and_comes_back_from_its_folder(tmp_path, expected):
    corpus = from_interactions(table(LOG), time="ts", split="time")
    corpus.save(tmp_path / "corpus")
    again = Corpus.open(tmp_path / "corpus")
    assert again.checksums == corpus.checksums
    assert described(again) == described(corpus) == reference(LOG, split="time")


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
        (CSV + "u,a\n", {}, r"row 4 of '.*log' has 2 fields where 3 are expected: 'u,a'; mend or remove it"),
        (CSV.replace("a", "\xe9").encode("latin-1"), {}, r"log' is not UTF-8; say what it is: --encoding latin-1"),
        (CSV.encode("utf-16"), {}, "is no text; .*for UTF-16 give --encoding utf-16"),
        ("å".encode("latin-1"), {"encoding": "utf-16"}, "is not utf-16"),
        (CSV, {"encoding": "latin-99"}, "encoding 'latin-99' is unknown; utf-8, latin-1"),
        (CSV, {"format": "json"}, "format 'json' given; auto, table, lines are allowed"),
        ("u a b\nv a\n", {"time": "ts"}, "has lines `user item item …`, without times; leave --time out"),
        ("u,a;b\nv\n", {}, "is no table: its first line is 'u,a;b'"),
        ("u a b\nv a\n", {"format": "table"}, "is no table: .*give --format lines"),
        ("user_id,user_id,item_id\nu,u,a\n", {}, "has 2 columns 'user_id'; give every column a name of its own"),
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
        (CSV, {"min_item_count": 0}, "min_item_count=0 given; whole numbers from 1 are allowed"),
        (CSV, {"max_names": 2.5}, "max_names=2.5 given"),
        (CSV, {"split": "random"}, "split 'random' given; last, time, user are allowed"),
        (CSV, {"split": "time"}, "split 'time' given without a column of times; name it: --time"),
        (CSV, {"engine": "flink"}, "engine 'flink' given; duckdb, spark are allowed"),
        (CSV, {"memory": 0.01}, "memory=0.01 GB given; 0.25 to 100,000 are allowed"),
        (gzip.compress(CSV.encode() * 1000)[:-9], {}, "is damaged or cut short"),
        (b"PK\x03\x04", {}, "is a zip archive; unpack it"),
        (b"PAR1 and no more", {}, "is not a sound Parquet file"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(tmp_path, monkeypatch, content, options, message):
    path = wrong(tmp_path, "log", content)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    with pytest.raises(InputError, match=message) as error:
        prepare_interactions([path], **options)
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "temporary").iterdir())


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
        prepare_interactions([path])


def test_spark_without_pyspark_or_java_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    with pytest.raises(InputError, match="needs Java 17; apt install openjdk-17-jre-headless .*or use DuckDB"):
        from_interactions(table(LOG), engine="spark")
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(InputError, match=r"needs PySpark; pip install 'superbloom\[spark\]', or use DuckDB"):
        from_interactions(table(LOG), engine="spark")


def test_no_file_is_refused():
    with pytest.raises(InputError, match="no file given"):
        prepare_interactions([])


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
    assert not list(tmp_path.rglob(".interactions-*"))


def test_the_command_says_so_too_if_java_is_not_where_it_should_be(tmp_path):
    (tmp_path / "log.csv").write_text(TEXTS["csv"][0])
    environment = {"JAVA_HOME": "/nowhere"}
    done = run("log.csv", "--out", "corpus", "--engine", "spark", cwd=tmp_path, code=2, environment=environment)
    assert done.stderr.startswith("error: --engine spark needs Java 17")
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


BIG = """
import sys
from pathlib import Path
from superbloom.prepare.interactions import prepare_interactions

corpus = prepare_interactions([sys.argv[1]], time="ts", memory=0.25, split="time", scratch=sys.argv[2])
# Not ru_maxrss, which begins with that of the process that started this one.
most = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
print(len(corpus.ids), corpus.fingerprint(), int(most) * 1024)
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
    command = [sys.executable, "-c", BIG, str(tmp_path / "log.parquet"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    events, _, taken = done.stdout.split()
    assert int(events) > 0.98 * pieces * size
    assert int(taken) < most
    assert [path.name for path in tmp_path.iterdir()] == ["log.parquet"]
