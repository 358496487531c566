"""Damaged files are refused by name (check 15).

Each file of a model and of a corpus is cut, extended or gets flipped bytes. The twin leaves the checksums out.
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from superbloom.storage.folder import MANIFESTS
from tests.support.folders import FILES
from tests.support.probe import NO_CHECKSUMS, NO_VALIDATION, WATCHED, Change, probe
from tests.support.traced import untraced


@pytest.mark.system
def test_the_probe_tells_who_died(good, tmp_path):
    jobs = [("crash", tmp_path / name, True) for name in ("fine", "crash", "fine")]
    jobs += [(kind, tmp_path, True) for kind in ("model", "eat", "spin")]
    trace = None if untraced(*WATCHED) else tmp_path / "trace"
    outcomes = probe([good / "model"], [*jobs, ("leave", tmp_path / "x", True)], trace=trace)
    told = ["accepted", "SIGSEGV", "accepted", "refused", "accepted", "SIGXCPU", "accepted"]
    assert [found["outcome"] for found in outcomes] == told
    assert outcomes[4]["megabytes"] >= 190
    if trace:
        assert [found["outside"] for found in outcomes] == [[]] * 6 + [[f"{tmp_path}/x.beside"]]


def test_every_file_is_among_those_damaged(good):
    present = {(kind, file.name) for kind in MANIFESTS for file in (good / kind).iterdir()}
    assert present - {("model", "README.md")} == set(FILES)


def flipped(data: bytes, rng: np.random.Generator) -> bytes:
    place, bit = rng.integers(len(data)), rng.integers(8)
    return data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]


def damaged(file: Path, times: int, rng: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    """Versions of a file that are not it: 20 · times of them."""
    data = file.read_bytes()
    others = [other for other in file.parent.iterdir() if other.name not in (file.name, "README.md")]
    for _ in range(10 * times):
        yield "flip", flipped(data, rng)
    for _ in range(3 * times):
        yield "cut", data[: -rng.integers(2, len(data))]  # the newline at the end of a manifest says nothing
    for _ in range(2 * times):
        place = rng.choice(np.flatnonzero(np.frombuffer(data, np.uint8)))
        yield "zero", data[:place] + bytes(min(4096, len(data) - place)) + data[place + 4096 :]
    for _ in range(2 * times):
        yield "swap", others[rng.integers(len(others))].read_bytes()
        yield "append", data + rng.bytes(rng.integers(1, 100))
    for size in rng.integers(2**40, 2**63, size=times).tolist():
        yield "huge", size.to_bytes(8, "little") + data[8:]


def damaged_folders(good: Path, tmp_path: Path, times: int) -> list[tuple[str, str, str, Path]]:
    rng = np.random.default_rng(15)
    found = []
    for kind, name in FILES:
        for number, (damage, data) in enumerate(damaged(good / kind / name, times, rng)):
            folder = tmp_path / f"{kind}-{name}-{number}"
            shutil.copytree(good / kind, folder, copy_function=os.link)
            (folder / name).unlink()
            (folder / name).write_bytes(data)
            found.append((kind, name, damage, folder))
    return found


def missed(good: Path, folders: list[tuple[str, str, str, Path]], broken: Sequence[Change] = ()) -> Counter[str]:
    """What became of damages that were not refused with the name of the file, by outcome."""
    jobs = [(kind, folder, True) for kind, _, _, folder in folders]
    outcomes = probe([good / "model"], jobs, [broken] * len(jobs), together=20)
    return Counter(
        found["outcome"] if found["outcome"] != "refused" else found["message"]
        for (_, name, _, folder), found in zip(folders, outcomes, strict=True)
        if found["outcome"] != "refused" or f"{folder.name}/{name}" not in found["message"]
    )


@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_a_damaged_file_is_refused_by_name(good, tmp_path, times, check):
    folders = damaged_folders(good, tmp_path, times)
    assert len(folders) == 20 * times * len(FILES)
    assert missed(good, folders) == {}
    check(15, f"{len(folders):,} of {len(folders):,} damages of {len(FILES)} files refused by name, 0 signals")


@pytest.mark.system
def test_damage_is_missed_without_checksums_and_validation(good, tmp_path, check):
    """The twin: the same measurement of code that leaves them out."""
    folders = damaged_folders(good, tmp_path, 1)
    without = missed(good, folders, [NO_CHECKSUMS, NO_VALIDATION])
    deaths = sum(number for what, number in without.items() if what.startswith("SIG"))  # perhaps none: it is chance
    assert without["accepted"] + deaths > 20
    noticed = f"of {len(folders)} damages {without['accepted']} accepted silently, {deaths} deaths by signal"
    check.twin(15, "no checksum compared, no Arrow table validated", noticed)


@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_without_checksums_damage_is_refused_or_harmless(good, tmp_path, times, check):
    """It is the checksum that catches flipped weights. And nothing dies without it (verify=False)."""
    folders = damaged_folders(good, tmp_path, times)
    outcomes = probe([good / "model"], [(kind, folder, False) for kind, _, _, folder in folders], together=20)
    found = [(*folder[:3], outcome["outcome"]) for folder, outcome in zip(folders, outcomes, strict=True)]
    assert {outcome for *_, outcome in found} == {"refused", "accepted"}
    assert ("model", "model.safetensors", "flip", "accepted") in found
    manifests = {(name, outcome) for _, name, _, outcome in found if name in MANIFESTS.values()}
    assert manifests == {("corpus.json", "refused"), ("config.json", "refused")}
    refused = sum(outcome == "refused" for *_, outcome in found)
    check(15, f"with verify=False, too, 0 signals in {len(found):,} damages ({refused:,} refused)")
