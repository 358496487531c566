"""What a step and a query cost (Sec. 2.4 and 2.5), on this catalogue and on larger ones made up for it.

Of the larger ones only the size counts: ids are those of the corpus spread out, probabilities are drawn.
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
from superbloom.search import exhaustive, top_k
from superbloom.training.batches import Batch
from superbloom.training.lightning_module import Training
from superbloom.training.limits import check_memory, num_parameters
from superbloom.training.optimizer import clip

LARGER = 100_000  # ids, for steps
PAPER_ALPHA = 50
STEPS, WARM_UP = 5, 2
QUERIES, K, BEAM = 16, 20, 20


def step_costs(corpus: Corpus) -> list[dict[str, Any]]:
    """Milliseconds of the parts of a step: output layer (its loss and gradient), all the rest."""
    found: list[dict[str, Any]] = []
    shapes = Shapes(corpus)
    hashed = {"alpha": shapes.alpha, "num_hashes": 2}
    for num_ids in sorted({corpus.num_ids, max(LARGER, corpus.num_ids)}):
        for name, options in (("unhashed", UNHASHED), ("superbloom", hashed)):
            config = Superbloom(**shapes(**options)).config_for(corpus)
            config = replace(config, num_ids=num_ids, num_target_ids=None, tied=True)
            try:
                check_memory(config, TrainConfig(steps=1))
            except InputError:  # the next size is not smaller
                return found
            milliseconds = _step(corpus, config)
            found.append({"ids": num_ids, "model": name, "parameters": num_parameters(config), **milliseconds})
    return found


def _step(corpus: Corpus, config: Any) -> dict[str, float]:
    training = TrainConfig(steps=1)
    vocab = corpus.vocab
    if config.num_ids != corpus.num_ids:
        vocab = Vocab.from_counts({str(number): 1 for number in range(config.num_ids)})
    model = Model.create(config, vocab)
    whole = Training(model, corpus, training)
    batches, optimizer = whole.batches(), whole.configure_optimizers()
    model.network.train()
    seconds: dict[str, list[float]] = {"output layer": [], "step": []}
    for number in range(WARM_UP + STEPS):
        ids, places, targets, total, _ = _spread(batches[number], corpus.num_ids, config.num_ids)
        begin = time.perf_counter()
        y = model.encode(ids, places)
        encoded = time.perf_counter()
        loss = whole.objective.loss(y[targets >= 0], targets[targets >= 0], 0) / (total * config.num_hashes)
        told = time.perf_counter()
        loss.backward()
        clip(model.network.parameters(), training.clip)
        updating = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad()
        end = time.perf_counter()
        output = config.num_hashes * config.output_buckets * config.dim / num_parameters(config)  # of what is updated
        seconds["output layer"].append(told - encoded + output * (end - updating))
        seconds["step"].append(end - begin)
    return {name: 1000 * statistics.median(times[WARM_UP:]) for name, times in seconds.items()}


def _spread(batch: Batch, own: int, num_ids: int) -> Batch:
    """A batch of a catalogue of `own` ids as one of a larger catalogue."""
    factor = num_ids // own
    ids, targets = (torch.where(part >= 0, part * factor % num_ids, part) for part in (batch.ids, batch.targets))
    return batch._replace(ids=ids, targets=targets)


def query_costs(corpus: Corpus) -> list[dict[str, Any]]:
    """Milliseconds a query for the twenty best: every id scored, one round with B=20, and until it is proved."""
    found = []
    own = len(corpus.target_vocab or corpus.vocab)
    for num_ids, alpha in ((own, Shapes(corpus).alpha), (WIKIPEDIA_IDS, PAPER_ALPHA)):
        bloom = BloomHash.random(num_ids, 2, alpha, seed=0)
        generator = torch.Generator().manual_seed(0)
        log_probs = (3 * torch.randn(QUERIES, 2, bloom.num_buckets, generator=generator)).log_softmax(-1)
        k = min(K, num_ids)
        ways: dict[str, tuple[Callable[..., Any], dict[str, int]]] = {
            "exhaustive": (exhaustive, {}),
            "approximate": (top_k, {"beam": BEAM, "max_rounds": 1}),
            "certified": (top_k, {}),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for one in log_probs.split(1):
            for name, (search, options) in ways.items():  # in turns, so that all have the same machine
                begin = time.perf_counter()
                search(one, bloom, k, **options)
                seconds[name].append(time.perf_counter() - begin)
        milliseconds = {name: 1000 * statistics.median(times[WARM_UP:]) for name, times in seconds.items()}
        found.append({"ids": num_ids, "alpha": alpha, **milliseconds})
    return found
