"""A catalogue with large buckets, for tests that need a search of several rounds."""

import pytest
import torch

from superbloom.hashing.bloom import BloomHash


@pytest.fixture(scope="module")
def wide():
    """Enough ids that buckets are opened, and values without ties."""
    bloom = BloomHash.random(200_000, 2, 10, seed=0)
    return bloom, torch.randn(2, 2, bloom.num_buckets, generator=torch.manual_seed(0)).log_softmax(-1)
