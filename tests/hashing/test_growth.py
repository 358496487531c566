"""New names after training: digests of their own, old ones unchanged, buckets even, usable at once."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from superbloom import BloomHash, Corpus, Superbloom
from superbloom.errors import InputError
from superbloom.hashing.growth import extended, room_for_more

SMALL = {"alpha": 4, "dim": 32, "heads": 2, "ffn_dim": 64, "dropout": 0.0}
FAST = {"batch_size": 32, "learning_rate": 5e-3, "warmup": 20, "quiet": True}


def assert_sound(before: BloomHash, after: BloomHash, largest: int) -> None:
    after.verify()
    assert torch.equal(after.table[: before.num_ids], before.table)
    assert len({tuple(row) for row in after.table.tolist()}) == after.num_ids
    assert (after.num_buckets, after.alpha) == (before.num_buckets, before.alpha)
    assert int(after.starts.diff(dim=1).max()) <= largest


@given(
    st.integers(2, 300),
    st.integers(1, 4),
    st.integers(1, 12),
    st.floats(0.01, 3),
    st.floats(0, 1),
    st.integers(0, 99),
)
@settings(max_examples=300, deadline=None)
def test_as_many_new_ids_as_there_is_room_for(num_ids, num_hashes, alpha, reserve, share, seed):
    alpha = min(alpha, num_ids)
    try:
        bloom = BloomHash.random(num_ids, num_hashes, alpha, seed, spread=bool(seed % 2))
    except InputError:
        return
    if num_hashes == 1:  # no hashing: there is always room
        return
    largest, room = room_for_more(bloom, reserve)
    with pytest.raises(InputError, match="has room for"):
        extended(bloom, [[]] * (room + 1), reserve)
    count = min(round(share * room), bloom.num_buckets**num_hashes // 2 - num_ids)  # so that free digests are found
    if count < 1:
        return
    more = extended(bloom, [[]] * count, reserve, seed)
    assert_sound(bloom, more, largest)
    sizes = more.starts.diff(dim=1)
    if bloom.num_buckets > 20:  # enough digests that none had to be moved for want of a free one
        assert int(sizes.max() - sizes.min()) <= 2


def test_new_ids_keep_buckets_even():
    bloom = BloomHash.random(10_000, 2, 20)
    more = extended(bloom, [[]] * 1_700)
    sizes = more.starts.diff(dim=1)
    assert (int(sizes.min()), int(sizes.max())) == (23, 24)


def test_likeness_decides_buckets_while_they_have_room():
    bloom = BloomHash.random(2_000, 2, 20)
    more = extended(bloom, [[7, 9]] * 30 + [[5]] * 2 + [[]] * 20)
    assert_sound(bloom, more, 25)
    first, second = bloom.table[7, 0], bloom.table[9, 1]
    assert int((more.table[2000:2030] == torch.stack([first, second])).all(dim=1).sum()) == 1  # a digest is one id's
    assert int((more.table[2000:2030, 0] == first).sum()) == 5  # what the bucket had room for
    assert (more.table[2030:2032, 0] == bloom.table[5, 0]).all()
    bloom = BloomHash.random(2_000, 2, 5)
    many = extended(bloom, [[i, i + 1] for i in range(0, 400, 8)] + [[]] * 400)
    kept = (many.table[2000:2050, 1] == bloom.table[1:401:8, 1]).float().mean()
    assert float(kept) > 0.9  # others trade when digests collide


def test_no_room_says_how_to_get_some():
    bloom = BloomHash.random(1_000, 2, 10)
    with pytest.raises(InputError) as error:
        extended(bloom, [[]] * 400, reserve=0.2)
    message = str(error.value)
    assert "400 new names, but reserve=0.2 has room for 200 more than the 1,000 there are" in message
    assert "280 tokens instead of 200" in message
    for alpha, ids, wanted in ((10, 1_000, 400), (4, 400, 120), (7, 999, 333), (20, 2_000, 1)):
        full = BloomHash.random(ids, 2, alpha)
        with pytest.raises(InputError) as error:
            extended(full, [[]] * wanted, reserve=0)
        enough = float(re.search(r"extend with reserve=([\d.]+),", str(error.value))[1])
        assert len(extended(full, [[]] * wanted, reserve=enough).table) == ids + wanted
    digests = torch.tensor([[first, second] for first in range(4) for second in range(4)])
    with pytest.raises(InputError, match="no digest is left for them; train again with all names, 10 tokens"):
        extended(BloomHash.from_table(digests, num_buckets=4, alpha=4), [[]], reserve=1)
    crowded = BloomHash.from_table(digests[:-1], num_buckets=4, alpha=4)
    with pytest.raises(InputError, match="no digest is left for some of the new names; raise reserve, or train again"):
        extended(crowded, [[0, 0]], reserve=1)  # one digest is free, but not in a bucket of id 0
    for reserve in (-0.1, True, "much", float("nan")):
        with pytest.raises(InputError, match="a share of alpha is allowed"):
            extended(bloom, [[]], reserve)


def test_old_answers_stay_and_new_names_work_at_once(ring_corpus, tmp_path):
    trained = Superbloom(**SMALL).fit(ring_corpus, steps=200, **FAST)
    context = [f"ring 3 name {i}" for i in (1, 5)]
    before = trained.predict(context, k=30)
    before_by_sum = [(p.name, p.score) for p in trained.predict(context, k=30, combine="sum")]
    digests = trained.model.bloom.table.clone()
    trained.extend(["newcomer", "[MASK] me", "ring 3 name 1"], like={"newcomer": ["ring 3 name 1", "ring 3 name 5"]})
    assert torch.equal(trained.model.bloom.table[: len(digests)], digests)
    assert trained.model.vocab.name(trained.model.config.num_ids - 1) == "[MASK] me"
    after = trained.predict(context, k=32)
    new = ("newcomer", "[MASK] me")
    shares = {p.name: p.probability for p in before}
    assert all(p.probability <= shares[p.name] * (1 + 1e-5) for p in after if p.name in shares)  # new names take some
    by_sum = trained.predict(context, k=32, combine="sum")
    old = [(p.name, p.score) for p in by_sum if p.name not in new]
    assert old[:30] == before_by_sum  # to the bit
    names = [prediction.name for prediction in trained.predict(context, k=trained.model.config.num_ids)]
    assert {"newcomer", "[MASK] me"} <= set(names)
    assert names.index("newcomer") < 60  # among 194, beside those it is like
    assert trained.predict(["newcomer", "ring 3 name 2"], k=1)
    trained.save_pretrained(tmp_path / "model")
    again = Superbloom.from_pretrained(tmp_path / "model")
    assert [p.name for p in again.predict(context, k=5)] == [p.name for p in after[:5]]
    again.extend(["another"])
    assert again.model.config.num_ids == trained.model.config.num_ids + 1
    with pytest.raises(InputError, match="no new name given"):
        again.extend(["another", "newcomer"])
    with pytest.raises(InputError, match="'nobody', which is not a new name"):
        again.extend(["one more"], like={"nobody": ["newcomer"]})


@pytest.fixture(scope="module")
def later() -> Corpus:
    """Rings; one of them has names that the earlier log did not have."""
    rng = np.random.default_rng(1)
    rows = []
    for _ in range(500):
        ring, start = int(rng.integers(0, 6)), int(rng.integers(0, 8))
        kind = "fresh" if ring == 0 else "ring"
        rows.append([f"{kind} {ring} name {(start + i) % 8}" for i in range(5)])
    return Corpus.from_sequences(rows)


@pytest.mark.system
def test_training_goes_on_with_a_newer_log(ring_corpus, later, tmp_path):
    first = Superbloom(**SMALL).fit(ring_corpus, steps=300, **FAST)
    kept = {name: value.clone() for name, value in first.model.network.state_dict().items()}
    first.save_pretrained(tmp_path / "first")
    asked, options = ["fresh 0 name 1", "fresh 0 name 3"], {"steps": 150, **FAST}
    second = Superbloom().fit(later, from_model=first, **options)
    assert second.model.config.num_ids == first.model.config.num_ids + 8
    assert torch.equal(second.model.bloom.table[:-8], first.model.bloom.table)
    for name, value in first.model.network.state_dict().items():
        assert torch.equal(value, kept[name])  # the first model is its own
    found = [prediction.name for prediction in second.predict(asked, k=6)]
    assert sum(name.startswith("fresh 0") for name in found) >= 4
    assert second.evaluate(later)["recall"]["10"]["value"] > 0.6
    from_folder = Superbloom().fit(later, from_model=tmp_path / "first", **options)
    for name, value in from_folder.model.network.state_dict().items():
        assert torch.equal(value, second.model.network.state_dict()[name])
    assert first.evaluate(later)["unknown"]["names"] == 8
    with pytest.raises(InputError, match="from_model decides"):
        Superbloom(dim=8).fit(later, from_model=first, **options)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_without_hashing_a_new_name_gets_a_token_of_its_own(ring_corpus, tmp_path, tied):
    options = SMALL | {"alpha": 1, "tied": tied}
    model = Superbloom(**options).fit(ring_corpus, steps=5, remember="none", **FAST)
    old, before = model.model, model.predict(["ring 3 name 1"], k=5)
    model.extend(["newcomer", "stranger"], like={"newcomer": ["ring 3 name 1", "ring 3 name 5"]})
    new, ids = model.model, old.config.num_ids
    assert new.config.num_tokens == old.config.num_tokens + 2
    assert torch.equal(new.bloom.digest(torch.tensor([ids, ids + 1])), torch.tensor([[ids], [ids + 1]]))
    table, was = new.network.embedding.weight, old.network.embedding.weight
    assert torch.equal(torch.cat([table[:ids], table[ids + 2 :]]), was)  # old names and special tokens are as they were
    liked = [old.vocab.id(name) for name in ("ring 3 name 1", "ring 3 name 5")]
    assert torch.allclose(table[ids], was[liked].mean(0))
    assert not table[ids + 1].any()
    assert [answer.name for answer in model.predict(["ring 3 name 1"], k=5)] == [answer.name for answer in before]
    model.save_pretrained(tmp_path / "model")
    again = Superbloom.from_pretrained(tmp_path / "model")
    assert [answer.name for answer in again.predict(["newcomer"], k=3)] == [
        answer.name for answer in model.predict(["newcomer"], k=3)
    ]
    newer = Corpus.from_sequences([["ring 3 name 1", "newcomer", "a fourth"]] * 30)
    assert Superbloom().fit(newer, from_model=model, steps=2, **FAST).model.config.num_ids == ids + 3
