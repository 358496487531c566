"""Saved corpora and models, old and new."""

import shutil
from pathlib import Path

import pytest

from superbloom.api import Superbloom
from tests.support.saved import NEW, OLD


@pytest.fixture
def saved(tmp_path) -> Path:
    """A good corpus folder, alone in its parent."""
    folder = tmp_path / "shelf" / "corpus"
    OLD.save(folder)
    return folder


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> Path:
    """Folders old, new: two models that give different answers."""
    parent = tmp_path_factory.mktemp("models")
    for name, corpus in (("old", OLD), ("new", NEW)):
        model = Superbloom(alpha=1, dim=16, ffn_dim=16, heads=2, layers=1).fit(corpus, steps=2, quiet=True)
        model.save_pretrained(parent / name)
    return parent


@pytest.fixture(scope="session")
def pairs(models, tmp_path_factory) -> Path:
    """Folders corpus/old, corpus/new, model/old, model/new."""
    parent = tmp_path_factory.mktemp("pairs")
    OLD.save(parent / "corpus" / "old")
    NEW.save(parent / "corpus" / "new")
    shutil.copytree(models, parent / "model")
    return parent
