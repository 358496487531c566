"""Train, kill and resume real processes until enough were killed, and compare the end with a run left alone."""

import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file

from superbloom import Corpus
from superbloom.training.batches import BatchStream
from superbloom.training.checkpoints import checkpoints
from superbloom.training.logs import LOG_FILE
from tests.support.launch import finish, start


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def figures(folder: Path) -> list[str]:
    """The log, without the seconds."""
    return [line.rsplit(",", 1)[0] for line in (folder / LOG_FILE).read_text().splitlines()]


def begin_the_batches_again() -> None:
    """What Lightning does with workers: after a resume the batches of epoch 0 come again."""
    original = BatchStream.__init__
    BatchStream.__init__ = lambda self, batches, step: original(self, batches, 0)


# --- real processes, really killed --------------------------------------------------------------------------------

COMMAND = ("train", "corpus", "--out", "model", "--steps", 30, "--save-every", 2, "--valid-every", 7, "--json")
COMMAND += ("--dim", 32, "--heads", 2, "--ffn-dim", 64, "--dropout", 0.1, "--batch-size", 32, "--valid-rows", 50)


def was_killed(process, moment: random.Random, mark: Path | None) -> bool:
    """Kill a process after a random while, if it still runs; given a mark, while it writes a second checkpoint."""
    until = time.monotonic() + moment.uniform(0, 0.8)
    while process.is_alive() and time.monotonic() < until:
        time.sleep(0.002)
    while mark is not None and process.is_alive() and not (checkpoints(mark.parent) and mark.exists()):
        time.sleep(0.0005)
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


def kill_and_resume(corpus: Corpus, tmp_path: Path, wanted: int, before: Callable[[], None] | None = None) -> Counter:
    """Run after run, each killed until `wanted` were. Counts kills, those in a save, and how the other runs ended."""
    shared = Path("/dev/shm")
    temporary = shared if shared.is_dir() else tmp_path  # another file system than the run's
    alone, broken = tmp_path / "alone", tmp_path / "broken"
    for folder in (alone, broken):
        corpus.save(folder / "corpus")
    finish(alone, start(alone, *COMMAND, TMPDIR=temporary))
    mark, moment = broken / "model.run" / ".checkpoint", random.Random(wanted)
    counts: Counter = Counter()
    has_ended = False  # a run that was killed last is resumed to its end: only then is anything compared
    while counts["kills"] < wanted or not has_ended:
        mark.unlink(missing_ok=True)  # left by a kill in a save
        process = start(broken, *COMMAND, "--resume", before=before, TMPDIR=temporary)
        if counts["kills"] < wanted and was_killed(
            process, moment, mark if counts["in a save"] < wanted // 3 else None
        ):
            counts["kills"] += 1
            counts["in a save"] += mark.exists()
            has_ended = False
            continue
        has_ended = True
        process.join(timeout=300)
        if process.exitcode != 0:
            counts["failed"] += 1
        else:
            counts["same end" if same_end(alone, broken) else "another end"] += 1
        for folder in broken.glob("model*"):
            shutil.rmtree(folder)
    return counts


def same_end(one: Path, other: Path) -> bool:
    return (
        same(*(load_file(folder / "model" / "model.safetensors") for folder in (one, other)))
        and figures(one / "model.run") == figures(other / "model.run")
        and len(checkpoints(other / "model.run")) == 2
    )
