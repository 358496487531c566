"""What holds for any hash functions, checked through the public calls alone."""

import numpy as np
import torch

from superbloom.hashing.bloom import BloomHash


def assert_sound(bloom: BloomHash) -> None:
    """Checked from the outside, through the public calls alone."""
    everyone = torch.arange(bloom.num_ids)
    buckets = bloom.buckets(everyone).numpy()
    assert buckets.min() >= 0
    assert buckets.max() < bloom.num_buckets
    assert len(np.unique(buckets, axis=0)) == bloom.num_ids, "two ids share a digest"
    for j in range(bloom.num_hashes):
        sizes = np.bincount(buckets[:, j], minlength=bloom.num_buckets)
        assert sizes.max() - sizes.min() <= 1, "uneven buckets"
        assert sizes.max() <= bloom.alpha
        for bucket in {0, bloom.num_buckets // 2, bloom.num_buckets - 1}:
            assert bloom.members[j][bucket].tolist() == np.flatnonzero(buckets[:, j] == bucket).tolist()
