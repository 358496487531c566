"""Rows of names become ids with a key and a split; a corpus read from its folder equals the one saved."""

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from superbloom.corpus import Corpus, split_of
from superbloom.errors import InputError

NAMES = st.one_of(st.sampled_from("abcdef"), st.text(st.characters(exclude_categories=["Cs"]), max_size=6))
ROWS = st.lists(st.lists(NAMES, max_size=8), min_size=1, max_size=20)


def decoded(corpus: Corpus) -> list[list[str]]:
    return [corpus.vocab.names(corpus.row(number)) for number in range(len(corpus))]


def decoded_targets(corpus: Corpus) -> list[list[str]]:
    bounds = zip(corpus.offsets[:-1], corpus.offsets[1:], strict=True)
    return [corpus.target_vocab.names(corpus.targets[start:end]) for start, end in bounds]


def ranked(rows: list[list[str]]) -> list[str]:
    """The names by falling count, then by name, computed the slow way."""
    counts = Counter(name for row in rows for name in row)
    return sorted(counts, key=lambda name: (-counts[name], name))


@given(ROWS, st.integers(1, 3), st.one_of(st.none(), st.integers(2, 8)))
def test_ids_decode_to_the_rows_without_the_names_left_out(rows, min_count, max_names):
    counts = Counter(name for row in rows for name in row)
    names = [name for name in ranked(rows) if counts[name] >= min_count][:max_names]
    assume(len(names) >= 2)
    corpus = Corpus.from_sequences(rows, min_count=min_count, max_names=max_names)
    left = {str(key): [name for name in row if name in names] for key, row in enumerate(rows)}
    left = {key: row for key, row in left.items() if row}
    assert corpus.vocab.names(range(corpus.num_ids)) == names
    assert corpus.vocab.counts.tolist() == [counts[name] for name in names]
    assert corpus.sequences["key"].to_pylist() == list(left)
    assert decoded(corpus) == list(left.values())


@given(st.lists(st.lists(st.tuples(NAMES, NAMES), max_size=6), min_size=1, max_size=12), st.integers(1, 2))
def test_targets_stay_with_their_ids_when_rare_names_are_left_out(pairs, min_count):
    counts = Counter(name for row in pairs for name, _ in row)
    kept = [[pair for pair in row if counts[pair[0]] >= min_count] for row in pairs]
    kept = [row for row in kept if row]
    assume(len({name for row in kept for name, _ in row}) >= 2)
    assume(len({target for row in kept for _, target in row}) >= 2)
    corpus = Corpus.from_sequences(
        [[name for name, _ in row] for row in pairs],
        targets=[[target for _, target in row] for row in pairs],
        min_count=min_count,
    )
    targets = [[target for _, target in row] for row in kept]
    assert decoded(corpus) == [[name for name, _ in row] for row in kept]
    assert decoded_targets(corpus) == targets
    assert corpus.target_vocab.names(range(len(corpus.target_vocab))) == ranked(targets)
    assert corpus.target_vocab.counts.sum() == len(corpus.ids)


@given(ROWS, st.booleans())
def test_a_corpus_survives_its_folder(tmp_path_factory, rows, with_targets):
    assume(len({name for row in rows for name in row}) >= 2)
    targets = [[name + "!" for name in row] for row in rows] if with_targets else None
    corpus = Corpus.from_sequences(rows, targets=targets, source="Malmö\ud8ff")
    folder = tmp_path_factory.mktemp("corpus") / "folder"
    corpus.save(folder)
    again = Corpus.open(folder)
    assert again.sequences.equals(corpus.sequences)
    assert again.vocab.table.equals(corpus.vocab.table)
    assert (again.target_vocab is None) == (targets is None)
    assert np.array_equal(again.targets, corpus.targets)
    assert (again.info, again.counts()) == (corpus.info, corpus.counts())
    assert again.fingerprint() == corpus.fingerprint()


def test_a_row_of_each_kind_by_hand(tmp_path):
    rows = {"no": ["Oslo", "rare", "Bergen"], "gone": ["rarer"], "dk": ["Odense", "Oslo"], "again": ["Odense"]}
    corpus = Corpus.from_keyed(rows.items(), max_names=2, targets=[["n", "?", "n"], ["?"], ["d", "n"], ["d"]])
    corpus.save(tmp_path / "corpus")
    again = Corpus.open(tmp_path / "corpus")
    assert again.sequences["key"].to_pylist() == ["no", "dk", "again"]  # a row without names is dropped
    assert again.vocab.names([0, 1]) == ["Odense", "Oslo"]
    assert [again.row(number).tolist() for number in range(3)] == [[1], [0, 1], [0]]
    assert decoded_targets(again) == [["n"], ["d", "n"], ["d"]]
    assert again.id_counts("train").sum() + again.id_counts("valid").sum() + again.id_counts("test").sum() == 4
    manifest = json.loads((tmp_path / "corpus" / "corpus.json").read_text())
    assert manifest["counts"]["rows"] == 3


def test_whole_numbers_are_names_and_keys_as_text():
    rows = [[7, "7", np.int64(8)], np.array([7, 9]), torch.tensor([8]), np.array(["a", "b"]), iter(["a"]), range(9, 10)]
    corpus = Corpus.from_keyed(enumerate(rows, start=100))
    assert decoded(corpus) == [["7", "7", "8"], ["7", "9"], ["8"], ["a", "b"], ["a"], ["9"]]
    assert corpus.sequences["key"].to_pylist() == ["100", "101", "102", "103", "104", "105"]


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), st.just(["a", "b"]), min_size=2))
def test_a_split_depends_on_the_key_alone(rows):
    whole = Corpus.from_keyed(rows.items())
    some = dict(list(rows.items())[::2])
    part = Corpus.from_keyed(some.items())
    splits = dict(zip(rows, whole.splits.tolist(), strict=True))
    assert part.splits.tolist() == [splits[key] for key in some]


def test_shares_of_the_splits():
    splits = split_of(f"page {number}" for number in range(20_000))
    test, valid = (splits == 2).mean(), (splits == 1).mean()
    # 10 % and 5 % of the remaining 90 %; four standard deviations are 0.85 and 0.59 percentage points
    assert test == pytest.approx(0.10, abs=0.0085)
    assert valid == pytest.approx(0.045, abs=0.0059)


def test_rows_of_a_split_have_something_to_hide_and_something_to_see():
    keys = [str(number) for number in range(200)]
    corpus = Corpus.from_sequences([["a", "b"][: 1 + number % 2] for number in range(200)], keys)
    expected = [row for row in range(1, 200, 2) if split_of([keys[row]])[0] == 2]
    assert corpus.rows("test").tolist() == expected
    assert expected


def test_rows_given_for_a_split_are_held_out_whole():
    rows = [["a", "b"]] * 60
    by_key = split_of(map(str, range(60)))
    both = Corpus.from_sequences(rows, valid=[["b", "c"]], test=[["a", "d"], ["c"]])
    assert both.sequences["key"].to_pylist()[-3:] == ["valid 0", "test 0", "test 1"]
    assert both.splits.tolist() == [0] * 60 + [1, 2, 2]
    assert both.vocab.names(both.row(61)) == ["a", "d"]
    assert both.info["split"] == "validation: the rows given for validation; test: the rows given for the test"
    only_test = Corpus.from_sequences(rows, test=[["a", "d"]])
    assert only_test.splits.tolist() == [*np.where(by_key == 1, 1, 0), 2]
    assert 1 in only_test.splits
    only_valid = Corpus.from_sequences(rows, valid=[["b", "a"]])
    assert only_valid.splits.tolist() == [0] * 60 + [1]
    with pytest.raises(InputError, match="targets with valid or test given; give all rows at once"):
        Corpus.from_sequences(rows, test=rows, targets=rows)


def test_a_manifest_says_which_elements_are_asked(tmp_path):
    corpus = Corpus.from_sequences([["a", "b"]])
    corpus.info["asks"] = "some"
    corpus.save(tmp_path / "corpus")
    with pytest.raises(InputError, match=r"corpus.json: asks='some'; 'first' or 'every' held-out element of a row is"):
        Corpus.open(tmp_path / "corpus")


def _edited(corpus: Corpus, **columns: pa.Array) -> Corpus:
    table = corpus.sequences
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, values)
    return Corpus(corpus.vocab, table.combine_chunks(), corpus.target_vocab)


def test_a_fingerprint_changes_with_one_id_one_name_one_split_or_one_boundary():
    corpus = Corpus.from_sequences([["a", "b"], ["a", "c"]])
    lists = pa.large_list(pa.int32())
    others = [
        Corpus.from_sequences([["a", "b"], ["a", "d"]]),
        _edited(corpus, ids=pa.array([[0, 1], [0, 1]], lists)),
        _edited(corpus, ids=pa.array([[0], [1, 0, 2]], lists)),
        _edited(corpus, split=pa.array(corpus.splits ^ np.array([0, 1], np.int8))),
        Corpus.from_sequences([["a", "b"], ["a", "c"]], targets=[["a", "b"], ["a", "d"]]),
    ]
    assert _edited(corpus, ids=pa.array([[0, 1], [0, 2]], lists)).fingerprint() == corpus.fingerprint()
    assert len({corpus.fingerprint(), *(other.fingerprint() for other in others)}) == 6


AB = ["a", "b"]


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([], {}, "the rows hold 0 distinct names; at least 2 are needed"),
        ([[]], {}, "the rows hold 0 distinct names"),
        ([["a", "a"]], {}, "the rows hold 1 distinct names"),
        ([AB, "abc"], {}, "row 1 is 'abc' of type str; give a list of names"),
        ([AB, b"abc"], {}, "row 1 is b'abc' of type bytes"),
        ([AB, None], {}, "row 1 is None of type NoneType"),
        ([AB, 5], {}, "row 1 is 5 of type int"),
        ([AB, ["a", None]], {}, "row 1 holds None of type NoneType; give text or whole numbers"),
        ([AB, ["a", 1.0]], {}, "row 1 holds 1.0 of type float"),
        ([AB, ["a", float("nan")]], {}, "row 1 holds nan of type float"),
        ([AB, ["a", True]], {}, "row 1 holds True of type bool"),
        ([AB, ["a", b"b"]], {}, "row 1 holds b'b' of type bytes"),
        ([AB, ["a", AB]], {}, r"row 1 holds \['a', 'b'\] of type list"),
        ([AB, ["a", "\ud800"]], {}, "lone surrogate; names must be Unicode text"),
        ([AB, AB], {"keys": ["x"]}, "1 keys but more rows given; give the same number of both"),
        ([AB], {"keys": ["x", "y"]}, "1 rows but more keys given"),
        ([AB], {"keys": [None]}, "row 0 holds None of type NoneType"),
        ([AB], {"keys": ["\ud800"]}, "lone surrogate; keys must be Unicode text"),
        ([AB, AB], {"targets": [AB]}, "1 targets but more rows given"),
        ([AB], {"targets": [AB, AB]}, "1 rows but more targets given"),
        ([AB, AB], {"targets": [AB, ["a"]]}, "row 1 has 2 names but 1 targets; give one each"),
        ([AB], {"targets": []}, "0 targets but more rows given"),
        ([AB], {"targets": ["ab"]}, "row 0 is 'ab' of type str"),
        ([AB], {"targets": [["x", "x"]]}, "the rows hold 1 distinct names"),
        ([AB, AB], {"min_count": 3}, "0 of 2 names are left by min_count=3.*the most frequent name occurs 2 times"),
        ([AB], {"max_names": 1}, "1 of 2 names are left by min_count=1, max_names=1"),
        ([AB], {"min_count": 0}, "min_count=0 given; whole numbers from 1 are allowed"),
        ([AB], {"min_count": "2"}, "min_count='2' given"),
        ([AB], {"max_names": 0}, "max_names=0 given"),
        ([AB], {"max_names": 2.5}, "max_names=2.5 given"),
    ],
)
def test_what_cannot_be_a_corpus_is_refused(rows, options, message):
    with pytest.raises(InputError, match=message):
        Corpus.from_sequences(rows, **options)


@pytest.mark.parametrize("row", ["abc", ["a", "b", "c"], 3, None])
def test_rows_without_a_key_are_refused(row):
    with pytest.raises(InputError, match=r"row 0 is .*; give pairs of a key and a list of names"):
        Corpus.from_keyed([row])


@pytest.mark.parametrize("method", ["rows", "id_counts"])
def test_an_unknown_split_is_refused(method):
    with pytest.raises(InputError, match="split 'dev' given; train, valid, test are allowed"):
        getattr(Corpus.from_sequences([["a", "b"]]), method)("dev")
