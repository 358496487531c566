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
class Why:
    """The parts of a probability: the mean over the tokens of exp(log_prob) · share.

    prior: log of how frequent the name is, relative to its buckets. It decides the shares, with the other hashes.
    """

    tokens: list[Token]
    prior: float
    depends_on: list[Dependence]


@dataclass(frozen=True)
class Point:
    """A name in the plane of Figure 2: what each hash adds to its probability."""

    name: str
    values: list[float]
    opened: bool
    answer: bool
    excluded: bool


@dataclass(frozen=True)
class Certificate:
    """If bound < kth, no other name belongs to the answer. All values are probabilities."""

    kth: float | None  # of the k-th answer; None if fewer than k names were found, so that any name would belong
    bound: float | None  # the most that a name in no opened bucket can have; None if every name was scored
    edges: list[float] | None  # per hash: the most that an unopened bucket can add; None if all were opened
    opened: list[int]
    num_buckets: int
    points: list[Point]


@dataclass(frozen=True)
class Explanation:
    """The parts of each prediction, and the proof for all of them; None if scores are not probabilities."""

    why: list[Why]
    certificate: Certificate | None


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
