"""The best possible answer in a made-up world: the exact probability of each name to be the hidden one.

A row R = V + {h} hides one of its names, each equally often. So P(h | V) is in proportion to P(R), a sum over the sets
of lists that a row may have. Given a set, names are independent of each other except a capital and its country: P(R)
has a factor for each name in V, and adding h changes one factor (world.py). Nothing is approximated: redrawing rows
that are too short or too long divides all P(R) by the same number.

    contexts (rows, names), 1 where a name is seen  →  probabilities (rows, names)
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy import sparse

from superbloom.prepare.synthetic.world import World

NUMBERS_AT_ONCE = 2**25  # in an array over rows and sets: 256 MB


class Oracle:
    """Bayes' rule for a world.

    >>> from superbloom.config import SyntheticOptions
    >>> world = World(SyntheticOptions(countries=6, lists=2, list_size=3, lists_per_row=1, complete=0.9, noise=0.01))
    >>> seen = world.members[0, :3]                                    # all countries of the first list
    >>> probability = Oracle(world).probabilities([seen])[0]
    >>> world.names[probability.argmax()], round(float(probability.sum()), 6)    # the list itself is missing
    ('list 1', 1.0)
    """

    def __init__(self, world: World) -> None:
        self.world = world
        noise, held, listed = world.noise, world.options.complete, world.listed
        # The odds that a name is in a row, given its lists, without regard to capitals (sets, names). They are those of
        # noise except where a list holds the name: only the differences are kept.
        self.base = noise / (1 - noise)
        absent = (1 - noise[listed.indices]) * (1 - held) ** listed.data
        odds = (1 - absent) / absent
        self.more_odds = _like(listed, odds - self.base[listed.indices])
        self.log_ratio = _like(listed, np.log(odds / self.base[listed.indices]))
        absences = np.asarray(listed.sum(axis=1)).ravel() * np.log1p(-held)
        self.log_prior = np.log(world.set_probability) + absences
        # The odds of a capital without its country, and with it.
        countries = world.countries
        own, follows = noise[countries : 2 * countries], world.options.follows
        apart, together = own, 1 - (1 - own) * (1 - follows)
        self.odds_apart, self.odds_together = apart / (1 - apart), together / (1 - together)
        # What a country's presence does to the probability that its capital is absent, or present.
        self.without_capital, self.with_capital = (1 - together) / (1 - apart), together / apart

    def probabilities(self, contexts: list[np.ndarray]) -> np.ndarray:
        """P(h | V) of every name for each context, an array of the names that are seen; (contexts, names)."""
        found = np.empty((len(contexts), self.world.num_names))
        for part in self._parts(len(contexts)):
            found[part] = self._probabilities(contexts[part])
        return found

    def _parts(self, rows: int) -> Iterator[slice]:
        step = max(1, NUMBERS_AT_ONCE // len(self.world.sets))
        return (slice(start, start + step) for start in range(0, rows, step))

    def _probabilities(self, contexts: list[np.ndarray]) -> np.ndarray:
        world, countries = self.world, self.world.countries
        seen = np.zeros((len(contexts), world.num_names))
        seen[np.repeat(np.arange(len(contexts)), [len(c) for c in contexts]), np.concatenate(contexts)] = 1
        scores = (self.log_ratio @ seen.T).T + self.log_prior
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)  # of each set of lists, given what is seen
        odds = self.base + (self.more_odds.T @ weights.T).T
        capital_seen = seen[:, countries : 2 * countries] > 0
        odds[:, :countries] *= np.where(capital_seen, self.with_capital, self.without_capital)
        country_seen = seen[:, :countries] > 0
        odds[:, countries : 2 * countries] = np.where(country_seen, self.odds_together, self.odds_apart)
        odds[seen > 0] = 0
        return odds / odds.sum(axis=1, keepdims=True)


def _like(matrix: sparse.csr_matrix, data: np.ndarray) -> sparse.csr_matrix:
    return sparse.csr_matrix((data, matrix.indices, matrix.indptr), shape=matrix.shape)
