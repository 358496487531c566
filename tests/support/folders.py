"""Small corpora and models for the tests of folders: plain, with targets, cut by time, and of text."""

from typing import Any

import numpy as np
import pyarrow as pa

from superbloom.api import Superbloom
from superbloom.corpus.corpus import Corpus
from superbloom.corpus.vocab import Vocab

Outcome = dict[str, Any]
ROWS = [[f"name {number % 13}", f"name {number % 7}", f"näme {number % 5}"] for number in range(80)]
PLAIN = Corpus.from_sequences(ROWS)
TWO = Corpus.from_sequences(ROWS, targets=[[name.upper() for name in row] for row in ROWS])


CUTS = pa.array([2] * len(PLAIN), pa.int32())  # of rows of three
LOG = Corpus(PLAIN.vocab, PLAIN.sequences.append_column("valid_from", CUTS).append_column("test_from", CUTS))
WORDS = ["näme", "##s", "name 1", "twice", ",", "1", "n", "a"]
KINDS = np.array([0, 0, 2, 1, 0, 0, 0, 0], np.int8)
TEXTS = Corpus(
    Vocab.from_arrays(WORDS, np.arange(8, 0, -1), KINDS, "cased")[0],
    pa.table(
        {
            "key": pa.array(map(str, range(60)), pa.large_string()),
            "ids": pa.array([[0, 1, 2, 3, 4, 5]] * 60, pa.large_list(pa.int32())),
            "split": pa.array([0] * 50 + [1] * 5 + [2] * 5, pa.int8()),
            "sentences": pa.array([[0, 3]] * 60, pa.large_list(pa.int32())),
        }
    ),
)


def fitted(corpus: Corpus, **options: Any) -> Superbloom:
    options = {"alpha": 2, "dim": 16, "ffn_dim": 16, "heads": 2, "layers": 1} | options
    return Superbloom(**options).fit(corpus, steps=2, quiet=True)


FILES = [
    *(("corpus", name) for name in ("corpus.json", "sequences.arrow", "targets.arrow", "vocab.arrow")),
    *(("model", name) for name in ("bloom.safetensors", "config.json", "metrics.json", "model.safetensors")),
    *(("model", name) for name in ("prior.safetensors", "target_bloom.safetensors", "targets.arrow", "vocab.arrow")),
]
