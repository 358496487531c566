"""Ghosts: answers that owe their place to a shared bucket, not to what was learned.

An answer is a ghost if it shares a bucket with an id of the context or with a better answer, and if no training row
holds it together with an id of the context.

    contexts (rows, n), answers (rows, k), best first  →  the share of answers that are ghosts
"""

from __future__ import annotations

import numpy as np

from superbloom.corpus import SPLITS, Corpus
from superbloom.hashing import BloomHash

MAX_ROWS = 1000  # rows looked at
MAX_ANSWERS = 10  # answers of each row


def ghost_share(corpus: Corpus, bloom: BloomHash, contexts: np.ndarray, answers: np.ndarray) -> float:
    """The share of ghosts among the ten best answers of up to 1,000 rows; negative ids are no names."""
    rows_of_input = _RowsOf(corpus, corpus.ids, corpus.num_ids)
    is_one = corpus.target_vocab is None
    rows_of_target = rows_of_input if is_one else _RowsOf(corpus, corpus.targets, bloom.num_ids)
    table = bloom.table.cpu().numpy()
    ghosts = total = 0
    for context, found in zip(contexts[:MAX_ROWS], answers[:MAX_ROWS, :MAX_ANSWERS], strict=True):
        known = np.unique(context[context >= 0])
        found = found[found >= 0]
        beside = np.zeros(len(corpus), dtype=bool)
        for id_ in known:
            beside[rows_of_input[id_]] = True
        earlier = table[known] if is_one else table[:0]
        for id_ in found:
            shares = bool((earlier == table[id_]).any())
            ghosts += shares and not beside[rows_of_target[id_]].any()
            earlier = np.vstack([earlier, table[id_]])
        total += len(found)
    return ghosts / max(1, total)


class _RowsOf:
    """The training rows that hold each id."""

    def __init__(self, corpus: Corpus, ids: np.ndarray, size: int) -> None:
        lengths = np.diff(corpus.offsets)
        row = np.repeat(np.arange(len(corpus)), lengths)
        is_training = np.repeat(corpus.splits == SPLITS["train"], lengths)
        is_training &= np.arange(len(ids)) < np.repeat(corpus.ends, lengths)
        ids, row = ids[is_training], row[is_training]
        order = np.argsort(ids, kind="stable")
        self.rows, self.starts = row[order], np.searchsorted(ids[order], np.arange(size + 1))

    def __getitem__(self, id_: int) -> np.ndarray:
        return self.rows[self.starts[id_] : self.starts[id_ + 1]]
