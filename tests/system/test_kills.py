"""Real training processes, killed a hundred times or stopped by a signal, lose nothing (check 12)."""

import json
import os
import signal
import time
from io import BytesIO
from pathlib import Path

import pytest
import torch

from superbloom.commands.train import train_folder
from superbloom.errors import InputError
from superbloom.training import fit as train
from superbloom.training.checkpoint_io import AtomicCheckpoints
from superbloom.training.checkpoints import checkpoints, newest_whole, step_of
from superbloom.training.logs import LOG_FILE
from tests.support.kills import kill_and_resume
from tests.support.launch import OUTPUT, finish, start, start_together

pytestmark = pytest.mark.system


@pytest.mark.parametrize(("kills", "inside"), [(20, 5), pytest.param(100, 30, marks=pytest.mark.slow)])
def test_kills_change_nothing(ring_corpus, tmp_path, kills, inside, check):
    counts = kill_and_resume(ring_corpus, tmp_path, kills)
    assert counts["kills"] == kills
    assert counts["in a save"] >= inside
    assert counts["same end"] > 0
    assert not counts.keys() & {"another end", "failed"}
    check(12, f"{kills} of {kills} kills resumed, {counts['in a save']} inside a save, weights and log bit for bit")


def save_in_place() -> None:
    """Checkpoints are written under their final names, and taken for whole when resumed."""

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        folder = Path(path).parent
        folder.mkdir(parents=True, exist_ok=True)
        packed = BytesIO()
        torch.save(checkpoint, packed)
        with (folder / f"step-{checkpoint['global_step']:09d}-{0:016x}.ckpt").open("wb") as file:
            (folder / ".checkpoint").touch()  # tells the test that it is being written
            for at in range(0, len(packed.getvalue()), 4096):
                file.write(packed.getvalue()[at : at + 4096])
                os.fsync(file.fileno())
        (folder / ".checkpoint").unlink()

    AtomicCheckpoints.save_checkpoint = save_checkpoint
    train.newest_whole = lambda run, notice: next(iter(checkpoints(run)), None)


def forget_the_moments() -> None:
    """A resumed run has no moments of Adam."""
    original = AtomicCheckpoints.load_checkpoint

    def load_checkpoint(self, path, map_location=None, weights_only=None):
        content = original(self, path)
        for state in content["optimizer_states"]:
            for moments in state["state"].values():
                moments["exp_avg"].zero_()
        return content

    AtomicCheckpoints.load_checkpoint = load_checkpoint


@pytest.mark.parametrize("broken", [save_in_place, forget_the_moments])
def test_a_save_that_is_not_atomic_or_not_whole_is_noticed(ring_corpus, tmp_path, broken, check):
    counts = kill_and_resume(ring_corpus, tmp_path, 6, broken)
    assert counts.keys() & {"another end", "failed"}
    noticed = f"{counts['failed']} runs did not resume, {counts['another end']} ended in other weights, after 6 kills"
    check.twin(12, broken.__doc__[0].lower() + broken.__doc__[1:].rstrip("."), noticed)


def wait_for_log(folder: Path) -> None:
    log, deadline = folder / "model.run" / LOG_FILE, time.monotonic() + 120
    while (not log.exists() or len(log.read_text().splitlines()) < 3) and time.monotonic() < deadline:
        time.sleep(0.01)


def result_of(folder: Path) -> dict:
    """The JSON document a command printed last."""
    text = (folder / OUTPUT).read_text()
    return json.loads(text[text.rindex("\n{\n") + 1 if "\n{\n" in text else text.index("{") :])


ENDLESS = ("train", "corpus", "--out", "model", "--steps", 100000, "--dim", 32, "--heads", 2)
ENDLESS += ("--valid-every", 3, "--valid-rows", 50, "--patience", 0)


def test_ctrl_c_saves_the_model_so_far_and_resume_goes_on(ring_corpus, tmp_path):
    ring_corpus.save(tmp_path / "corpus")
    process = start(tmp_path, *ENDLESS, "--json")
    wait_for_log(tmp_path)
    os.kill(process.pid, signal.SIGINT)
    finish(tmp_path, process)
    result = result_of(tmp_path)
    assert result["interrupted"] is True
    assert (tmp_path / "model" / "model.safetensors").is_file()
    steps = result["steps"] + 3
    finish(tmp_path, start(tmp_path, "train", "corpus", "--out", "model", "--resume", "--steps", steps, "--json"))
    assert result_of(tmp_path)["steps"] == steps
    with pytest.raises(InputError, match="began with dim=32, ffn_dim=128 where now dim=64, ffn_dim=256; leave these"):
        train_folder(tmp_path / "corpus", tmp_path / "model", None, True, False, {"dim": 64})


@pytest.mark.parametrize("processes", [1, 2])
def test_sigterm_saves_and_exits_with_0(ring_corpus, tmp_path, processes):
    """Of several processes it is enough to tell one."""
    ring_corpus.save(tmp_path / "corpus")
    started = start_together(tmp_path, processes, *ENDLESS)
    wait_for_log(tmp_path)
    os.kill(started[-1].pid, signal.SIGTERM)
    finish(tmp_path, *started)
    step = step_of(newest_whole(tmp_path / "model.run", print))
    assert f"received SIGTERM: step {step:,} is saved in" in (tmp_path / OUTPUT).read_text()
    assert not (tmp_path / "model").exists()
    finish(tmp_path, start(tmp_path, "train", "corpus", "--out", "model", "--resume", "--steps", step + 2, "--json"))
    assert result_of(tmp_path)["steps"] == step + 2
