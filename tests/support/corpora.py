"""Small corpora whose answers are known, and a digest of batches."""

import hashlib
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import torch

from superbloom.corpus import Corpus, split_of
from superbloom.corpus.vocab import Vocab
from superbloom.training.batches import Batch

WORDS = [
    "miles davis",
    "john coltrane",
    "john",
    "davis",
    "is",
    "a",
    "jazz",
    "musician",
    "piano",
    "he",
    "plays",
    ".",
    "##s",
]
SENTENCES = [
    "Miles Davis is a jazz musician.",
    "John Coltrane is a jazz musician.",
    "He plays piano.",
    "Davis plays jazz.",
]


def rings(num_rings: int = 24, ring: int = 8, rows: int = 800, seed: int = 0) -> Corpus:
    """Rows drawn from rings of names: what a row holds tells its ring, so ring mates are the right answers."""
    rng = np.random.default_rng(seed)
    names = [[f"ring {r} name {i}" for i in range(ring)] for r in range(num_rings)]
    return Corpus.from_sequences(
        [rng.permutation(names[rng.integers(num_rings)])[: rng.integers(3, ring + 1)].tolist() for _ in range(rows)]
    )


def casts(rows: int = 300, repeated: float = 0.0, targets: bool = False, seed: int = 0) -> Corpus:
    """Films of six actors each, out of twelve groups that play together; a share of rows has the first one twice."""
    rng = np.random.default_rng(seed)
    groups = [[f"actor {group} {number}" for number in range(9)] for group in range(12)]
    found = [rng.permutation(groups[rng.integers(12)])[:6].tolist() for _ in range(rows)]
    found = [[*row[:2], row[0], *row[2:]] if rng.random() < repeated else row for row in found]
    second = [[f"{name[:-1]}{int(name[-1]) // 2}" for name in row] for row in found]  # some names of the first
    return Corpus.from_sequences(found, targets=second if targets else None)


def sentences() -> Corpus:
    """Documents of four sentences each, every word known."""
    kinds = np.array([2 if " " in word else 0 for word in WORDS], dtype=np.int8)
    vocab, _ = Vocab.from_arrays(WORDS, np.arange(len(WORDS), 0, -1), kinds, "lowercase")
    rng = np.random.default_rng(0)
    rows, begins = [], []
    for _ in range(200):
        found = [vocab.segmenter.segment(SENTENCES[i]).ids.tolist() for i in rng.integers(len(SENTENCES), size=4)]
        rows.append([id_ for sentence in found for id_ in sentence])
        begins.append(np.cumsum([0, *map(len, found[:-1])]).tolist())
    keys = [str(number) for number in range(200)]
    lists = pa.large_list(pa.int32())
    columns = {"key": pa.array(keys, pa.large_string()), "ids": pa.array(rows, lists), "split": split_of(keys)}
    return Corpus(vocab, pa.table(columns | {"sentences": pa.array(begins, lists)}))


def digest(batches: Iterable[Batch]) -> str:
    """16 hex digits that change if any number in the batches does."""
    found = hashlib.sha256()
    for batch in batches:
        for part in (*batch[:3], torch.tensor(batch.total)):
            found.update(part.to(torch.int32).numpy().tobytes())
    return found.hexdigest()[:16]
