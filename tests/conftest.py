"""Fixtures of all tests: small corpora whose answers are known, and the figures of reliability checks."""

import pytest
import torch
from hypothesis import settings

from superbloom.corpus.corpus import Corpus
from tests.support.cases import CASES
from tests.support.checks import check, pytest_terminal_summary  # noqa: F401, a fixture and a hook
from tests.support.corpora import rings, sentences

torch.set_num_threads(1)  # pytest-xdist runs a process per core

# `make slow` draws other cases each time.
settings.register_profile("superbloom", max_examples=200, deadline=None, derandomize=CASES <= 1000)
settings.load_profile("superbloom")


@pytest.fixture(scope="session")
def ring_corpus() -> Corpus:
    return rings()


@pytest.fixture(scope="session")
def text_corpus() -> Corpus:
    pytest.importorskip("tokenizers")
    return sentences()
