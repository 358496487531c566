"""Segments of text: [CLS] A [SEP] B [SEP], where A and B begin with a sentence."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from superbloom import Superbloom
from superbloom.config import TrainConfig
from superbloom.config.model import ModelConfig
from superbloom.corpus.corpus import Corpus
from superbloom.corpus.segments import _sentence, cut_segments, draws_per_segment
from superbloom.errors import InputError
from superbloom.evaluate.held_out import HeldOut
from superbloom.special import Special
from superbloom.training.batches import Batches
from superbloom.training.lightning_module import Training
from tests.support.corpora import digest


def documents(lengths: list[list[int]]) -> Corpus:
    """Document d has sentences of these lengths. Its words are d:0, d:1, …, so every id shows its position."""
    whole = Corpus.from_sequences([[f"{d}:{i}" for i in range(sum(sizes))] for d, sizes in enumerate(lengths)])
    begins = [np.cumsum([0, *sizes[:-1]]).tolist() for sizes in lengths]
    column = pa.array(begins, type=pa.large_list(pa.int32()))
    return Corpus(whole.vocab, whole.sequences.append_column("sentences", column))


def parts(corpus: Corpus, ids: list[int]) -> list[list[tuple[int, int]]]:
    """The document and place of each word, in one list for A and one for B."""
    ids = [id_ for id_ in ids if id_ != Special.PAD]
    assert ids[0] == Special.CLS
    assert ids[-1] == Special.SEP
    found: list[list[tuple[int, int]]] = [[]]
    for id_ in ids[1:-1]:
        if id_ == Special.SEP:
            found.append([])
        else:
            document, place = corpus.vocab.name(id_).split(":")
            found[-1].append((int(document), int(place)))
    return found


LENGTHS = st.lists(st.lists(st.integers(1, 9), min_size=2, max_size=8), min_size=2, max_size=12)


@given(LENGTHS, st.integers(5, 20), st.integers(0, 10))
def test_a_segment_is_two_runs_of_sentences_that_follow_each_other(lengths, seq_len, seed):
    corpus = documents(lengths)
    rows = np.arange(len(lengths))
    found = cut_segments(
        corpus, rows, np.random.default_rng(seed).random((len(rows), draws_per_segment(corpus))), seq_len
    )
    assert found.ids.shape[1] <= seq_len
    for row, (ids, at, follows) in enumerate(zip(found.ids.tolist(), found.at, found.follows, strict=True)):
        runs = parts(corpus, ids)
        begins = np.cumsum([0, *lengths[row]]).tolist()
        whole = [place for run in runs for place in run]
        assert whole == [(row, whole[0][1] + i) for i in range(len(whole))], "not contiguous"
        assert len(whole) == min(sum(lengths[row]), seq_len - 3)
        start = whole[0][1]
        inside = [begin for begin in begins[:-1] if start < begin < start + len(whole)]
        assert start in begins or start - max(b for b in begins if b <= start) >= len(whole)
        assert len(runs) == (2 if inside else 1)
        assert follows == (1 if inside else -1)
        if inside:
            assert runs[1][0][1] in inside
        assert [corpus.ids[i] for i in at if i >= 0] == [id_ for id_ in ids if id_ >= 0]


@given(LENGTHS, st.integers(0, 10))
def test_a_b_from_another_document_is_marked(lengths, seed):
    corpus = documents(lengths)
    rows = np.arange(len(lengths)).repeat(20)
    uniform = np.random.default_rng(seed).random((len(rows), draws_per_segment(corpus, next_sentence=True)))
    found = cut_segments(corpus, rows, uniform, 12, other_rows=np.arange(len(lengths)))
    others = (uniform[:, 3] * len(lengths)).astype(int).tolist()
    for row, ids, follows, other in zip(rows, found.ids.tolist(), found.follows, others, strict=True):
        runs = parts(corpus, ids)
        assert len(runs) == (1 if follows == -1 else 2)
        assert {document for document, _ in runs[0]} == {row}
        (last,) = {document for document, _ in runs[-1]}
        if follows == 1:
            assert (last, runs[1][0][1]) == (row, runs[0][-1][1] + 1)
        if follows == 0:
            assert last == other
            assert runs[1] == [(last, runs[1][0][1] + i) for i in range(len(runs[1]))]


def test_half_of_what_could_follow_does():
    corpus = documents([[3] * 10] * 50)
    batches = Batches(corpus, seq_len=20, batch_size=1000, mask_share=0.15, seed=0, next_sentence=True)
    follows = torch.cat([batches[step].follows for step in range(4)])
    assert follows.min() == 0
    assert follows.float().mean() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("next_sentence", [False, True])
def test_processes_take_their_parts_of_the_same_batch(next_sentence):
    corpus = documents(
        [[3, 2, 5], [4, 4], [9], [1, 1, 7, 3], [1, 1]] * 20
    )  # the last is short: as a B, it makes segments shorter
    options = {"seq_len": 10, "batch_size": 12, "mask_share": 0.25, "seed": 0, "next_sentence": next_sentence}
    whole = Batches(corpus, **options)[3]
    some = [Batches(corpus, **options, rank=rank, ranks=3)[3] for rank in range(3)]
    assert {part.total for part in some} == {whole.total} == {int((whole.targets >= 0).sum())}
    wide = whole.ids.shape[1]
    ids = torch.cat([torch.nn.functional.pad(part.ids, (0, wide - part.ids.shape[1]), value=-1) for part in some])
    assert torch.equal(ids, whole.ids)
    for step in range(20):
        batch = Batches(corpus, **options)[step]
        assert batch.total == int((batch.targets >= 0).sum())


def test_special_ids_are_never_masked_and_words_all_are():
    corpus = documents([[4, 4, 4, 4]] * 30)
    batches = Batches(corpus, seq_len=11, batch_size=200, mask_share=0.3, seed=0, mask_as="question")
    chosen = set()
    for step in range(20):
        batch = batches[step]
        assert ((batch.ids == Special.CLS).sum(1) == 1).all()
        assert ((batch.ids == Special.SEP).sum(1) == 2).all()
        chosen |= {corpus.vocab.name(id_).split(":")[1] for id_ in batch.targets[batch.targets >= 0].tolist()}
    assert chosen == set(map(str, range(16)))


def test_a_long_document_is_read_as_often_as_it_is_long():
    corpus = documents([[5] * 40, *[[5] * 2] * 40])
    batches = Batches(corpus, seq_len=13, batch_size=600, mask_share=0.2, seed=0)
    documents_seen = [corpus.vocab.name(int(id_)).split(":")[0] for id_ in batches[0].targets[:, 0]]
    long = 0 in corpus.rows("train")
    short = len(corpus.rows("train")) - long
    assert documents_seen.count("0") / 600 == pytest.approx(20 * long / (20 * long + short), abs=0.05)


def test_what_is_hidden_is_a_word():
    corpus = documents([[4, 4, 4]] * 40)
    found = HeldOut.of(corpus, "test", 10, draws=300)
    number = np.arange(300)
    assert (found.ids[number, found.places] == Special.MASK).all()
    assert ((found.ids == Special.MASK).sum(1) == 1).all()
    assert (found.ids[:, 0] == Special.CLS).all()
    assert len(set(found.places.tolist())) > 5
    for ids, place, target in zip(found.ids.tolist(), found.places, found.targets, strict=True):
        restored = [*ids[:place], int(target), *ids[place + 1 :]]
        runs = parts(corpus, restored)
        whole = [place for run in runs for place in run]
        assert whole == [(whole[0][0], whole[0][1] + i) for i in range(len(whole))]


@pytest.mark.system
def test_next_sentence_is_learnt():
    """Each kind of document has its own words, so the words of A show whether B follows."""
    rng = np.random.default_rng(0)
    rows = [[f"{d % 4}:{rng.integers(6)}" for _ in range(24)] for d in range(120)]
    whole = Corpus.from_sequences(rows)
    begins = pa.array([list(range(0, 24, 3))] * 120, type=pa.large_list(pa.int32()))
    corpus = Corpus(whole.vocab, whole.sequences.append_column("sentences", begins))
    options = {"alpha": 1, "num_hashes": 1, "dim": 32, "seq_len": 15, "next_sentence": True, "mask_as": "element"}
    model = Superbloom(**options).fit(corpus, steps=300, valid_every=1000, quiet=True).model
    batch = Training(model, corpus, TrainConfig(steps=1, batch_size=400)).batches()[10_000]
    with torch.no_grad():
        predicted = model.network.follows(
            model.encode(batch.ids, torch.zeros(400, 1, dtype=torch.long))[:, 0, 0]
        ).argmax(1)
    asked = batch.follows >= 0
    # A quarter of the other documents are of the same kind, so the best possible share is 7 of 8.
    assert (predicted == batch.follows)[asked].float().mean() > 0.75


def test_the_side_of_a_word_changes_the_prediction():
    from superbloom.corpus.vocab import Vocab
    from superbloom.model.model import Model

    torch.manual_seed(0)
    vocab = Vocab.from_counts({f"name {i}": 9 for i in range(20)})
    config = ModelConfig(num_ids=20, alpha=2, dim=8, heads=2, ffn_dim=8, seq_len=8, next_sentence=True)
    model = Model.create(config, vocab)
    torch.nn.init.normal_(model.network.side.weight)
    cls, sep, mask = int(Special.CLS), int(Special.SEP), int(Special.MASK)
    one = model.log_probs(torch.tensor([[cls, 3, sep, mask, 4, sep]]), torch.tensor([[3]]))
    swapped = model.network.side.weight.data.flip(0)
    model.network.side.weight.data.copy_(swapped)
    assert not torch.allclose(one, model.log_probs(torch.tensor([[cls, 3, sep, mask, 4, sep]]), torch.tensor([[3]])))


def test_what_cannot_be_cut_is_refused():
    corpus = documents([[3, 3]] * 30)
    with pytest.raises(InputError, match=r"seq_len=3 leaves no room between \[CLS\] and \[SEP\]; 4 or more"):
        Batches(corpus, seq_len=3, batch_size=2, mask_share=0.2, seed=0)
    plain = Corpus.from_sequences([["a", "b"]] * 30)
    with pytest.raises(InputError, match="next_sentence=True, but the rows of this corpus have no sentences"):
        Batches(plain, seq_len=8, batch_size=2, mask_share=0.2, seed=0, next_sentence=True)
    with pytest.raises(InputError, match="next_sentence=True with mask_as='next'"):
        ModelConfig(num_ids=10, next_sentence=True, mask_as="next")


@given(LENGTHS, st.integers(0, 9))
def test_the_total_is_the_number_of_targets(lengths, step):
    corpus = documents([*lengths, [2, 2], [3]])
    batch = Batches(corpus, seq_len=16, batch_size=8, mask_share=0.9, seed=0, next_sentence=True)[step]
    assert batch.total == int((batch.targets != Special.PAD).sum())


def test_a_run_begins_with_its_sentence_if_it_still_reaches_its_first_start():
    corpus = documents([[4, 3]])
    starts, lengths = np.array([3, 3, 3, 6, 6]), np.array([3, 4, 5, 2, 3])
    assert _sentence(corpus, starts, lengths).tolist() == [3, 0, 0, 6, 4]


def test_the_stream_of_texts_stays_what_it_is_from_release_to_release():
    corpus = documents([[4, 3, 7], [5] * 8, [2, 9, 9, 1], [30, 2]] * 6)
    ways = ({}, {"next_sentence": True}, {"mask_as": "next"}, {"next_sentence": True, "rank": 1, "ranks": 2})
    streams = [Batches(corpus, seq_len=16, batch_size=6, mask_share=0.25, seed=3, **way) for way in ways]
    assert digest(batches[step] for batches in streams for step in range(10)) == "1a3fc9cccdffd2f8"
