"""How many answers owe their place to a shared bucket?   python -m benchmarks.ghosts MODEL [CORPUS]

One name is asked, its own name excluded, for 150 random names per band of frequency. A ghost shares a bucket with the
name or with a better answer, and no training row holds it together with the name (evaluate/ghosts.py). Columns: the
paper's sum over hashes, the probability of the network alone, and that of network and memory. Without CORPUS, the
20,000 most frequent names of the built-in one.
"""

from __future__ import annotations

import sys

import numpy as np

from superbloom import Corpus, Superbloom
from superbloom.evaluate.ghosts import ghost_share
from superbloom.predict import Predictor
from superbloom.prepare.bundled import FREQUENT, bundled_corpus
from tools.record import report

BANDS = ((0, 500), (500, 3000), (3000, 20_000))
NAMES, ANSWERS = 150, 5


def main(model_folder: str, corpus_folder: str | None = None) -> None:
    model = Superbloom.from_pretrained(model_folder)
    vocab, bloom = model.model.vocab, model.model.bloom
    corpus = (bundled_corpus(FREQUENT) if corpus_folder is None else Corpus.open(corpus_folder)).under(vocab)
    columns = {
        "sum": (model.predictor, "sum"),
        "network": (Predictor(model.model, network_only=True), "posterior"),
        "network and memory": (model.predictor, "posterior"),
    }
    rng, figures, rows = np.random.default_rng(0), {}, []
    for low, high in BANDS:
        if low >= len(vocab):
            continue
        ids = rng.permutation(np.arange(low, min(high, len(vocab))))[:NAMES]
        row = [f"{low + 1:,} to {min(high, len(vocab)):,}"]
        for column, (predictor, combine) in columns.items():
            options = {"exclude_context": True, "combine": combine}
            asked = (predictor.predict([vocab.name(int(i))], ANSWERS, **options)[0] for i in ids)
            answers = np.array([[vocab.id(answer.name) for answer in found] for found in asked])
            shares = [ghost_share(corpus, bloom, ids[:, None], answers[:, :k]) for k in (ANSWERS, 1)]
            figures[f"{low}, {column}"] = shares
            row.append(f"{shares[0]:.1%} ({shares[1]:.0%})")
        rows.append(row)
    report("ghosts among five answers (first answers)", ["rank", *columns], rows, figures)


if __name__ == "__main__":
    main(*sys.argv[1:])
