"""The softmax in pieces against float64, and the sampled softmax against the full one that it estimates."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from superbloom.model.loss import Sampler, full_softmax_loss, sampled_softmax_loss


def problem(groups=2, queries=12, tokens=40, dim=6, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.randn(groups, queries, dim, generator=generator, dtype=dtype)
    table = torch.randn(groups * tokens + 3, dim, generator=generator, dtype=dtype)  # the last rows are no tokens
    bias = torch.randn(groups * tokens, generator=generator, dtype=dtype)
    targets = torch.randint(tokens, (groups, queries), generator=generator)
    return [part.requires_grad_() for part in (y, table, bias)], targets, tokens


def plain_loss(y, table, bias, targets, tokens):
    weight = table[: len(y) * tokens].unflatten(0, (len(y), tokens))
    logits = torch.einsum("gqd,gtd->gqt", y, weight) + (0 if bias is None else bias.unflatten(0, (-1, 1, tokens)))
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("budget", [5 * 40, 5 * 13, 12 * 40, 1])
def test_pieces_add_up_to_the_plain_cross_entropy(with_bias, budget, monkeypatch):
    """Pieces of 5, 5 and 2 rows, of all 40 tokens or of 13, 13, 13 and 1; all in one; and one row and token each."""
    parts, targets, tokens = problem(dtype=torch.float64)
    if not with_bias:
        parts[2] = None
    expected = plain_loss(*parts, targets, tokens)
    inputs = [part for part in parts if part is not None]
    gradients = torch.autograd.grad(3 * expected, inputs)
    monkeypatch.setattr("superbloom.model.loss._logits_in", lambda _: budget)
    monkeypatch.setattr("superbloom.model.loss.MIN_PIECE_ROWS", min(5, budget))
    found = full_softmax_loss(*parts, targets, tokens, 256)
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    for ours, theirs in zip(torch.autograd.grad(3 * found, inputs), gradients, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-10)


def test_200k_tokens_in_float32_agree_with_float64():
    parts, targets, tokens = problem(groups=1, queries=24, tokens=200_000, dim=32)
    doubles = [part.detach().double().requires_grad_() for part in parts]
    expected = plain_loss(*doubles, targets, tokens)
    found = full_softmax_loss(*parts, targets, tokens, budget_mb=16)  # 87,381 tokens at a time
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

    parts, targets, tokens = problem(groups=1, queries=512, tokens=20_000, dim=2)
    for budget_mb in (1, 8):
        with Largest() as largest:
            full_softmax_loss(*parts, targets, tokens, budget_mb)
        assert budget_mb * 2**20 / 4 < largest.bytes <= budget_mb * 2**20


@pytest.mark.parametrize("budget", [5 * 13, 10**6])
@pytest.mark.parametrize("how", ["autocast", "bfloat16"])
def test_products_of_fewer_bits_lose_no_more_than_those(how, budget, monkeypatch):
    """With autocast, or all in bfloat16: the loss and each gradient equal those of float64 to about two digits."""
    parts, targets, tokens = problem()
    doubles = [part.detach().double().requires_grad_() for part in parts]
    expected = torch.autograd.grad(plain_loss(*doubles, targets, tokens), doubles)
    if how == "bfloat16":
        parts = [part.detach().bfloat16().requires_grad_() for part in parts]
    monkeypatch.setattr("superbloom.model.loss._logits_in", lambda _: budget)
    monkeypatch.setattr("superbloom.model.loss.MIN_PIECE_ROWS", 5)
    with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
        found = full_softmax_loss(*parts, targets, tokens, 256)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(plain_loss(*doubles, targets, tokens).item(), rel=0.01)
    for ours, theirs in zip(torch.autograd.grad(found, parts), expected, strict=True):
        assert (ours.double() - theirs).norm() < 0.02 * theirs.norm()


def test_large_logits_do_not_overflow():
    parts, targets, tokens = problem()
    with torch.no_grad():
        parts[0] *= 1e4
    loss = full_softmax_loss(*parts, targets, tokens, 256)
    assert torch.isfinite(loss)
    assert loss.item() == pytest.approx(plain_loss(*parts, targets, tokens).item(), rel=1e-5)


def test_proposals_are_what_they_are_called():
    counts = np.array([5, 20, 0, 50, 10, 1])
    rank = np.array([3, 1, 5, 0, 2, 4])
    zipf = np.log((rank + 2) / (rank + 1)) / np.log(7)
    powers = (counts + 1) ** 0.75
    for proposal, expected in (("log-uniform", zipf), ("empirical", powers / powers.sum())):
        for samples, drawn in ((4, 4), (100, 6)):
            sampler = Sampler(proposal, counts, samples)
            assert sampler.samples == drawn
            assert sampler._log_q.exp().numpy() == pytest.approx(drawn * expected, rel=1e-5)
            assert sampler._cumulative.numpy() == pytest.approx(np.cumsum(expected))
            tokens, log_q = sampler.draw(3, torch.device("cpu"))
            assert torch.equal(log_q, sampler._log_q[tokens])


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


def test_without_log_q_negatives_keep_their_logits():
    with_it, without = (Sampler("empirical", np.arange(30), samples=20, log_q=log_q) for log_q in (True, False))
    tokens, log_q = without.draw(5, torch.device("cpu"))
    assert torch.equal(tokens, with_it.draw(5, torch.device("cpu"))[0])
    assert log_q.abs().max() == 0


@pytest.mark.parametrize("proposal", ["log-uniform", "empirical"])
def test_the_sampled_loss_estimates_the_full_one(proposal):
    """logQ correction: with ever more negatives the loss and its gradient approach the full softmax."""
    parts, targets, tokens = problem(groups=1, queries=6, tokens=30, dtype=torch.float64)
    full = plain_loss(*parts, targets, tokens)
    (gradient,) = torch.autograd.grad(full, parts[0])
    sampler = Sampler(proposal, np.arange(30)[::-1], samples=30)
    sampler.samples, sampler._log_q = 30_000, sampler._log_q + np.log(1000)
    y, table, bias = parts
    loss = sampled_softmax_loss(y[0], table, bias, targets[0], sampler, 256, seed=1)
    assert loss.item() == pytest.approx(full.item(), rel=0.02)
    assert torch.allclose(torch.autograd.grad(loss, parts[0])[0], gradient, atol=0.08)


@pytest.mark.parametrize("budget", [5 * 20, 5 * 7, 10**6])
@pytest.mark.parametrize("with_bias", [True, False])
def test_the_gradients_of_the_sampled_loss_are_those_of_its_formula(with_bias, budget, monkeypatch):
    (y, table, bias), targets, _ = problem(groups=1, queries=12, tokens=30, dtype=torch.float64)
    parts = [y, table, bias] if with_bias else [y, table]
    sampler = Sampler("empirical", np.arange(30)[::-1], samples=20)
    monkeypatch.setattr("superbloom.model.loss._logits_in", lambda _: budget)
    monkeypatch.setattr("superbloom.model.loss.MIN_PIECE_ROWS", 5)
    negatives, log_q = sampler.draw(3, torch.device("cpu"))
    assert (negatives == targets[0][:, None]).any(), "a negative that is a target"
    against = y[0] @ table[negatives].T - log_q + (bias[negatives] if with_bias else 0)
    against = against.masked_fill(negatives == targets[0][:, None], -torch.inf)
    right = (y[0] * table[targets[0]]).sum(1) + (bias[targets[0]] if with_bias else 0)
    expected = (torch.cat([right[:, None], against], dim=1).logsumexp(1) - right).sum()
    for sparse in (False, True):
        bias_or_none = bias if with_bias else None
        found = sampled_softmax_loss(y[0], table, bias_or_none, targets[0], sampler, 256, seed=3, sparse=sparse)
        assert found.item() == pytest.approx(expected.item(), rel=1e-12)
        theirs = torch.autograd.grad(2 * expected, parts, retain_graph=True)
        for mine, yours in zip(torch.autograd.grad(2 * found, parts), theirs, strict=True):
            assert torch.allclose(mine.to_dense(), yours, rtol=1e-10, atol=1e-12)


def test_accidental_hits_are_removed():
    """All negatives are the target itself: nothing is left to push against."""
    (y, table, bias), _, _ = problem(groups=1, queries=3, tokens=5)
    sampler = Sampler("empirical", np.array([0, 0, 10**12, 0, 0]), samples=4)
    assert sampler.draw(0, torch.device("cpu"))[0].unique().tolist() == [2]
    loss = sampled_softmax_loss(y[0], table, bias, torch.full((3,), 2), sampler, 256, seed=0)
    assert loss.item() == pytest.approx(0.0, abs=1e-6)
