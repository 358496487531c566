"""How near are the estimates of `superbloom plan` to what a step takes?   python -m benchmarks.sizes

Steps of several models in a process each, one thread: processor seconds of the fastest of four and the growth of peak
memory, beside operations and bytes as plan.py counts them. The share is that of the rate of a large product.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

from benchmarks.peers.measuring import highest
from benchmarks.train_step import PAPER, Log
from tools.record import report

MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "the default": ({"num_ids": 20_000}, 128),
    "wider": ({"num_ids": 20_000, "dim": 256, "ffn_dim": 1024}, 128),
    "deeper": ({"num_ids": 20_000, "layers": 4}, 128),
    "400,000 ids": ({"num_ids": 400_000}, 16),
    "1,000 ids": ({"num_ids": 1_000}, 256),
    "the paper's way to read": ({"num_ids": 20_000, **PAPER}, 128),
}


def measure(model: dict[str, Any], batch: int) -> dict[str, float]:
    """In this process."""
    import torch

    from superbloom.config.model import ModelConfig
    from superbloom.config.training import TrainConfig
    from superbloom.hashing.bloom import BloomHash
    from superbloom.model.model import Model
    from superbloom.model.network import Network
    from superbloom.training.batches import Batches
    from superbloom.training.choice import costs
    from superbloom.training.lightning_module import Training

    torch.set_num_threads(1)
    config, training = ModelConfig(**model), TrainConfig(steps=1, batch_size=batch)
    log: Any = Log(config.num_ids, 8 * batch)
    bloom, nothing = BloomHash.random(config.num_ids, config.num_hashes, config.alpha), None
    batches = Batches.of(log, config, training)
    before = highest()
    whole = Model(Network(config), bloom, nothing, bloom, nothing)  # type: ignore[arg-type]
    module = Training(whole, log, training)
    optimizer = module.configure_optimizers()
    whole.network.train()
    times = []
    for step, some in zip(range(4), batches.starting_at(0), strict=False):
        began = time.process_time()
        module.objective(some, 1, step).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.process_time() - began)
    best = {name: value.clone() for name, value in whole.network.state_dict().items()}  # as training keeps them
    grown = highest() - before
    square, rates = torch.ones(1024, 1024), []
    for _ in range(8):
        began = time.process_time()
        square @ square
        rates.append(2 * 1024**3 / (time.process_time() - began))
    counted = costs(config, training, 0)
    parts = {k: v for k, v in counted.train_memory.items() if k not in ("program", "hash tables")}
    return {
        "parameters": sum(value.numel() for value in best.values()),
        "seconds": min(times),
        "share": sum(counted.operations.values()) / min(times) / max(rates),
        "measured_mb": grown,
        "counted_mb": sum(parts.values()) / 1e6,
    }


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(*MODELS[sys.argv[1]])))
        return
    figures = {
        name: json.loads(subprocess.check_output([sys.executable, "-m", __spec__.name, name])) for name in MODELS
    }
    rows = [
        [
            name,
            f"{found['parameters']:,}",
            f"{found['seconds']:.2f} s",
            f"{found['share']:.2f}",
            f"{found['measured_mb']:.0f} MB",
            f"{found['counted_mb']:.0f} MB",
        ]
        for name, found in figures.items()
    ]
    header = ["model", "parameters", "a step", "share of the rate of products", "memory measured", "counted"]
    report("What a training step takes, and what plan counts (one thread)", header, rows, figures)


if __name__ == "__main__":
    main()
