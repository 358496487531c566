"""What does the paper's largest run need?   python -m benchmarks.scale --out FILE

Steps of the preset `superbloom` (229M parameters as the paper counts, Table 1) are timed here at two batch sizes, which
gives the time and the memory a segment adds. From that and from counted operations: memory, traffic and time of the
paper's run (batch 1024, a million steps) on 1, 8 and 64 accelerators of a stated speed. What is measured and what is
assumed is kept apart in the output.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.measuring import highest, resident
from benchmarks.train_step import Log, time_steps
from superbloom.config.model import ModelConfig
from superbloom.config.presets import PRESETS
from superbloom.training.limits import BYTES_PER_PARAMETER, num_parameters
from tools.record import report, surroundings

PRESET = "superbloom"
STEPS = 1_000_000
BATCH = int(PRESETS[PRESET].training["batch_size"])
MASK = 0.15
# Assumed of an accelerator, to be replaced by yours: what a data-centre GPU of 2020 (312 TFLOP/s in bf16 by its data
# sheet) sustains in large products, and links of 300 GB/s within a machine of eight, 25 GB/s between machines.
TFLOPS, WITHIN, BETWEEN = 100.0, 300e9, 25e9


def operations(config: ModelConfig, batch: int) -> dict[str, float]:
    """Floating-point operations of a step: products forward, and twice as many backward."""
    places, d = config.seq_len * config.num_hashes, config.dim
    targets = max(1, round(MASK * config.seq_len)) * config.num_hashes
    layer = 2 * places * (4 * d * d + 2 * d * config.ffn_dim) + 4 * places * places * d
    tokens = config.output_buckets * (config.num_hashes if config.softmax == "joint" else 1)
    return {"layers": 3 * batch * config.layers * layer, "output": 3 * batch * 2 * targets * tokens * d}


def measure(batch: int, steps: int) -> dict[str, float]:
    """Seconds and memory of a step of this batch, in this process."""
    import torch

    from superbloom.config.training import TrainConfig
    from superbloom.hashing.bloom import BloomHash
    from superbloom.model.model import Model
    from superbloom.model.network import Network
    from superbloom.training.batches import Batches
    from superbloom.training.lightning_module import Training

    config = PRESETS[PRESET].config
    log: Any = Log(config.num_ids, batch * steps)
    bloom = BloomHash.random(config.num_ids, config.num_hashes, config.alpha)
    batches = Batches(log, seq_len=config.seq_len, batch_size=batch, mask_share=MASK, seed=0)
    before, nothing = resident(), None
    torch.manual_seed(0)
    model = Model(Network(config), bloom, nothing, bloom, nothing)  # type: ignore[arg-type]
    training = Training(model, log, TrainConfig(steps=1, average=0.0))
    optimizer = training.configure_optimizers()
    seconds = sum(time_steps(training, optimizer, training.objective, batches, steps))
    return {"batch": batch, "seconds": seconds, "growth_mb": highest() - before}


def plan(accelerators: int, found: dict[str, Any]) -> dict[str, float]:
    """The paper's run on so many accelerators; traffic is what a ring all-reduce sends from each."""
    size, share = found["parameters"], BATCH / accelerators
    compute = sum(found["operations"].values()) / accelerators / (TFLOPS * 1e12)
    traffic = 2 * (accelerators - 1) / accelerators * 4 * size
    talk = traffic / (BETWEEN if accelerators > 8 else WITHIN)
    return {
        "accelerators": accelerators,
        "segments_each": share,
        "memory_gb": size * BYTES_PER_PARAMETER / 1e9 + share * found["segment_mb"] / 1e3,
        "memory_sharded_gb": size * (8 + 16 / accelerators) / 1e9 + share * found["segment_mb"] / 1e3,
        "traffic_gb": traffic / 1e9,
        "compute_seconds": compute,
        "traffic_seconds": talk,
        "days": STEPS * max(compute, talk) / 86_400,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, nargs=2, default=[8, 24])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, given.steps)))
        return
    config = PRESETS[PRESET].config
    small, large = (
        json.loads(
            subprocess.check_output(
                [sys.executable, "-m", __spec__.name, "--one", str(batch), "--steps", str(given.steps)]
            )
        )
        for batch in given.batches
    )
    more = large["batch"] - small["batch"]
    found: dict[str, Any] = {
        "preset": PRESET,
        "parameters": num_parameters(config),
        "operations": operations(config, BATCH),
        "measured": [small, large],
        "segment_seconds": (large["seconds"] - small["seconds"]) / more,
        "segment_mb": (large["growth_mb"] - small["growth_mb"]) / more,
    }
    per_segment = sum(found["operations"].values()) / BATCH
    found["gflops_here"] = per_segment / found["segment_seconds"] / 1e9
    found["days_here"] = STEPS * BATCH * found["segment_seconds"] / 86_400
    found["assumed"] = {"tflops": TFLOPS, "bytes_within": WITHIN, "bytes_between": BETWEEN}
    found["plans"] = [plan(accelerators, found) for accelerators in (1, 8, 64)]
    rows = [
        [
            str(p["accelerators"]),
            f"{p['segments_each']:,.0f}",
            f"{p['memory_gb']:.1f} GB",
            f"{p['memory_sharded_gb']:.1f} GB" if p["accelerators"] > 1 else "–",
            f"{p['traffic_gb']:.2f} GB",
            f"{p['compute_seconds']:.3f} s",
            f"{p['traffic_seconds']:.3f} s",
            f"{p['days']:.1f}",
        ]
        for p in found["plans"]
    ]
    header = [
        "accelerators",
        "segments each",
        "memory, ddp",
        "memory, fsdp",
        "sent a step",
        "compute",
        "sending",
        "days",
    ]
    if given.out:
        given.out.write_text(json.dumps({"figures": found, **surroundings()}, indent=1) + "\n")
    report("The paper's 229M-parameter run: a million steps of 1024 segments", header, rows, found)


if __name__ == "__main__":
    main()
