"""Small models without training, and servers of them in a thread."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from superbloom.answers import Found
from superbloom.config.model import ModelConfig
from superbloom.corpus.vocab import Vocab
from superbloom.memory import Events, Memory, Pairs, Rows
from superbloom.model.model import Model
from superbloom.model.prior import Prior
from superbloom.predict import Predictor
from superbloom.predict import predictor as predict
from superbloom.predict.query import Query
from superbloom.special import MASK, Special

ODD = [
    "a/b",
    "/",
    "..",
    ".",
    "what?",
    "50%",
    "%2F",
    "#1",
    "Ørsted",
    "日本",
    "🌼",
    "tab\there",
    "two\nlines",
    "\u202eleft",
]
SHORT = ["", "0", "a", "b", "A", "é", "null", "<b>", "[PAD]"]


def sure(vocab: Vocab, targets: Vocab | None = None, seed: int = 0, std: float = 0.25, **options: Any) -> Model:
    """An untrained model that is sure of itself: the more, the larger std is."""
    small = {"dim": 32, "heads": 2, "ffn_dim": 32, "seq_len": 8, "tied": targets is None}
    sizes = {"num_ids": len(vocab), "num_target_ids": None if targets is None else len(targets)}
    torch.manual_seed(seed)
    model = Model.create(ModelConfig(**sizes, **small | options), vocab, targets)
    with torch.no_grad():
        for parameter in model.network.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=std)
    model.network.eval()  # as a model that was loaded: threads share it
    counts = torch.from_numpy(np.array(model.target_vocab.counts)).int()
    return replace(model, prior=Prior(counts))


def names_vocab() -> Vocab:
    """Names of rings, short ones that a fuzzer finds, and odd ones."""
    names = [*(f"ring {r} name {i}" for r in range(24) for i in range(8)), *SHORT, *ODD]
    return Vocab.from_arrays(names, np.arange(len(names), 0, -1))[0]


def text_vocab() -> Vocab:
    words = [
        "miles davis",
        "john coltrane",
        "john",
        "davis",
        "is",
        "a",
        "jazz",
        "musician",
        "piano",
        "plays",
        ".",
        "##s",
    ]
    kinds = np.array([2 if " " in word else 0 for word in words], dtype=np.int8)
    return Vocab.from_arrays(words, np.arange(len(words), 0, -1), kinds, "lowercase")[0]


@cache
def of_names(seed: int = 0) -> Predictor:
    return Predictor(sure(names_vocab(), seed=seed))


WEIGHTS = {
    "network": 0.4,
    "pairs": 0.2,
    "pairs squared": 0.1,
    "rows": 0.1,
    "places": 0.1,
    "repeats": 0.05,
    "row repeats": 0.05,
}


@cache
def remembering() -> Predictor:
    """The same model with a memory of rows that are rings; short and odd names have no pairs."""
    model = of_names().model
    rows = [[model.vocab.id(f"ring {r} name {i}") for i in range(8)] for r in range(24)] * 3
    ids, numbers = np.array(rows, dtype=np.int32).flatten(), np.arange(len(rows) + 1)
    events = Events(ids, numbers[:-1], 8 * numbers, len(model.vocab))
    return Predictor(replace(model, memory=Memory(Pairs.count(events, 64), Rows.keep(events), WEIGHTS)))


@cache
def of_text() -> Predictor:
    return Predictor(sure(text_vocab(), alpha=2, seq_len=16))


@contextmanager
def live(app: Any) -> Iterator[str]:
    """The address of an application that is served in a thread."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", ws="none"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def mixed(predictor: Predictor, number: int, seed: int = 0) -> list[Query]:
    rng, vocab = Random(seed), predictor.model.vocab
    queries = []
    for _ in range(number):
        context: list[Any] = vocab.names(rng.sample(range(len(vocab)), rng.randint(0, 6)))
        for _ in range(rng.choice([0, 1, 1, 2])):
            context.insert(rng.randint(0, len(context)), MASK)
        names = vocab.names(rng.sample(range(len(vocab)), 20))
        options = {
            "exclude": names[:5] if rng.random() < 0.3 else [],
            "allow": names[3:] if rng.random() < 0.1 else None,
            "min_score": 1e-3 if rng.random() < 0.1 else None,
            **({"beam": 2, "max_rounds": 1} if rng.random() < 0.3 else {}),
            "explain": rng.random() < 0.1,
        }
        queries.append(predictor.query(context, rng.choice([1, 3, 10, 30]), **options))
    return queries


def alike(one: Found, other: Found) -> bool:
    """The same ids with the same scores, up to 1e-5 of them; at the end, of those that tie, another."""
    theirs = {prediction.name: prediction.score for prediction in other.predictions}
    least = min(theirs.values(), default=0.0)
    return (
        (one.certified, one.rounds) == (other.certified, other.rounds)
        and len(one.predictions) == len(theirs)
        and all(abs(theirs.get(p.name, least) - p.score) <= 1e-5 * max(1.0, abs(p.score)) for p in one.predictions)
    )


def furthest(one: Found, other: Found) -> float:
    """The largest difference of the scores of a name that both have."""
    theirs = {prediction.name: prediction.score for prediction in other.predictions}
    return max((abs(theirs[p.name] - p.score) for p in one.predictions if p.name in theirs), default=0.0)


def changes(predictor: Predictor, queries: list[Query]) -> tuple[int, float]:
    """How many answers are others among 63 neighbours than alone, and by how much scores differ at most."""
    changed, most = 0, 0.0
    for start in range(0, len(queries), 64):
        batch = queries[start : start + 64]
        alone = [predictor.answer([query])[0] for query in batch]
        for expected, found in zip(alone, predictor.answer(batch), strict=True):
            for one, other in zip(expected, found, strict=True):
                changed += not alike(one, other)
                most = max(most, furthest(one, other))
    return changed, most


def read_padding_as_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin of check 3: what fills up a batch is one name more in every shorter context."""
    original = predict.padded
    monkeypatch.setattr(predict, "padded", lambda rows, fill: original(rows, 0 if fill == Special.PAD else fill))
