"""The corpus that the plain reference makes of one log, which every file format has to give."""

import pytest

from superbloom.prepare.interactions import from_interactions
from tests.support.logs import LOG, described, reference, table


@pytest.fixture(scope="module")
def expected() -> dict:
    """The checksums of LOG with times, and without them."""
    timed, untimed = (from_interactions(table(LOG), time=time) for time in ("ts", None))
    assert described(timed) == reference(LOG)
    assert described(untimed) == reference(LOG, timed=False)
    return {"timed": timed.checksums, "untimed": untimed.checksums}
