"""What a trained network becomes a model with: prior, repetition and memory, fitted to validation rows."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np

from superbloom.config import TrainConfig
from superbloom.corpus import Corpus
from superbloom.errors import InputError
from superbloom.evaluate import HeldOut, memory_probabilities, network_probabilities, ranking_examples
from superbloom.memory import MIN_ROWS, REMEMBERED_SPLITS, Examples, Memory, add, fit_ranker, remember
from superbloom.model import Model, Prior
from superbloom.predict import Predictor
from superbloom.training.repetition import fit_repetition

RANKING_ELEMENTS = 5000  # hidden elements that a ranker learns from
MAX_DRAWS = 10  # from one row


def finished(model: Model, corpus: Corpus, config: TrainConfig, memory: Memory | None = None) -> Model:
    """The model with what validation rows say beside its weights. memory: that of training rows, if it was counted."""
    model = replace(model, prior=Prior.of_corpus(corpus), memory=None, repeats=repeats_of(model, corpus))
    model = replace(model, repetition=fit_repetition(model, corpus, config.valid_rows))
    return replace(model, memory=_weighed_memory(model, corpus, config, memory))


def repeats_of(model: Model, corpus: Corpus) -> float | None:
    """The share of repeats that decides what a model answers; None for those of the paper's sum, as in the paper."""
    return corpus.repeats if model.config.score == "posterior" else None


def remembered(model: Model, corpus: Corpus, config: TrainConfig, *, fingerprint: str, replaces: bool) -> Model:
    """The model with a memory of another corpus of its names as well: with the weights it had, or newly weighed.

    replaces: with a memory of this corpus alone. fingerprint: that of the corpus as it was prepared. config: where
    pairs are counted, and how a first memory is made.
    """
    memory: Memory | None
    if model.memory is None:
        memory = _weighed_memory(model, corpus, config, None)
    elif replaces:
        memory = model.memory.again(corpus, REMEMBERED_SPLITS, **config.counting)
    else:
        found = add(model.memory, corpus, REMEMBERED_SPLITS, fingerprint, **config.counting)
        memory = None if found is None else found.memory
        if found is not None and found.known:
            line = f"{found.known:,} of {found.rows:,} rows were remembered, whole or in part; the rest was added"
            warnings.warn(line, stacklevel=3)
    if memory is None:
        raise InputError(
            "nothing of this corpus can be remembered: it is text, has a second vocabulary, or has no training rows, "
            "or no validation rows to weigh a first memory; train on it instead"
        )
    return replace(model, memory=memory)


def _weighed_memory(model: Model, corpus: Corpus, config: TrainConfig, memory: Memory | None) -> Memory | None:
    """The memory with its weights; validation rows join it once they have decided these. None without such rows."""
    rows = len(corpus.rows("valid"))
    memory = memory or remember(corpus, config.remember, **config.memory_options)
    if memory is None or not rows:
        return None
    held_out = HeldOut.of(corpus, "valid", model.config.seq_len, draws=config.valid_rows)
    predictor = Predictor(model)
    parts = memory_probabilities(memory, held_out, corpus.num_ids, predictor.chunk)
    memory = memory.weighed(network_probabilities(predictor, held_out), parts, rows)
    if rows >= MIN_ROWS:
        held_out = HeldOut.of(corpus, "valid", model.config.seq_len, draws=min(RANKING_ELEMENTS, MAX_DRAWS * rows))
        asked = [held_out, held_out.shortened()]  # people ask with one name, too
        examples = Examples.join([ranking_examples(predictor, memory, some) for some in asked if len(some)])
        assert held_out.row is not None
        row = np.unique(held_out.row, return_inverse=True)[1]
        memory = replace(memory, ranker=fit_ranker(examples, np.concatenate([row, row[1::2]]), corpus.num_ids))
    whole = remember(corpus, config.remember, REMEMBERED_SPLITS, **config.memory_options)
    return None if whole is None else whole.as_in(memory)
