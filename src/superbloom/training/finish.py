"""What a trained network becomes a model with: prior, repetition and memory, fitted to validation rows."""

from __future__ import annotations

from dataclasses import replace

from superbloom.config import TrainConfig, train_config
from superbloom.corpus import Corpus
from superbloom.evaluate import HeldOut, memory_probabilities, network_probabilities
from superbloom.memory import Memory, remember
from superbloom.model import Model, Prior
from superbloom.predict import Predictor
from superbloom.training.repetition import fit_repetition


def finished(model: Model, corpus: Corpus, config: TrainConfig) -> Model:
    """The model with what validation rows say beside its weights."""
    model = replace(model, prior=Prior.of_corpus(corpus), memory=None)
    model = replace(model, repetition=fit_repetition(model, corpus, config.valid_rows))
    return replace(model, memory=_weighed_memory(model, corpus, config))


def remembered(model: Model, corpus: Corpus) -> Model:
    """The model with the memory of another corpus of the same names: with the weights it had, or newly weighed."""
    if model.memory is None:
        return replace(model, memory=_weighed_memory(model, corpus, train_config()))
    memory = remember(corpus, model.memory.kind, ("train", "valid"), model.memory.neighbours)
    return replace(model, memory=None if memory is None else replace(memory, weights=model.memory.weights))


def _weighed_memory(model: Model, corpus: Corpus, config: TrainConfig) -> Memory | None:
    """The memory with its weights; validation rows join it once they have decided these. None without such rows."""
    memory = remember(corpus, config.remember, neighbours=config.neighbours)
    if memory is None or not len(corpus.rows("valid")):
        return None
    held_out = HeldOut.of(corpus, "valid", model.config.seq_len, draws=config.valid_rows)
    predictor = Predictor(model)
    parts = memory_probabilities(memory, held_out, corpus.num_ids, predictor.chunk)
    weights = memory.weighed(network_probabilities(predictor, held_out), parts).weights
    whole = remember(corpus, config.remember, ("train", "valid"), config.neighbours)
    return None if whole is None else replace(whole, weights=weights)
