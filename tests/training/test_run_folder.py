"""The run folder: what may be cleared, what is stored, and who writes."""

import json
from pathlib import Path

import pytest
import torch

from superbloom import Superbloom
from superbloom.errors import InputError
from superbloom.training.checkpoints import checkpoint_name, checkpoints
from superbloom.training.run_folder import SETTINGS_FILE, RunFolder, RunSettings

SETTINGS = RunSettings("paper", "/models/base", {"dim": 32}, {"steps": 9, "devices": 2, "workers": 1})


def filled(path: Path) -> Path:
    """A run folder with a checkpoint, a log and figures for TensorBoard."""
    (path / "tensorboard").mkdir(parents=True)
    for name in (checkpoint_name(8, "0" * 64), "log.csv", "tensorboard/events", ".lock"):
        (path / name).write_text("x")
    return path


def names(path: Path) -> set[str]:
    return {file.name for file in path.iterdir()}


def as_second_process(monkeypatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")


def test_a_new_run_clears_an_earlier_one_and_stores_its_settings(tmp_path):
    run = RunFolder(filled(tmp_path), SETTINGS)
    run.begin(resume=False)
    assert names(tmp_path) == {SETTINGS_FILE, ".lock"}
    stored = json.loads((tmp_path / SETTINGS_FILE).read_text())
    assert stored["train"] == {"steps": 9}  # the number of processes is not part of a run
    assert RunSettings.read(tmp_path).model == {"dim": 32}


def test_a_resumed_run_keeps_what_is_there(tmp_path):
    before = names(filled(tmp_path))
    RunFolder(tmp_path, SETTINGS).begin(resume=True)
    assert names(tmp_path) == before | {SETTINGS_FILE}


def test_without_settings_nothing_is_cleared_or_written(tmp_path):
    before = names(filled(tmp_path))
    RunFolder(tmp_path).begin(resume=False)
    assert names(tmp_path) == before


def test_an_interrupted_run_needs_overwrite_and_a_finished_one_does_not(tmp_path):
    run = RunFolder(filled(tmp_path), SETTINGS)
    with pytest.raises(InputError, match="holds an interrupted run; --resume continues it, --overwrite deletes it"):
        run.check_new()
    RunFolder(tmp_path, SETTINGS, overwrite=True).check_new()
    run.mark_finished()
    run.check_new()
    RunFolder(tmp_path, SETTINGS).begin(resume=True)  # resumed with more steps: interrupted until it has finished
    with pytest.raises(InputError, match="holds an interrupted run"):
        run.check_new()
    with pytest.raises(InputError, match="holds a run of 8 steps; continue it with resume=True"):
        RunFolder(tmp_path).check_new()


def test_the_settings_of_an_earlier_release_are_read(tmp_path):
    """At first run.json had no from_model, and no `finished` until the run had finished."""
    (tmp_path / SETTINGS_FILE).write_text('{"preset": null, "model": {"dim": 64}, "train": {"minutes": 5.0}}')
    assert RunSettings.read(tmp_path) == RunSettings(None, None, {"dim": 64}, {"minutes": 5.0})


@pytest.mark.parametrize(
    "stored", ['{"model": 3, "train": {}}', "{}", '{"model": {}, "train": {}, "from_model": "a/b"}']
)
def test_settings_that_are_none_are_refused(tmp_path, stored):
    """A relative from_model would be downloaded from the hub."""
    (tmp_path / SETTINGS_FILE).write_text(stored)
    with pytest.raises(InputError, match="was not written by superbloom, or is damaged; train without --resume"):
        RunSettings.read(tmp_path)


def test_only_the_main_process_clears_and_writes(tmp_path, monkeypatch):
    before = names(filled(tmp_path))
    as_second_process(monkeypatch)
    run = RunFolder(tmp_path, SETTINGS)
    run.check_new()  # the main process refuses, or has already cleared
    run.begin(resume=False)
    run.mark_finished()
    assert names(tmp_path) == before


@pytest.mark.system
def test_checkpoints_keep_the_names_that_earlier_releases_wrote(ring_corpus, tmp_path):
    """A renamed class or attribute must not make the runs of earlier releases impossible to resume."""
    Superbloom(alpha=2, dim=16, heads=2, ffn_dim=16).fit(ring_corpus, steps=2, run=tmp_path, quiet=True)
    (file,) = checkpoints(tmp_path)
    content = torch.load(file, weights_only=True)
    assert set(content["callbacks"]) == {"Watch"}
    assert set(content["callbacks"]["Watch"]) == {"history", "seconds", "best", "taken", "improved"}
    assert {name.split(".")[:2] == ["objective", "network"] for name in content["state_dict"]} == {True}
    assert content["superbloom"]["dim"] == 16
