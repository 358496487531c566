"""What killed processes leave is removed by the next writer, and nothing else is."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from superbloom.corpus import Corpus
from superbloom.prepare.scratch import scratch_folder
from superbloom.prepare.sequences import prepare_sequences
from superbloom.storage import remove_dead, temporary, temporary_prefix, write_atomically


@pytest.fixture(scope="module")
def dead() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def prefix(name: str, pid: int, monkeypatch: pytest.MonkeyPatch, machine: str | None = None) -> str:
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: pid)
        if machine is not None:
            patch.setattr(temporary, "_machine", lambda: machine)
        return temporary_prefix(name)


def test_only_what_dead_processes_left_is_removed(tmp_path, monkeypatch, dead):
    gone = [
        tempfile.mkdtemp(prefix=prefix("corpus", dead, monkeypatch), dir=tmp_path),
        tempfile.mkstemp(prefix=prefix("corpus", dead, monkeypatch), dir=tmp_path)[1],
    ]
    (Path(gone[0]) / "half").write_text("written")
    kept = [
        tempfile.mkdtemp(prefix=temporary_prefix("corpus"), dir=tmp_path),  # of this process
        tempfile.mkdtemp(prefix=prefix("corpus", 1, monkeypatch), dir=tmp_path),  # of a process that runs
        tempfile.mkdtemp(prefix=prefix("corpus-2", dead, monkeypatch), dir=tmp_path),  # of another folder
        tempfile.mkdtemp(prefix=prefix("corpus", dead, monkeypatch, "abcdef"), dir=tmp_path),  # of another machine
        tempfile.mkdtemp(prefix=".corpus-", dir=tmp_path),  # of another program
    ]
    for name in (".corpus-original", ".corpus-backup", f"{Path(gone[0]).name}-old", ".corpus.lock", "corpus"):
        (tmp_path / name).mkdir()
        kept.append(str(tmp_path / name))
    remove_dead(tmp_path, "corpus")
    assert sorted(map(str, tmp_path.iterdir())) == sorted(kept)


@pytest.mark.parametrize("is_old", [False, True])
def test_what_another_machine_left_goes_after_a_week_without_a_change(tmp_path, monkeypatch, dead, is_old):
    folder = Path(tempfile.mkdtemp(prefix=prefix("corpus", dead, monkeypatch, "abcdef"), dir=tmp_path))
    file = folder / "part"
    file.touch()
    week_ago = time.time() - temporary.MAX_FOREIGN_AGE - 60
    os.utime(file, (week_ago, week_ago) if is_old else None)
    os.utime(folder, (week_ago, week_ago))
    remove_dead(tmp_path, "corpus")
    assert folder.exists() == (not is_old)


def test_links_are_removed_and_not_followed(tmp_path, monkeypatch, dead):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.tex").touch()
    link = tmp_path / f"{prefix('corpus', dead, monkeypatch)}abcdefgh"
    link.symlink_to(tmp_path / "precious")
    remove_dead(tmp_path, "corpus")
    assert not link.is_symlink()
    assert (tmp_path / "precious" / "thesis.tex").exists()


KILLED = """if True:
    import os, signal, sys
    from pathlib import Path
    from superbloom.prepare.scratch import scratch_folder
    from superbloom.storage import atomic, new_folder, write_atomically
    out = Path(sys.argv[1])
    if sys.argv[2] == "scratch":
        with scratch_folder(out):
            os.kill(os.getpid(), signal.SIGKILL)
    elif sys.argv[2] == "folder":
        with new_folder(out, "corpus", {}, overwrite=False):
            os.kill(os.getpid(), signal.SIGKILL)
    else:
        os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
        write_atomically(out, b"half")
"""


@pytest.mark.parametrize("what", ["scratch", "folder", "file"])
def test_a_killed_writer_leaves_something_that_the_next_one_removes(tmp_path, what):
    out = tmp_path / "out"
    done = subprocess.run([sys.executable, "-c", KILLED, str(out), what], timeout=60)
    assert done.returncode == -signal.SIGKILL
    (left,) = (entry for entry in tmp_path.iterdir() if entry.name != ".out.lock")
    assert left.name.startswith(".out-")
    if what == "file":
        write_atomically(out, b"whole")
    else:
        (tmp_path / "rows.tsv").write_text("a\tb\n" * 9)
        prepare_sequences(tmp_path / "rows.tsv", out)
        (tmp_path / "rows.tsv").unlink()
        assert len(Corpus.open(out)) == 9
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_scratch_folders_without_a_place_are_removed_too(tmp_path, monkeypatch, dead):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tempfile.mkdtemp(prefix=prefix("superbloom", dead, monkeypatch), dir=tmp_path)
    with scratch_folder(None) as folder:
        assert [entry.name for entry in tmp_path.iterdir()] == [folder.name]
    assert list(tmp_path.iterdir()) == []
