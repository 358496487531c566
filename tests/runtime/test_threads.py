"""The number of threads and how they wait: by quota, cores and the user's choice."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from superbloom.runtime import threads
from tests.support import launch

CPU = Path("/sys/fs/cgroup/cpu")


def group(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/", {"cpu.max": "150000 100000\n"}, [1.5]),
        ("0::/", {"cpu.max": "max 100000\n"}, []),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000", "cpu.max": "400000 100000"}, [2, 4]),
        ("0::/of/the/host", {"cpu.max": "50000 100000"}, [0.5]),
        ("3:cpu,cpuacct:/x\n0::/", {"cpu/x/cpu.cfs_quota_us": "250000", "cpu/x/cpu.cfs_period_us": "100000"}, [2.5]),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, []),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "0"}, []),
        ("0::/", {"cpu.max": "what is this"}, []),
        ("no group", {}, []),
        ("0::/", {}, []),
    ],
)  # fmt: skip
def test_quotas_of_both_versions_of_cgroups(tmp_path, own, files, cores):
    group(tmp_path, files)
    (tmp_path / "own").write_text(own + "\n")
    assert list(threads._quotas(tmp_path, tmp_path / "own")) == cores


def test_a_quota_and_the_cores_of_a_process_both_limit_its_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(threads, "CGROUPS", tmp_path)
    monkeypatch.setattr(threads, "OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    (tmp_path / "own").write_text("0::/\n")
    for quota, cores in (("250000 100000", 3), ("10000 100000", 1), ("900000 100000", 6), ("max 100000", 6)):
        group(tmp_path, {"cpu.max": quota})
        assert threads.available_cores() == cores
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        threads.set_defaults()
        assert os.environ.get("OMP_NUM_THREADS") == (str(cores) if cores < 6 else None)


CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")
ASKED = f"import os, superbloom; print(*(os.environ.get(name) for name in {CHOICES}))"


def bare() -> dict[str, str]:
    """The environment of a user who chose nothing."""
    return {name: value for name, value in os.environ.items() if name not in CHOICES}


@pytest.mark.system
@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, "PASSIVE 1000"),
        ({"OMP_WAIT_POLICY": "ACTIVE", "OMP_NUM_THREADS": "7"}, "ACTIVE None 7"),
        ({"GOMP_SPINCOUNT": "5"}, "None 5"),
    ],
)
def test_what_the_user_chose_stays(given, found):
    command = [sys.executable, "-c", ASKED]
    done = subprocess.run(command, env=bare() | given, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(found)


SHOWN = """
import os
os.environ["OMP_DISPLAY_ENV"] = "VERBOSE"
import superbloom
assert "torch" not in __import__("sys").modules
import torch
torch.ones(9).sum()
"""


def spin_count_of_openmp(code: str) -> int:
    """The rounds that threads spin, as GNU OpenMP itself prints it."""
    done = subprocess.run([sys.executable, "-c", code], env=bare(), capture_output=True, text=True, check=True)
    found = re.search(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
    assert found, done.stderr
    return int(found[1])


@pytest.mark.system
def test_openmp_knows_before_it_starts(check):
    count = spin_count_of_openmp(SHOWN)
    assert count == threads.SPIN_COUNT
    check(22, f"after `import superbloom`, OpenMP says that its threads spin for {count:,} rounds, then sleep")


@pytest.mark.system
def test_an_import_that_comes_after_torch_is_noticed(check):
    late = SHOWN.replace("import superbloom\n", "").replace("\nimport torch\n", "\nimport torch, superbloom\n")
    count = spin_count_of_openmp(late.replace("assert", "#"))
    assert count > 10_000
    check.twin(22, "torch is imported first", f"OpenMP says that its threads spin for {count:,} rounds")


@pytest.mark.system
def test_a_real_quota_is_found():
    if not (CPU / "cpu.cfs_quota_us").exists() or not os.access(CPU, os.W_OK):
        pytest.skip("needs root, and cgroups of version 1, to make a control group")
    mine = CPU / f"superbloom-{os.getpid()}"
    mine.mkdir()
    try:
        (mine / "cpu.cfs_quota_us").write_text("100000")
        code = (
            f"import os; open({str(mine / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
            "from superbloom.runtime import threads; print(threads.available_cores())"
        )
        assert launch.python(code).stdout.strip() == "1"
    finally:
        mine.rmdir()
