"""Contexts that are cut short, for what is fitted to held-out rows."""

import numpy as np
import pytest

from superbloom.evaluate import HeldOut
from superbloom.special import Special

PAD, MASK = int(Special.PAD), int(Special.MASK)


@pytest.mark.parametrize("is_next", [False, True])
def test_every_second_element_is_asked_again_in_a_stretch_of_its_context(is_next):
    rng = np.random.default_rng(0)
    ids, places = np.full((600, 12), PAD), np.zeros(600, int)
    for row in range(600):
        size = int(rng.integers(1, 13))
        ids[row, :size] = rng.integers(0, 99, size)
        places[row] = size - 1 if is_next else rng.integers(0, size)
        ids[row, places[row]] = MASK
    whole = HeldOut(ids, places, np.arange(600))
    short = whole.shortened()
    assert short.targets.tolist() == list(range(1, 600, 2))
    sizes = []
    for found, place, row in zip(short.ids.tolist(), short.places.tolist(), short.targets.tolist(), strict=True):
        known = [id_ for id_ in found if id_ != PAD]
        before = [id_ for id_ in ids[row].tolist() if id_ != PAD]
        assert known[place] == MASK
        starts = [at for at in range(len(before)) if before[at : at + len(known)] == known]
        assert places[row] - place in starts
        sizes.append((len(known), len(before)))
    assert {known for known, before in sizes if before == 12} >= {2, 3, 5, 8}
    assert np.mean([known <= 3 for known, before in sizes if before == 12]) > 0.3
    assert all(1 <= known <= before for known, before in sizes)
