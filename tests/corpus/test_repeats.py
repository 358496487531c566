"""The share of targets that stand in their own segment: equal to a plain count, kept in the corpus folder."""

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superbloom import Corpus
from superbloom.corpus import repeats
from superbloom.errors import InputError
from superbloom.storage import MANIFESTS
from tests.support.edits import manifest_edit

NAMES = st.lists(st.sampled_from("abcdefgh"), max_size=12)
ROWS = st.lists(NAMES, min_size=1, max_size=12).filter(lambda rows: len({name for row in rows for name in row}) >= 2)


def plain_share(rows: list[list[int]], is_ordered: bool, reach: int) -> float:
    """One element after the other, each compared with all others of its row."""
    found = total = 0
    for row in rows:
        for place, id_ in enumerate(row):
            others = [at for at in range(len(row)) if at != place and (at < place if is_ordered else True)]
            total += bool(others)
            found += any(row[at] == id_ and (is_ordered or abs(at - place) < reach) for at in others)
    return found / max(1, total)


@given(ROWS, st.integers(2, 6), st.integers(1, 9))
def test_the_share_of_rows_equals_a_plain_count(rows, reach, most):
    corpus = Corpus.from_sequences(rows)
    training = [corpus.row(number).tolist() for number in corpus.rows("train")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeats, "REACH", reach)
        patch.setattr(repeats, "MAX_ELEMENTS", most)
        assert corpus.repeats == plain_share(training, False, reach)


@given(ROWS, st.integers(1, 9), st.randoms(use_true_random=False))
def test_the_share_of_a_log_equals_a_plain_count_of_what_training_sees(rows, most, random):
    corpus = Corpus.from_sequences(rows)
    lengths = np.diff(corpus.offsets)
    valid = [random.randint(0, length) for length in lengths.tolist()]
    cuts = {"valid_from": valid, "test_from": lengths.tolist()}
    table = corpus.sequences
    for name, places in cuts.items():
        table = table.append_column(name, pa.array(places, pa.int32()))
    log = Corpus(corpus.vocab, table.combine_chunks())
    training = [log.row(number)[: valid[number]].tolist() for number in log.rows("train")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeats, "MAX_ELEMENTS", most)
        assert log.repeats == plain_share(training, True, repeats.REACH)


def test_a_second_vocabulary_and_text_have_no_share(text_corpus, tmp_path):
    twofold = Corpus.from_sequences([["a", "b", "a"]] * 9, targets=[["x", "y", "x"]] * 9)
    for number, corpus in enumerate([twofold, text_corpus]):
        corpus.save(tmp_path / str(number))
        assert corpus.repeats is Corpus.open(tmp_path / str(number)).repeats is None


def test_the_share_is_kept_in_the_folder_and_measured_in_an_older_one(tmp_path, monkeypatch):
    rows = [["a", "b", "a", "c"], ["a", "b"]] * 50
    Corpus.from_sequences(rows).save(tmp_path / "corpus")
    share = json.loads((tmp_path / "corpus" / MANIFESTS["corpus"]).read_text())["repeats"]
    assert share == Corpus.from_sequences(rows).repeats > 0.2
    with monkeypatch.context() as patch:
        patch.setattr("superbloom.corpus.corpus.share_of_repeats", lambda *_: pytest.fail("measured again"))
        assert Corpus.open(tmp_path / "corpus").repeats == share
    manifest_edit("corpus", lambda content: content.pop("repeats"))(tmp_path / "corpus")
    assert Corpus.open(tmp_path / "corpus").repeats == share


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan"), "0.5", True, [0.5]])
def test_a_share_that_is_none_is_refused(tmp_path, value):
    Corpus.from_sequences([["a", "b"]] * 9).save(tmp_path / "corpus")
    manifest_edit("corpus", lambda content: content.update(repeats=value))(tmp_path / "corpus")
    with pytest.raises(InputError, match=r"corpus\.json: repeats=.* is no share"):
        Corpus.open(tmp_path / "corpus")
