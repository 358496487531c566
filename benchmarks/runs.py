"""Does a run end the same, however it is run?   python -m benchmarks.runs --out FILE

A: training on the built-in corpus killed with -9 a hundred times, a third of them while a checkpoint was written, and
resumed; weights and log beside those of a run left alone. What a checkpoint costs. B: the same training by one process,
by two with `--devices 2`, by two under torchrun, by two that share the weights: losses, weights, seconds a step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from superbloom.prepare.bundled import FREQUENT, bundled_corpus
from superbloom.training.checkpoints import checkpoints
from superbloom.training.logs import LOG_FILE
from tests.support.kills import kill_and_resume  # the experiment of the tests, on real data
from tools.record import report, surroundings

STEPS = 100
WAYS = {
    "one process": ["-m", "superbloom"],
    "--devices 2": ["-m", "superbloom"],
    "torchrun, two": ["-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "superbloom"],
    "--devices 2 --strategy fsdp": ["-m", "superbloom"],
}


def train(folder: Path, way: str) -> None:
    options = way.split() if way.startswith("--") else []
    command = [sys.executable, *WAYS[way], "train", "../corpus", "--out", "model", "--steps", str(STEPS), *options]
    # As many threads in all, however many processes there are.
    threads = {"OMP_NUM_THREADS": "2" if way == "one process" else "1"}
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env=os.environ | threads)


def lines(folder: Path) -> list[dict[str, float]]:
    header, *rows = [line.split(",") for line in (folder / "model.run" / LOG_FILE).read_text().splitlines()]
    return [{name: float(value) for name, value in zip(header, row, strict=True) if value} for row in rows]


def processes(folder: Path) -> dict[str, Any]:
    """Losses and weights of each way beside those of one process."""
    found: dict[str, Any] = {}
    bundled_corpus(FREQUENT).save(folder / "corpus")
    for way in WAYS:
        place = folder / way.replace(" ", "_").strip("-")
        place.mkdir()
        train(place, way)
        log = [line for line in lines(place) if "loss" in line]
        seconds = (log[-1]["seconds"] - log[0]["seconds"]) / (log[-1]["step"] - log[0]["step"])
        weights = load_file(place / "model" / "model.safetensors")
        found[way] = {"losses": [line["loss"] for line in log], "seconds_per_step": seconds}
        if way == "one process":
            alone = weights
        found[way]["largest_loss_difference"] = max(
            abs(ours - theirs)
            for ours, theirs in zip(found[way]["losses"], found["one process"]["losses"], strict=True)
        )
        differences = [(weights[name] - alone[name]).abs().max().item() for name in weights]
        found[way]["largest_weight_difference"] = max(differences)
    return found


def checkpoint_cost(folder: Path) -> dict[str, float]:
    """How long it takes to write a checkpoint of the default model, and to find that it is whole."""
    from superbloom.training.checkpoint_io import AtomicCheckpoints
    from superbloom.training.checkpoints import newest_whole

    run = next(folder.glob("one_process/model.run"))
    content = torch.load(checkpoints(run)[0], weights_only=True)
    start = time.perf_counter()
    AtomicCheckpoints().save_checkpoint(content, folder / "again" / "checkpoint")
    written = time.perf_counter()
    found = newest_whole(folder / "again", print)
    assert found is not None
    return {"mb": found.stat().st_size / 1e6, "write": written - start, "check": time.perf_counter() - written}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found: dict[str, Any] = {"processes": processes(Path(name)), "checkpoint": checkpoint_cost(Path(name))}
    with tempfile.TemporaryDirectory() as name:
        # Raises an error if anything differs.
        found["kills"] = kill_and_resume(bundled_corpus(FREQUENT), Path(name), given.kills)
    if given.out:
        given.out.write_text(json.dumps({"figures": found, **surroundings()}, indent=1) + "\n")
    rows = [
        [
            way,
            f"{figures['losses'][-1]:.6f}",
            f"{figures['largest_loss_difference']:.1e}",
            f"{figures['largest_weight_difference']:.1e}",
            f"{1000 * figures['seconds_per_step']:.0f} ms",
        ]
        for way, figures in found["processes"].items()
    ]
    header = ["run by", f"loss at step {STEPS}", "largest difference", "of weights", "a step"]
    report(f"{found['kills']}, all equal; a checkpoint: {found['checkpoint']}", header, rows, found)


if __name__ == "__main__":
    main()
