"""Clients of an application with a model of names or of text, and a model folder for server processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.support import serving
from tests.support.asking import asking
from tests.support.servers import save


@pytest.fixture(scope="module")
def names() -> Iterator[TestClient]:
    with asking() as client:
        yield client


@pytest.fixture(scope="module")
def text() -> Iterator[TestClient]:
    with asking(serving.of_text()) as client:
        yield client


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("serve") / "model"
    save(folder)
    return folder
