"""What does a training step cost as the catalogue grows?   python -m benchmarks.train_step --peers FOLDER --out FILE

Step time (forward, backward, clipping, Adam; not the making of the batch) and the growth of resident memory from just
before the model is built, each measured in a process of its own, at equal width, depth, segments and batch: Superbloom,
the unhashed model with the same bounded softmax, with plain cross-entropy over all logits, and with a sampled softmax,
and two libraries people use (peers/README.md says how their environments in FOLDER are made). Items are random.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.measuring import WARM_UP, highest, limit_memory, resident

HERE = Path(__file__).parent
DIM, LAYERS, HEADS, LENGTH, BATCH, MASK = 128, 2, 4, 32, 128, 0.15
ITEMS = (10_000, 100_000, 1_000_000, 5_300_000)
MOST_TOKENS = 200_000
NEGATIVES = 131_072
# The paper's way to read, for a step that does the same work as the others'.
PAPER: dict[str, Any] = {"inputs": "tokens", "mask_as": "element", "distance": False}
KINDS = {
    "superbloom": "Superbloom, α=20 or more",
    "superbloom-50": "Superbloom, α=50 or more",
    "full": "unhashed, full softmax in pieces",
    "plain": "unhashed, plain cross-entropy",
    "sampled": "unhashed, 131,072 negatives",
    "sampled-dense": "the same, dense Adam",
    "recbole": "RecBole BERT4Rec",
    "rectools": "RecTools BERT4Rec",
}


class Log:
    """Random rows of `LENGTH` ids: as much of a corpus as batches need."""

    def __init__(self, num_ids: int, rows: int) -> None:
        import numpy as np

        self.num_ids, self._rows = num_ids, np.arange(rows)
        self.offsets = np.arange(rows + 1) * LENGTH
        self.ends = self.offsets[1:]
        self.sentences = None
        self.ids = self.targets = np.random.default_rng(0).integers(0, num_ids, rows * LENGTH).astype(np.int32)

    def rows(self, _: str) -> Any:
        return self._rows

    def id_counts(self, _: str) -> Any:
        import numpy as np

        return np.bincount(self.ids, minlength=self.num_ids)


def alpha_of(kind: str, items: int) -> int:
    """Ids per bucket: 1, or at least 20 or 50 and so many that two hashes have no more than MOST_TOKENS tokens."""
    least = {"superbloom": 20, "superbloom-50": 50}.get(kind)
    return 1 if least is None else max(least, -(-2 * items // MOST_TOKENS))


def measure(kind: str, items: int, steps: int, threads: int) -> dict[str, Any]:
    """The steps themselves, in this process."""
    import torch

    from superbloom.config.model import ModelConfig
    from superbloom.config.training import TrainConfig
    from superbloom.hashing.bloom import BloomHash
    from superbloom.model.model import Model
    from superbloom.model.network import Network
    from superbloom.training.batches import Batches
    from superbloom.training.lightning_module import Training

    torch.set_num_threads(threads)
    alpha = alpha_of(kind, items)
    config = ModelConfig(
        num_ids=items,
        alpha=alpha,
        num_hashes=1 if alpha == 1 else 2,
        dim=DIM,
        heads=HEADS,
        layers=LAYERS,
        ffn_dim=4 * DIM,
        seq_len=LENGTH,
        **PAPER,
    )
    log: Any = Log(items, BATCH * steps)
    bloom = BloomHash.random(items, config.num_hashes, alpha)
    batches = Batches(log, seq_len=LENGTH, batch_size=BATCH, mask_share=MASK, seed=0)
    before = resident()
    nothing: Any = None  # names are not needed
    model = Model(Network(config), bloom, nothing, bloom, nothing)
    sampled = {"loss": "sampled", "samples": NEGATIVES} if kind.startswith("sampled") else {}
    training = Training(model, log, TrainConfig(steps=1, average=0.0, **sampled))
    optimizer = training.configure_optimizers()
    if kind == "sampled-dense":
        model.network.embedding.sparse = False
    model.network.train()
    objective = (lambda batch, *_: _plain_loss(model, batch)) if kind == "plain" else training.objective
    middle = time_steps(training, optimizer, objective, batches, steps)
    return {
        "items": items,
        "alpha": alpha,
        "parameters": model.network.num_parameters(),
        "seconds_per_step": sum(middle),
        "forward": middle[0],
        "backward": middle[1],
        "optimizer": middle[2],
        "before_mb": before,
        "growth_mb": highest() - before,
    }


def time_steps(training: Any, optimizer: Any, objective: Any, batches: Any, steps: int) -> list[float]:
    """Median seconds of forward and loss, of backward, and of clipping and Adam; the making of batches is not timed."""
    parts = []
    for step in range(steps):
        batch, marks = batches[step], [time.perf_counter()]
        loss = objective(batch, 1, step)
        marks.append(time.perf_counter())
        loss.backward()
        marks.append(time.perf_counter())
        training.configure_gradient_clipping(optimizer)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        marks.append(time.perf_counter())
        parts.append([after - earlier for earlier, after in itertools.pairwise(marks)])
    return [statistics.median(part) for part in zip(*parts[WARM_UP:], strict=True)]


def _plain_loss(model: Any, batch: Any) -> Any:
    """What most libraries do: all logits at once, and torch's cross-entropy."""
    import torch.nn.functional as F

    ids, places, targets, *_ = batch
    chosen = targets >= 0
    y = model.encode(ids, places)[chosen].squeeze(1)
    network = model.network
    logits = F.linear(y, network.embedding.weight[: model.config.num_ids], network.bias)
    return F.cross_entropy(logits, model.bloom.buckets(targets[chosen]).squeeze(1))


def run(kind: str, items: int, given: argparse.Namespace) -> dict[str, Any]:
    """The same in a process of its own; what does not fit says why."""
    steps = WARM_UP + (5 if items < 1_000_000 else 3)
    if kind in ("recbole", "rectools"):
        if given.peers is None:
            return {"failed": "not run: no --peers"}
        command = [given.peers / kind / "bin" / "python", HERE / "peers" / f"{kind}_step.py", "--items", items]
        command += ["--dim", DIM, "--layers", LAYERS, "--heads", HEADS, "--length", LENGTH, "--batch", BATCH]
        command += ["--steps", steps, "--memory", given.memory, "--threads", given.threads, "--json"]
    else:
        command = [sys.executable, "-m", __spec__.name, "--one", kind, "--items", items, "--steps", steps]
        command += ["--memory", given.memory, "--threads", given.threads]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def one(given: argparse.Namespace) -> None:
    limit_memory(given.memory)
    try:
        print(json.dumps(measure(given.one, given.items[0], given.steps, given.threads)))
    except (RuntimeError, ValueError, MemoryError) as error:
        sys.exit(" ".join(str(error).split()))


def table(found: dict[str, dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """A row a kind, with seconds and megabytes for each number of items, and how many times Superbloom's they are."""
    items = sorted({int(number) for figures in found.values() for number in figures})
    rows = []
    for kind, figures in found.items():
        row = [KINDS[kind]]
        for number in items:
            cell, ours = figures.get(str(number), {}), found.get("superbloom", {}).get(str(number), {})
            if "seconds_per_step" in cell:
                times = cell["seconds_per_step"] / ours["seconds_per_step"], cell["growth_mb"] / ours["growth_mb"]
                row.append(
                    f"{cell['seconds_per_step']:.2f} s, {cell['growth_mb']:,.0f} MB ({times[0]:.1f}×, {times[1]:.1f}×)"
                )
            else:
                row.append("does not fit" if "failed" in cell else "–")
        rows.append(row)
    return ["", *(f"{number:,} ids" for number in items)], rows


def plot(found: dict[str, dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.8), layout="constrained")
    for axis, name, label in zip(
        axes, ("seconds_per_step", "growth_mb"), ("seconds a step", "MB of memory"), strict=True
    ):
        for kind, figures in found.items():
            points = [(int(items), cell[name]) for items, cell in figures.items() if name in cell]
            if points and kind != "sampled-dense":
                style = {"marker": "o", "linewidth": 2.5 if kind.startswith("superbloom") else 1.2}
                axis.plot(*zip(*sorted(points), strict=True), label=KINDS[kind], **style)
        axis.set(xscale="log", yscale="log", xlabel="ids in the catalogue", ylabel=label)
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, nargs="*", default=list(ITEMS))
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--peers", type=Path, help="folder with the peers' environments")
    parser.add_argument("--memory", type=float, default=20.0, help="GB a process may take")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON file; what it has is kept and added to")
    parser.add_argument("--plot", type=Path, help="picture to draw")
    parser.add_argument("--steps", type=int, default=5, help=argparse.SUPPRESS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        one(given)
        return
    from tools.record import report, surroundings

    stored = json.loads(given.out.read_text()) if given.out and given.out.is_file() else {}
    found: dict[str, dict[str, Any]] = stored.get("figures", {})
    for items in given.items:
        for kind in given.kinds:
            cell = found.setdefault(kind, {})[str(items)] = run(kind, items, given)
            print(f"{KINDS[kind]}, {items:,} ids: {cell}", file=sys.stderr, flush=True)
            if given.out:
                given.out.write_text(json.dumps({"figures": found, **surroundings()}, indent=1) + "\n")
    if given.plot:
        plot(found, given.plot)
    report("Cost of a training step (times Superbloom's)", *table(found), found)


if __name__ == "__main__":
    main()
