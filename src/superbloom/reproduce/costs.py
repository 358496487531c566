"""The time of a training step and of a query (Sec. 2.4 and 2.5), on this catalogue and on larger artificial ones.

Only the size of the larger catalogues matters. Their ids are those of the corpus, spread out; their probabilities are
random.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from superbloom.api import Superbloom
from superbloom.config import TrainConfig
from superbloom.config.presets import WIKIPEDIA_IDS
from superbloom.corpus import Corpus, Vocab
from superbloom.errors import InputError
from superbloom.hashing import BloomHash
from superbloom.model import Model
from superbloom.reproduce.cells import UNHASHED, Shapes
from superbloom.search import IdPrior, exhaustive, top_k
from superbloom.training.batches import Batch
from superbloom.training.lightning_module import Training
from superbloom.training.limits import check_memory, num_parameters
from superbloom.training.optimizer import clip

LARGE_CATALOGUE_IDS = 100_000  # for steps; for queries, it is the size of Wikipedia
PAPER_ALPHA = 50
TIMED_STEPS, WARM_UP_RUNS = 5, 2
TIMED_QUERIES, TOP_K, BEAM_WIDTH = 16, 20, 20


def step_costs(corpus: Corpus) -> list[dict[str, Any]]:
    """Return the milliseconds of a step, and of its output layer: loss with gradient, and its share of the update."""
    found: list[dict[str, Any]] = []
    shapes = Shapes(corpus)
    for num_ids in sorted({corpus.num_ids, max(LARGE_CATALOGUE_IDS, corpus.num_ids)}):
        for name, options in (("unhashed", UNHASHED), ("superbloom", shapes.hashed)):
            config = Superbloom(**shapes(**options)).config_for(corpus)
            config = replace(config, num_ids=num_ids, num_target_ids=None, tied=True)
            try:
                check_memory(config, TrainConfig(steps=1))
            except InputError:  # the next catalogue is at least as large
                return found
            milliseconds = _step(corpus, config)
            found.append({"ids": num_ids, "model": name, "parameters": num_parameters(config), **milliseconds})
    return found


def _step(corpus: Corpus, config: Any) -> dict[str, float]:
    """Return the median milliseconds of a step and of its output layer."""
    training = TrainConfig(steps=1)
    vocab = corpus.vocab
    if config.num_ids != corpus.num_ids:
        vocab = Vocab.from_counts({str(number): 1 for number in range(config.num_ids)})
    model = Model.create(config, vocab)
    whole = Training(model, corpus, training)
    batches, optimizer = whole.batches(), whole.configure_optimizers()
    model.network.train()
    seconds: dict[str, list[float]] = {"output layer": [], "step": []}
    for number in range(WARM_UP_RUNS + TIMED_STEPS):
        ids, places, targets, total, _ = _spread(batches[number], corpus.num_ids, config.num_ids)
        begin = time.perf_counter()
        y = model.encode(ids, places)
        encoded = time.perf_counter()
        loss = whole.objective.loss(y[targets >= 0], targets[targets >= 0], 0) / (total * config.num_hashes)
        computed = time.perf_counter()
        loss.backward()
        clip(model.network.parameters(), training.clip)
        updating = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad()
        end = time.perf_counter()
        output_weights = config.num_hashes * config.output_buckets * config.dim
        output = output_weights / num_parameters(config)  # its share of the update
        seconds["output layer"].append(computed - encoded + output * (end - updating))
        seconds["step"].append(end - begin)
    return {name: 1000 * statistics.median(times[WARM_UP_RUNS:]) for name, times in seconds.items()}


def _spread(batch: Batch, own: int, num_ids: int) -> Batch:
    """Return a batch of a catalogue of `own` ids as a batch of a larger catalogue."""
    factor = num_ids // own
    ids, targets = (torch.where(part >= 0, part * factor % num_ids, part) for part in (batch.ids, batch.targets))
    return batch._replace(ids=ids, targets=targets)


def query_costs(corpus: Corpus) -> list[dict[str, Any]]:
    """Return the milliseconds per query for the twenty best: score every id, one round with B=20, until certified.

    All by the paper's sum; "posterior" is the certified search by probability.
    """
    found = []
    own = len(corpus.target_vocab or corpus.vocab)
    for num_ids, alpha in ((own, Shapes(corpus).alpha), (WIKIPEDIA_IDS, PAPER_ALPHA)):
        bloom = BloomHash.random(num_ids, 2, alpha, seed=0)
        generator = torch.Generator().manual_seed(0)
        log_probs = (3 * torch.randn(TIMED_QUERIES, 2, bloom.num_buckets, generator=generator)).log_softmax(-1)
        k = min(TOP_K, num_ids)
        ways: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
            "exhaustive": (exhaustive, {"combine": "sum"}),
            "approximate": (top_k, {"combine": "sum", "beam": BEAM_WIDTH, "max_rounds": 1}),
            "certified": (top_k, {"combine": "sum"}),
            "posterior": (top_k, {"prior": IdPrior.uniform(bloom)}),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for one in log_probs.split(1):
            for name, (search, options) in ways.items():  # alternating, so that other load affects all searches alike
                begin = time.perf_counter()
                search(one, bloom, k, **options)
                seconds[name].append(time.perf_counter() - begin)
        milliseconds = {name: 1000 * statistics.median(times[WARM_UP_RUNS:]) for name, times in seconds.items()}
        found.append({"ids": num_ids, "alpha": alpha, **milliseconds})
    return found
