"""The good folders that the tests of this package copy, damage and edit."""

from pathlib import Path

import pytest

from tests.support.folders import LOG, PLAIN, TEXTS, TWO, fitted


@pytest.fixture(scope="session")
def good(tmp_path_factory) -> Path:
    """Folders corpus and model that hold every file there can be, and others: of text, of a log, of other sizes."""
    parent = tmp_path_factory.mktemp("good")
    TWO.save(parent / "corpus")
    fitted(TWO, positions=True, target_alpha=3).save_pretrained(parent / "model")
    fitted(PLAIN, dim=8, alpha=3).save_pretrained(parent / "other")
    fitted(PLAIN, distance=False).save_pretrained(parent / "plain-model")
    PLAIN.save(parent / "plain-corpus")
    TEXTS.save(parent / "text-corpus")
    fitted(TEXTS, mask_as="element").save_pretrained(parent / "text-model")
    LOG.save(parent / "log-corpus")
    return parent
