"""What is held out is what the user's own files say: every event of them is asked after all that precedes it."""

from collections import Counter

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from superbloom import Corpus, Superbloom
from superbloom.corpus import SPLITS, cut_segments, split_of
from superbloom.errors import InputError
from superbloom.evaluate.held_out import HeldOut
from superbloom.memory import REMEMBERED_SPLITS, Events
from superbloom.prepare.files import open_lines
from superbloom.prepare.interactions import from_interactions, prepare_interactions
from tests.support.cases import CASES
from tests.support.logs import LOG, lines, reference, table
from tests.support.real_data import real_data

EVENTS = st.lists(
    st.tuples(st.sampled_from("uvwx"), st.sampled_from("abcdef"), st.integers(0, 6), st.integers(0, 2)), max_size=60
)


def asked(corpus: Corpus, split: str) -> list[tuple[str, str, str]]:
    """The key of the row, all that precedes the hidden name, and that name, of each question; none without any."""
    if not corpus.num_asked(split):
        return []
    held_out, keys = HeldOut.of(corpus, split, seq_len=100), corpus.sequences["key"].to_pylist()
    names = corpus.vocab.names(range(corpus.num_ids))
    return [
        (keys[row], "".join(names[id_] for id_ in before), names[target])
        for row, before, target in zip(held_out.row, held_out.before, held_out.targets, strict=True)
    ]


def slowly(events: list[tuple], fewest: int) -> tuple[dict, dict]:
    """The rows, and the questions of both splits, of (user, item, time, part) events."""
    kept = set(events)
    counts = Counter(item for _, item, *_ in kept)
    held_items = {item for _, item, _, part in kept if part}
    kept = {event for event in kept if counts[event[1]] >= fewest or event[1] in held_items}
    users = Counter(user for user, *_ in kept)
    held_users = {user for user, *_, part in kept if part}
    rows, questions = {}, {"valid": [], "test": []}
    for user in sorted(users):
        if users[user] >= 2 or user in held_users:
            row = sorted((part, time, item) for who, item, time, part in kept if who == user)
            rows[user] = "".join(item for *_, item in row)
            for place, (part, _, item) in enumerate(row):
                if part and place:
                    questions["valid" if part == 1 else "test"].append((user, rows[user][:place], item))
    return rows, questions


@settings(max_examples=CASES // 40)
@given(EVENTS, st.integers(1, 3), st.booleans())
def test_every_event_of_the_files_is_asked_after_all_that_precedes_it(events, fewest, as_polars):
    parts = [[event[:3] for event in events if event[3] == part] for part in range(3)]
    assume(all(parts))
    rows, questions = slowly(events, fewest)
    assume(len(set("".join(rows.values()))) >= 2)
    train, valid, test = (pl.from_arrow(table(part)) if as_polars else table(part) for part in parts)
    corpus = Corpus.from_interactions(train, valid=valid, test=test, time="ts", min_item_count=fewest)
    keys = corpus.sequences["key"].to_pylist()
    assert {key: "".join(corpus.vocab.names(corpus.row(n).tolist())) for n, key in enumerate(keys)} == rows
    for split, expected in questions.items():
        assert asked(corpus, split) == expected
        assert corpus.num_asked(split) == len(expected)
        counted = corpus.info["held out"][split]
        held = sum(part == SPLITS[split] for *_, part in set(events))
        assert counted["asked"] + counted.get("not asked: nothing precedes them", 0) == held


def test_the_split_of_a_rule_in_files_of_ones_own_gives_the_corpus_of_the_rule(tmp_path, prepared):
    """Each user's last event in one file and the last but one in another is --split last."""
    rows = reference(LOG)["rows"]
    parts = {"train": [], "valid": [], "test": []}
    for user, items in rows.items():
        for place, item in enumerate(items):
            back = len(items) - place if len(items) >= 3 else 3
            parts["train" if back > 2 else ("test", "valid")[back - 1]].append((user, item, place))
    for name, events in parts.items():
        (tmp_path / f"{name}.csv").write_text(lines(",", "user_id,item_id,ts\n", events=events))
    held_out = {"valid": tmp_path / "valid.csv", "test": str(tmp_path / "test.csv")}
    corpus = prepared(tmp_path / "train.csv", **held_out, time="ts")
    by_rule = from_interactions(table(LOG), time="ts")
    assert corpus.checksums == by_rule.checksums
    assert corpus.info["source"] == "train.csv, valid.csv, test.csv"
    for split in ("valid", "test"):
        assert asked(corpus, split) == asked(by_rule, split)
    # Without times, the files say the order; tables are as good as files.
    frames = {
        name: pd.DataFrame(events, columns=["user_id", "item_id", "ts"])[["user_id", "item_id"]]
        for name, events in parts.items()
    }
    untimed = from_interactions(frames.pop("train"), **frames)
    assert untimed.checksums == by_rule.checksums


LATER = [("u", "d", 9), ("w", "a", 9), ("w", "b", 9)]
TRAIN = [("u", "a", 1), ("u", "b", 2), ("u", "c", 3), ("v", "a", 1), ("v", "b", 2)]


def test_one_file_alone_leaves_training_rows_to_validation_and_nothing_to_the_test():
    only_test = from_interactions(table(TRAIN), test=table(LATER), time="ts")
    assert asked(only_test, "test") == [("u", "abc", "d"), ("w", "a", "b")]
    assert asked(only_test, "valid") == [("u", "ab", "c")]  # not the two events of v, nor those of the test
    assert only_test.info["held out"]["test"] == {
        "asked": 2,
        "asked that are in no training row": 1,
        "not asked: nothing precedes them": 1,
    }
    only_valid = from_interactions(table(TRAIN), valid=table(LATER), time="ts")
    assert asked(only_valid, "valid") == [("u", "abc", "d"), ("w", "a", "b")]
    assert only_valid.info["held out"]["test"] == {"asked": 0}
    with pytest.raises(InputError, match="no test row of two or more ids; give more or longer rows, or ask another"):
        HeldOut.of(only_valid, "test", 8)


def test_what_is_held_out_is_neither_trained_on_nor_remembered_too_early():
    valid = [("u", "e", 0), ("x", "f", 0)]
    corpus = from_interactions(table(TRAIN), valid=table(valid), test=table(LATER), time="ts")
    row = {key: number for number, key in enumerate(corpus.sequences["key"].to_pylist())}
    assert corpus.rows("train").tolist() == [row["u"], row["v"]]
    segments = cut_segments(corpus, corpus.rows("train"), np.zeros((2, 1)), 8)
    trained = {name for ids in segments.ids for name in corpus.vocab.names(ids[ids >= 0].tolist())}
    assert trained == {"a", "b", "c"}
    for splits, expected in ((("train",), ["a", "a", "b", "b", "c"]), (REMEMBERED_SPLITS, [*"aabbc", "e", "f"])):
        assert sorted(corpus.vocab.names(Events.of(corpus, splits).ids.tolist())) == expected
    assert corpus.id_counts("train").sum() == 5


SESSIONS = [[*"abc"], [*"cb"], [*"bacb"], ["a"]]
PAIRS = [([*"ab"], "c"), (["a"], "a"), ([], "b"), ([*"ab"], "z")]


def test_each_pair_of_a_test_file_is_asked_once(tmp_path, prepared):
    (tmp_path / "train.txt").write_text("\n".join(" ".join(session) for session in SESSIONS) + "\n")
    (tmp_path / "pairs.txt").write_text("".join(f"{' '.join(prefix)}\t{item}\n" for prefix, item in PAIRS))
    notices: list[str] = []
    corpus = prepared(
        tmp_path / "train.txt", format="sessions", test=tmp_path / "pairs.txt", min_user_count=1, notice=notices.append
    )
    assert [line.partition("' is ")[2] for line in notices] == [
        "read as lines of items, a tab and one more item: only the one after the tab is asked"
    ]
    assert asked(corpus, "test") == [("test 1", "ab", "c"), ("test 2", "a", "a"), ("test 4", "ab", "z")]
    assert corpus.info["held out"]["test"] == {
        "asked": 3,
        "asked that are in no training row": 1,
        "not asked: nothing precedes them": 1,
    }
    remembered = Events.of(corpus, REMEMBERED_SPLITS)
    assert len(remembered.ids) == sum(map(len, SESSIONS))
    same = Corpus.from_sessions(SESSIONS, test=PAIRS, min_user_count=1)
    assert same.checksums == corpus.checksums
    assert asked(same, "test") == asked(corpus, "test")


def test_sessions_of_a_file_are_asked_for_all_but_their_first_item(tmp_path, prepared):
    for name, text in {
        "train": "a\tb c\n\nb c\ta\td\n",
        "more": "a\tb c",
        "valid": "d\ta\tb c\n",
        "test": "a\td",
    }.items():
        (tmp_path / name).write_text(text)
    held_out = {name: [tmp_path / name] for name in ("valid", "test")}
    corpus = prepared([tmp_path / "train", tmp_path / "more"], format="sessions", **held_out)
    assert corpus.sequences["key"].to_pylist() == ["session 1", "session 2.1", "session 3", "test 1", "valid 1"]
    assert asked(corpus, "valid") == [("valid 1", "d", "a"), ("valid 1", "da", "b c")]
    assert asked(corpus, "test") == [("test 1", "a", "d")]
    assert len(Events.of(corpus, REMEMBERED_SPLITS).ids) == 2 + 3 + 2 + 3
    rows = [["a", "b c"], ["b c", "a", "d"]]
    lists = Corpus.from_sessions(rows, valid=[("d", "a", "b c")], test=[[["a"], "d"]])
    assert [asked(lists, split) for split in ("valid", "test")] == [asked(corpus, split) for split in ("valid", "test")]


def test_without_a_file_whole_sessions_are_for_validation_by_their_keys():
    corpus = Corpus.from_sessions([[1, 2, 3]] * 200, test=[([1], 2)])
    keys = corpus.sequences["key"].to_pylist()
    chosen = [key for key in keys if key.startswith("session") and split_of([key])[0] == SPLITS["valid"]]
    assert chosen
    assert asked(corpus, "valid") == [
        (key, before, item) for key in chosen for before, item in (("1", "2"), ("12", "3"))
    ]
    assert len(corpus.rows("train")) == 200 - len(chosen)
    assert asked(corpus, "test") == [("test 1", "1", "2")]
    ruled = Corpus.from_sessions([["a", "b", "c"]] * 5)
    assert asked(ruled, "test") == [(f"session {n}", "ab", "c") for n in range(1, 6)]


def test_every_asked_element_of_a_split_is_counted_by_limits(tmp_path):
    corpus = from_interactions(table(TRAIN), test=table([("u", item, n) for n, item in enumerate("abcabc")]), time="ts")
    assert corpus.rows("test").tolist() == [0]
    assert HeldOut.of(corpus, "test", 4, draws=3).targets.tolist() == corpus.row(0)[[3, 5, 7]].tolist()
    assert HeldOut.of(corpus, "test", 4).ids[5].tolist()[:3] == corpus.row(0)[[5, 6, 7]].tolist()
    corpus.save(tmp_path / "corpus")
    again = Corpus.open(tmp_path / "corpus")
    assert again.num_asked("test") == 6
    assert not from_interactions(table(LOG), time="ts", split="time").asks_every


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "time"}, "split='time' and --test: both say what is held out; give one of them"),
        ({"split": "last"}, "split='last' and --test"),
        ({"drop_repeats": True}, "drop_repeats=True and --test: drop repeats before you split the log"),
        ({"max_names": 9}, "max_names=9 and --test: would leave out what is asked; use --min-item-count"),
        ({"format": "sessions", "time": "ts"}, "format='sessions' has no times or ratings; leave out --time"),
        ({"test": "log.csv"}, "'log.csv' is given twice, among the files of the log, of --valid and of --test"),
        ({"test": "none.csv"}, "'none.csv' cannot be read"),
        ({"valid": "other.csv"}, "'other.csv' has no column 'user_id'; it has 'user', 'item_id'"),
        ({"format": "sessions"}, "no line of 'log.csv' holds a space or a tab, so each would be a session of one item"),
        ({"format": "sessions", "test": "pairs", "valid": "pairs"}, "'pairs' is given twice"),
        ({"format": "sessions", "test": "pairs"}, "line 70,001 of 'pairs' is 'a b'; the lines before it are"),
    ],
)
def test_files_that_cannot_say_what_is_held_out_are_refused(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text("user_id,item_id,ts\nu,a,1\nu,b,2\n")
    (tmp_path / "other.csv").write_text("user,item_id\nu,a\n")
    (tmp_path / "pairs.train").write_text("a b c\n")
    (tmp_path / "pairs").write_text("a\tb\n" * 70_000 + "a b\n")
    (tmp_path / "test.csv").write_text("user_id,item_id,ts\nu,b,3\n")
    log = "pairs.train" if "pairs" in options.values() else "log.csv"
    with pytest.raises(InputError, match=message) as error:
        prepare_interactions(log, "corpus", **{"test": "test.csv"} | options)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize(
    ("sessions", "message"),
    [
        ("abc", "'abc' given as sessions; give lists of items"),
        ([["a"], "ab"], "session 1 is 'ab' of type str; give a list of items"),
        ([["a", None]], "row 0 holds None of type NoneType"),
    ],
)
def test_what_are_no_sessions_is_refused(sessions, message):
    with pytest.raises(InputError, match=message):
        Corpus.from_sessions(sessions)
    with pytest.raises(InputError, match="session 1 is .*; give lists of items, or pairs of a list and an item"):
        Corpus.from_sessions([["a", "b"]], test=[(["a"], "b"), ["a", "b"]])


def test_a_table_of_another_kind_is_refused_by_name():
    other = pa.table({"user_id": ["u"], "item_id": [True]})
    with pytest.raises(InputError, match="column 'item_id' of the test table is bool"):
        from_interactions(table(TRAIN), test=other)
    with pytest.raises(InputError, match="the valid table has no column 'user_id'; it has 'user', 'item_id'"):
        from_interactions(table(TRAIN), valid=other.rename_columns(["user", "item_id"]))


@pytest.mark.system
def test_a_model_answers_every_question_and_misses_items_it_has_never_seen():
    rng = np.random.default_rng(0)
    ring = [[f"{(start + step) % 30}" for step in range(6)] for start in rng.integers(30, size=400)]
    pairs = [(session[:3], session[3]) for session in ring[300:]] + [(["1", "2"], "new")] * 50
    corpus = Corpus.from_sessions(ring[:200], valid=ring[200:320], test=pairs)
    assert corpus.num_asked("valid") == 5 * 120
    model = Superbloom(preset="sequence", dim=16, ffn_dim=32, seq_len=8).fit(corpus, steps=3, quiet=True)
    figures = model.evaluate(corpus)
    assert figures["rows"] == corpus.num_asked("test") == 150
    assert figures["recall"]["1"]["value"] == pytest.approx(
        100 / 150
    )  # counting knows the ring; nobody knows the new item
    assert figures["yardsticks"]["counting"]["1"]["value"] == pytest.approx(100 / 150)
    assert model.evaluate(corpus, split="valid", yardsticks=False)["rows"] == 600


@pytest.mark.system
def test_every_pair_of_nowplaying_is_asked_once(prepared):
    files = [
        real_data("interactions", f"gcegnn_Nowplaying_{name}.txt.xz")
        for name in ("train_sessions", "test_prefix_target")
    ]
    corpus = prepared(files[0], format="sessions", test=files[1])
    pairs = [line.split("\t") for line in open_lines(files[1])]
    held_out = HeldOut.of(corpus, "test", 50)
    found = zip(held_out.before, held_out.targets.tolist(), strict=True)
    questions = [(" ".join(corpus.vocab.names(before.tolist())), corpus.vocab.name(target)) for before, target in found]
    assert sorted(questions) == sorted(map(tuple, pairs))
    assert len(questions) == 89_824
    names = {name for file in files for line in open_lines(file) for name in line.split()}
    assert corpus.num_ids == len(names)  # nothing is cut
