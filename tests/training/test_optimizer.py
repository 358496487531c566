"""Row-wise Adam against torch's own, and clipping of gradients that are not all dense."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from superbloom.training.optimizer import RowAdam, clip


def lookups(sparse: bool, steps: list[list[int]], make) -> tuple[torch.Tensor, torch.optim.Optimizer]:
    torch.manual_seed(0)
    table = nn.Parameter(torch.randn(6, 3))
    optimizer = make([table])
    for rows in steps:
        F.embedding(torch.tensor(rows), table, sparse=sparse).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return table, optimizer


@pytest.mark.parametrize("steps", [[[0, 2, 2]] * 5, [[0, 1], [4], [0, 5, 5], [1]]])
def test_rows_are_updated_as_by_sparse_adam(steps):
    ours, _ = lookups(True, steps, by_row)
    theirs, _ = lookups(True, steps, lambda parameters: torch.optim.SparseAdam(parameters, lr=0.1))
    # ours has AdamW's default decay; undo it by asking for none
    plain, _ = lookups(True, steps, without_decay)
    assert torch.allclose(plain, theirs, atol=1e-6)
    assert not torch.equal(ours, plain)


def by_row(parameters):
    return RowAdam(parameters, lr=0.1, by_row=parameters)


def without_decay(parameters):
    optimizer = by_row(parameters)
    optimizer.param_groups[0]["weight_decay"] = 0.0
    return optimizer


def test_dense_gradients_of_some_rows_give_the_same():
    """As they come from several processes."""
    steps = [[0, 1], [4], [0, 5, 5], [1]]
    (ours, _), (theirs, _) = (lookups(sparse, steps, by_row) for sparse in (True, False))
    assert torch.allclose(ours, theirs, atol=1e-7)


def test_where_every_row_is_used_it_is_adamw():
    steps = [list(range(6))] * 4
    ours, mine = lookups(True, steps, by_row)
    theirs, other = lookups(False, steps, lambda parameters: torch.optim.AdamW(parameters, lr=0.1))
    assert torch.allclose(ours, theirs, atol=1e-6)
    for name, value in other.state[theirs].items():
        assert torch.allclose(mine.state[ours][name], value, atol=1e-6), name


def test_rows_that_no_step_used_stay_as_they_were():
    table, _ = lookups(True, [[1, 3]], by_row)
    torch.manual_seed(0)
    changed = (table != torch.randn(6, 3)).any(dim=1)
    assert changed.tolist() == [False, True, False, True, False, False]


@pytest.mark.parametrize("largest", [0.5, 100.0])
def test_clipping_counts_sparse_gradients_as_dense_ones(largest):
    found = []
    for sparse in (True, False):
        torch.manual_seed(0)
        table, other = nn.Parameter(torch.randn(6, 3)), nn.Parameter(torch.randn(3))
        (F.embedding(torch.tensor([0, 4, 4]), table, sparse=sparse) * other).sum().backward()
        norm = clip([table, other], largest)
        found.append((norm, table.grad.to_dense(), other.grad))
    (one, *ours), (two, *theirs) = found
    assert one == pytest.approx(two)
    assert one > 0.5
    for mine, yours in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, yours)
    clipped = torch.cat([part.flatten() for part in ours]).norm().item()
    assert clipped == pytest.approx(min(one, largest), rel=1e-4)


def test_the_average_is_the_running_mean_of_the_weights():
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(5, 3))
    optimizer = RowAdam([weight], lr=0.1, average=0.6)
    expected = None
    for step in range(1, 30):
        weight.grad = torch.randn(5, 3)
        optimizer.step()
        share = max(0.4, 10 / (10 + step))
        expected = weight.detach().clone() if expected is None else expected.lerp(weight.detach(), share)
    assert share == 0.4
    current = weight.detach().clone()
    with optimizer.averaged():
        assert torch.allclose(weight, expected, atol=1e-6)
        assert not torch.allclose(weight, current, atol=1e-2)
    assert torch.equal(weight, current)


@pytest.mark.parametrize(("before", "after"), [(0.9, 0.0), (0.0, 0.9), (0.9, 0.9)])
def test_an_average_may_be_given_up_or_begun_with_a_resumed_run(before, after):
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(3))

    def steps(optimizer: RowAdam, number: int) -> None:
        for _ in range(number):
            weight.grad = torch.ones(3)
            optimizer.step()

    first, second = (RowAdam([weight], lr=0.1, average=average) for average in (before, after))
    steps(first, 5)
    second.load_state_dict(first.state_dict())
    steps(second, 60)
    current = weight.detach().clone()
    second.exchange()
    assert torch.equal(weight, current) == (after == 0.0)
    assert torch.allclose(weight, current, atol=1.2)  # some ten steps behind, not sixty


def test_without_an_average_there_is_nothing_to_exchange():
    weight = nn.Parameter(torch.ones(2))
    optimizer = RowAdam([weight], lr=0.1)
    weight.grad = torch.ones(2)
    optimizer.step()
    current = weight.detach().clone()
    optimizer.exchange()
    assert torch.equal(weight, current)
    assert set(optimizer.state[weight]) == {"step", "exp_avg", "exp_avg_sq"}
