"""Recommendations for many users: rows of a corpus, or lists of names, each with its k best next names.

histories (ids of each user, in order)  →  the last n − 1 and a [MASK]  →  certified top-k, without the items seen
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from superbloom.config import RecommendOptions
from superbloom.corpus import Corpus, Vocab
from superbloom.errors import InputError, check_whole
from superbloom.predict.predictor import Predictor
from superbloom.predict.query import padded
from superbloom.special import Special

MAX_UNKNOWN_SHOWN = 3


@dataclass(frozen=True)
class Histories:
    """Users, and the ids of each user in order."""

    who: Sequence[Any]
    ids: Sequence[np.ndarray]

    @classmethod
    def of_users(cls, corpus: Corpus, vocab: Vocab, users: Iterable[Any] | None, strict: bool) -> Histories:
        """The rows of a corpus with these keys, or all rows. Unknown users and names are left out with a warning."""
        keys = corpus.sequences["key"]
        if users is None:
            who, rows = keys.to_pylist(), list(range(len(corpus)))
        elif isinstance(users, str) or not isinstance(users, Iterable):
            raise InputError(f"{users!r:.80} given as users; give a list of them")
        else:
            wanted = [item_name(user) for user in users]
            found = pc.index_in(pa.array(wanted, type=pa.large_string()), value_set=keys).to_pylist()
            unknown = [user for user, row in zip(wanted, found, strict=True) if row is None]
            _leave_out("users", unknown, len(corpus), strict)
            who = [user for user, row in zip(wanted, found, strict=True) if row is not None]
            rows = [row for row in found if row is not None]
        ids = [corpus.row(row) for row in rows]
        ours, theirs = corpus.vocab.table["name"], vocab.table["name"]
        if corpus.vocab is vocab or ours.equals(theirs):
            return cls(who, ids)
        numbers = pc.fill_null(pc.index_in(ours, value_set=theirs.combine_chunks()), -1).to_numpy()
        there = np.unique(np.concatenate(ids)) if ids else np.empty(0, np.int32)
        _leave_out("names", corpus.vocab.names(there[numbers[there] < 0].tolist()), len(vocab), strict)
        return cls(who, [numbered[numbered >= 0] for numbered in (numbers[row] for row in ids)])

    @classmethod
    def of_names(cls, lists: Any, vocab: Vocab, strict: bool) -> Histories:
        """Lists of names, or a mapping from users to such lists. Unknown names are left out with a warning."""
        if isinstance(lists, str) or not isinstance(lists, Iterable):
            raise InputError(f"{lists!r:.80} given; give lists of names: [['name a', 'name b'], ['name c']]")
        if not isinstance(lists, Mapping):
            lists = dict(enumerate(lists))
        for names in lists.values():
            if isinstance(names, str) or not isinstance(names, Iterable):
                raise InputError(f"{names!r:.80} given as a list of names; give lists: [[{names!r:.80}]]")
        named = [[item_name(name) for name in names] for names in lists.values()]
        found = [[(name, None if name is None else vocab.find(name)) for name in names] for names in named]
        unknown = dict.fromkeys(name for names in found for name, id_ in names if id_ is None)
        _leave_out("names", list(unknown), len(vocab), strict)
        ids = [np.array([id_ for _, id_ in names if id_ is not None], dtype=np.int32) for names in found]
        return cls(list(lists), ids)

    def parts(self, size: int) -> Iterator[Histories]:
        for start in range(0, len(self.who), size):
            yield Histories(self.who[start : start + size], self.ids[start : start + size])


def item_name(value: Any) -> str | None:
    """The name that `prepare interactions` gives a value: 7 and 7.0 are `7`; None and NaN have none.

    >>> [item_name(value) for value in ("007", 7, 7.0, float("nan"), None)]
    ['007', '7', '7', None, None]
    """
    if isinstance(value, float | np.floating):
        value = None if np.isnan(value) else int(value) if value == np.floor(value) else value
    return None if value is None else str(value)


def _leave_out(what: str, unknown: Sequence[str | None], known: int, strict: bool) -> None:
    if not unknown:
        return
    shown = ", ".join(map(repr, unknown[:MAX_UNKNOWN_SHOWN])) + (", …" if len(unknown) > MAX_UNKNOWN_SHOWN else "")
    message = f"{len(unknown):,} {what} not among the {known:,} known ones: {shown}"
    if strict:
        raise InputError(f"{message}; leave them out, or ask without strict")
    warnings.warn(f"{message}; left out", UserWarning, stacklevel=4)


def recommend(
    predictor: Predictor,
    histories: Histories,
    k: int = RecommendOptions.k,
    *,
    filter_seen: bool | None = RecommendOptions.filter_seen,
    items_to_recommend: Iterable[Any] | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Columns user, item, score, rank (from 1) and certified; up to k rows per user, best first.

    filter_seen: leave out what a user has had; None does as rows of the corpus do.
    """
    model, vocab = predictor.model, predictor.model.target_vocab
    check_whole(k=k)
    allow = None
    if isinstance(items_to_recommend, str):
        raise InputError(f"{items_to_recommend!r:.80} given as items_to_recommend; give a list of names")
    if items_to_recommend is not None:
        allow = torch.tensor([vocab.id(str(item_name(name))) for name in items_to_recommend], dtype=torch.long)
        if not len(allow):
            raise InputError("items_to_recommend is empty; give at least one name, or leave it out")
    if filter_seen is None:  # models of earlier releases, which have no share, always left it out
        filter_seen = model.leaves_out_context or (model.repeats is None and model.vocab is model.target_vocab)
    if filter_seen and model.vocab is not model.target_vocab:
        raise InputError("filter_seen=True, but this model predicts other names than it reads; give filter_seen=False")
    columns: dict[str, list[Any]] = {name: [] for name in ("user", "item", "score", "rank", "certified")}
    for part in histories.parts(predictor.chunk):
        asked = [ids[len(ids) - min(len(ids), model.config.seq_len - 1) :] for ids in part.ids]
        places = torch.tensor([[len(ids)] for ids in asked])
        contexts = padded([np.append(ids, np.int32(Special.MASK)) for ids in asked], Special.PAD)
        seen = padded([np.unique(ids) for ids in part.ids], -1) if filter_seen else None
        found = predictor.search(predictor.beliefs(contexts, places), min(k, len(vocab)), exclude=seen, allow=allow)
        there = found.ids >= 0
        user, column = there.nonzero(as_tuple=True)
        columns["user"] += [part.who[row] for row in user.tolist()]
        columns["item"] += vocab.names(found.ids[there].tolist())
        columns["score"] += found.scores[there].tolist()
        columns["rank"] += (column + 1).tolist()
        columns["certified"] += found.certified[user].tolist()
        progress(len(part.who))
    return columns


def frame(columns: dict[str, Any], backend: str | None = None) -> Any:
    """A table of a backend: by default of pandas if it is installed, else of Arrow."""
    import narwhals as nw

    chosen: Any = backend or ("pandas" if find_spec("pandas") else "pyarrow")
    kinds: dict[str, Any] = {"score": nw.Float64, "rank": nw.Int64, "certified": nw.Boolean}
    empty = None if columns["rank"] else {name: kinds.get(name, nw.String) for name in columns}
    return nw.from_dict(columns, schema=empty, backend=chosen).to_native()
