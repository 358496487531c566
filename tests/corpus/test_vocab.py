"""Names, ids and look-ups; damaged files are refused."""

import json
import re
import subprocess
import sys
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superbloom.corpus import folded
from superbloom.corpus.folded import PLAIN_LETTERS, FoldedOrder, fold, fold_name, with_word
from superbloom.corpus.vocab import Vocab
from superbloom.errors import InputError
from superbloom.storage.arrow import write_arrow

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@given(st.dictionaries(NAMES, st.integers(0, 50), min_size=1, max_size=60), st.data())
def test_names_and_ids_are_inverse_and_sorted(counts, data):
    vocab = Vocab.from_counts(counts)
    ranked = sorted(counts, key=lambda name: (-counts[name], name))
    assert vocab.names(range(len(vocab))) == ranked
    assert [vocab.find(name) for name in ranked] == list(range(len(ranked)))
    assert [vocab.count(id_) for id_ in range(len(ranked))] == [counts[name] for name in ranked]
    stranger = data.draw(NAMES)
    assert (vocab.find(stranger) is not None) == (stranger in counts)


@given(
    st.lists(st.text("aAbBc", min_size=1, max_size=5), min_size=1, max_size=40, unique=True), st.text("aAb", max_size=3)
)
def test_prefix_search_gives_the_most_frequent_completions(names, prefix):
    vocab = Vocab.from_counts({name: rank for rank, name in enumerate(names)})
    expected = [name for name in reversed(names) if name.lower().startswith(prefix.lower())]
    assert vocab.starting_with(prefix, k=5) == expected[:5]


@pytest.mark.parametrize("typo", ["Copenhagan", "Kopenhagen", "Cpoenhagen", "Copenhage", "Copenhagenn"])
def test_a_misspelt_name_gets_the_one_that_was_meant(typo):
    names = ["Copenhagen", "Copenhagen Airport", "Cologne", "Denmark", *(f"Name {i}" for i in range(1000))]
    vocab = Vocab.from_counts(dict.fromkeys(names, 1))
    with pytest.raises(InputError, match=f"'{typo}' is not among the 1,004 names; did you mean 'Copenhagen'"):
        vocab.id(typo)


def slowly_folded(name: str) -> str:
    """The folded form, one character at a time."""
    name = unicodedata.normalize("NFKD", name).lower()
    for letter, typed in PLAIN_LETTERS.items():
        name = name.replace(letter, typed)
    removed = [*range(0x300, 0x370), *range(0x2B9, 0x2C0), *map(ord, "'‘’")]
    marks = [*range(0x80, 0xC0), *range(0x2000, 0x2070), *range(0x3000, 0x3040)]
    kept = (c for c in name if ord(c) not in removed)
    return "".join(" " if ord(c) in marks or (c.isascii() and not c.isalnum()) else c for c in kept)


TYPED = st.text("aZ9 _-'’‘é\u0300ßØø–、\u3000Йй日本ö¿ʻ(!", max_size=10)


@given(st.lists(TYPED, min_size=1, max_size=30))
def test_folding_equals_a_slow_one(names):
    expected = [re.sub(" +", " ", slowly_folded(name)).strip(" ") for name in names]
    assert fold(pa.array(names)).to_pylist() == expected
    assert fold(pa.array(["x", *names])[1:]).to_pylist() == expected  # of a part of an array
    assert [fold_name(name) for name in names] == expected


@given(st.lists(TYPED.filter(bool), min_size=1, max_size=40, unique=True), TYPED, st.sampled_from([1, 2, 3, 256]))
def test_folded_names_and_beginnings_equal_a_scan(names, typed, stride):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folded, "STRIDE", stride)
        order = FoldedOrder(pa.array(names, pa.large_string()))
        wanted = fold_name(typed)
        forms = [fold_name(name) for name in names]
        same = [id_ for id_, form in enumerate(forms) if form == wanted and wanted]
        assert order.same(wanted).tolist() == same
        beginning = [id_ for id_, form in enumerate(forms) if form.startswith(wanted)]
        assert sorted(order.beginning(wanted).tolist()) == beginning
    inside = [id_ for id_, form in enumerate(forms) if f" {wanted}" in form]
    assert with_word(pa.array(names, pa.large_string()), wanted, 3) == inside[:3]


def test_words_are_looked_for_in_every_block(monkeypatch):
    monkeypatch.setattr(folded, "BLOCK_NAMES", 4)
    names = pa.array([*(f"name {i}" for i in range(10)), "Monty Python", *("x",) * 5, "A Python"], pa.large_string())
    assert with_word(names, "python", 2) == [10, 16]
    monkeypatch.setattr(folded, "MAX_SCANNED_NAMES", 12)
    assert with_word(names, "python", 2) == [10]


FILMS = {"Toy Story (1995)": 9, "Toy Story 2": 8, "The Toy": 7, "Toyota": 6, "C": 5, "C++": 4, "C#": 3, "Malmö": 2}
FILMS |= {"JAZZ": 2, "Jazz!": 1, "jazz-": 1, "Mask": 1}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("toy story (1995)", "Toy Story (1995)"),
        ("TOY STORY 1995", "Toy Story (1995)"),
        ("toy_story_1995", "Toy Story (1995)"),
        ("https://en.wikipedia.org/wiki/toy_Story_2", "Toy Story 2"),
        ("malmo", "Malmö"),
        ("MALMÖ", "Malmö"),
        ("Malmo\u0308", "Malmö"),  # the accent as a letter of its own
        ("c", "C"),
        ("c++", "C++"),  # C, C++ and C# fold to the same, but only one differs in case alone
        ("Jazz", "JAZZ"),
        ("Jazz!", "Jazz!"),  # exact
    ],
)
def test_a_name_is_found_as_people_type_it(typed, meant):
    vocab = Vocab.from_counts(FILMS)
    assert vocab.name(vocab.id(typed)) == meant


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [
        ("Toy Story", "'Toy Story (1995)' or 'Toy Story 2'"),  # a beginning is suggested, even if only one name has it
        ("toy", "'Toy Story (1995)', 'Toy Story 2' or 'The Toy'"),
        ("Toyo", "'Toyota'"),
        ("C;", "'C', 'C++' or 'C#'"),  # several: the most frequent first
        ("jazz.", "'JAZZ', 'Jazz!' or 'jazz-'"),
        ("Malmø s", "'Malmö'"),
    ],
)
def test_an_unknown_name_is_answered_with_those_that_may_be_meant(typed, suggested):
    with pytest.raises(InputError) as refused:
        Vocab.from_counts(FILMS).id(typed)
    assert str(refused.value) == f"{typed!r} is not among the 12 names; did you mean {suggested}?"


def test_no_order_is_made_for_exact_names():
    vocab = Vocab.from_counts(FILMS)
    assert vocab.id("Toyota") == 3
    assert "folded" not in vars(vocab)
    assert vocab.find("toyota") is None  # programs find exact names only
    assert "toyota" not in vocab


def test_a_name_close_to_no_other_gets_no_suggestion():
    with pytest.raises(InputError, match=r"is not among the 2 names$"):
        Vocab.from_counts({"Oslo": 1, "Bergen": 2}).id("qqqqqqqqqq")


def test_a_vocabulary_survives_its_file(tmp_path):
    vocab = Vocab.from_counts({"Malmö": 3, "Oslo": 1, "two\nlines": 2, "\x00": 1})
    vocab.write(tmp_path / "vocab.arrow")
    again = Vocab.open(tmp_path / "vocab.arrow")
    assert again.table.equals(vocab.table)
    assert again.id("two\nlines") == 1


def test_a_file_of_another_engine_may_leave_the_index_out(tmp_path):
    names = pa.array(["b", "a"], type=pa.large_string())
    write_arrow(pa.table({"name": names, "count": [2, 1]}), tmp_path / "vocab.arrow")
    assert Vocab.open(tmp_path / "vocab.arrow").id("a") == 1


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"name": pa.array(["a"])}, "column 'name' is string; it has to be large_string"),
        ({"name": pa.array(["a"], pa.large_string())}, "column 'count' is missing; it has to be int64"),
        ({"name": pa.array(["a", None], pa.large_string()), "count": [2, 1]}, "column 'name' has 1 nulls"),
        ({"name": pa.array([], pa.large_string()), "count": pa.array([], pa.int64())}, "has no rows"),
        ({"name": pa.array(["a", "b"], pa.large_string()), "count": [1, 2]}, "order of falling counts"),
        (
            {"name": pa.array(["a"], pa.large_string()), "count": [1], "by_name": pa.array([7], pa.int32())},
            "column by_name is not an ordering",
        ),
    ],
)
def test_files_of_another_shape_are_refused_by_name(tmp_path, columns, message):
    write_arrow(pa.table(columns), tmp_path / "vocab.arrow")
    with pytest.raises(InputError, match=f"vocab.arrow.*{message}"):
        Vocab.open(tmp_path / "vocab.arrow")


def test_what_is_not_arrow_is_refused(tmp_path):
    (tmp_path / "vocab.arrow").write_bytes(b"name,count\n")
    with pytest.raises(InputError, match="is not a sound Arrow file"):
        Vocab.open(tmp_path / "vocab.arrow")
    with pytest.raises(InputError, match="does not exist"):
        Vocab.open(tmp_path / "other.arrow")


def test_bad_names_and_ids_are_refused():
    with pytest.raises(InputError, match="lone surrogate"):
        Vocab.from_counts({"\ud800": 1})
    with pytest.raises(InputError, match="id 1 given; the ids of these 1 names are 0 to 0"):
        Vocab.from_counts({"a": 1}).name(1)


@pytest.mark.slow
def test_five_million_names_open_at_once_in_little_memory(tmp_path):
    rng = np.random.default_rng(0)
    names = [f"{a:x} name of article {i}" for i, a in enumerate(rng.integers(2**32, size=5_000_000))]
    Vocab.from_arrays(names, rng.integers(1, 1000, size=len(names)))[0].write(tmp_path / "vocab.arrow")
    script = (
        "import json, pathlib, sys, time; from superbloom import Vocab\n"
        "imported = time.perf_counter(); vocab = Vocab.open(sys.argv[1]); opened = time.perf_counter()\n"
        "found = vocab.find(sys.argv[2]); assert 'torch' not in sys.modules\n"
        "status = pathlib.Path('/proc/self/status').read_text()\n"
        "peak = int(status.split('VmHWM:')[1].split()[0]) / 1024\n"
        "print(json.dumps({'found': found, 'seconds': opened - imported, 'peak_mb': peak}))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "vocab.arrow"), names[1234]]
    figures = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    assert figures["found"] is not None
    assert figures["peak_mb"] < 400


@pytest.mark.parametrize(
    "spelling",
    [
        "TCP/IP (model)",
        "TCP/IP_(model)",
        "tCP/IP  (model) ",
        "https://en.wikipedia.org/wiki/TCP/IP_(model)",
        "http://en.m.wikipedia.org/wiki/TCP/IP_%28model%29?action=raw#History",
        "https://example.org/w/index.php?oldid=3&title=TCP%2FIP_(model)&action=edit",
        "https://example.org/index.php/TCP/IP_(model)",
    ],
)
def test_titles_are_found_by_other_spellings_and_addresses(spelling):
    vocab = Vocab.from_counts({"IP": 5, "TCP/IP (model)": 3, "tcp": 2, "Tcp": 1, "a_b": 1})
    assert vocab.id(spelling) == 1
    assert vocab.names([vocab.id("tcp"), vocab.id("Tcp"), vocab.id("a_b")]) == [
        "tcp",
        "Tcp",
        "a_b",
    ]  # exact spellings come first
    with pytest.raises(InputError, match="not among the 5 names"):
        vocab.id("https://en.wikipedia.org/wiki/Nothing")
