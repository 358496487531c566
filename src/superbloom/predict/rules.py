"""Which names a user may be recommended: allowed and excluded ones, and at most n of a category.

Rules hold for all users. The lists of single users come with their histories (recommend.py). A category is a number;
names without one are not limited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from superbloom.errors import InputError, check_whole

NO_CATEGORY = -1


@dataclass(frozen=True)
class Rules:
    """Rules in ids. All of them may be given at once.

    allow: ids that may be answered; None allows all. exclude: ids that are never answered.
    categories (num_ids,): the category of each id. most: how many of a category one answer may hold.
    """

    allow: np.ndarray | None = None
    exclude: np.ndarray | None = None
    categories: np.ndarray | None = None
    most: int | None = None

    @classmethod
    def of_names(
        cls,
        num_ids: int,
        ids_of: Callable[[Iterable[str]], np.ndarray],
        allow: Iterable[str] | None = None,
        exclude: Iterable[str] = (),
        categories: Mapping[str, str] | None = None,
        max_per_category: int | None = None,
    ) -> Self:
        """Rules of names. ids_of: the id of each name, −1 for names that are left out."""
        check_categories(categories, max_per_category)
        for name, names in (("items_to_recommend", allow), ("exclude", exclude)):
            if isinstance(names, str):
                raise InputError(f"{names!r:.80} given as {name}; give a list of names")
        allowed = None if allow is None else _known(ids_of(allow))
        excluded = _known(ids_of(exclude))
        if max_per_category is None or categories is None:
            return cls(allowed, excluded)
        check_whole(max_per_category=max_per_category)
        if not isinstance(categories, Mapping):
            raise InputError(f"{categories!r:.80} given as categories; give a mapping: {{'name a': 'category'}}")
        numbers: dict[str, int] = {}
        of_id = np.full(num_ids, NO_CATEGORY, np.int32)
        ids = ids_of(categories)
        here = np.array([numbers.setdefault(category, len(numbers)) for category in categories.values()], np.int32)
        of_id[ids[ids >= 0]] = here[ids >= 0]
        return cls(allowed, excluded, of_id, max_per_category)

    def open_ids(self, num_ids: int) -> np.ndarray | None:
        """Which ids may be answered to a user without lists, (num_ids,) booleans; None if all may be."""
        if self.allow is None and (self.exclude is None or not len(self.exclude)):
            return None
        is_open = np.full(num_ids, self.allow is None)
        if self.allow is not None:
            is_open[self.allow] = True
        if self.exclude is not None:
            is_open[self.exclude] = False
        return is_open

    @property
    def num_limited(self) -> int:
        """The number of ids that have a category: no more are ever passed over."""
        return 0 if self.categories is None else int((self.categories != NO_CATEGORY).sum())


def check_categories(categories: Mapping[str, str] | None, max_per_category: int | None) -> None:
    """Raise InputError if only one of the two is given."""
    if (categories is None) != (max_per_category is None):
        raise InputError(
            f"categories {'left out' if categories is None else 'given'} and max_per_category={max_per_category}; "
            "give both, or neither"
        )


def _known(ids: np.ndarray) -> np.ndarray:
    """The distinct ids, without fills."""
    return np.unique(ids[ids >= 0])


def within_categories(ids: np.ndarray, categories: np.ndarray, most: int) -> np.ndarray:
    """Which of ids (users, any), best first and −1 fills, remain if one user gets at most `most` of a category.

    >>> within_categories(np.array([[4, 0, 2, 3, -1]]), np.array([7, 7, 7, -1, 7]), most=2).tolist()
    [[True, True, False, True, False]]
    """
    of_id = np.where(ids >= 0, categories[ids], NO_CATEGORY)
    # How many of the same category precede each id: its place in a run of equal categories, sorted stably.
    order = np.argsort(of_id, axis=1, kind="stable")
    ordered = np.take_along_axis(of_id, order, 1)
    column = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    starts = np.where(np.pad(ordered[:, 1:] != ordered[:, :-1], ((0, 0), (1, 0)), constant_values=True), column, 0)
    before = np.empty(ids.shape, np.int64)
    np.put_along_axis(before, order, column - np.maximum.accumulate(starts, axis=1), 1)
    return (ids >= 0) & ((of_id == NO_CATEGORY) | (before < most))
