"""Batches: a pure function of (seed, step), with the paper's shares."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from superbloom.corpus.corpus import Corpus
from superbloom.errors import InputError
from superbloom.special import Special
from superbloom.training.batches import Batches, BatchStream
from tests.support.corpora import digest


def numbered(lengths: list[int]) -> Corpus:
    """Row r holds names r:0, r:1, …: every name contains its row and place."""
    return Corpus.from_sequences([[f"{row}:{place}" for place in range(length)] for row, length in enumerate(lengths)])


def assert_same(one, other):
    assert one.total == other.total
    for ours, theirs in zip(one[:3], other[:3], strict=True):
        assert torch.equal(ours, theirs)


def stream(corpus, **options):
    return Batches(corpus, **{"seq_len": 8, "batch_size": 6, "mask_share": 0.25, "seed": 0} | options)


@given(st.lists(st.integers(2, 30), min_size=20, max_size=40), st.integers(0, 3), st.integers(0, 100))
def test_a_batch_holds_segments_with_their_targets(lengths, seed, step):
    corpus = numbered(lengths)
    batch = stream(corpus, seed=seed)[step]
    for ids, places, targets in zip(*(part.tolist() for part in batch[:3]), strict=True):
        chosen = [(place, target) for place, target in zip(places, targets, strict=True) if target != Special.PAD]
        whole = dict(enumerate(ids)) | dict(chosen)
        names = [corpus.vocab.name(whole[place]) for place in range(len(ids)) if whole[place] != Special.PAD]
        row, start = map(int, names[0].split(":"))
        assert corpus.splits[row] == 0, "a row that is held out"
        assert names == [f"{row}:{start + i}" for i in range(len(names))], "not a contiguous segment"
        assert len(names) == min(8, lengths[row])
        assert len(chosen) == max(1, round(0.25 * len(names)))
        assert len({place for place, _ in chosen}) == len(chosen)


def test_the_same_seed_and_step_give_the_same_batch_in_any_order():
    corpus = numbered([10] * 50)
    one, other = stream(corpus), stream(corpus)
    later = [other[step] for step in (7, 3, 0)]
    for step, batch in zip((7, 3, 0), later, strict=True):
        assert_same(one[step], batch)
    assert not torch.equal(one[3].ids, stream(corpus, seed=1)[3].ids)
    assert not torch.equal(one[3].ids, one[4].ids)
    following = one.starting_at(3)
    assert torch.equal(next(following).ids, one[3].ids)
    assert torch.equal(next(following).ids, one[4].ids)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_take_slices_of_the_same_global_batch(ranks):
    corpus = numbered([10] * 50)
    whole = stream(corpus)[5]
    parts = [stream(corpus, rank=rank, ranks=ranks)[5] for rank in range(ranks)]
    for name in ("ids", "places", "targets"):
        assert torch.equal(getattr(whole, name), torch.cat([getattr(part, name) for part in parts]))
    assert {part.total for part in parts} == {whole.total}


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_total_counts_the_targets_of_all_ranks(ranks):
    """With rows of unequal length, ranks have unequal numbers of targets. The total is their sum."""
    corpus = numbered([2, 30, 5, 12] * 20)
    parts = [stream(corpus, batch_size=12, rank=rank, ranks=ranks)[3] for rank in range(ranks)]
    counts = [int((part.targets != Special.PAD).sum()) for part in parts]
    assert {part.total for part in parts} == {sum(counts)}
    assert ranks == 1 or len(set(counts)) > 1


def test_several_workers_make_the_same_stream(ring_corpus):
    batches = stream(ring_corpus)
    loader = DataLoader(BatchStream(batches, step=5), batch_size=None, num_workers=2)
    for step, batch in zip(range(5, 16), loader, strict=False):
        assert_same(batch, batches[step])


def test_an_epoch_visits_every_training_row_once():
    corpus = numbered([2] * 60)
    batches = stream(corpus, batch_size=1)
    rows = len(corpus.rows("train"))
    for epoch in range(2):
        seen = [batches._row(np.array([epoch * rows + i]))[0] for i in range(rows)]
        assert sorted(seen) == corpus.rows("train").tolist()


def test_chosen_elements_are_masked_replaced_or_left_in_the_papers_shares():
    corpus = numbered([40] * 400)
    batches = stream(corpus, seq_len=32, batch_size=1000, mask_share=0.15)
    masked = replaced = left = 0
    for step in range(8):
        batch = batches[step]
        chosen = batch.targets != Special.PAD
        assert (chosen.sum(1) == 5).all()  # 15 % of 32
        shown, targets = batch.ids.gather(1, batch.places)[chosen], batch.targets[chosen]
        masked += int((shown == Special.MASK).sum())
        left += int((shown == targets).sum())
        replaced += int(((shown != Special.MASK) & (shown != targets)).sum())
    total = masked + replaced + left
    assert total == 8 * 1000 * 5
    assert masked / total == pytest.approx(0.8, abs=0.01)
    assert replaced / total == pytest.approx(0.1, abs=0.01)
    assert left / total == pytest.approx(0.1, abs=0.01)


def test_every_segment_and_element_is_as_likely_as_any_other():
    corpus = numbered([12] * 200)
    batches = stream(corpus, seq_len=8, batch_size=4000, mask_share=0.1)
    starts, places = np.zeros(5), np.zeros(8)
    for step in range(5):
        batch = batches[step]
        restored = batch.ids.scatter(1, batch.places, batch.targets)
        first = [int(name.split(":")[1]) for name in corpus.vocab.names(restored[:, 0].tolist())]
        starts += np.bincount(first, minlength=5)
        places += np.bincount(batch.places.flatten().numpy(), minlength=8)
    assert np.abs(starts / 4000 - 1).max() < 0.06
    assert np.abs(places / 2500 - 1).max() < 0.1


def test_targets_of_a_second_vocabulary_come_from_the_same_places():
    rows = [[f"word {i}" for i in range(row, row + 5)] for row in range(30)]
    tags = [[f"tag {i % 3}" for i in range(row, row + 5)] for row in range(30)]
    corpus = Corpus.from_sequences(rows, targets=tags)
    batch = stream(corpus, mask_share=0.5)[0]
    words, kinds = corpus.vocab, corpus.target_vocab
    untouched = 0
    for ids, places, targets in zip(*(part.tolist() for part in batch[:3]), strict=True):
        first = next(int(words.name(i).split()[1]) - p for p, i in enumerate(ids) if i >= 0 and p not in places)
        for place, target in zip(places, targets, strict=True):
            assert kinds.name(target) == f"tag {(first + place) % 3}"
            untouched += 1
    assert untouched == 6 * 2


def test_with_mask_as_next_all_elements_are_targets_and_none_is_masked():
    corpus = numbered([2, 30, 5, 12] * 20)
    batch = stream(corpus, mask_as="next")[3]
    assert torch.equal(batch.ids, batch.targets)
    assert batch.places.tolist() == [list(range(batch.ids.shape[1]))] * 6
    assert batch.total == int((batch.ids >= 0).sum())
    assert torch.equal(stream(corpus, mask_as="next", rank=1, ranks=2)[3].ids, batch.ids[3:])


def test_the_first_id_of_a_corpus_is_an_element_like_any_other():
    corpus = numbered([4] * 30)
    assert corpus.rows("train")[0] == 0
    batches = stream(corpus, mask_as="next")
    targets = torch.cat([batches[step].targets for step in range(6)])
    assert set(targets.flatten().tolist()) >= {corpus.vocab.id(f"0:{place}") for place in range(4)}


def test_with_mask_as_question_all_chosen_elements_are_masked():
    corpus = numbered([40] * 400)
    batch = stream(corpus, batch_size=500, mask_as="question")[1]
    assert (batch.ids.gather(1, batch.places) == Special.MASK).all()
    assert int((batch.ids == Special.MASK).sum()) == batch.total == 500 * 2


def test_each_example_has_random_numbers_of_its_own():
    """Whichever batch an example is in, and whatever its place there, it is the same; no two are masked alike."""
    corpus = numbered([20] * 300)
    one, other = stream(corpus, seq_len=20, batch_size=6), stream(corpus, seq_len=20, batch_size=10)
    mine = torch.cat([one[step].places for step in range(20)])
    assert torch.equal(mine, torch.cat([other[step].places for step in range(12)]))
    assert len({tuple(row) for row in mine.tolist()}) == 120
    replaced = torch.cat([other[step].ids.gather(1, other[step].places) for step in range(100)]).flatten()
    drawn = replaced[replaced >= 0]
    assert len(drawn.unique()) > 0.9 * len(drawn), "what replaces is drawn from all ids"
    assert drawn.max() > 0.98 * corpus.num_ids


def test_a_stream_may_take_every_third_batch():
    batches = stream(numbered([10] * 50))
    for step, batch in zip((2, 5, 8), batches.starting_at(2, stride=3), strict=False):
        assert_same(batch, batches[step])


def test_what_cannot_be_batched_is_refused():
    with pytest.raises(InputError, match="none of the corpus's 2 rows is a training row of two or more ids"):
        stream(Corpus.from_sequences([["a"], ["b"]]))
    with pytest.raises(InputError, match="batch_size=6 does not divide among 4 processes"):
        stream(numbered([5] * 20), ranks=4)


def test_the_stream_stays_what_it_is_from_release_to_release():
    """A later release may resume a run: the same corpus, seed and step give the same batch there."""
    corpus = numbered([3, 10, 20, 5, 40] * 10)
    ways = ({}, {"seed": 7}, {"mask_as": "question"}, {"rank": 1, "ranks": 2})
    assert digest(stream(corpus, **way)[step] for way in ways for step in (0, 1, 100)) == "42b6642180f395a7"
