"""Interaction logs become the corpus that a plain reference makes of them: order, counts, times, splits."""

from datetime import date

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from superbloom.corpus import Corpus, split_of
from superbloom.errors import InputError
from superbloom.prepare.interactions import events as steps
from superbloom.prepare.interactions import from_interactions
from tests.support.cases import CASES
from tests.support.logs import LOG, LOOSE, described, lines, reference, table

NAMES = st.one_of(
    st.sampled_from(["a", "b", "c", "d", "e", "Ä", "ß", "z", "Z", "[MASK]", "1", "10", "9", "\U0001f33c", "￿"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    st.none(),
)
TIMES = st.one_of(st.integers(0, 6), st.integers(-(2**62), 2**62), st.none())
EVENTS = st.lists(st.tuples(NAMES, NAMES, TIMES), min_size=1, max_size=60)


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


def test_rows_and_files_may_lie_in_any_order_if_there_are_times(tmp_path, expected, prepared):
    shuffled = [LOG[place] for place in np.random.default_rng(1).permutation(len(LOG))]
    (tmp_path / "b.csv").write_text(lines(",", "user_id,item_id,ts\n", events=shuffled[:250] + shuffled[:50]))
    pq.write_table(table(shuffled[250:]), tmp_path / "a.parquet")
    for names in (("a.parquet", "b.csv"), ("b.csv", "a.parquet")):
        corpus = prepared([tmp_path / name for name in names], time="ts")
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


def test_what_is_missing_is_left_out_and_counted(tmp_path, prepared, monkeypatch):
    monkeypatch.setattr(steps, "MAX_UNREADABLE_SHARE", 0.5)
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
    found = described(prepared([tmp_path / "log.csv"], time="ts", **LOOSE))
    assert found["rows"] == {"u": ["a"], "v": ["a", "b", "b"]}
    assert found["dropped"] == {
        "without a user": 2,
        "without an item": 1,
        "without a time": 1,
        "with a time that cannot be read": 2,
        "repeated": 1,
    }


def test_dates_are_read_one_by_one_where_some_cannot(tmp_path, prepared, monkeypatch):
    monkeypatch.setattr(steps, "MAX_UNREADABLE_SHARE", 0.5)
    times = ["2020-01-03", "2020-01-02T10:00:00.5Z", "2020-13-01", "2020-01-02 11:00:00+02:00", "2020-01-01T00", "nan"]
    (tmp_path / "log.csv").write_text("user_id,item_id,ts\n" + "".join(f"u,{n},{t}\n" for n, t in enumerate(times)))
    found = described(prepared([tmp_path / "log.csv"], time="ts", **LOOSE))
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


def test_latin_1_is_read_if_it_is_said(tmp_path, prepared):
    text = '"User-ID";"ISBN"\n"å";"ø"\n"å";"é"\n'
    path = tmp_path / "log.csv"
    for encoding in ("latin-1", "utf-16", "cp1252"):
        path.write_bytes(text.encode(encoding))
        corpus = prepared([path], user="User-ID", item="ISBN", encoding=encoding, **LOOSE)
        assert described(corpus)["rows"] == {"å": ["ø", "é"]}


def test_only_what_is_used_has_to_be_utf_8(tmp_path, prepared):
    (tmp_path / "log.csv").write_bytes(b"user_id,item_id,title\nu,a,Caf\xe9\nu,b,x\n")
    assert described(prepared([tmp_path / "log.csv"], **LOOSE))["rows"] == {"u": ["a", "b"]}


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
