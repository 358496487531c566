"""What is answered, as plain data: names with scores, how they were found, and why. Servers send it, clients get it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Prediction:
    """A name with its score.

    Its share of the probability of all names that may be answered lies between at_least and probability: the second
    is its share of what was scored, the first counts all that was not scored as if it were as likely as it can be.
    """

    name: str
    score: float
    certified: bool
    probability: float
    at_least: float


@dataclass(frozen=True)
class Bucket:
    """Where one hash sends a name, and the most frequent of those it sends there, too."""

    hash: int
    bucket: int
    token: int
    members: int
    mates: list[str]


@dataclass(frozen=True)
class NameFacts:
    """A name: its id (0 is the most frequent), its digest, and who shares its buckets."""

    name: str
    id: int
    count: int
    digest: list[int]
    buckets: list[Bucket]


@dataclass(frozen=True)
class Token(Bucket):
    """What one hash says of a name: the log-probability of its bucket."""

    log_prob: float
    rank: int  # 1 is the most probable bucket of its hash


@dataclass(frozen=True)
class Dependence:
    """The score of an answer less its score when an element of the context is hidden."""

    place: int
    name: str
    difference: float


@dataclass(frozen=True)
class Why:
    """The parts of a score: it is the sum of the tokens' log-probabilities and the prior."""

    tokens: list[Token]
    prior: float
    depends_on: list[Dependence]


@dataclass(frozen=True)
class Point:
    """An id in the plane of Figure 2; its values add up to its score."""

    name: str
    values: list[float]
    opened: bool
    answer: bool
    excluded: bool


@dataclass(frozen=True)
class Certificate:
    """Why no other name belongs into the answer, if bound < kth."""

    kth: float | None  # what a score has to exceed; None if fewer than k were found, and any name would do
    bound: float | None  # what names in no opened bucket score at most; None if every name was scored
    edges: list[float] | None  # of each hash: buckets with values above it were opened; None if all
    opened: list[int]
    num_buckets: int
    points: list[Point]


@dataclass(frozen=True)
class Explanation:
    """Of each prediction its parts, and of all of them the proof."""

    why: list[Why]
    certificate: Certificate


@dataclass(frozen=True)
class Found:
    """The answer for one [MASK], and how it was found."""

    predictions: list[Prediction]
    certified: bool
    rounds: int
    scored: int
    explanation: Explanation | None = None
