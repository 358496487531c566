"""Similar names: the strongest neighbours in training rows, or the answers to a context of the names.

    names  →  neighbours by the cosine of counted pairs (memory/pairs.py), without the names themselves

Pairs are symmetric and divided by how frequent both names are. The answers to a context are neither: they are the names
most likely to come next, which are often popular ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from superbloom.answers import Found, Neighbour, Similar
from superbloom.config import SimilarOptions
from superbloom.errors import InputError
from superbloom.memory import NETWORK
from superbloom.predict.predictor import Predictor
from superbloom.predict.query import Query

PAIRS = "pairs"  # where similar names come from, if not from the network
MAX_LISTED = 3  # names in a note


def similar(predictor: Predictor, lists: Sequence[Sequence[str]], k: int = SimilarOptions.k) -> list[Similar]:
    """The k names that are most similar to each list of names. InputError if a name is unknown."""
    found = [by_pairs(predictor, names, k) for names in lists]
    missing = [names for names, one in zip(lists, found, strict=True) if one is None]
    answers = iter(predictor.answer([query_of(predictor, names, k) for names in missing]))
    return [
        by_network(predictor, names, next(answers)[0]) if one is None else one
        for names, one in zip(lists, found, strict=True)
    ]


def by_pairs(predictor: Predictor, names: Sequence[str], k: int) -> Similar | None:
    """The neighbours of all names together; None if no pairs of any of them were counted."""
    SimilarOptions(k=k)
    if isinstance(names, str) or not names:
        raise InputError(f"{names!r:.80} given; give a list of at least one name")
    model = predictor.model
    names = _as_known(predictor, names)
    pairs = None if predictor.network_only or model.memory is None else model.memory.pairs
    if pairs is None:
        return None
    ids = np.array([model.vocab.id(name) for name in names])
    found, scores = pairs.similar(ids, len(model.vocab))
    if not len(found):
        return None
    paired = set(pairs.of(ids, len(model.vocab))[0].tolist())
    unpaired = [name for number, name in enumerate(names) if number not in paired]
    note = f"{_unpaired(unpaired)}; left out" if unpaired else None
    rows = zip(found[:k].tolist(), scores[:k].tolist(), strict=True)
    return Similar(names, [Neighbour(model.vocab.name(id_), score) for id_, score in rows], PAIRS, note)


def query_of(predictor: Predictor, names: Sequence[str], k: int) -> Query:
    """The query for a context of the names alone."""
    return predictor.query(_as_known(predictor, names), k, exclude_context=True)


def by_network(predictor: Predictor, names: Sequence[str], found: Found) -> Similar:
    """The answers to a context of the names alone, with a note why."""
    memory, names = predictor.model.memory, _as_known(predictor, names)
    if predictor.network_only:
        note = None
    else:
        has_pairs = memory is not None and memory.pairs is not None
        why = _unpaired(names) if has_pairs else "this model remembers no pairs"
        note = f"{why}; these are the model's answers to a context of {'it' if len(names) == 1 else 'them'}"
    return Similar(names, [Neighbour(p.name, p.score) for p in found.predictions], NETWORK, note)


def _as_known(predictor: Predictor, names: Sequence[str]) -> list[str]:
    """Names as the catalogue spells them, each once; UnknownNameError for a name that it does not have."""
    vocab = predictor.model.vocab
    return vocab.names(dict.fromkeys(vocab.id(name) for name in names))


def _unpaired(names: Sequence[str]) -> str:
    """Why names have no neighbours, for a note.

    >>> _unpaired(["Oslo", "Bergen"])
    "no pairs of 'Oslo', 'Bergen' were counted in training"
    """
    shown = ", ".join(f"{name!r:.80}" for name in names[:MAX_LISTED]) + (", …" if len(names) > MAX_LISTED else "")
    return f"no pairs of {shown} were counted in training"
