"""Checks of the rows in sequences.arrow that its column types do not cover, and of a share (docs/formats.md).

Other programs write corpus folders as well. A file that breaks a rule raises InputError with its path.
"""

from __future__ import annotations

import reprlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from superbloom.corpus.splits import SPLITS
from superbloom.errors import InputError


def check_sequences(path: Path, sequences: pa.Table, num_ids: int, num_targets: int) -> None:
    """Refuse rows that do not fit together, or hold ids that the vocabularies do not have."""
    columns = {name: sequences[name].chunk(0) for name in sequences.column_names}
    lists = {name: columns[name] for name in ("ids", "targets") if name in columns}
    for name, each in lists.items():
        ids, limit = each.values.to_numpy(), num_ids if name == "ids" else num_targets
        if len(ids) and (ids.min() < 0 or ids.max() >= limit):
            raise InputError(f"{path}: {name} from {ids.min()} to {ids.max()}; only 0 to {limit - 1} have names")
    splits = columns["split"].to_numpy()
    if splits.min() < 0 or splits.max() >= len(SPLITS):
        raise InputError(f"{path}: split codes are {SPLITS}; found {splits.min()} to {splits.max()}")
    offsets = lists["ids"].offsets.to_numpy()
    _check_cuts(path, columns, np.diff(offsets))
    if "sentences" in columns:
        _check_sentences(path, columns["sentences"], np.diff(offsets))
    for each in lists.values():
        own = each.offsets.to_numpy()
        if own[0] != 0 or own[-1] != len(each.values) or not np.array_equal(own, offsets):
            raise InputError(f"{path}: rows must follow one another, with one target per id; write it again")


def check_asks(path: Path, info: dict[str, Any]) -> None:
    """Refuse a manifest whose `asks` says something else than which held-out elements are asked."""
    asks = info.get("asks", "first")
    if asks not in ("first", "every"):
        raise InputError(f"{path}: asks={reprlib.repr(asks)}; 'first' or 'every' held-out element of a row is allowed")


def checked_share(path: Path, name: str, value: Any) -> float | None:
    """The share that a manifest has under a name: a number from 0 to 1, or null."""
    if value is None or (type(value) in (int, float) and 0 <= value <= 1):
        return value
    raise InputError(f"{path}: {name}={reprlib.repr(value)} is no share; a number from 0 to 1 or null is allowed")


def _check_cuts(path: Path, columns: dict[str, pa.Array], row_lengths: np.ndarray) -> None:
    """Training ends at valid_from, validation at test_from; both are positions in the row."""
    cuts = [columns[name].to_numpy() for name in ("valid_from", "test_from") if name in columns]
    if len(cuts) == 1:
        raise InputError(f"{path} has one of valid_from and test_from; give both or none")
    positions = [np.zeros(len(row_lengths), dtype=np.int64), *cuts, row_lengths]
    if cuts and any((after < before).any() for before, after in pairwise(positions)):
        raise InputError(f"{path}: every row must have 0 <= valid_from <= test_from <= length")


def _check_sentences(path: Path, sentences: pa.Array, row_lengths: np.ndarray) -> None:
    """The positions of each row begin with 0, increase, and end within the row."""
    offsets, positions = sentences.offsets.to_numpy(), sentences.values.to_numpy()
    counts = np.diff(offsets)
    sound = offsets[0] == 0 and offsets[-1] == len(positions) and np.array_equal(counts > 0, row_lengths > 0)
    if sound:
        firsts, lasts = offsets[:-1][counts > 0], offsets[1:][counts > 0] - 1
        rising = np.ones(len(positions), dtype=bool)
        rising[1:] = positions[1:] > positions[:-1]
        rising[firsts] = positions[firsts] == 0
        sound = rising.all() and (positions[lasts] < row_lengths[counts > 0]).all()
    if not sound:
        raise InputError(f"{path}: the sentences of a row must begin at 0, at rising places within it; write it again")
