"""Models to serve, a browser, and a visitor that fails a test when the page does what no page may do."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from playwright.sync_api import Browser, sync_playwright

from superbloom import Corpus, Superbloom
from superbloom.corpus import split_of
from superbloom.corpus.vocab import Vocab
from superbloom.serve import app as app_module
from superbloom.serve.app import PAGE
from tests.support.corpora import rings
from tests.support.page import CHROMIUM, FAST, HOSTILE, REPORT, SMALL, TAG, Visitor, serving


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """Rings, and names and keys that try to be more than text, which keep to one another."""
    plain = rings()
    rows = [[plain.vocab.name(id_) for id_ in plain.row(number)] for number in range(len(plain))]
    keys = [*map(str, range(len(rows))), *(f"{TAG} {number}" for number in range(40))]
    return Corpus.from_sequences([*rows, *[HOSTILE] * 40], keys)


@pytest.fixture(scope="module")
def model(corpus) -> Superbloom:
    return Superbloom(alpha=4, **SMALL).fit(corpus, steps=150, **FAST)


@pytest.fixture(scope="module")
def text_model() -> Superbloom:
    words = ["miles davis", "miles", "davis", "is", "a", "jazz", "musician", "plays", "piano", "."]
    kinds = np.array([2 if " " in word else 0 for word in words], dtype=np.int8)
    vocab, _ = Vocab.from_arrays(words, np.arange(len(words), 0, -1), kinds, "lowercase")
    rows = [vocab.segmenter.segment("Miles Davis is a jazz musician. Davis plays piano.").ids.tolist()] * 40
    lists, keys = pa.large_list(pa.int32()), [str(number) for number in range(40)]
    columns = {"key": pa.array(keys, pa.large_string()), "ids": pa.array(rows, lists), "split": split_of(keys)}
    table = pa.table(columns | {"sentences": pa.array([[0]] * 40, lists)})
    options = {"num_hashes": 2, "alpha": 2, "dim": 16, "seq_len": 16}
    return Superbloom("text", **options).fit(Corpus(vocab, table), steps=2, quiet=True)


@pytest.fixture(scope="module")
def address(model) -> Iterator[str]:
    with serving(model, **REPORT) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Not for the session: while it runs, no other test of this process could start an event loop.
    with sync_playwright() as found:
        running = found.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def visitor(browser) -> Iterator[Visitor]:
    visitor = Visitor(browser)
    yield visitor
    visitor.close()


@pytest.fixture
def spoil(monkeypatch, tmp_path) -> Callable[..., Path]:
    """Serves from now on a copy of the page in which something else stands in place of what is there."""

    def spoil(file: str, before: str, after: str) -> Path:
        folder = shutil.copytree(PAGE, tmp_path / "page")
        text = (folder / file).read_text()
        assert text.count(before) == 1
        (folder / file).write_text(text.replace(before, after))
        monkeypatch.setattr(app_module, "PAGE", folder)
        return folder

    return spoil
