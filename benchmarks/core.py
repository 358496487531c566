"""What do the parts of the core cost?   python -m benchmarks.core

Hashing the paper's catalogue; the loader beside the training step it feeds; one query's search beside the
exhaustive ranking at 5,281,889 ids. Ratios are of one run; times are this machine's.
"""

import time
from collections.abc import Callable

import torch

from superbloom.config.model import ModelConfig
from superbloom.config.presets import WIKIPEDIA_IDS
from superbloom.config.training import TrainConfig
from superbloom.hashing.bloom import BloomHash
from superbloom.model.model import Model
from superbloom.prepare.bundled import FREQUENT, bundled_corpus
from superbloom.search.certified import exhaustive, top_k
from superbloom.training.batches import Batches
from superbloom.training.lightning_module import Training
from tools.record import report


def seconds(what: Callable[[int], object], repeats: int) -> float:
    """Median time of a call."""
    times = []
    for repeat in range(repeats):
        start = time.perf_counter()
        what(repeat)
        times.append(time.perf_counter() - start)
    return sorted(times)[repeats // 2]


def main() -> None:
    corpus = bundled_corpus(FREQUENT)
    train = TrainConfig(steps=1)
    model = Model.create(ModelConfig(num_ids=corpus.num_ids), corpus.vocab)
    batches = Batches.of(corpus, model.config, train)
    training = Training(model, corpus, train)
    optimizer = training.configure_optimizers()

    def step(number: int) -> None:
        batch = batches[number]
        chosen = batch.targets >= 0
        y = model.encode(batch.ids, batch.places)
        training.objective.loss(y[chosen], batch.targets[chosen], seed=0).backward()
        optimizer.step()
        optimizer.zero_grad()

    loader, whole = seconds(lambda number: batches[number], 200), seconds(step, 20)
    hashing = seconds(lambda seed: BloomHash.random(WIKIPEDIA_IDS, num_hashes=2, alpha=50, seed=seed), 3)
    bloom = BloomHash.random(WIKIPEDIA_IDS, num_hashes=2, alpha=50)
    # Peaked as a trained model's: a few likely buckets, a long tail.
    log_probs = (3 * torch.randn(1, 2, bloom.num_buckets, generator=torch.manual_seed(0))).log_softmax(-1)
    search = seconds(lambda _: top_k(log_probs, bloom, k=20), 20)
    everything = seconds(lambda _: exhaustive(log_probs, bloom, k=20), 5)
    rows = [
        ["hash 5,281,889 ids, α=50, m=2", f"{hashing:.1f} s", ""],
        ["a batch of 128 segments", f"{1000 * loader:.2f} ms", f"1/{whole / loader:.0f} of a step"],
        ["a training step on it (20,000 ids, d=128, L=2)", f"{1000 * whole:.0f} ms", ""],
        ["certified top-20 of 5,281,889 ids, one query", f"{1000 * search:.1f} ms", ""],
        ["exhaustive ranking of them", f"{1000 * everything:.0f} ms", f"{everything / search:.0f}× the search"],
    ]
    figures = {"hashing": hashing, "loader": loader, "step": whole, "search": search, "exhaustive": everything}
    report("Cost of the core's parts", ["part", "median", "ratio"], rows, figures)


if __name__ == "__main__":
    main()
