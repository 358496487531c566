"""The chunked softmax against float64, and the sampled one against what it estimates."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from superbloom.loss import Sampler, full_softmax_loss, sampled_softmax_loss


def problem(groups=2, queries=12, tokens=40, dim=6, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    y, weight = (torch.randn(groups, size, dim, generator=generator, dtype=dtype) for size in (queries, tokens))
    bias = torch.randn(groups, tokens, generator=generator, dtype=dtype)
    targets = torch.randint(tokens, (groups, queries), generator=generator)
    return [part.requires_grad_() for part in (y, weight, bias)], targets


def plain_loss(y, weight, bias, targets):
    logits = torch.einsum("gqd,gtd->gqt", y, weight) + (0 if bias is None else bias[:, None])
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


@pytest.mark.parametrize("with_bias", [True, False])
def test_pieces_add_up_to_the_plain_cross_entropy(with_bias, monkeypatch):
    parts, targets = problem(dtype=torch.float64)
    if not with_bias:
        parts[2] = None
    expected = plain_loss(*parts, targets)
    inputs = [part for part in parts if part is not None]
    gradients = torch.autograd.grad(3 * expected, inputs)
    monkeypatch.setattr("superbloom.loss._rows", lambda tokens, budget: 5)  # pieces of 5, 5 and 2 rows
    found = full_softmax_loss(*parts, targets, 256)
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    for ours, theirs in zip(torch.autograd.grad(3 * found, inputs), gradients, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-10)


def test_200k_tokens_in_float32_agree_with_float64():
    parts, targets = problem(groups=1, queries=24, tokens=200_000, dim=32)
    doubles = [part.detach().double().requires_grad_() for part in parts]
    expected = plain_loss(*doubles, targets)
    found = full_softmax_loss(*parts, targets, budget_mb=16)  # 10 rows at a time
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    found.backward()
    expected.backward()
    for ours, theirs in zip(parts, doubles, strict=True):
        assert torch.allclose(ours.grad.double(), theirs.grad, atol=1e-6, rtol=1e-4)


def test_logits_stay_within_the_budget():
    """The largest tensor the loss makes, seen by torch's own dispatcher."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        bytes = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, tuple | list) else (out,):
                if isinstance(tensor, torch.Tensor):
                    self.bytes = max(self.bytes, tensor.untyped_storage().nbytes())
            return out

    parts, targets = problem(groups=1, queries=512, tokens=20_000, dim=2)
    for budget_mb in (1, 8):
        with Largest() as largest:
            full_softmax_loss(*parts, targets, budget_mb)
        assert budget_mb * 2**20 / 4 < largest.bytes <= budget_mb * 2**20


def test_large_logits_do_not_overflow():
    parts, targets = problem()
    with torch.no_grad():
        parts[0] *= 1e4
    loss = full_softmax_loss(*parts, targets, 256)
    assert torch.isfinite(loss)
    assert loss.item() == pytest.approx(plain_loss(*parts, targets).item(), rel=1e-5)


@pytest.mark.parametrize("proposal", ["log-uniform", "empirical"])
def test_a_sampler_draws_as_it_says(proposal):
    counts = np.array([5, 20, 0, 50, 10, 1])
    sampler = Sampler(proposal, counts, samples=6)
    draws = [sampler.draw(seed, torch.device("cpu")) for seed in range(20_000)]
    tokens, log_q = (torch.cat(parts) for parts in zip(*draws, strict=True))
    found = torch.bincount(tokens, minlength=6)
    expected = torch.empty(6).scatter(0, tokens, log_q.exp())  # per draw of six
    assert expected.sum().item() == pytest.approx(6, rel=1e-5)
    assert torch.allclose(found.float(), expected * 20_000, rtol=0.06)
    assert found.argsort(descending=True).tolist() == [3, 1, 4, 0, 5, 2]  # by frequency


@pytest.mark.parametrize("proposal", ["log-uniform", "empirical"])
def test_the_sampled_loss_estimates_the_full_one(proposal):
    """logQ correction: with ever more negatives the loss and its gradient approach the full softmax."""
    parts, targets = problem(groups=1, queries=6, tokens=30, dtype=torch.float64)
    full = plain_loss(*parts, targets)
    (gradient,) = torch.autograd.grad(full, parts[0])
    sampler = Sampler(proposal, np.arange(30)[::-1], samples=30)
    sampler.samples, sampler._log_q = 30_000, sampler._log_q + np.log(1000)
    loss = sampled_softmax_loss(*parts, targets, sampler, 256, seed=1)
    assert loss.item() == pytest.approx(full.item(), rel=0.02)
    assert torch.allclose(torch.autograd.grad(loss, parts[0])[0], gradient, atol=0.06)


def test_accidental_hits_are_removed():
    """All negatives are the target itself: nothing is left to push against."""
    parts, _ = problem(groups=1, queries=3, tokens=5)
    sampler = Sampler("empirical", np.array([0, 0, 10**12, 0, 0]), samples=4)
    assert sampler.draw(0, torch.device("cpu"))[0].unique().tolist() == [2]
    loss = sampled_softmax_loss(*parts, torch.full((1, 3), 2), sampler, 256, seed=0)
    assert loss.item() == pytest.approx(0.0, abs=1e-6)
