"""Token log-probabilities as a trained model gives them, for catalogues of any size.

A query is a belief over ids: rank r of a random order has probability in proportion to r^-exponent. The tokens of
each hash get the sums over their buckets, with some noise on the logits. `python -m benchmarks.beliefs MODEL CORPUS`
compares this with a model (docs/search.md): exponent 1 and noise .6 do as the demo's model does, exponent .5 and noise
1 as one that has learned for eight minutes on 259,996 names.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor

from superbloom.hashing.bloom import BloomHash

RANKS = 100_000  # believed in one by one; what is left is spread evenly
TRAINED, WEAK = (1.0, 0.6), (0.5, 1.0)


def beliefs(bloom: BloomHash, batch: int, exponent: float, noise: float, seed: int) -> Tensor:
    """Log-probabilities (batch, m, num_buckets)."""
    rng = np.random.default_rng(seed)
    ranks = np.arange(1, min(RANKS, bloom.num_ids) + 1) ** -exponent
    # The sum over the ranks beyond, by its integral.
    last, end = len(ranks) + 0.5, bloom.num_ids + 0.5
    beyond = np.log(end / last) if exponent == 1 else (end ** (1 - exponent) - last ** (1 - exponent)) / (1 - exponent)
    ranks, rest = ranks / (ranks.sum() + beyond), beyond / (ranks.sum() + beyond)
    result = torch.empty(batch, bloom.num_hashes, bloom.num_buckets)
    for query in result:
        few = len(ranks) == bloom.num_ids
        ids = rng.permutation(bloom.num_ids) if few else rng.integers(bloom.num_ids, size=len(ranks))
        buckets = bloom.table[torch.from_numpy(ids)].numpy().T
        for log_probs, column in zip(query, buckets, strict=True):
            sums = np.bincount(column, weights=ranks, minlength=bloom.num_buckets) + rest / bloom.num_buckets
            logits = np.log(sums) + noise * rng.standard_normal(len(sums))
            log_probs.copy_(torch.from_numpy(logits).float().log_softmax(-1))
    return result


def main(model_folder: str, corpus_folder: str) -> None:
    from superbloom.corpus.corpus import Corpus
    from superbloom.evaluate.held_out import HeldOut
    from superbloom.predict import Predictor
    from superbloom.search.certified import top_k
    from superbloom.store.model_folder import load

    predictor = Predictor(load(model_folder).model)
    bloom = predictor.model.target_bloom
    held_out = HeldOut.of(Corpus.open(corpus_folder), "test", predictor.model.config.seq_len, limit=200)
    ids, places, _ = next(held_out.parts(200))
    answers = {"the model": predictor.beliefs(ids, places).log_probs}
    answers |= {f"exponent {e}, noise {n}": beliefs(bloom, 200, e, n, seed=0) for e, n in (TRAINED, WEAK)}
    print("| | mean log-probability of rank 1 | 10 | 100 | 1000 | width for top-20: median | largest |")
    print("|---|---|---|---|---|---|---|")
    for name, log_probs in answers.items():
        ranked = log_probs.sort(dim=-1, descending=True).values
        falls = (f"{ranked[..., r - 1].mean():.2f}" for r in (1, 10, 100, 1000))
        width = top_k(log_probs, bloom, 20, beam=1, max_rounds=6).width
        print(f"| {name} | {' | '.join(falls)} | {int(width.median())} | {int(width.max())} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
