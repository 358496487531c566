"""Queries and answers as JSON, as the HTTP process and the model processes exchange them. No pickle is involved.

    queries (ids and options)  →  bytes  →  queries        answers (names, scores, reasons)  →  bytes  →  answers

Floats keep every digit. Only the options that matter once names are ids are sent.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from superbloom.answers import Explanation, Found, Prediction
from superbloom.config import QueryOptions
from superbloom.config.option import kind_of
from superbloom.errors import InputError
from superbloom.predict import Query

# Query.exclude and Query.allow hold the ids of these names.
OPTIONS = tuple(spec.name for spec in fields(QueryOptions) if spec.name not in ("exclude", "allow"))


def queries_to_bytes(queries: Sequence[Query]) -> bytes:
    """
    >>> query = Query((3, -1), QueryOptions(k=5), exclude=(7,))
    >>> queries_from_bytes(queries_to_bytes([query])) == [query]
    True
    """
    return _dump(
        [
            [query.ids, {name: getattr(query.options, name) for name in OPTIONS}, query.exclude, query.allow]
            for query in queries
        ]
    )


def queries_from_bytes(data: bytes) -> list[Query]:
    return [
        Query(tuple(ids), QueryOptions(**options), tuple(exclude), None if allow is None else tuple(allow))
        for ids, options, exclude, allow in json.loads(data)
    ]


def answers_to_bytes(answers: Sequence[Sequence[Found]]) -> bytes:
    """
    >>> found = Found([Prediction("Oslo", -0.1, True, 0.9)], True, 1, 20)
    >>> answers_from_bytes(answers_to_bytes([[found]])) == [[found]]
    True
    """
    return _dump({"answers": [[_columns(found) for found in masks] for masks in answers]})


def error_to_bytes(line: str, is_input_error: bool) -> bytes:
    return _dump({"error": line, "is_input_error": is_input_error})


def answers_from_bytes(data: bytes) -> list[list[Found]]:
    """The answers. If there is an error instead, raise InputError with its line, or RuntimeError with its traceback."""
    content = json.loads(data)
    if "error" in content:
        raise (InputError if content["is_input_error"] else RuntimeError)(content["error"])
    return [[_found(*columns) for columns in masks] for masks in content["answers"]]


def _columns(found: Found) -> list[Any]:
    names, scores, probabilities = ([getattr(p, part) for p in found.predictions] for part in COLUMNS)
    reasons = None if found.explanation is None else asdict(found.explanation)
    return [names, scores, probabilities, found.certified, found.rounds, found.scored, reasons]


COLUMNS = ("name", "score", "probability")


def _found(
    names: list[str],
    scores: list[float],
    probabilities: list[float],
    certified: bool,
    rounds: int,
    scored: int,
    reasons: Any,
) -> Found:
    columns = zip(names, scores, probabilities, strict=True)
    predictions = [Prediction(name, score, certified, probability) for name, score, probability in columns]
    return Found(predictions, certified, rounds, scored, _revived(Explanation | None, reasons))


def _revived(hint: Any, value: Any) -> Any:
    """A value of JSON as the type says: dataclasses again, in lists or alone."""
    kind, _ = kind_of(hint)
    if value is None:
        return None
    if get_origin(kind) is list:
        (inner,) = get_args(kind)
        return [_revived(inner, part) for part in value]
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{name: _revived(hints[name], part) for name, part in value.items()})  # type: ignore[operator]
    return value


def _dump(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
