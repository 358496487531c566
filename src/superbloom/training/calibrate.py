"""Chooses the weight of the id prior and the temperature of the scores, on validation rows after training.

Both are chosen to maximise the likelihood of the hidden ids, normalised over the whole catalogue. A likelihood changes
smoothly with weight and temperature, while the recall of a few hundred rows jumps.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from superbloom.corpus import Corpus
from superbloom.evaluate import HeldOut
from superbloom.model import Model, Prior, surplus, training_counts
from superbloom.search import COMBINES

WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
TEMPERATURES = (0.5, 0.7, 0.85, 1.0, 1.2, 1.4, 2.0)  # times the number of hashes
# Calibration takes seconds: a large catalogue uses fewer hidden elements, so that about MAX_SCORES are computed.
MIN_HIDDEN_ELEMENTS, MAX_HIDDEN_ELEMENTS = 100, 1000
MAX_SCORES = 5 * 10**7
DRAWS_PER_ROW = 4  # each draw hides another element of the row
SCORES_PER_CHUNK = 2**24  # held in memory at a time


def calibrate(model: Model, corpus: Corpus) -> Prior:
    """The prior to use with a trained model. Its weight is 0 if the corpus has no validation rows."""
    bloom = model.target_bloom
    counts = training_counts(corpus)
    unhashed = bloom.num_buckets == bloom.num_ids  # every id has a token of its own: a prior adds nothing
    weights = WEIGHTS[:1] if unhashed else WEIGHTS
    temperatures = [bloom.num_hashes * temperature for temperature in TEMPERATURES]
    if not len(corpus.rows("valid")):
        return Prior(counts, 0.0, float(bloom.num_hashes))
    more = surplus(counts, bloom)
    loss = torch.zeros(len(weights), len(temperatures), dtype=torch.double)
    for scores, targets in _scores(model, corpus):
        for i, weight in enumerate(weights):
            weighted = scores + weight * more
            for j, temperature in enumerate(temperatures):
                scaled = weighted / temperature
                loss[i, j] += (scaled.logsumexp(dim=1) - scaled.gather(1, targets[:, None]).squeeze(1)).double().sum()
    i, j = divmod(int(loss.argmin()), len(temperatures))
    return Prior(counts, weights[i], temperatures[j])


def _scores(model: Model, corpus: Corpus) -> Iterator[tuple[Tensor, Tensor]]:
    """Scores (q, num_ids) of all ids without a prior, and the hidden ids (q,), a few validation rows at a time."""
    bloom = model.target_bloom
    left = min(MAX_HIDDEN_ELEMENTS, max(MIN_HIDDEN_ELEMENTS, MAX_SCORES // bloom.num_ids))
    rows_per_chunk = max(1, SCORES_PER_CHUNK // bloom.num_ids)
    for seed in range(DRAWS_PER_ROW):
        held_out = HeldOut.of(corpus, "valid", model.config.seq_len, seed=seed, limit=left)
        for ids, places, targets in held_out.parts(rows_per_chunk):
            log_probs = model.log_probs(ids, places).to(bloom.table.device)
            parts = [log_probs[:, j].index_select(1, column) for j, column in enumerate(bloom.columns)]
            yield COMBINES["sum"](parts), targets
        left -= len(held_out)
        if left <= 0 or corpus.is_ordered:  # a row in order of time hides one fixed element
            return
