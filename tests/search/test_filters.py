"""Filters: ids and masks give the same answers, lists of any size are ranked correctly, wrong filters are refused."""

from functools import partial

import numpy as np
import pytest
import torch

from superbloom.errors import InputError
from superbloom.hashing.bloom import BloomHash
from superbloom.search import certified

# The paper's score; test_posterior.py tests the default.
top_k, exhaustive = (partial(search, combine="sum") for search in (certified.top_k, certified.exhaustive))
NUM_IDS = 20_000
# By a direct ranking, which is cheaper for few ids, and by opening buckets until the answer is certified.
WAYS = [{}, {"beam": 4, "max_rounds": 100}]


@pytest.fixture(scope="module")
def bloom():
    return BloomHash.random(NUM_IDS, 2, 10, seed=0)


@pytest.fixture(scope="module")
def log_probs(bloom):
    return (3 * torch.randn(3, 2, bloom.num_buckets, generator=torch.manual_seed(0))).log_softmax(-1)


def by_hand(log_probs: torch.Tensor, bloom: BloomHash, k: int, rows: list) -> list[list[int]]:
    """The k best ids of each row: all ids are scored, the others removed, and −1 fills."""
    values, table = log_probs.numpy(), bloom.table.numpy()
    answers = []
    for query, ids in zip(values, rows, strict=True):
        scores = query[0, table[:, 0]] + query[1, table[:, 1]]
        ranked = [id_ for id_ in np.lexsort((np.arange(NUM_IDS), -scores)).tolist() if id_ in ids]
        answers.append((ranked + [-1] * k)[:k])
    return answers


def mask_of(rows: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(len(rows), NUM_IDS, dtype=torch.bool)
    for query, ids in enumerate(rows.tolist()):
        mask[query, [id_ for id_ in ids if id_ >= 0]] = True
    return mask


def some_ids(size: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).permutation(NUM_IDS)[:size])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [1, 10, NUM_IDS // 2, NUM_IDS])
def test_an_allow_list_of_any_size_equals_the_ranking_restricted_by_hand(bloom, log_probs, size, way):
    allow = some_ids(size)
    found = top_k(log_probs, bloom, 15, allow=allow, **way)
    assert found.ids.tolist() == by_hand(log_probs, bloom, 15, [set(allow.tolist())] * 3)
    assert found.certified.all()
    assert torch.equal(found.ids, exhaustive(log_probs, bloom, 15, allow=allow).ids)
    assert torch.equal(found.scores == -torch.inf, found.ids == -1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", ["allow", "exclude"])
def test_the_same_filter_as_ids_and_as_a_mask_gives_the_same_answer(bloom, log_probs, name, rows, way):
    plain = top_k(log_probs, bloom, 40).ids
    # Every second of each query's best ids, so that any filter changes the answer.
    ids = plain[:rows, ::2]
    listed = top_k(log_probs, bloom, 25, **{name: ids}, **way)
    masked = top_k(log_probs, bloom, 25, **{name: mask_of(ids)}, **way)
    assert torch.equal(listed.ids, masked.ids)
    assert torch.equal(listed.scores, masked.scores)
    assert not torch.equal(listed.ids, plain[:, :25])
    if rows == 1:  # one row may also come flat
        assert torch.equal(top_k(log_probs, bloom, 25, **{name: ids[0]}, **way).ids, listed.ids)


@pytest.mark.parametrize("way", WAYS)
def test_lists_of_each_query_may_repeat_ids_and_be_filled_up(bloom, log_probs, way):
    allow = torch.tensor([[7, -1, 7, 3, 3, -1], [11, -1, -1, -1, -1, -1], [2, 9, 4, 19_999, 0, 9]])
    rows = [{3, 7}, {11}, {0, 2, 4, 9, 19_999}]
    found = top_k(log_probs, bloom, 6, allow=allow, **way)
    assert found.ids.tolist() == by_hand(log_probs, bloom, 6, rows)
    best = top_k(log_probs, bloom, 6).ids
    exclude = torch.cat([best[:, [0, 2, 0, 2]], torch.full((3, 2), -1)], dim=1)
    exclude[1] = -1  # the second query excludes nothing
    rest = [set(range(NUM_IDS)) - set(ids) for ids in exclude.tolist()]
    assert top_k(log_probs, bloom, 6, exclude=exclude, **way).ids.tolist() == by_hand(log_probs, bloom, 6, rest)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("allow_as", ["ids", "mask", "ids of each query"])
@pytest.mark.parametrize("exclude_as", ["ids", "mask", "mask of each query"])
def test_what_is_both_allowed_and_excluded_is_not_answered(bloom, log_probs, allow_as, exclude_as, way):
    allow, exclude = some_ids(500, seed=1), some_ids(15_000, seed=2)
    shapes = {
        "ids": lambda ids: ids,
        "mask": lambda ids: mask_of(ids[None])[0],
        "ids of each query": lambda ids: ids.expand(3, -1),
        "mask of each query": lambda ids: mask_of(ids[None]).expand(3, -1),
    }
    left = set(allow.tolist()) - set(exclude.tolist())
    found = top_k(log_probs, bloom, 20, allow=shapes[allow_as](allow), exclude=shapes[exclude_as](exclude), **way)
    assert found.ids.tolist() == by_hand(log_probs, bloom, 20, [left] * 3)


@pytest.mark.parametrize("way", WAYS)
def test_where_all_that_is_allowed_is_excluded_there_is_no_answer(bloom, log_probs, way):
    found = top_k(log_probs, bloom, 2, allow=torch.tensor([5, 6]), exclude=torch.tensor([6, 5, -1]), **way)
    assert found.ids.tolist() == [[-1, -1]] * 3
    assert found.certified.all()


def test_the_callers_filter_is_left_as_it_was(bloom, log_probs):
    allow, exclude = torch.tensor([[9, 3, 9], [4, -1, 2], [8, 8, 8]]), torch.ones(NUM_IDS, dtype=torch.bool)
    exclude[:10] = False
    before = allow.clone(), exclude.clone()
    top_k(log_probs, bloom, 2, allow=allow, exclude=exclude)
    top_k(log_probs, bloom, 2, allow=~exclude, exclude=allow)
    assert torch.equal(allow, before[0])
    assert torch.equal(exclude, before[1])


@pytest.mark.parametrize("name", ["exclude", "allow"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.tensor([3, 10]), "holds the id 10; ids from 0 to 9 are allowed, −1 fills"),
        (torch.tensor([[3, 4], [-2, 4]]), "holds the id -2; ids from 0 to 9 are allowed, −1 fills"),
        (torch.tensor([3.0]), "of type torch.float32 given; whole numbers (ids) or booleans (a mask) are allowed"),
        (torch.ones(10, dtype=torch.uint8), "of type torch.uint8 given; make a mask bool (.bool()), or ids int64"),
        (np.ones((2, 10), dtype=np.uint8), "of type torch.uint8 given; make a mask bool (.bool()), or ids int64"),
        (torch.tensor([3j]), "of type torch.complex64 given; whole numbers (ids) or booleans (a mask) are allowed"),
        (torch.tensor(3), "of shape () given; ids (any,) or (2, any) are allowed, or a mask (10,) or (2, 10)"),
        (torch.zeros(3, 4, dtype=torch.long), "of shape (3, 4) given; ids (any,) or (2, any) are allowed"),
        (torch.zeros(1, 1, 4, dtype=torch.long), "of shape (1, 1, 4) given; ids (any,) or (2, any) are allowed"),
        (torch.ones(9, dtype=torch.bool), "of shape (9,) given; ids (any,) or (2, any) are allowed, or a mask (10,)"),
        (torch.ones(2, 11, dtype=torch.bool), "of shape (2, 11) given; ids (any,) or (2, any) are allowed"),
        (torch.ones(3, 10, dtype=torch.bool), "of shape (3, 10) given; ids (any,) or (2, any) are allowed"),
    ],
)
@pytest.mark.parametrize("search", [top_k, exhaustive])
def test_a_filter_that_does_not_fit_is_refused_by_name(search, name, given, message):
    bloom = BloomHash.random(10, 2, 2)
    with pytest.raises(InputError) as error:
        search(torch.zeros(2, 2, 5), bloom, 1, **{name: given})
    assert str(error.value).startswith(f"{name} {message}")


@pytest.mark.parametrize(
    ("allow", "query"),
    [
        (torch.tensor([-1, -1]), 0),
        (torch.tensor([], dtype=torch.long), 0),
        (torch.tensor([[4, -1], [-1, -1]]), 1),
        (torch.zeros(10, dtype=torch.bool), 0),
        (torch.arange(10).expand(2, 10) < torch.tensor([[3], [0]]), 1),
    ],
)
def test_a_query_that_allows_nothing_is_named(allow, query):
    with pytest.raises(InputError, match=f"allow holds no id for query {query}; give at least one, or leave allow out"):
        top_k(torch.zeros(2, 2, 5), BloomHash.random(10, 2, 2), 1, allow=allow)


def test_excluding_nothing_is_allowed():
    bloom = BloomHash.random(10, 2, 2)
    for exclude in (torch.tensor([], dtype=torch.long), torch.tensor([-1]), torch.zeros(10, dtype=torch.bool)):
        assert top_k(torch.zeros(2, 2, 5), bloom, 3, exclude=exclude).ids.tolist() == [[0, 1, 2]] * 2
