"""JSON lines, formats of times, ratings, and lines whose first field may be no user."""

import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from superbloom.corpus import Corpus
from superbloom.errors import InputError
from superbloom.prepare.interactions import from_interactions, prepare_interactions
from tests.support.logs import LOOSE, described

EVENTS = [
    ("u", "a", "03.01.2020", 5),
    ("u", "b", "02.02.2020", 1),
    ("u", "c", "01.03.2020", 4),
    ("v", "b", "05.05.2020", 3),
]
KEYS = ("user_id", "item_id", "day", "stars")
DAYS = {"time": "day", "time_format": "%d.%m.%Y"}


def written(tmp_path: Path, kind: str, events: list[tuple] = EVENTS) -> Path:
    path = tmp_path / f"log.{kind}"
    if kind == "csv":
        path.write_text("\n".join(",".join(map(str, event)) for event in [KEYS, *events]) + "\n")
    elif kind == "jsonl":
        path.write_text("\n".join(json.dumps(dict(zip(KEYS, event, strict=True))) for event in events) + "\n")
    else:
        pq.write_table(pa.Table.from_pylist([dict(zip(KEYS, event, strict=True)) for event in events]), path)
    return path


def prepared(path: Path, **options: object) -> Corpus:
    prepare_interactions(path, path.with_name("corpus"), overwrite=True, **{**LOOSE, **options})
    return Corpus.open(path.with_name("corpus"))


def rows(corpus: Corpus) -> dict[str, list[str]]:
    return described(corpus)["rows"]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_times_are_read_by_their_format(tmp_path, kind):
    """By day they are a, b, c; by their text c, b, a."""
    assert rows(prepared(written(tmp_path, kind), **DAYS)) == {"u": ["a", "b", "c"], "v": ["b"]}
    later_first = prepared(written(tmp_path, kind), time="day", time_format="%m.%d.%Y")
    assert rows(later_first) == {"u": ["c", "b", "a"], "v": ["b"]}


def test_whole_numbers_are_read_by_a_format_too(tmp_path):
    frame = pd.DataFrame({"user_id": [1, 1], "item_id": ["a", "b"], "day": [31122019, 1012020]})
    frame["day"] = frame["day"].astype(str).str.zfill(8)
    assert rows(from_interactions(frame, time="day", time_format="%d%m%Y", **LOOSE)) == {"1": ["a", "b"]}
    numbers = pa.table({"user_id": [1, 1], "item_id": ["a", "b"], "day": [20200101, 20191231]})
    pq.write_table(numbers, tmp_path / "log.parquet")
    assert rows(prepared(tmp_path / "log.parquet", time="day", time_format="%Y%m%d")) == {"1": ["b", "a"]}


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_events_with_a_low_rating_are_left_out_and_counted(tmp_path, kind):
    events = [*EVENTS, ("v", "c", "06.05.2020", None if kind != "csv" else "")]
    corpus = prepared(written(tmp_path, kind, events), **DAYS, rating="stars", min_rating=3)
    assert rows(corpus) == {"u": ["a", "c"], "v": ["b"]}
    assert corpus.info["dropped"] == {"without a rating": 1, "rated below 3": 1}
    assert rows(prepared(written(tmp_path, kind, events), rating="stars", min_rating=4)) == {"u": ["a", "c"]}


def test_columns_by_number_may_be_ratings(tmp_path):
    path = tmp_path / "ratings.dat"
    path.write_text("u::a::5\nu::b::2.5\nu::c::3.0\n")
    assert rows(prepared(path, user=0, item=1, rating=2, min_rating=3)) == {"u": ["a", "c"]}


def test_json_lines_name_like_other_files(tmp_path):
    path = tmp_path / "log.jsonl"
    lines = ['{"item_id": 7, "user_id": "007", "x": {}}', "", '{"user_id": "007", "item_id": "7b"}', '{"item_id": "b"}']
    lines += ['{"user_id": 1.0, "item_id": "å\\u0062"}', '{"user_id": "1", "item_id": null}']
    path.write_text("\r\n".join(lines), encoding="utf-8-sig")
    corpus = prepared(path)
    assert rows(corpus) == {"007": ["7", "7b"], "1": ["åb"]}
    assert corpus.info["dropped"] == {"without a user": 1, "without an item": 1}
    assert rows(prepared(path, format="jsonl")) == rows(corpus)


def test_json_lines_may_lie_in_partitions(tmp_path):
    for day in ("2020-01-02", "2020-01-01"):
        (tmp_path / "log" / f"day={day}").mkdir(parents=True)
        line = json.dumps({"user_id": "u", "item_id": f"of {day}"})
        (tmp_path / "log" / f"day={day}" / "part.jsonl").write_text(f"{line}\n")
    assert rows(prepared(tmp_path / "log", time="day")) == {"u": ["of 2020-01-01", "of 2020-01-02"]}


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (
            '{"user_id": 1, "item_id": "a"}\n{"user_id": 1',
            {},
            r"line 2 of '.*' is '\{\"user_id\": 1'; give a JSON object",
        ),
        ('[{"user_id": 1, "item_id": "a"}]', {}, "give a JSON object on each line; jq -c '.*' makes lines of an array"),
        ('{"user": 1, "item_id": "a"}', {}, "has no column 'user_id'; it has 'user', 'item_id'; closest: 'user'"),
        ('{"user_id": [1], "item_id": "a"}', {}, r"line 1 of '.*': 'user_id' is \[1\]; give text or whole numbers"),
        ('{"user_id": true, "item_id": "a"}', {}, r"'user_id' is true; give text or whole numbers"),
        ('{"user_id": 1.5, "item_id": "a"}', {}, "holds 1.5, which is not whole"),
        ("u a b\n", {"format": "jsonl"}, "line 1 of '.*' is 'u a b'; give a JSON object on each line"),
        ("u a b\nu a\n", {"rating": "stars", "min_rating": 1}, "has lines `user item item …`, without ratings"),
        ("user_id,item_id,r\nu,a,five\n", {"rating": "r", "min_rating": 1}, r"column 'r' of '.*' holds no ratings \("),
        ("user_id,item_id,r\nu,a,5\n", {"rating": "r", "min_rating": 6}, "no event has a 'r' of at least 6; lower"),
        ("user_id,item_id\nu,a\n", {"rating": "r"}, "rating='r', min_rating=None: give both, or neither"),
        ("user_id,item_id\nu,a\n", {"min_rating": float("nan"), "rating": "r"}, "min_rating=nan: a number is allowed"),
        ("user_id,item_id\nu,a\n", {"time_format": "%d"}, "time_format='%d' needs a column of times"),
        ("user_id,item_id,d\nu,a,1\n", {"time": "d", "time_format": "%Q"}, "time_format='%Q': directives of strptime"),
        (
            "user_id,item_id,d\nu,a,1.2.2020\n",
            {"time": "d", "time_format": "%d/%m/%Y"},
            "none of the times in column 'd' can be read; one is '1.2.2020'; they have to be written like",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(tmp_path, content, options, message):
    path = tmp_path / "log"
    path.write_text(content)
    with pytest.raises(InputError, match=message) as refused:
        prepared(path, **options)
    assert "\n" not in str(refused.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["log"]


def test_a_time_that_needs_no_format_is_refused_with_one():
    frame = pd.DataFrame({"user_id": [1], "item_id": ["a"], "day": [pd.Timestamp("2020-01-01")]})
    with pytest.raises(InputError, match="column 'day' of the table is timestamp.*, which needs no --time-format"):
        from_interactions(frame, time="day", time_format="%d", **LOOSE)


@pytest.mark.parametrize(("unreadable", "is_refused"), [(1, False), (2, False), (3, True), (10, True)])
def test_dates_of_which_many_cannot_be_read_are_refused(tmp_path, unreadable, is_refused):
    days = ["02/01/2020"] * unreadable + ["2020-01-01"] * (20 - unreadable)
    path = tmp_path / "log.csv"
    path.write_text("user_id,item_id,day\n" + "".join(f"u,{i},{day}\n" for i, day in enumerate(days)) + "u,a,\n")
    if is_refused:
        words = f"{unreadable} of 20 times in column 'day' cannot be read, one is '02/01/2020'; .* give --time-format"
        with pytest.raises(InputError, match=words):
            prepared(path, time="day")
    else:
        expected = {"without a time": 1, "with a time that cannot be read": unreadable}
        assert prepared(path, time="day").info["dropped"] == expected


@pytest.mark.parametrize(("content", "is_asked"), [("u a b\nv a\n", True), ("u a\nv b\n", False)])
def test_lines_ask_whether_their_first_field_is_a_user(tmp_path, content, is_asked):
    path, notices = tmp_path / "lines.txt", list[str]()
    path.write_text(content)
    named = {} if is_asked else {"user": 0, "item": 1}
    prepare_interactions(path, tmp_path / "corpus", **LOOSE, **named, notice=notices.append)
    assert [line.split(": ")[1] for line in notices] == is_asked * [
        "is the first field of each line a user? If it is an item, use --format sessions"
    ]
