"""Whatever call of a disk fails, no command that writes loses anything, and each says what failed (check 14)."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from io import BytesIO, FileIO
from pathlib import Path

import numpy as np
import pytest
import torch

from superbloom.batch import tables
from superbloom.corpus import corpus as corpus_module
from superbloom.storage import folder as folder_module
from superbloom.store import model_folder as store
from superbloom.training.checkpoint_io import _write as write_checkpoint
from tests.support.disk import CASES, LINKS, Outcome, outcomes
from tests.support.traced import needs_strace

pytestmark = pytest.mark.system


@needs_strace
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_disk_that_fails_at_any_call_loses_nothing(tmp_path, check, name):
    most = {"train": 120, "train --resume": 120, "reproduce": 20}.get(name)  # of these, hundreds of calls take too long
    found = outcomes(CASES[name], tmp_path, most)
    assert [(outcome.call, outcome.problems) for outcome in found if outcome.problems] == []
    assert len(found) >= 12
    check(14, f"{name}: {told(found)}")


def told(found: list[Outcome]) -> str:
    calls = {outcome.call.rsplit(" ", 1)[0] for outcome in found}
    refused = sum(outcome.code == 2 for outcome in found)
    kept = sum("new" not in outcome.found.values() for outcome in found if outcome.code == 2)
    return (
        f"{len(found)} failures at {len(calls)} calls, {refused} told in one line with exit 2 ({kept} with the old in "
        f"place, {refused - kept} with a whole new one), {len(found) - refused} that did not matter; "
        f"{sum(map(bool, (outcome.problems for outcome in found)))} lost or left anything"
    )


@needs_strace
@pytest.mark.parametrize("name", ["prepare sequences", "recommend to CSV"])
def test_some_calls_that_fail_lose_nothing(tmp_path, check, name):
    found = outcomes(CASES[name], tmp_path, 6)
    assert [(outcome.call, outcome.problems) for outcome in found if outcome.problems] == []
    check(14, f"{name}, some calls: {told(found)}")


@needs_strace
def test_a_file_on_the_way_that_is_cut_is_noticed_at_once(tmp_path):
    found = outcomes(CASES["prepare wikipedia"], tmp_path, file=LINKS)
    assert [(outcome.call, outcome.problems) for outcome in found if outcome.problems] == []
    assert {outcome.code for outcome in found} == {2}


# --- broken on purpose ---------------------------------------------------------------------------------------------


def straight_into_place() -> None:
    """Folders are written under their final names."""

    @contextmanager
    def new_folder(path, kind, content, overwrite):
        shutil.rmtree(path)
        Path(path).mkdir()
        yield Path(path)
        folder_module._seal(Path(path), kind, content)

    corpus_module.new_folder = store.new_folder = new_folder


def errors_ignored() -> None:
    """Folders are written as they should be, but a disk that fails is not told."""
    original = folder_module.new_folder

    @contextmanager
    def new_folder(*arguments):
        with suppress(OSError), original(*arguments) as temporary:
            yield temporary

    corpus_module.new_folder = store.new_folder = new_folder


def files_written_over() -> None:
    """A table is written over the old one."""
    tables.written_atomically = lambda path: path.open("wb")


def last_bytes_not_looked_at() -> None:
    """Files are written by NumPy's tofile, which does not tell whether the last few thousand bytes had room."""

    class File(FileIO):
        def write(self, data) -> int:
            np.frombuffer(data, np.uint8).tofile(self)
            return len(data)

    original = Path.open
    Path.open = lambda path, mode="r", *given, **named: (
        File(path, "w") if mode == "wb" else original(path, mode, *given, **named)
    )


@needs_strace
def test_a_corpus_that_lacks_what_had_no_room_is_noticed(tmp_path, check):
    found = outcomes(CASES["prepare wikipedia"], tmp_path, None, last_bytes_not_looked_at, LINKS)
    noticed = [outcome for outcome in found if outcome.problems]
    assert any(outcome.code == 0 for outcome in noticed)
    signs = "another corpus, or another reason"
    check.twin(14, "prepare wikipedia, last bytes not looked at", f"{len(noticed)} of {len(found)} failures: {signs}")


@needs_strace
@pytest.mark.parametrize(
    ("name", "broken", "sign"),
    [
        ("prepare sequences", straight_into_place, "half written"),
        ("prepare sequences", errors_ignored, "ended well, but"),
        ("recommend to CSV", files_written_over, "half written"),
    ],
)
def test_what_loses_something_is_noticed(tmp_path, check, name, broken, sign):
    found = outcomes(CASES[name], tmp_path, 6, broken)
    noticed = [outcome for outcome in found if any(sign in problem for problem in outcome.problems)]
    assert noticed
    check.twin(14, f"{name}, {broken.__name__.replace('_', ' ')}", f"{len(noticed)} of {len(found)} failures: {sign}")


FULL = """
import sys
from pathlib import Path
import numpy as np
from superbloom.prepare.scratch import mapped
path = Path(sys.argv[1]) / "numbers"
array = mapped(path, np.int32, 10**6) if sys.argv[2] == "ours" else np.memmap(path, np.int32, "w+", shape=10**6)
array[:] = 1
"""


def test_an_array_in_a_file_takes_its_room_at_once(tmp_path):
    """On a disk of half a megabyte: an error that can be told, where a file with holes ends the process by a signal."""
    mount = f'mount -t tmpfs -o size=512k tmpfs "{tmp_path}" && exec "$@"'
    prefix = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh")
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("this system lets nobody mount a file system of their own")
    ours, plain = (
        subprocess.run([*prefix, sys.executable, "-c", FULL, tmp_path, who], capture_output=True, text=True)
        for who in ("ours", "numpy")
    )
    assert ours.returncode == 1
    assert "No space left on device" in ours.stderr
    assert plain.returncode == -signal.SIGBUS


class Failing(BytesIO):
    """A file whose n-th write fails."""

    def __init__(self, nth: int) -> None:
        super().__init__()
        self.left = nth

    def write(self, data) -> int:
        self.left -= 1
        if self.left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


def test_a_checkpoint_that_cannot_be_written_says_what_the_disk_said():
    """Not what torch makes of it: that the file is not as long as it should be."""
    failed = 0
    for nth in range(1, 100):
        file = Failing(nth)
        with suppress(OSError):
            write_checkpoint({"weights": torch.zeros(1000), "steps": [1, 2]}, file)
        failed += file.left <= 0
        if file.left > 0:
            break
    assert failed > 10
