"""recommend_arrow: histories in Arrow → recommendations in Arrow. A pool, Spark and Ray call this one function.

    user, history list<string>[, allow list<string>, exclude list<string>]
        →  user, item, score, rank, certified, source[, title]

The rows of a user depend on the history, the rules and the model alone: not on the other users, their number or their
order. Every batch is computed in the same shape for that (predict/recommend.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from superbloom.config import RecommendOptions
from superbloom.corpus import Vocab
from superbloom.errors import InputError
from superbloom.predict import Predictor
from superbloom.predict.recommend import Recommender
from superbloom.predict.rules import Rules
from superbloom.storage import MANIFESTS, sha256
from superbloom.store import load

TYPES: dict[str, pa.DataType] = {
    "item": pa.string(),
    "score": pa.float64(),
    "rank": pa.int64(),
    "certified": pa.bool_(),
    "source": pa.string(),
}
LISTS = ("allow", "exclude")  # columns of single users, which may be left out


class ArrowRecommender:
    """recommend_arrow, one batch at a time; what it needs is prepared once. It takes the same arguments."""

    def __init__(
        self,
        model: Any,
        *,
        k: int = RecommendOptions.k,
        filter_seen: bool | None = RecommendOptions.filter_seen,
        items_to_recommend: Iterable[str] | None = None,
        exclude: Iterable[str] = (),
        categories: Mapping[str, str] | None = None,
        max_per_category: int | None = RecommendOptions.max_per_category,
        titles: Mapping[str, str] | None = None,
    ) -> None:
        predictor: Predictor = opened(model) if isinstance(model, str | Path) else getattr(model, "predictor", model)
        self._reads, vocab = predictor.model.vocab, predictor.model.target_vocab

        def ids_of(names: Iterable[str]) -> np.ndarray:
            return vocab.find_all(pa.array(list(names), pa.string()))

        rules = Rules.of_names(len(vocab), ids_of, items_to_recommend, exclude, categories, max_per_category)
        self._vocab, self._names = vocab, vocab.table["name"].chunk(0)
        self._recommender = Recommender(predictor, k, filter_seen, rules, fixed=True)
        self._titles = None if titles is None else titles_of(vocab, titles)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of all users of a batch, in the order of the users."""
        check_histories(batch.schema)
        histories = _ids_of_lists(batch["history"], self._reads)
        own = {name: _ids_of_lists(batch[name], self._vocab) if name in batch.schema.names else None for name in LISTS}
        known = np.array([0 if ids is None else len(ids) for ids in histories], np.int64)
        found: list[pa.RecordBatch] = []
        empty = np.empty(0, np.int32)
        for start in range(0, len(batch), self._recommender.size):
            here = slice(start, start + self._recommender.size)
            answers = self._recommender(
                [empty if ids is None else ids for ids in histories[here]],
                *(None if lists is None else lists[here] for lists in own.values()),
            )
            user, columns = answers.columns(self._names, known[here])
            columns = {"user": batch["user"].take(pa.array(start + user))} | columns
            if self._titles is not None:
                columns["title"] = self._titles.take(pa.array(answers.ids[answers.ids >= 0]))
            found.append(pa.record_batch(columns))
        schema = schema_of(batch["user"].type, self._titles is not None)
        table = pa.Table.from_batches(found, schema).combine_chunks()
        return pa.RecordBatch.from_arrays(
            [
                table[name].chunk(0) if table[name].num_chunks else pa.array([], table[name].type)
                for name in schema.names
            ],
            schema=schema,
        )


def recommend_arrow(batches: Iterable[pa.RecordBatch], model: Any, **options: Any) -> Iterator[pa.RecordBatch]:
    """The k best next items of every user, batch by batch.

    batches: user (any type) and history (a list of names, in order); allow and exclude may add a list for each user.
    Names that the model does not know are left out. A user without a known name gets what rows begin with, and the
    source is "start", not "history".
    model: a Superbloom, or a model folder, which a process opens once.
    options: k, filter_seen, items_to_recommend, exclude, categories and max_per_category as in Superbloom.recommend,
    but unknown names in them are left out; titles, {item: title}, adds a column.

    >>> from superbloom import Corpus, Superbloom
    >>> rows = [["Copenhagen", "Denmark", "Oslo"], ["Oslo", "Norway", "Denmark"]] * 8
    >>> model = Superbloom(alpha=2, dim=16, ffn_dim=16).fit(Corpus.from_sequences(rows), steps=1, quiet=True)
    >>> asked = pa.record_batch({"user": [7, 8], "history": [["Oslo"], []]})
    >>> (found,) = recommend_arrow([asked], model, k=1, items_to_recommend=["Norway"])
    >>> found.select(["user", "item", "rank", "certified", "source"]).to_pylist()[1]
    {'user': 8, 'item': 'Norway', 'rank': 1, 'certified': True, 'source': 'start'}
    """
    recommender = ArrowRecommender(model, **options)
    for batch in batches:
        yield recommender(batch)


def check_histories(schema: pa.Schema) -> None:
    """Raise InputError unless these are the columns of histories."""
    shown = ", ".join(f"{field.name} ({field.type})" for field in schema)
    for name in ("user", "history"):
        if name not in schema.names:
            raise InputError(f"columns {shown} given; user and history are needed")
    for name in ("history", *LISTS):
        if name in schema.names and not _is_list(schema.field(name).type):
            raise InputError(f"columns {shown} given; {name} has to be a list of texts")


def _is_list(kind: pa.DataType) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    values = (pa.types.is_string, pa.types.is_large_string, pa.types.is_null)
    return pa.types.is_null(kind) or (is_list and any(check(kind.value_type) for check in values))


def schema_of(user: pa.DataType, has_titles: bool) -> pa.Schema:
    """The columns of recommendations."""
    return pa.schema({"user": user} | TYPES | ({"title": pa.string()} if has_titles else {}))


def titles_of(vocab: Vocab, titles: Mapping[str, str]) -> pa.Array:
    """The title of each id; empty if it has none."""
    found = vocab.find_all(pa.array(list(titles), pa.string()))
    of_id: list[str] = [""] * len(vocab)
    for id_, title in zip(found.tolist(), titles.values(), strict=True):
        if id_ >= 0:
            of_id[id_] = title
    return pa.array(of_id, pa.string())


def _ids_of_lists(lists: pa.Array, vocab: Vocab) -> list[np.ndarray | None]:
    """The known ids of each list; None for null."""
    if pa.types.is_null(lists.type):
        return [None] * len(lists)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    ids = vocab.find_all(lists.flatten())
    parts = np.split(ids, np.cumsum(lengths)[:-1])
    is_there = lists.is_valid().to_pylist()
    return [part[part >= 0] if there else None for part, there in zip(parts, is_there, strict=True)]


def opened(folder: str | Path) -> Predictor:
    """The model of a folder. A process opens it once, until the folder holds another model."""
    try:
        checksum = sha256(Path(folder) / MANIFESTS["model"])
    except OSError:
        checksum = ""  # load says what is missing
    return _opened(str(Path(folder).resolve()), checksum)


@lru_cache(maxsize=1)
def _opened(folder: str, _checksum: str) -> Predictor:
    return Predictor(load(folder).model)
