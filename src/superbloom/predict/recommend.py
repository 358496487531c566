"""Recommendations for many users: rows of a corpus, or lists of names, each with its k best next names.

histories (ids of each user, in order)  →  the last n − 1 and a [MASK]  →  certified top-k, under the rules

A user without a known item is answered from [MASK] alone: what rows begin with (docs/decisions.md).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from superbloom.config import RecommendOptions
from superbloom.corpus import Corpus, Vocab
from superbloom.errors import InputError, check_whole
from superbloom.model import Model
from superbloom.predict.beliefs import Beliefs
from superbloom.predict.predictor import Predictor
from superbloom.predict.query import padded
from superbloom.predict.rules import Rules, within_categories
from superbloom.search import TopK
from superbloom.special import Special

MAX_UNKNOWN_SHOWN = 3
FIXED_ROWS = 64  # of a batch of fixed shape
FIRST_WIDTH, WIDTH_GROWTH = 2, 4  # how many times k names are ranked at first if categories are limited, and then
COLUMNS = ("user", "item", "score", "rank", "certified", "source")
SOURCES = ("start", "history")  # what an answer rests on: no item that the model knows, or the items of the user
NO_RULES = Rules()

Lists = Sequence[np.ndarray | None] | None


@dataclass(frozen=True)
class Histories:
    """Users, and the ids of each user in order."""

    who: Sequence[Any]
    ids: Sequence[np.ndarray]

    @classmethod
    def of_users(cls, corpus: Corpus, vocab: Vocab, users: Iterable[Any] | None, strict: bool) -> Histories:
        """The rows of a corpus with these keys, or all rows. Unknown users and names are left out with a warning."""
        rows = rows_of_users(corpus, users, strict)
        who = corpus.sequences["key"].take(pa.array(rows)).to_pylist()
        ids = [corpus.row(row) for row in rows]
        ours, theirs = corpus.vocab.table["name"], vocab.table["name"]
        if corpus.vocab is vocab or ours.equals(theirs):
            return cls(who, ids)
        numbers = pc.fill_null(pc.index_in(ours, value_set=theirs.combine_chunks()), -1).to_numpy()
        there = np.unique(np.concatenate(ids)) if ids else np.empty(0, np.int32)
        leave_out("names", corpus.vocab.names(there[numbers[there] < 0].tolist()), len(vocab), strict)
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
        leave_out("names", list(unknown), len(vocab), strict)
        ids = [np.array([id_ for _, id_ in names if id_ is not None], dtype=np.int32) for names in found]
        return cls(list(lists), ids)


def rows_of_users(corpus: Corpus, users: Iterable[Any] | None, strict: bool) -> np.ndarray:
    """The numbers of the rows with these keys, or of all rows. Unknown users are left out with a warning."""
    keys = corpus.sequences["key"]
    if users is None:
        return np.arange(len(corpus))
    if isinstance(users, str) or not isinstance(users, Iterable):
        raise InputError(f"{users!r:.80} given as users; give a list of them")
    wanted = [item_name(user) for user in users]
    found = pc.index_in(pa.array(wanted, type=pa.large_string()), value_set=keys).to_pylist()
    leave_out("users", [user for user, row in zip(wanted, found, strict=True) if row is None], len(corpus), strict)
    return np.array([row for row in found if row is not None], np.int64)


def item_name(value: Any) -> str | None:
    """The name that `prepare interactions` gives a value: 7 and 7.0 are `7`; None and NaN have none.

    >>> [item_name(value) for value in ("007", 7, 7.0, float("nan"), None)]
    ['007', '7', '7', None, None]
    """
    if isinstance(value, float | np.floating):
        value = None if np.isnan(value) else int(value) if value == np.floor(value) else value
    return None if value is None else str(value)


def leave_out(
    what: str, unknown: Sequence[str | None], known: int, strict: bool, known_ones: str = "known ones"
) -> None:
    """Warn that something is left out, or refuse it if strict; nothing if all is known."""
    if not unknown:
        return
    shown = ", ".join(map(repr, unknown[:MAX_UNKNOWN_SHOWN])) + (", …" if len(unknown) > MAX_UNKNOWN_SHOWN else "")
    message = f"{len(unknown):,} {what} not among the {known:,} {known_ones}: {shown}"
    if strict:
        raise InputError(f"{message}; leave them out, or ask without strict")
    warnings.warn(f"{message}; left out", UserWarning, stacklevel=4)


class Answers(NamedTuple):
    """The best ids of each user, (users, k), −1 fills; their scores, and whether the search certified them."""

    ids: np.ndarray
    scores: np.ndarray
    certified: np.ndarray

    def columns(self, names: pa.Array, num_known: np.ndarray) -> tuple[np.ndarray, dict[str, pa.Array]]:
        """The user number of each row of a table, and its other columns. num_known: the length of each history."""
        user, column = np.nonzero(self.ids >= 0)
        found = {
            "item": names.take(pa.array(self.ids[user, column])).cast(pa.string()),
            "score": pa.array(self.scores[user, column].astype(np.float64)),
            "rank": pa.array(column.astype(np.int64) + 1),
            "certified": pa.array(self.certified[user]),
            "source": pa.array(SOURCES).take(pa.array((num_known[user] > 0).astype(np.int8))),
        }
        return user, found


def leaves_out_seen(model: Model, filter_seen: bool | None) -> bool:
    """Whether answers leave out what a user has had; None does as rows of the corpus do."""
    if filter_seen is None:  # models of earlier releases, which have no share, always left it out
        filter_seen = model.leaves_out_context or (model.repeats is None and model.vocab is model.target_vocab)
    if filter_seen and model.vocab is not model.target_vocab:
        raise InputError("filter_seen=True, but this model predicts other names than it reads; give filter_seen=False")
    return filter_seen


class Recommender:
    """The k best next ids of users, under rules.

    filter_seen: leave out what a user has had; None does as rows of the corpus do.
    fixed: compute every batch in the same shape. Then a score does not depend on the other users, to the bit. A few
    users take as long as a whole batch.
    """

    def __init__(
        self,
        predictor: Predictor,
        k: int = RecommendOptions.k,
        filter_seen: bool | None = RecommendOptions.filter_seen,
        rules: Rules = NO_RULES,
        *,
        fixed: bool = False,
    ) -> None:
        check_whole(k=k)
        model = predictor.model
        self.num_ids = len(model.target_vocab)
        filter_seen = leaves_out_seen(model, filter_seen)
        self.predictor, self.k, self.filter_seen = predictor, min(k, self.num_ids), filter_seen
        self.rules, self.is_open, self.fixed = rules, rules.open_ids(self.num_ids), fixed
        # The last row of a batch of fixed shape stays empty: where nothing is padded, torch adds in another order.
        self.rows = max(2, min(FIXED_ROWS, predictor.chunk))
        self.size = self.rows - 1 if fixed else predictor.chunk

    def __call__(self, ids: Sequence[np.ndarray], allow: Lists = None, exclude: Lists = None) -> Answers:
        """The answers to up to `size` histories.

        allow, exclude: lists of ids for each user, which add to the rules; None in place of a list adds none.
        """
        beliefs = self._beliefs(ids)
        options: dict[str, Any] = {"allow": None if self.is_open is None else torch.from_numpy(self.is_open)}
        is_empty = np.zeros(len(ids), bool)
        if allow is None and self.is_open is not None and not self.is_open.any():
            raise InputError("the rules leave no name to recommend; allow more names, or exclude fewer")
        if allow is not None:
            allowed = [self._allowed(own) for own in allow]
            is_empty = np.array([not len(own) for own in allowed])
            # subtle: the search wants an id for every query; what it answers to users without any is left out below
            options["allow"] = padded([own if len(own) else [0] for own in allowed], -1)
        excluded = self._excluded(ids, exclude)
        if any(map(len, excluded)):
            options["exclude"] = padded(excluded, -1)
        found = self._search(beliefs, options)
        found.ids[is_empty] = -1
        return found

    def _beliefs(self, ids: Sequence[np.ndarray]) -> Beliefs:
        seq_len = self.predictor.model.config.seq_len
        asked = [history[len(history) - min(len(history), seq_len - 1) :] for history in ids]
        if self.fixed:
            asked += [np.empty(0, np.int32)] * (self.rows - len(ids))
        contexts = padded([np.append(history, np.int32(Special.MASK)) for history in asked], Special.PAD)
        if self.fixed:
            contexts = torch.nn.functional.pad(contexts, (0, seq_len - contexts.shape[1]), value=int(Special.PAD))
        places = torch.tensor([[len(history)] for history in asked])
        return self.predictor.beliefs(contexts, places).rows(slice(0, len(ids)))

    def _allowed(self, own: np.ndarray | None) -> np.ndarray:
        """The ids that a user with an own list may get: those of the list, and those that all may get."""
        shared = np.empty(0, np.int64) if self.rules.allow is None else self.rules.allow
        allowed = np.union1d(shared, np.empty(0, np.int64) if own is None else own)
        return allowed if self.rules.exclude is None else np.setdiff1d(allowed, self.rules.exclude)

    def _excluded(self, ids: Sequence[np.ndarray], exclude: Lists) -> list[np.ndarray]:
        none = np.empty(0, np.int64)
        seen = [np.unique(history) if self.filter_seen else none for history in ids]
        if exclude is None:
            return seen
        return [had if own is None else np.union1d(had, own) for had, own in zip(seen, exclude, strict=True)]

    def _search(self, beliefs: Beliefs, options: dict[str, Any]) -> Answers:
        """The best list under the rules.

        With at most n of a category, the best list is what remains if one walks down the exact ranking of all permitted
        ids, and passes over an id whose category is full. Proof: compare any other permitted list with it, at the first
        place where they differ. All better ids that the other list could hold there have a full category, so its id
        there ranks lower. The walk reads the ranking from the top, so the certified top K decides it as soon as k ids
        are taken, or when the ranking ends. An id can be passed over only if it has a category, so K never has to
        exceed k plus the number of those.
        """
        categories, k = self.rules.categories, self.k
        if categories is None or self.rules.most is None:
            return _answers(self.predictor.search(beliefs, k, **options))
        most_needed = min(self.num_ids, k + self.rules.num_limited)
        width = min(most_needed, FIRST_WIDTH * k)
        ids, scores = np.full((beliefs.size, k), -1, np.int64), np.full((beliefs.size, k), -np.inf, np.float32)
        certified, open_ = np.zeros(beliefs.size, bool), np.arange(beliefs.size)
        while len(open_):
            here = {name: rows if rows is None or rows.dim() == 1 else rows[open_] for name, rows in options.items()}
            found = _answers(self.predictor.search(beliefs.rows(open_.tolist()), width, **here))
            remains = within_categories(found.ids, categories, self.rules.most)
            taken = remains & (remains.cumsum(axis=1) <= k)
            row, column = np.nonzero(taken)
            place = taken.cumsum(axis=1)[row, column] - 1
            ids[open_[row], place], scores[open_[row], place] = found.ids[row, column], found.scores[row, column]
            certified[open_] = found.certified
            if width == most_needed:
                break
            open_ = open_[(taken.sum(axis=1) < k) & (found.ids[:, -1] >= 0)]
            width = min(most_needed, WIDTH_GROWTH * width)
        return Answers(ids, scores, certified)


def _answers(found: TopK) -> Answers:
    return Answers(found.ids.cpu().numpy(), found.scores.cpu().numpy(), found.certified.cpu().numpy())


def recommend(
    predictor: Predictor,
    histories: Histories,
    k: int = RecommendOptions.k,
    *,
    filter_seen: bool | None = RecommendOptions.filter_seen,
    items_to_recommend: Iterable[Any] | Mapping[Any, Iterable[Any]] | None = None,
    exclude: Iterable[Any] | Mapping[Any, Iterable[Any]] = (),
    categories: Mapping[Any, Any] | None = None,
    max_per_category: int | None = RecommendOptions.max_per_category,
) -> dict[str, Any]:
    """Columns user, item, score, rank (from 1), certified and source; up to k rows per user, best first.

    items_to_recommend, exclude: names for all users, or a mapping from users to names.
    """
    vocab = predictor.model.target_vocab

    def ids_of(names: Iterable[Any]) -> np.ndarray:
        return np.array([vocab.id(str(item_name(name))) for name in names], dtype=np.int64)

    if isinstance(items_to_recommend, Iterable) and not isinstance(items_to_recommend, str | Mapping):
        items_to_recommend = list(items_to_recommend)
    if items_to_recommend is not None and not items_to_recommend:
        raise InputError("items_to_recommend is empty; give at least one name, or leave it out")
    allow_all, allow_own = _shared_and_own(items_to_recommend, None, histories.who, ids_of)
    exclude_all, exclude_own = _shared_and_own(exclude, (), histories.who, ids_of)
    rules = Rules.of_names(len(vocab), ids_of, allow_all, exclude_all, categories, max_per_category)
    recommender = Recommender(predictor, k, filter_seen, rules)
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for start in range(0, len(histories.who), recommender.size):
        here = slice(start, start + recommender.size)
        ids = histories.ids[here]
        found = recommender(ids, *(None if own is None else own[here] for own in (allow_own, exclude_own)))
        user, table = found.columns(vocab.table["name"].chunk(0), np.array([len(history) for history in ids]))
        columns["user"] += [histories.who[start + row] for row in user.tolist()]
        for name, column in table.items():
            columns[name] += column.to_pylist()
    return columns


def _shared_and_own(
    given: Any, empty: Any, who: Sequence[Any], ids_of: Callable[[Iterable[Any]], np.ndarray]
) -> tuple[Any, Lists]:
    """Names for all users, and the ids of each user's own list if a mapping from users was given."""
    if not isinstance(given, Mapping):
        return given, None
    lists = {item_name(user): ids_of(names) for user, names in given.items()}
    return empty, [lists.get(item_name(user)) for user in who]


def frame(columns: dict[str, Any], backend: str | None = None) -> Any:
    """A table of a backend: by default of pandas if it is installed, else of Arrow."""
    import narwhals as nw

    chosen: Any = backend or ("pandas" if find_spec("pandas") else "pyarrow")
    kinds: dict[str, Any] = {"score": nw.Float64, "rank": nw.Int64, "certified": nw.Boolean}
    empty = None if columns["rank"] else {name: kinds.get(name, nw.String) for name in columns}
    return nw.from_dict(columns, schema=empty, backend=chosen).to_native()
