"""Products in bfloat16 are close to those in float32, only inside the block, and only where the CPU can."""

import pytest
import torch

from superbloom.training.arithmetic import bf16_products


@pytest.fixture
def factors() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(64, 256, generator=generator), torch.randn(256, 64, generator=generator)


def test_products_are_rounded_inside_the_block_only(factors):
    left, right = factors
    exact = left.double() @ right.double()
    with bf16_products():
        inside = left @ right
    error = (inside.double() - exact).abs().max().item()
    assert error < 0.5, "sums of 256 products whose factors have 8 bits"
    if torch.cpu._is_amx_tile_supported():
        assert error > 1e-3, "products are still those of float32, so nothing is gained"
    assert (left @ right - exact).abs().max() < 1e-4


def test_errors_leave_the_block(factors):
    left, right = factors
    before = left @ right
    with pytest.raises(ValueError, match="stops"), bf16_products():
        raise ValueError("stops")
    assert torch.equal(left @ right, before)
