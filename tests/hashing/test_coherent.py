"""Coherent hash functions: groups against a plain greedy rule, balance, no pair twice, any size, training with them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from superbloom import BloomHash, Corpus, Superbloom
from superbloom.config.model import ModelConfig
from superbloom.config.presets import PRESETS
from superbloom.errors import InputError
from superbloom.hashing import coherent as coherent_module
from superbloom.hashing.coherent import grouped, vectors_of
from superbloom.hashing.construct import max_alpha, shifted
from tests.support.corpora import rings
from tests.support.digests import assert_sound

SMALL = {"alpha": 4, "dim": 32, "heads": 2, "ffn_dim": 64}


def greedy(vectors, sizes, apart=None):
    """The paper's rule in plain Python: similarities are whole numbers, so nothing is rounded."""
    free, groups = list(range(len(vectors))), [-1] * len(vectors)
    for number, size in enumerate(sizes):
        founder = free.pop(0)
        chosen = [founder]
        by_nearness = sorted(free, key=lambda i: (-int(vectors[founder] @ vectors[i]), i))
        for strict in (True, False):
            for i in by_nearness:
                fits = apart is None or not strict or apart[i] not in {apart[c] for c in chosen}
                if len(chosen) < size and i not in chosen and fits:
                    chosen.append(i)
        for i in chosen:
            groups[i] = number
        free = [i for i in free if i not in chosen]
    return groups


@given(
    st.integers(1, 90), st.integers(1, 9), st.integers(1, 3), st.integers(0, 10**6), st.sampled_from([50, 2000, 2**26])
)
@settings(deadline=None)
def test_groups_are_those_of_the_plain_rule(num_ids, alpha, dim, seed, room):
    rng = np.random.default_rng(seed)
    vectors = rng.integers(-3, 4, (num_ids, dim)).astype(np.float32)  # many ties
    buckets = -(-num_ids // alpha)
    sizes = np.bincount(np.arange(num_ids) * buckets // num_ids)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coherent_module, "MAX_SIMILARITIES", room)
        first = grouped(vectors, sizes)
        second = grouped(vectors, sizes, first)
    assert first.tolist() == greedy(vectors, sizes)
    assert second.tolist() == greedy(vectors, sizes, first)


@pytest.mark.parametrize("alpha", [8, 4, 2])
def test_ring_mates_end_in_one_bucket(ring_corpus, alpha):
    names = ring_corpus.vocab.names(range(ring_corpus.num_ids))
    rings_of = np.array([int(name.split()[1]) for name in names])
    bloom = BloomHash.coherent(ring_corpus, alpha=alpha)
    for bucket in range(bloom.num_buckets):
        assert len(set(rings_of[bloom.members[0][bucket]])) == 1
    by_chance = [len(set(rings_of[bloom.members[1][bucket]])) for bucket in range(bloom.num_buckets)]
    assert np.mean(by_chance) > 0.75 * alpha


def test_the_second_function_finds_the_mates_the_first_has_left(ring_corpus):
    """Rings of eight in buckets of two: either function pairs ring mates, never the same two."""
    rings_of = np.array([int(name.split()[1]) for name in ring_corpus.vocab.names(range(ring_corpus.num_ids))])
    bloom = BloomHash.coherent(ring_corpus, alpha=2, coherent=2)
    for j in range(2):
        pairs = [rings_of[bloom.members[j][bucket]] for bucket in range(bloom.num_buckets)]
        assert np.mean([len(set(pair)) == 1 for pair in pairs]) > 0.9


def shared_pairs(bloom: BloomHash) -> int:
    first, second = bloom.table[:, :2].numpy().T
    return len(first) - len(set(zip(first.tolist(), second.tolist(), strict=True)))


@st.composite
def corpora(draw):
    """2 to 60 ids, each alone in one row; up to 30 more rows hold four ids of the first half."""
    num_ids, seed = draw(st.integers(2, 60)), draw(st.integers(0, 999))
    rng = np.random.default_rng(seed)
    rows = [[f"n{i}"] for i in range(num_ids)]
    rows += [[f"n{i}" for i in rng.integers(0, 1 + num_ids // 2, 4)] for _ in range(draw(st.integers(0, 30)))]
    return Corpus.from_sequences(rows)


@given(corpora(), st.integers(1, 3), st.integers(0, 2), st.data(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_allowed_size_is_balanced_and_keeps_pairs_apart(corpus, num_hashes, coherent, data, spread):
    coherent = min(coherent, num_hashes)
    hashes = 2 if coherent == 2 else num_hashes
    alpha = data.draw(st.integers(1, max_alpha(corpus.num_ids, hashes)))
    bloom = BloomHash.coherent(corpus, num_hashes, alpha, coherent, seed=3, spread=spread)
    assert_sound(bloom)
    bloom.verify()
    if coherent == 2:
        assert shared_pairs(bloom) == 0
    again = BloomHash.coherent(corpus, num_hashes, alpha, coherent, seed=3, spread=spread)
    assert torch.equal(bloom.table, again.table)


@given(st.integers(1, 200), st.integers(2, 4), st.data())
def test_shifted_hashes_are_even_and_tell_all_apart(num_ids, num_hashes, data):
    alpha = data.draw(st.integers(1, max_alpha(num_ids, num_hashes)))
    buckets = -(-num_ids // alpha)
    rng = np.random.default_rng(num_ids)
    first = rng.permutation(np.arange(num_ids) * buckets // num_ids)
    table = np.column_stack([first, shifted(first, buckets, num_hashes, rng)])
    assert_sound(BloomHash.from_table(torch.from_numpy(table), buckets, alpha))


def test_the_seed_decides_what_is_random_and_nothing_else(ring_corpus):
    one, same, other = (BloomHash.coherent(ring_corpus, 2, 5, 1, seed=seed).table for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert torch.equal(one[:, 0], other[:, 0])
    assert not torch.equal(one[:, 1], other[:, 1])


def test_without_coherent_functions_they_are_the_random_ones(ring_corpus):
    bloom = BloomHash.coherent(ring_corpus, 3, 6, coherent=0, seed=5)
    assert torch.equal(bloom.table, BloomHash.random(ring_corpus.num_ids, 3, 6, seed=5).table)


def test_ids_that_met_no_other_share_buckets_with_each_other():
    rows = [["a", "b", "c"], ["d", "e", "f"]] * 20 + [["x"], ["y"], ["z"]] * 15
    corpus = Corpus.from_sequences(rows)
    bloom = BloomHash.coherent(corpus, alpha=3)
    buckets = {name: int(bloom.buckets(corpus.vocab.id(name))[0]) for name in "abcdefxyz"}
    assert [len({buckets[name] for name in names}) for names in ("abc", "def", "xyz")] == [1, 1, 1]


def test_held_out_rows_have_no_say(ring_corpus):
    """Changing ids in rows outside of training does not change the functions."""
    from superbloom.corpus import SPLITS

    other = Corpus.from_sequences([["a"], ["b"]])
    other.__dict__.update(ring_corpus.__dict__)
    held_out = np.repeat(ring_corpus.splits != SPLITS["train"], np.diff(ring_corpus.offsets))
    other.ids = ring_corpus.ids.copy()
    other.ids[held_out] = np.roll(other.ids[held_out], 5)
    other.targets = other.ids
    tables = [BloomHash.coherent(corpus, 2, 4, coherent=2).table for corpus in (ring_corpus, other)]
    assert torch.equal(*tables)


def test_sums_of_products_are_exact(ring_corpus):
    vectors = vectors_of(ring_corpus)
    assert np.array_equal(vectors, np.rint(vectors))
    assert float(np.square(vectors).sum(axis=1).max()) < 2**24
    exact = vectors.astype(np.int64) @ vectors.T.astype(np.int64)
    assert np.array_equal(vectors @ vectors.T, exact)


@pytest.mark.system
@pytest.mark.parametrize("coherent", [1, 2])
def test_training_learns_with_them_and_the_folder_keeps_them(ring_corpus, tmp_path, coherent):
    superbloom = Superbloom(**SMALL, coherent=coherent)
    superbloom.fit(ring_corpus, steps=60, batch_size=32, learning_rate=5e-3, warmup=20, quiet=True)
    table = superbloom.model.bloom.table
    expected = BloomHash.coherent(ring_corpus, 2, 4, coherent, spread=True)
    assert torch.equal(table, expected.table)
    assert superbloom.evaluate(ring_corpus)["recall"]["10"]["value"] > 0.6
    superbloom.save_pretrained(tmp_path / "model")
    loaded = Superbloom.from_pretrained(tmp_path / "model")
    assert loaded.model.config.coherent == coherent
    assert torch.equal(loaded.model.bloom.table, table)
    more = loaded.extend(["new 1", "new 2"]).model.bloom
    assert torch.equal(more.table[: len(table)], table)
    names = ring_corpus.vocab.names(ring_corpus.row(0))
    on = Superbloom().fit(
        Corpus.from_sequences([[*names, "new 1", "new 3"]] * 40), from_model=loaded, steps=2, quiet=True
    )
    assert torch.equal(on.model.bloom.table[: len(table)], table)
    assert on.predict(["new 3"], k=2)


def test_a_run_goes_on_with_the_same_functions(ring_corpus, tmp_path):
    options = {"batch_size": 16, "quiet": True, "run": tmp_path / "run"}
    first = Superbloom(**SMALL, coherent=1).fit(ring_corpus, steps=3, **options)
    second = Superbloom(**SMALL, coherent=1).fit(ring_corpus, steps=5, resume=True, **options)
    assert second.training["steps"] == 5
    assert torch.equal(first.model.bloom.table, second.model.bloom.table)
    with pytest.raises(InputError, match="the run began with coherent=1"):
        Superbloom(**SMALL).fit(ring_corpus, steps=7, resume=True, **options)


def test_a_second_vocabulary_has_coherent_functions_of_its_own(ring_corpus):
    names = [ring_corpus.vocab.names(ring_corpus.row(row)) for row in range(len(ring_corpus))]
    corpus = Corpus.from_sequences(names, targets=[[name.replace("name", "sound") for name in row] for row in names])
    superbloom = Superbloom(**SMALL, coherent=1).fit(corpus, steps=1, quiet=True)
    for bloom, vocab in (
        (superbloom.model.bloom, corpus.vocab),
        (superbloom.model.target_bloom, corpus.target_vocab),
    ):
        ring = np.array([name.split()[1] for name in vocab.names(range(len(vocab)))])
        assert all(len(set(ring[bloom.members[0][bucket]])) == 1 for bucket in range(bloom.num_buckets))


def test_several_processes_have_to_compute_alike(ring_corpus, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with pytest.raises(InputError, match="coherent=1 in several processes: set OMP_NUM_THREADS=1"):
        Superbloom(**SMALL, coherent=1).fit(ring_corpus, steps=1, devices=2, quiet=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coherent": 3}, "coherent=3: 0 to 2 is allowed"),
        ({"coherent": True}, "coherent=True: 0 to 2 is allowed"),
        ({"coherent": 2, "num_hashes": 1, "alpha": 1}, "coherent=2 with num_hashes=1: no more than there are"),
    ],
)
def test_a_config_that_cannot_work_is_refused(options, message):
    with pytest.raises(InputError, match=message) as raised:
        ModelConfig(num_ids=100, **options)
    assert "\n" not in str(raised.value)


def test_sizes_that_cannot_work_are_refused_with_what_would(ring_corpus):
    with pytest.raises(InputError, match="coherent=2 given with num_hashes=1; 0 to 1 is allowed"):
        BloomHash.coherent(ring_corpus, 1, 1, coherent=2)
    with pytest.raises(
        InputError, match="too few to tell 192 ids apart with 2 hashes; the largest alpha that works is 14"
    ):
        BloomHash.coherent(ring_corpus, 3, 30, coherent=2)
    with pytest.raises(InputError, match="the largest alpha that works is 14"):
        Superbloom(num_hashes=3, alpha=30, coherent=2).config_for(ring_corpus)
    assert Superbloom(num_hashes=3, coherent=2).config_for(rings(2, 4, 40)).alpha <= max_alpha(8, 2)


def test_the_papers_models_have_none():
    assert {preset.config.coherent for preset in PRESETS.values()} == {0}


@pytest.mark.parametrize("coherent", [-1, 3, 1.0, True, "1"])
def test_as_many_hash_functions_as_cannot_be_coherent_are_refused(ring_corpus, coherent):
    with pytest.raises(InputError, match=rf"coherent={coherent!r} given with num_hashes=4; 0 to 2 is allowed"):
        BloomHash.coherent(ring_corpus, 4, 2, coherent)
