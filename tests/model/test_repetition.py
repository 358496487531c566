"""What the context says about its own ids: log-probabilities against a plain calculation over all buckets."""

from dataclasses import replace

import pytest
import torch

from superbloom.config import ModelConfig
from superbloom.corpus import Vocab
from superbloom.model import Model, Repetition
from superbloom.model.extend import extend
from superbloom.model.head import PRODUCTS
from superbloom.predict import Predictor
from superbloom.special import Special

MASK, PAD = int(Special.MASK), int(Special.PAD)
BY_DISTANCE = torch.tensor([-2.0, 0.5, 1.5, 0.25, -1.0, 3.0])
FIRST_DISTANCES = [1, 2, 4, 8, 16, 32]


def made(**options) -> Model:
    torch.manual_seed(0)
    config = ModelConfig(num_ids=60, alpha=3, dim=16, ffn_dim=16, seq_len=50, **options)
    model = Model.create(config, Vocab.from_counts({f"name {i}": 60 - i for i in range(60)}))
    model.network.eval()
    return replace(model, repetition=Repetition(BY_DISTANCE))


def seen_from(ids: list[int], place: int, mask_as: str) -> list[tuple[int, int]]:
    """The known ids of a context with their distances."""
    return [
        (id_, abs(column - place))
        for column, id_ in enumerate(ids)
        if id_ >= 0 and column != place and (mask_as != "next" or column < place)
    ]


def plain(model: Model, ids: list[int], place: int) -> torch.Tensor:
    """Log-probabilities (m, buckets): the number of the nearest element in each bucket is added to its logit."""
    bare = replace(model, repetition=None)
    logits = bare.log_probs(torch.tensor([ids]), torch.tensor([[place]]))[0].clone()
    for j in range(2):
        apart: dict[int, int] = {}
        for id_, distance in seen_from(ids, place, model.config.mask_as):
            bucket = int(model.bloom.table[id_, j])
            apart[bucket] = min(distance, apart.get(bucket, distance))
        for bucket, distance in apart.items():
            logits[j, bucket] += BY_DISTANCE[sum(first <= distance for first in FIRST_DISTANCES) - 1]
    return logits.log_softmax(-1)


@pytest.mark.parametrize("mask_as", ["question", "element", "next"])
def test_the_nearest_element_of_a_bucket_adds_its_number(mask_as):
    """Repeated ids, ids that share a bucket, masks and padding."""
    model = made(mask_as=mask_as)
    mates = model.bloom.members[0][int(model.bloom.table[7, 0])].tolist()
    long = [7, *mates, 7, 9, *range(20, 38), MASK, 7, 9, 7, *range(40, 60)]
    short = [*mates, MASK, 7, 5]
    short += [PAD] * (len(long) - len(short))
    for place in (long.index(MASK), 3):
        both = model.log_probs(torch.tensor([long, short]), torch.tensor([[place], [place]]))
        for row, ids in zip(both, (long, short), strict=True):
            assert torch.allclose(row, plain(model, ids, place), atol=1e-5)


@pytest.mark.parametrize("precision", PRODUCTS)
def test_every_head_adds_it_and_no_other_query_matters(precision):
    predictor = Predictor(made(), precision=precision)
    ids, places = torch.tensor([[7, 9, MASK, 7], [5, MASK, PAD, PAD]]), torch.tensor([[2], [1]])
    found = predictor.network(ids, places)
    assert predictor.model.context(ids, places).tolist() == [[7, 9, -1, 7], [5, -1, -1, -1]]
    assert found.exp().sum(-1).flatten().tolist() == pytest.approx([1] * 4, abs=1e-5)
    alone = predictor.network(ids[1:, :2], places[1:])
    assert torch.allclose(found[1], alone[0], atol=1e-6)
    expected = torch.stack(
        [plain(predictor.model, row, place) for row, (place,) in zip(ids.tolist(), places.tolist(), strict=True)]
    )
    assert torch.allclose(found, expected, atol=0.05 if precision != "fp32" else 1e-5)


def test_a_model_that_knows_no_distances_has_one_number():
    model = replace(made(distance=False), repetition=Repetition(torch.tensor([-1.0])))
    near, far = ([7, 9, MASK, 5], [5, 9, MASK, 7])
    places = torch.tensor([[2]])
    one, other = (model.log_probs(torch.tensor([ids]), places) for ids in (near, far))
    assert torch.allclose(one, other, atol=1e-6)
    assert not torch.allclose(one, replace(model, repetition=None).log_probs(torch.tensor([near]), places), atol=1e-3)


def test_an_extended_model_keeps_it():
    model = made()
    assert extend(model, ["one more"]).repetition is model.repetition
