"""Answers as plain data: names with scores, how the search found them, and why. A server sends them as JSON."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Prediction:
    """A name with its score.

    Its probability among all names that may be returned is between at_least and probability. probability is its share
    of the names that were scored. at_least also counts each name that was not scored, at the most that it can be.
    """

    name: str
    score: float
    certified: bool
    probability: float
    at_least: float


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
    """A bucket of an answer: its log-probability by one hash."""

    log_prob: float
    rank: int  # 1: the most probable bucket of the hash


@dataclass(frozen=True)
class Dependence:
    """The score of an answer minus its score when one element of the context is hidden."""

    place: int
    name: str
    difference: float


@dataclass(frozen=True)
class Why:
    """The parts of a score: the log-probabilities of the tokens and the prior add up to it."""

    tokens: list[Token]
    prior: float
    depends_on: list[Dependence]


@dataclass(frozen=True)
class Point:
    """A name in the plane of Figure 2, with one value per hash; the values add up to its score."""

    name: str
    values: list[float]
    opened: bool
    answer: bool
    excluded: bool


@dataclass(frozen=True)
class Certificate:
    """If bound < kth, no other name belongs to the answer."""

    kth: float | None  # the k-th best score; None if fewer than k names were found, so that any name would belong
    bound: float | None  # the most that a name in no opened bucket can score; None if every name was scored
    edges: list[float] | None  # per hash: buckets with values above the edge were opened; None if all were
    opened: list[int]
    num_buckets: int
    points: list[Point]


@dataclass(frozen=True)
class Explanation:
    """The parts of each prediction, and the proof for all of them."""

    why: list[Why]
    certificate: Certificate


@dataclass(frozen=True)
class Found:
    """The answer for one mask, and how the search found it."""

    predictions: list[Prediction]
    certified: bool
    rounds: int
    scored: int
    explanation: Explanation | None = None
