"""Rows in order of time: cuts, hidden next elements, and models that read in order."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from superbloom import Corpus, Superbloom
from superbloom.config.model import ModelConfig
from superbloom.errors import InputError
from superbloom.evaluate.held_out import HeldOut
from superbloom.evaluate.recall import evaluate
from superbloom.model.model import Model
from superbloom.special import Special
from superbloom.training.batches import Batches

NEXT = {"mask_as": "next", "alpha": 2, "dim": 32, "heads": 2, "ffn_dim": 64, "seq_len": 8, "dropout": 0.0}


def with_cuts(corpus: Corpus, valid: list[int], test: list[int]) -> Corpus:
    table = corpus.sequences.append_column("valid_from", pa.array(valid, pa.int32()))
    table = table.append_column("test_from", pa.array(test, pa.int32()))
    table = table.set_column(2, "split", pa.array([0] * len(table), pa.int8()))
    return Corpus(corpus.vocab, table)


@pytest.fixture
def cut() -> Corpus:
    rows = [["a", "b", "c", "d", "e"], ["b", "c"], ["e", "a", "b"], ["c"]]
    return with_cuts(Corpus.from_sequences(rows), [3, 2, 1, 1], [4, 2, 2, 1])


@pytest.fixture(scope="module")
def counting() -> Corpus:
    """Rows that count on from anywhere, round and round: what is next follows from the last."""
    rng = np.random.default_rng(0)
    rows = [[f"n{(start + i) % 60:02d}" for i in range(12)] for start in rng.integers(0, 60, 400)]
    return with_cuts(Corpus.from_sequences(rows), [10] * 400, [11] * 400)


def test_what_stands_before_the_cut_is_for_training(cut):
    names = cut.vocab.names
    assert [cut.rows(split).tolist() for split in ("train", "valid", "test")] == [[0, 1], [0, 2], [0, 2]]
    counted = dict(zip(names(range(5)), cut.id_counts("train").tolist(), strict=True))
    assert counted == {"a": 1, "b": 2, "c": 3, "d": 0, "e": 1}
    valid, test = (HeldOut.of(cut, split, seq_len=4) for split in ("valid", "test"))
    assert (names(valid.targets), names(test.targets)) == (["d", "a"], ["e", "b"])
    contexts = [names([id_ for id_ in row if id_ >= 0]) for row in test.ids]
    assert contexts == [["b", "c", "d"], ["e", "a"]]  # the last three
    assert test.places.tolist() == [3, 2]
    assert (test.ids[[0, 1], test.places] == Special.MASK).all()
    assert test.ids[1, 3] == Special.PAD
    assert len(HeldOut.of(cut, "test", 4, draws=1)) == 1
    assert cut.counts()["test rows"] == 2


def test_batches_never_hold_what_is_asked_later(cut):
    for options in ({"mask_as": "next"}, {"mask_as": "question"}):
        batches = Batches(cut, seq_len=4, batch_size=64, mask_share=0.3, seed=0, **options)
        seen = set()
        for step in range(5):
            batch = batches[step]
            seen |= set(batch.ids[batch.ids >= 0].tolist()) | set(batch.targets[batch.targets >= 0].tolist())
            assert int((batch.targets >= 0).sum()) == batch.total
        assert set(cut.vocab.names(seen)) == {"a", "b", "c"}


def test_every_element_is_predicted_from_those_before_it(counting):
    batch = Batches(counting, seq_len=8, batch_size=16, mask_share=0.3, seed=0, mask_as="next")[3]
    assert torch.equal(batch.ids, batch.targets)
    assert batch.places[5].tolist() == list(range(8))


@pytest.mark.parametrize("options", [{}, {"inputs": "tokens"}, {"positions": True, "distance": False}, {"layers": 1}])
def test_what_comes_later_changes_nothing(counting, options):
    torch.manual_seed(0)
    model = Model.create(ModelConfig(num_ids=counting.num_ids, **NEXT | options), counting.vocab)
    ids = torch.tensor([[3, 9, 4, 7, 1, 2]])
    places = torch.arange(6)[None]
    y = model.encode_only(ids, places)
    changed = ids.clone()
    changed[0, 3] = 20
    other = model.encode_only(changed, places)
    same = [torch.allclose(y[i], other[i], atol=1e-6) for i in range(6)]
    assert same == [True, True, True, True, False, False]
    # Asked by a mask, with padding after it, or with all that follows: the same question.
    asked = torch.tensor([[3, 9, 4, Special.MASK, Special.PAD, Special.PAD]])
    assert torch.allclose(model.encode_only(asked, torch.tensor([[3]]))[0], y[3], atol=1e-6)
    # Elements that are themselves masked are skipped.
    twice = torch.tensor([[3, 9, 4, Special.MASK, Special.MASK]])
    found = model.encode_only(twice, torch.tensor([[3, 4]]))
    assert torch.allclose(found[0], y[3], atol=1e-6)
    assert torch.allclose(found[1], y[3], atol=1e-6)


@pytest.mark.system
@pytest.mark.parametrize("options", [{}, {"inputs": "tokens"}, {"num_hashes": 1, "alpha": 1}])
def test_a_model_that_reads_in_order_learns_to_count(counting, options):
    superbloom = Superbloom(**NEXT | options)
    superbloom.fit(counting, steps=60, batch_size=64, learning_rate=0.02, warmup=20, valid_rows=100, quiet=True)
    figures = superbloom.evaluate(counting)
    assert figures["recall"]["1"]["value"] > 0.9
    assert figures["rows"] == 400
    assert 0.9 < figures["mrr"]["10"] <= figures["ndcg"]["10"] <= 1
    # From fewer than a whole segment, and from nothing at all.
    assert superbloom.predict(["n07"], k=1)[0].name == "n08"
    assert len(superbloom.predict([], k=3)) == 3


def test_cuts_survive_the_disk_and_are_checked(cut, tmp_path):
    cut.save(tmp_path / "corpus")
    again = Corpus.open(tmp_path / "corpus")
    assert again.checksums == cut.checksums
    assert again.rows("test").tolist() == cut.rows("test").tolist()
    uncut = Corpus(cut.vocab, cut.sequences.drop_columns(["valid_from", "test_from"]))
    assert uncut.checksums != cut.checksums
    for valid, test in (([3, 2, 1, -1], [4, 2, 2, 1]), ([3, 2, 3, 1], [4, 2, 2, 1]), ([3, 2, 1, 1], [4, 3, 2, 1])):
        with_cuts(uncut, valid, test).save(tmp_path / "wrong")
        with pytest.raises(InputError, match="0 <= valid_from <= test_from <= length"):
            Corpus.open(tmp_path / "wrong")


def test_what_was_seen_is_not_an_answer_unless_it_is_asked(counting):
    """The first sixty of a row that goes round: all but the last few names were seen."""
    torch.manual_seed(0)
    rows = [[f"n{(start + i) % 60:02d}" for i in range(50)] for start in range(60)]
    long = with_cuts(Corpus.from_sequences(rows), [48] * 60, [49] * 60)
    superbloom = Superbloom(**NEXT).fit(long, steps=1, quiet=True, remember="none")
    free, filtered = (superbloom.evaluate(long, filter_seen=seen, yardsticks=False) for seen in (False, True))
    assert filtered["recall"]["20"]["value"] == 1 > free["recall"]["20"]["value"]  # 11 are left
    held_out = HeldOut.of(long, "test", 8)
    seen = held_out.seen(slice(3, 5))
    assert seen.shape == (2, 49)
    rows = [[f"n{i:02d}" for i in (1, 2, 3, 1)]] * 20 + [[f"n{i:02d}" for i in (4, 5)]] * 20
    again = with_cuts(Corpus.from_sequences(rows), [2] * 40, [3] * 20 + [2] * 20)
    asked = HeldOut.of(again, "test", 8)
    assert again.vocab.names(asked.seen(slice(0, 1))[0].tolist()) == ["n01", "n02", "n03"]  # n01 is what is asked, too


def test_metrics_of_a_known_ranking(counting):
    """A model of nothing: figures by hand from the answers it gives."""
    torch.manual_seed(0)
    superbloom = Superbloom(**NEXT).fit(counting, steps=1, quiet=True)
    figures = evaluate(superbloom.predictor, counting, yardsticks=False)
    held_out = HeldOut.of(counting, "test", 8)
    answers = [
        [counting.vocab.id(p.name) for p in superbloom.predict(counting.vocab.names(row[row >= 0]), k=20)]
        for row in held_out.ids
    ]
    ranked = [found.index(t) if t in found else None for found, t in zip(answers, held_out.targets, strict=True)]
    hits = [rank for rank in ranked if rank is not None and rank < 10]
    assert figures["ndcg"]["10"] == pytest.approx(sum(1 / np.log2(2 + rank) for rank in hits) / 400)
    assert figures["mrr"]["10"] == pytest.approx(sum(1 / (1 + rank) for rank in hits) / 400)
    assert figures["recall"]["10"]["value"] == pytest.approx(len(hits) / 400)
    assert figures["coverage"]["10"] == len({id_ for found in answers for id_ in found[:10]}) / 60
