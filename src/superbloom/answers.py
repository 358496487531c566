"""Answers as plain data: names with scores, how the search found them, and why. A server sends them as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Prediction:
    """A name with its score and its probability among all names of the catalogue.

    certified: no other name that may be returned has a higher score under this model.
    """

    name: str
    score: float
    certified: bool
    probability: float


@dataclass(frozen=True)
class Neighbour:
    """A similar name. score: the cosine of counted pairs or, if there are none, the logarithm of a probability."""

    name: str
    score: float


@dataclass(frozen=True)
class Similar:
    """The names that are most similar to some names, the most similar first.

    source: "pairs", the neighbours of the names in training rows; or "network", the answers to a context of the names,
    if there are no pairs of them. note: one line for people, if not all names had pairs.
    """

    names: list[str]
    neighbours: list[Neighbour]
    source: str
    note: str | None = None


@dataclass(frozen=True)
class Bucket:
    """The bucket of a name by one hash, and the most frequent other names in it (mates)."""

    hash: int
    bucket: int
    token: int
    members: int
    mates: list[str]


@dataclass(frozen=True)
class NameFacts:
    """A name: its id (0 is the most frequent), its digest, and other names in its buckets."""

    name: str
    id: int
    count: int
    digest: list[int]
    buckets: list[Bucket]


@dataclass(frozen=True)
class Token(Bucket):
    """A bucket of an answer: its log-probability, and how its members share it; mates with the largest share first."""

    log_prob: float
    rank: int  # 1: the most probable bucket of the hash
    share: float  # the part of the bucket's probability that the answer gets
    mate_shares: list[float]


@dataclass(frozen=True)
class Dependence:
    """The log-probability of an answer minus the same when one element of the context is hidden."""

    place: int
    name: str
    difference: float


@dataclass(frozen=True)
class Beside:
    """An element of the context that an answer stood near in training rows.

    rows: the remembered rows in which both stand at most 10 places apart. nearest: the smallest distance in them. Both
    are None if the model remembers no rows.
    weight: the sum of 1/distance over these places, per occurrence of the element. share: the part of it in the weights
    of all neighbours that are kept for the element. follows: the part of it where the answer follows the element. All
    three are None if the answer is not one of these neighbours.
    """

    place: int
    name: str
    rows: int | None
    nearest: int | None
    weight: float | None
    share: float | None
    follows: float | None


@dataclass(frozen=True)
class SimilarRow:
    """A remembered row that is similar to the context.

    key: the page, user or file that the row came from; None if the model keeps no keys. similarity: 0 to 1; a row that
    has exactly the names of the context has 1. shared: the names of the context that the row holds. For a long row,
    similarity and shared describe its most similar piece.
    """

    key: str | None
    similarity: float
    shared: list[str]


@dataclass(frozen=True)
class Why:
    """The parts of a probability: what the network and each part of the memory add.

    The network adds its weight times the mean over the tokens of exp(log_prob) · share. prior: log of how frequent the
    name is, relative to its buckets. It decides the shares, with the other hashes. beside: the elements of the context
    that the answer stood near in training. similar_rows: the most similar remembered rows that hold the answer.
    """

    tokens: list[Token]
    prior: float
    depends_on: list[Dependence]
    parts: dict[str, float]  # by the names of memory/parts.py
    beside: list[Beside]
    similar_rows: list[SimilarRow]


@dataclass(frozen=True)
class Point:
    """A name in the plane of Figure 2: what each hash adds to its probability, and what the memory adds.

    The sum of all is the probability. values hold the weight of the network.
    """

    name: str
    values: list[float]
    memory: float
    opened: bool
    answer: bool
    excluded: bool


@dataclass(frozen=True)
class Certificate:
    """If bound < kth, no other name belongs to the answer. All values are probabilities.

    Names that the memory adds to are compared one by one, whatever buckets are opened. So bound and edges are about
    all other names: what the network alone can give them.
    """

    kth: float | None  # of the k-th answer; None if fewer than k names were found, so that any name would belong
    bound: float | None  # the most that a name in no opened bucket can have; None if every name was scored
    edges: list[float] | None  # per hash: the most that an unopened bucket can add; None if all were opened
    opened: list[int]
    num_buckets: int
    points: list[Point]


@dataclass(frozen=True)
class Explanation:
    """The parts of each prediction, and the proof for all of them; None if scores are not probabilities.

    similar_rows: the remembered rows that are most similar to the context, whether they hold an answer or not.
    """

    why: list[Why]
    certificate: Certificate | None
    similar_rows: list[SimilarRow]


@dataclass(frozen=True)
class Found:
    """The answer for one mask, and how the search found it."""

    predictions: list[Prediction]
    certified: bool
    rounds: int
    scored: int
    explanation: Explanation | None = None


def unread_line(words: Sequence[str]) -> str:
    """The warning about words of a text that no entry of the vocabulary spells."""
    return f"{words[0]!r} cannot be read with these word pieces; left out"
