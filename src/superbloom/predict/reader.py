"""From names or text to a Query: look names up, segment text, and refuse what a model cannot answer.

A model of text reads a text between [CLS] and [SEP], as in training (corpus/segmenter.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from superbloom.config import QueryOptions
from superbloom.corpus import READ_LOCK, Vocab
from superbloom.errors import InputError
from superbloom.model import Model
from superbloom.predict.query import Query
from superbloom.special import MASK_TEXT, Special

MASKS = re.compile(r"\[MASK\d*\]")  # in a text; the paper numbers them: [MASK1], [MASK2]
MIN_ROWS = 64  # distributions that one query may take, whatever their size
MAX_EXPLAINED = 200  # answers of one query that are explained
MAX_ENTRY_CHARACTERS = 200  # a text with more characters per place is refused


def read_query(
    model: Model, context: Sequence[str | Special] | str, options: QueryOptions, rows_together: int
) -> Query:
    """The query for a list of names, or for a text with [MASK].

    rows_together is the number of distributions that are computed at a time. InputError if a name is unknown or if the
    query is too large.
    """
    ids, unread = _text_ids(model, context) if isinstance(context, str) else (_ids(model, context), [])
    if Special.MASK not in ids:
        ids.append(Special.MASK)
    if model.vocab.is_text:
        ids = [Special.CLS, *ids, Special.SEP]
    if len(ids) > model.config.seq_len:
        raise InputError(
            f"{len(ids)} elements given; this model reads up to {model.config.seq_len}: shorten the context"
        )
    exclude = _target_ids(model, options.exclude)
    if options.exclude_context and isinstance(context, str):
        raise InputError("exclude_context goes with names; of a text, exclude leaves out what you name")
    if model.leaves_out_context if options.exclude_context is None else options.exclude_context:
        exclude += _context_targets(model, ids)
    allow = None if options.allow is None else _target_ids(model, options.allow)
    if allow == ():
        raise InputError("allow holds no name; give at least one, or leave it out")
    asked = options.k
    options = replace(options, k=min(options.k, len(model.target_vocab)))  # the catalogue has no more
    query = Query(tuple(ids), options, exclude, allow, tuple(unread))
    _check_size(query, max(rows_together, MIN_ROWS), asked)
    return query


def _check_size(query: Query, max_rows: int, k: int) -> None:
    explain, masks = query.options.explain, len(query.places)
    if query.rows > max_rows:
        to_explain = " to explain" if explain else ""
        raise InputError(
            f"{masks} masks and {len(query.elements)} elements{to_explain} given; that takes "
            f"{query.rows:,} distributions, up to {max_rows:,} are allowed: ask for fewer masks at a time"
        )
    if explain and query.k * masks > MAX_EXPLAINED:
        raise InputError(f"k={k} for {masks} masks given; up to {MAX_EXPLAINED} answers in all are explained")


def _ids(model: Model, context: Sequence[str | Special]) -> list[int]:
    vocab = model.vocab
    return [
        int(Special.MASK) if name is Special.MASK or _is_mask(name, vocab) else vocab.id(str(name)) for name in context
    ]


def _is_mask(name: str | Special, vocab: Vocab) -> bool:
    """Whether a name is [MASK], in any case. Without this, [mask] would be read as the name Mask."""
    return str(name).upper() == MASK_TEXT and str(name) not in vocab


def _text_ids(model: Model, text: str) -> tuple[list[int], list[str]]:
    """The ids of a text, and the words of it that cannot be read."""
    if not model.vocab.is_text:
        raise InputError(
            f"the text {text!r:.80} given, but this model reads names; give a list of names (on the command line, "
            "names instead of --text)"
        )
    parts = MASKS.split(text)
    if len(parts) == 1:
        raise InputError(f"{text[:80]!r} has no {MASK_TEXT}; put one where something is to be filled in")
    seq_len = model.config.seq_len
    if len(parts) > seq_len or len(text) > MAX_ENTRY_CHARACTERS * seq_len:
        raise InputError(
            f"a text of {len(text):,} characters with {len(parts) - 1:,} masks given; this model reads up to "
            f"{seq_len} elements: shorten it"
        )
    with READ_LOCK:
        found = [model.vocab.segmenter.segment(part) for part in parts]
    pairs = zip(parts, found, strict=True)
    unread = [part[slice(*span)] for part, segments in pairs for span in segments.unknown]
    ids = [id_ for segments in found for id_ in (*segments.ids.tolist(), int(Special.MASK))]
    return ids[:-1], unread


def _target_ids(model: Model, names: Iterable[str]) -> tuple[int, ...]:
    return tuple(model.target_vocab.id(name) for name in names)


def _context_targets(model: Model, ids: Sequence[int]) -> tuple[int, ...]:
    """The names of the context as ids of the vocabulary that is predicted."""
    found = (model.target_vocab.find(model.vocab.name(id_)) for id_ in ids if id_ >= 0)
    return tuple(id_ for id_ in found if id_ is not None)
