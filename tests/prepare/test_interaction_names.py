"""Names get the places that sorting them by their bytes gives, however few of them are in memory at a time."""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superbloom.prepare.interactions import engines, from_interactions, names, tables
from superbloom.prepare.interactions.engines import _without_repeats
from superbloom.prepare.interactions.names import Coder
from superbloom.prepare.scratch import mapped_text
from tests.support.cases import CASES
from tests.support.logs import LOG, described, reference, table

TEXTS = st.one_of(
    st.sampled_from(["a", "b", "Ä", "ß", "z", "Z", "10", "9", "\0", "\U0001f33c", "￿"]),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=3),
)
BATCHES = st.lists(st.lists(st.lists(st.one_of(TEXTS, st.none()), max_size=6), max_size=3), max_size=5)


@settings(max_examples=CASES // 100, deadline=None)
@given(BATCHES, st.sampled_from([0, 30, 10**6]))
def test_codes_lead_to_the_places_of_sorted_names(batches, max_bytes):
    with tempfile.TemporaryDirectory() as folder:
        coder = Coder(Path(folder) / "names", max_bytes)
        codes = [
            coder.codes(pa.chunked_array([pa.array(piece, pa.string()) for piece in batch], pa.string()))
            for batch in batches
        ]
        found = coder.sort(memory=10**9)
        given_names = [name for batch in batches for piece in batch for name in piece]
        expected = sorted({name for name in given_names if name is not None}, key=str.encode)
        assert found.by_number.to_pylist() == expected
        places = [None if code is None else int(found.numbers[code]) for part in codes for code in part.to_pylist()]
        assert places == [None if name is None else expected.index(name) for name in given_names]


@pytest.mark.parametrize("options", [{"time": "ts", "split": "time"}, {"drop_repeats": True}])
def test_a_log_in_small_pieces_becomes_what_the_reference_makes_of_it(monkeypatch, options):
    for module, limit, value in (
        (tables, "NAMES_SHARE", 0),
        (tables, "BATCH_EVENTS", 50),
        (names, "BATCH_NAMES", 3),
        (engines, "BATCH_ROWS", 7),
    ):
        monkeypatch.setattr(module, limit, value)
    slow = {name: value for name, value in options.items() if name != "time"}
    assert described(from_interactions(table(LOG), **options)) == reference(LOG, timed="time" in options, **slow)


def test_repeats_are_left_out_across_batches():
    rows = np.array([[1, 1], [1, 1], [1, 2], [2, 2], [2, 2], [2, 2], [3, 2]])
    whole = pa.RecordBatch.from_arrays([pa.array(column) for column in rows.T], ["user", "item"])
    for size in range(1, 8):
        batches = [whole[start : start + size] for start in range(0, len(whole), size)]
        found = [row for batch in _without_repeats(batches) for row in batch.to_pylist()]
        assert [(row["user"], row["item"]) for row in found] == [(1, 1), (1, 2), (2, 2), (3, 2)]


def test_text_in_files_is_what_was_given(tmp_path):
    pieces = [["b", "", "Ä"], [], ["x" * 40], [""]]
    arrays = [pa.array(["cut off", *piece])[1:] for piece in pieces]
    found = mapped_text(tmp_path / "text", arrays)
    assert found.to_pylist() == [text for piece in pieces for text in piece]
    found.validate(full=True)
    assert mapped_text(tmp_path / "nothing", []).to_pylist() == []
