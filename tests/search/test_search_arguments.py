"""Wrong arguments of the search raise a one-line error, and NaN is never ranked."""

import itertools
import re

import pytest
import torch

from superbloom.errors import InputError
from superbloom.hashing.bloom import BloomHash
from superbloom.search.certified import exhaustive, top_k
from superbloom.search.scoring import Bonus

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "k=0 given; whole numbers from 1 are allowed"),
        ({"k": -1}, "k=-1 given; whole numbers from 1 are allowed"),
        ({"k": 2.5}, "k=2.5 given; whole numbers from 1 are allowed"),
        ({"k": True}, "k=True given; whole numbers from 1 are allowed"),
        ({"k": 11}, "k=11 given; the catalogue has 10 ids, so 1 to 10 is allowed"),
        ({"k": torch.tensor([2, 11])}, "k=11 given; the catalogue has 10 ids, so 1 to 10 is allowed"),
        ({"k": torch.tensor([2, 0])}, "k=0 given; the catalogue has 10 ids, so 1 to 10 is allowed"),
        ({"k": torch.tensor([1, 2, 3])}, "k=a tensor of shape (3,) given; a whole number, or one for each of the 2"),
        ({"k": torch.tensor(3)}, "k=tensor(3) given; a whole number, or one for each of the 2 queries, is allowed"),
        ({"k": torch.tensor([1.0, 2.0])}, "k=a tensor of shape (2,) given; a whole number, or one for each of the 2"),
        ({"k": torch.tensor([True, True])}, "k=a tensor of shape (2,) given; a whole number, or one for each of the 2"),
        (
            {"combine": "mean"},
            "combine='mean' given; posterior, sum, min, max, a weight for each hash, or a function are allowed",
        ),
        ({"combine": [1.0]}, "combine=[1.0] given; a positive weight for each of the 2 hashes is allowed"),
        ({"combine": [1, 2, 3]}, "combine=[1, 2, 3] given; a positive weight for each of the 2 hashes is allowed"),
        ({"combine": [0.0, 1.0]}, "combine=[0.0, 1.0] given; a positive weight for each of the 2 hashes is allowed"),
        ({"combine": [1.0, -1.0]}, "combine=[1.0, -1.0] given; a positive weight for each of the 2 hashes is allowed"),
        ({"combine": [INF, 1.0]}, "combine=[inf, 1.0] given; a positive weight for each of the 2 hashes is allowed"),
        (
            {"combine": [1e-50, 1.0]},
            "combine=[1e-50, 1.0] given; a positive weight for each of the 2 hashes is allowed",
        ),
        ({"combine": [NAN, 1.0]}, "combine=[nan, 1.0] given; a positive weight for each of the 2 hashes is allowed"),
        ({"combine": lambda x: x.sum(-1) * NAN}, "combine gave NaN; a function of (..., m) to numbers (...) is"),
        ({"combine": lambda x: x}, "combine gave shape (10, 2) from (10, '…'); a function of (..., m) to numbers"),
        ({"combine": lambda x: x.sum()}, "combine gave shape () from (10, '…'); a function of (..., m) to numbers"),
        ({"min_score": NAN}, "min_score=nan given; a number, or one for each of the 2 queries, is allowed"),
        ({"min_score": torch.tensor([0.0, NAN])}, "min_score=a tensor of shape (2,) given; a number, or one for each"),
        ({"min_score": torch.zeros(3)}, "min_score=a tensor of shape (3,) given; a number, or one for each of the 2"),
        (
            {"min_score": torch.zeros(1, 2)},
            "min_score=a tensor of shape (1, 2) given; a number, or one for each of the 2",
        ),
    ],
)
@pytest.mark.parametrize("search", [top_k, exhaustive])
def test_bad_arguments_are_refused(search, change, message):
    bloom = BloomHash.random(10, 2, 2)
    with pytest.raises(InputError) as error:
        search(torch.zeros(2, 2, 5), bloom, **{"k": 1} | change)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("name", ["beam", "max_rounds"])
@pytest.mark.parametrize("value", [0, -3, 1.5, True, "2"])
def test_a_beam_and_rounds_are_whole_numbers(name, value):
    with pytest.raises(InputError, match=f"{name}={value!r} given; whole numbers from 1 are allowed"):
        top_k(torch.zeros(1, 2, 5), BloomHash.random(10, 2, 2), 1, **{name: value})


@pytest.mark.parametrize("k", ["3", None, 1e9])
def test_a_k_that_is_no_whole_number_is_refused_as_such(k):
    with pytest.raises(InputError, match=f"k={k!r} given; whole numbers from 1 are allowed"):
        top_k(torch.zeros(1, 2, 5), BloomHash.random(10, 2, 2), k)


@pytest.mark.parametrize("name", ["k", "min_score"])
def test_a_matrix_given_for_numbers_is_refused_in_one_line(name):
    with pytest.raises(InputError, match=f"{name}=.* given; a whole number|{name}=.* given; a number") as error:
        top_k(torch.zeros(2, 2, 5), BloomHash.random(10, 2, 2), **{"k": 1} | {name: torch.ones(2, 2).int()})
    assert "\n" not in str(error.value)


def test_a_bonus_of_other_ids_is_refused():
    bloom, others = BloomHash.random(10, 2, 2), (BloomHash.random(9, 2, 2), BloomHash.random(12, 2, 2))
    for wrong in (torch.zeros(9), torch.zeros(10, 1), torch.full((10,), NAN), torch.full((10,), INF)):
        shape = re.escape(str(tuple(wrong.shape)))
        with pytest.raises(InputError, match=f"bonus of shape {shape} given; a finite number for each of the 10 ids"):
            Bonus.of(wrong, bloom)
    fits = Bonus.of(torch.zeros(10), bloom)
    assert top_k(torch.zeros(1, 2, 5), bloom, 2, bonus=fits, combine="sum").ids.tolist() == [[0, 1]]
    wrongs = [{"bonus": Bonus.of(torch.zeros(other.num_ids), other), "combine": "sum"} for other in others]
    wrongs += [
        {"bonus": fits, "combine": combine} for combine in ("posterior", "min", "max", [1.0, 1.0], lambda x: x.sum(-1))
    ]
    for options, search in itertools.product(wrongs, (top_k, exhaustive)):
        with pytest.raises(InputError, match="a bonus is a term of the sum, for the ids of these tables"):
            search(torch.zeros(1, 2, 5), bloom, 1, **options)


def test_a_bonus_too_large_for_float32_is_refused():
    with pytest.raises(InputError, match="a finite number for each of the 10 ids is needed"):
        Bonus.of(torch.full((10,), 1e39, dtype=torch.double), BloomHash.random(10, 2, 2))


@pytest.mark.parametrize(
    ("combine", "message"),
    [
        (lambda x: -x.sum(-1), "combine gave more for less; a function that is increasing in each argument is allowed"),
        (lambda x: x[..., 0] - 2 * x[..., 1], "combine gave more for less; a function that is increasing"),
        (lambda x: (x.sum(-1) + 10).sqrt() * NAN, "combine gave NaN; a function of (..., m) to numbers (...) is"),
        (lambda x: x[0], "combine gave shape (17, 2) from (2, 17, '…'); a function of (..., m) to numbers (...)"),
    ],
)
def test_a_callers_own_function_that_does_not_rank_is_refused_when_noticed(wide, combine, message):
    bloom, log_probs = wide
    with pytest.raises(InputError) as error:
        top_k(log_probs, bloom, 1, combine=combine, beam=16)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("shape", [(2, 5), (1, 2, 4), (1, 2, 6), (1, 1, 5), (1, 3, 5), (1, 1, 2, 5)])
@pytest.mark.parametrize("search", [top_k, exhaustive])
def test_log_probs_of_another_model_are_refused(search, shape):
    message = f"log_probs of shape {shape} given; these hash functions need (batch, 2, 5): are they another model's?"
    with pytest.raises(InputError, match=re.escape(message)):
        search(torch.zeros(shape), BloomHash.random(10, 2, 2), 1)


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("bucket", [3, -1])  # the last one is in no whole block
@pytest.mark.parametrize("combine", ["posterior", "sum", "min", "max", [0.5, 2.0]])
@pytest.mark.parametrize(
    "way",
    [
        "opened by blocks",
        "opened by whole rows",
        "ranked directly",
        "ranked for lists",
        "exhaustive",
    ],
)
def test_log_probs_without_a_rank_are_refused_wherever_they_stand(wide, way, combine, bucket, value):
    bloom, log_probs = wide
    small = BloomHash.random(10, 2, 2)
    ways = {
        "opened by blocks": lambda: top_k(wrong(log_probs), bloom, 1, combine=combine, beam=16),
        "opened by whole rows": lambda: top_k(wrong(log_probs), bloom, 1, combine=combine, beam=200, max_rounds=1),
        "ranked directly": lambda: top_k(wrong(torch.zeros(2, 2, 5)), small, 1, combine=combine),
        "ranked for lists": lambda: top_k(
            wrong(torch.zeros(2, 2, 5)), small, 1, combine=combine, allow=torch.arange(10).expand(2, 10)
        ),
        "exhaustive": lambda: exhaustive(wrong(log_probs), bloom, 1, combine=combine),
    }

    def wrong(log_probs):
        log_probs = log_probs.clone()
        log_probs[1, 1, bucket] = value
        return log_probs

    with pytest.raises(InputError, match=r"log_probs hold NaN or \+inf, which have no rank"):
        ways[way]()


@pytest.mark.parametrize("search", [top_k, exhaustive])
def test_nan_is_never_ranked(search):
    """NaN raises an error, even if all values are NaN."""
    bloom = BloomHash.random(10, 2, 2)
    for wrong in (torch.full((1, 2, 5), NAN), torch.tensor([[[0.0, NAN, 0.0, 0.0, 0.0], [0.0] * 5]])):
        with pytest.raises(InputError, match="NaN"):
            search(wrong, bloom, 1)


def test_one_number_without_a_rank_is_enough_to_refuse():
    bloom = BloomHash.random(10, 2, 2)
    log_probs = torch.linspace(-9, 0, 10).view(1, 2, 5)
    with pytest.raises(InputError, match="combine gave NaN"):
        exhaustive(log_probs, bloom, 1, combine=lambda x: x.sum(-1).masked_fill(x[..., 0] < -8, torch.nan))
    with pytest.raises(InputError, match="a bonus of shape"):
        Bonus.of(torch.tensor([0.0] * 9 + [torch.inf]), bloom)
