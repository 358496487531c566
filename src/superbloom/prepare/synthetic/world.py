"""A made-up world: which names there are, and with which probability a row holds them.

A row draws 1 to lists_per_row lists, frequent lists more often (Zipf). It then holds
    each member of its lists, and the name of each list itself (member-of), with probability `complete`,
    any name of the catalogue as noise, frequent names more often (Zipf),
    the capital of each of its countries with probability `follows` (capital-of),
in random order and without repeats. Rows with fewer than two or more than `longest` names are drawn again.

Given its lists, names enter a row independently of each other, except that a capital depends on its country. This is
what makes the probability of a hidden name exactly computable (oracle.py).

Names are numbered: countries from 0, their capitals in the same order, then the lists.
"""

from __future__ import annotations

from functools import cached_property
from itertools import combinations

import numpy as np
from scipy import sparse

from superbloom.config import SyntheticOptions
from superbloom.errors import InputError
from superbloom.progress import Progress

MIN_ROWS_AT_ONCE, ROWS_AT_ONCE = 1_000, 50_000  # that are drawn; the most take about 100 MB
MIN_ACCEPTED = 0.01  # of the rows that are drawn


class World:
    """The lists of a world and their frequencies; they follow from the options and the seed alone.

    >>> world = World(SyntheticOptions(countries=6, lists=2, list_size=3, lists_per_row=1))
    >>> world.num_names, world.names[0], world.names[6], world.names[12]
    (14, 'country 1', 'capital 1', 'list 1')
    >>> world.members.shape, len(world.sets)          # (lists, list_size + 1): the countries, then the list itself
    ((2, 4), 2)
    """

    def __init__(self, options: SyntheticOptions) -> None:
        self.options = options
        self.countries, self.num_names = options.countries, 2 * options.countries + options.lists
        rng = np.random.default_rng([options.seed, 0])
        own = 2 * self.countries + np.arange(options.lists)
        self.members = np.column_stack([_lists(rng, options), own])
        popularity = _zipf(options.lists, options.zipf)
        sizes = range(1, options.lists_per_row + 1)
        # Every set of lists that a row may have (sets, lists_per_row), −1 where it has fewer, and its probability.
        self.sets = np.concatenate([_sets(options.lists, size, options.lists_per_row) for size in sizes])
        weights = np.where(self.sets >= 0, popularity[self.sets], 1.0).prod(axis=1)
        size_of = (self.sets >= 0).sum(axis=1)
        of_size = np.bincount(size_of, weights)
        self.set_probability = weights / of_size[size_of] / len(sizes)
        # The probability that a name is in a row as noise: at least one of Poisson(mean) draws.
        self.noise = -np.expm1(-options.noise * rng.permutation(_zipf(self.num_names, options.zipf)))

    @cached_property
    def names(self) -> list[str]:
        kinds = (("country", self.countries), ("capital", self.countries), ("list", self.options.lists))
        return [f"{kind} {number + 1}" for kind, count in kinds for number in range(count)]

    @cached_property
    def listed(self) -> sparse.csr_matrix:
        """How many lists of each set hold each name, (sets, names)."""
        of_set, column = np.nonzero(self.sets >= 0)
        held = self.members[self.sets[of_set, column]]
        places = (np.repeat(of_set, held.shape[1]), held.ravel())
        counts = sparse.csr_matrix((np.ones(held.size), places), shape=(len(self.sets), self.num_names))
        counts.sum_duplicates()
        return counts

    def rows(self, count: int, progress: Progress = lambda _: None) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows: their names one after the other, and the length of each row."""
        rng, names, lengths, drawn, kept = np.random.default_rng([self.options.seed, 1]), [], [], 0, 0
        at_once = min(ROWS_AT_ONCE, max(MIN_ROWS_AT_ONCE, count))
        while kept < count:
            some, lengths_of_some = self._draw(rng, at_once)
            accepted = (lengths_of_some >= 2) & (lengths_of_some <= self.options.longest)
            names.append(some[np.repeat(accepted, lengths_of_some)])
            lengths.append(lengths_of_some[accepted])
            drawn, kept = drawn + at_once, kept + int(accepted.sum())
            progress(int(accepted.sum()))
            if kept < MIN_ACCEPTED * drawn:
                raise InputError(
                    f"longest={self.options.longest}: {kept:,} of {drawn:,} rows have 2 to {self.options.longest} "
                    f"names, and {np.mean(lengths_of_some):.1f} on average; raise longest, or make lists smaller"
                )
        length = np.concatenate(lengths)[:count]
        return np.concatenate(names)[: length.sum()].astype(np.int32), length

    def _draw(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        options = self.options
        cumulative = np.cumsum(self.set_probability)
        lists = self.sets[np.searchsorted(cumulative, rng.random(count) * cumulative[-1], side="right")]
        row, column = np.nonzero(lists >= 0)
        held = self.members[lists[row, column]]
        is_held = rng.random(held.shape) < options.complete
        noise_mean = -np.log1p(-self.noise)
        noise_row = np.repeat(np.arange(count), rng.poisson(noise_mean.sum(), count))
        cumulative = np.cumsum(noise_mean)
        noise = np.searchsorted(cumulative, rng.random(len(noise_row)) * cumulative[-1], side="right")
        # One number for each pair of row and name, so that a name enters a row once.
        size = self.num_names
        found = np.unique(np.concatenate([(row[:, None] * size + held)[is_held], noise_row * size + noise]))
        is_country = found % size < self.countries
        capitals = found[is_country] + self.countries
        followed = capitals[rng.random(len(capitals)) < options.follows]
        found = np.unique(np.concatenate([found, followed]))
        row = found // size
        return (found % size)[np.lexsort((rng.random(len(found)), row))], np.bincount(row, minlength=count)


def _zipf(count: int, exponent: float) -> np.ndarray:
    """Zipf's law: shares (count,) in proportion to 1 / rank^exponent."""
    weights = np.arange(1, count + 1, dtype=float) ** -exponent
    return weights / weights.sum()


def _lists(rng: np.random.Generator, options: SyntheticOptions) -> np.ndarray:
    """Countries of each list (lists, list_size); each country is in about equally many lists, in none of them twice."""
    per_round = -(-options.countries // options.list_size)
    rounds = -(-options.lists // per_round)
    orders = [np.resize(rng.permutation(options.countries), per_round * options.list_size) for _ in range(rounds)]
    return np.concatenate(orders).reshape(-1, options.list_size)[: options.lists]


def _sets(lists: int, size: int, width: int) -> np.ndarray:
    """All sets of `size` lists (sets, width), filled up with −1."""
    chosen = np.array(list(combinations(range(lists), size)), dtype=np.int32)
    return np.pad(chosen, ((0, 0), (0, width - size)), constant_values=-1)
