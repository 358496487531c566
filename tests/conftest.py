"""Shared pieces: small corpora whose answers are known, and where real data may lie."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from checks import check, pytest_terminal_summary  # noqa: F401, a fixture and a hook
from hypothesis import settings

from superbloom.batches import Batch
from superbloom.corpus import Corpus

torch.set_num_threads(1)  # pytest-xdist runs a process per core

# Cases of each property of the certified search; `make slow` sets 10,000, and draws other cases each time.
CASES = int(os.environ.get("SUPERBLOOM_CASES", "1000"))
settings.register_profile("superbloom", max_examples=200, deadline=None, derandomize=CASES <= 1000)
settings.load_profile("superbloom")

DATA = Path(os.environ.get("SUPERBLOOM_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.fixture(scope="session")
def data() -> Path:
    """Real data that is not part of the repository; set SUPERBLOOM_DATA to its folder."""
    if not DATA.is_dir():
        pytest.skip("real data is absent; set SUPERBLOOM_DATA to a folder with wiki/, dumps/, …")
    return DATA


def rings(num_rings: int = 24, ring: int = 8, rows: int = 800, seed: int = 0) -> Corpus:
    """Rows drawn from rings of names: what a row holds tells its ring, so ring mates are the right answers."""
    rng = np.random.default_rng(seed)
    names = [[f"ring {r} name {i}" for i in range(ring)] for r in range(num_rings)]
    return Corpus.from_sequences(
        [rng.permutation(names[rng.integers(num_rings)])[: rng.integers(3, ring + 1)].tolist() for _ in range(rows)]
    )


def digest(batches: Iterable[Batch]) -> str:
    """Of the numbers of batches."""
    found = hashlib.sha256()
    for batch in batches:
        for part in (*batch[:3], torch.tensor(batch.total)):
            found.update(part.to(torch.int32).numpy().tobytes())
    return found.hexdigest()[:16]


@pytest.fixture(scope="session")
def ring_corpus() -> Corpus:
    return rings()
