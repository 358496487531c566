"""The corpus of a made-up world. It remembers its options, so the oracle can be made from the corpus alone."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from superbloom.config import SyntheticOptions, WriteOptions, document, make
from superbloom.config.readers import reader_options
from superbloom.corpus import SPLITS, Corpus, Vocab, split_of
from superbloom.errors import InputError
from superbloom.prepare.report import Notice, Report, unnoticed
from superbloom.prepare.synthetic.oracle import Oracle
from superbloom.prepare.synthetic.world import World
from superbloom.progress import Progress, Watch, unwatched
from superbloom.storage import only_writer

WORLD = "world"  # in the info of a corpus: the options that it was made with
JUDGED_ROWS = 1000  # whose best possible recall is reported
KS = (1, 10, 20)


@dataclass
class SyntheticReport(Report):
    """best: the recall of the best possible answers, by k."""

    best: dict[str, float] = field(default_factory=dict)

    def table(self) -> list[tuple[str, str]]:
        return super().table() + [(f"{value:.1%}", f"best possible recall@{k}") for k, value in self.best.items()]

    def document(self) -> dict[str, Any]:
        return super().document() | {"best_recall": self.best}


@document(SyntheticOptions, WriteOptions)
def prepare_synthetic(
    out: str | os.PathLike[str],
    options: SyntheticOptions | None = None,
    *,
    overwrite: bool = WriteOptions.overwrite,
    notice: Notice = unnoticed,  # noqa: ARG001 (every reader takes it)
    watch: Watch = unwatched,
    **given: Any,
) -> SyntheticReport:
    """Write the corpus folder of a made-up world."""
    options, out = reader_options(SyntheticOptions, options, given), Path(out)
    with only_writer(out, "corpus", overwrite):
        with watch("drawing rows", options.rows, False) as progress:
            corpus = synthetic_corpus(options, progress)
        corpus.save(out, overwrite=overwrite)
    return SyntheticReport(corpus.counts(), best_recall(corpus))


def synthetic_corpus(options: SyntheticOptions, progress: Progress = lambda _: None) -> Corpus:
    """Draw the rows of a world, as a corpus in memory."""
    world = World(options)
    names, lengths = world.rows(options.rows, progress)
    vocab, ids = Vocab.from_arrays(world.names, np.bincount(names, minlength=world.num_names))
    keys = [str(number) for number in range(len(lengths))]
    splits = split_of(keys)
    is_kept = (splits != SPLITS["train"]) | (np.cumsum(splits == SPLITS["train"]) <= (options.train_rows or len(keys)))
    lists = pa.LargeListArray.from_arrays(pa.array(np.concatenate([[0], np.cumsum(lengths)])), pa.array(ids[names]))
    columns = {"key": pa.array(keys, type=pa.large_string()), "ids": lists, "split": splits}
    info = {"source": "a made-up world", WORLD: asdict(options)}
    return Corpus(vocab, pa.table(columns).filter(pa.array(is_kept)).combine_chunks(), info=info)


def world_of(corpus: Corpus) -> World | None:
    """The world of a corpus that `prepare synthetic` made; None for other corpora."""
    options = corpus.info.get(WORLD)
    if options is None:
        return None
    try:
        return World(make(SyntheticOptions, options))
    except (InputError, TypeError) as error:
        raise InputError(f"the corpus names a made-up world that cannot be made again: {error}") from None


def best_recall(corpus: Corpus) -> dict[str, float]:
    """The best possible recall on test rows: the expected share of hidden names among the k most probable ones."""
    world = world_of(corpus)
    assert world is not None
    rows = corpus.rows("test")[:JUDGED_ROWS]
    if not len(rows):
        return {}
    numbers = np.array([world.names.index(name) for name in corpus.vocab.names(range(corpus.num_ids))])
    # Rows are in random order, so the last name of a row is as good as any to hide.
    probability = Oracle(world).probabilities([numbers[corpus.row(row)[:-1]] for row in rows])
    highest = -np.sort(-probability, axis=1)
    return {str(k): float(highest[:, :k].sum(axis=1).mean()) for k in KS}
