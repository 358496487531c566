"""The corpus that the plain reference makes of one log, which every file format has to give; and word pieces."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from superbloom.corpus import Corpus
from superbloom.prepare.interactions import from_interactions, prepare_interactions
from tests.support.logs import LOG, described, reference, table
from tests.support.texts import MINI


@pytest.fixture(scope="module")
def expected() -> dict:
    """The checksums of LOG with times, and without them."""
    timed, untimed = (from_interactions(table(LOG), time=time) for time in ("ts", None))
    assert described(timed) == reference(LOG)
    assert described(untimed) == reference(LOG, timed=False)
    return {"timed": timed.checksums, "untimed": untimed.checksums}


@pytest.fixture
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Corpus]:
    """The corpus that prepare_interactions writes for these files and options."""

    def prepare(files: Any, **options: Any) -> Corpus:
        out: Path = tmp_path_factory.mktemp("prepared") / "corpus"
        prepare_interactions(files, out, **options)
        assert [path.name for path in out.parent.iterdir()] == ["corpus"]
        return Corpus.open(out)

    return prepare


@pytest.fixture
def mini(tmp_path: Path) -> Path:
    """A vocab.txt of letters and two words."""
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(MINI) + "\n")
    return path
