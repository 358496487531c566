"""What may be asked of a model, and how: options of predict, evaluate, recommend and similar."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from superbloom.config.option import SEED, Allowed, option, settle, whole
from superbloom.errors import InputError, check_whole

# Below this share of targets that stand in their own context, answers leave out its names (docs/decisions.md).
RARELY_REPEATED = 0.02
IF_ROWS_RARELY_REPEAT = "only if rows of the corpus rarely repeat a name"


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """How the output layer of a model is held and what is added to its scores."""

    precision: Literal["fp32", "bf16", "int8"] = option("fp32", "How output weights are held: fp32, bf16 or int8.")
    prior: bool = option(True, "Weigh in how frequent names are.")
    network_only: bool = option(
        False,
        "Answer with the network alone, without the pairs and rows that the model remembers.",
        flag="--network-only",
    )

    def __post_init__(self) -> None:
        settle(self)


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How far the search goes."""

    beam: int | None = option(None, "Buckets opened per hash in the first round.", whole(1), shown_default="24 or more")
    max_rounds: int | None = option(
        None, "Stop after this number of rounds, certified or not.", whole(1), shown_default="until certified"
    )


@dataclass(frozen=True, kw_only=True)
class QueryOptions(SearchOptions):
    """One query: how many names, which ones, and how they are scored."""

    k: int = option(10, "How many names.", whole(1), flag="-k")
    combine: str | Sequence[float] | Any = option(
        None,
        "How names are scored. posterior: the probability of each name. sum, min or max: of the log-probabilities of "
        "its tokens; weights like 0.7,0.3: a weighted sum.",
        shown_default="as the model was made: posterior",
    )
    exclude: Iterable[str] = option((), "Names never returned.")
    exclude_context: bool | None = option(
        None,
        "Exclude the names of the context.",
        flag="--exclude-context/--include-context",
        shown_default=IF_ROWS_RARELY_REPEAT,
    )
    allow: Iterable[str] | None = option(None, "Return only these names.")
    min_score: float | None = option(
        None, "Return no name of a lower probability or, with another score than the posterior, of a lower score."
    )
    explain: bool = option(False, "Return the reasons and the certificate.", flag="--explain")

    def __post_init__(self) -> None:
        check_whole(k=self.k)
        check_whole(beam=1 if self.beam is None else self.beam)
        check_whole(max_rounds=1 if self.max_rounds is None else self.max_rounds)
        if self.min_score is not None and self.min_score != self.min_score:
            raise InputError(f"min_score={self.min_score} given; a number is allowed")
        for name, names in (("exclude", self.exclude), ("allow", self.allow)):
            if isinstance(names, str):
                raise InputError(f"the text {names!r} given as {name}; give a list of names")
        if self.explain and self.combine not in (None, "posterior"):
            raise InputError(f"combine={self.combine!r} cannot be explained; only the posterior can")


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(SearchOptions):
    """Which rows are held out, and what is measured on them."""

    split: Literal["train", "valid", "test"] = option("test", "Rows to evaluate on: train, valid or test.")
    rows: int | None = option(None, "Use only this number of rows of the split.", whole(1))
    draws: int | None = option(
        None, "Number of hidden elements; rows repeat if there are fewer rows.", whole(1), shown_default="one per row"
    )
    seed: int = option(0, "Which element of each row is hidden.", SEED)
    yardsticks: bool = option(True, "Compare with popularity and co-occurrence.")
    filter_seen: bool | None = option(
        None,
        "Exclude the names of the context, for the yardsticks as well; in a log, all that precede the hidden one.",
        shown_default=IF_ROWS_RARELY_REPEAT,
    )

    def __post_init__(self) -> None:
        settle(self)


@dataclass(frozen=True, kw_only=True)
class RecommendOptions:
    """Recommendations for users."""

    k: int = option(10, "How many items per user.", whole(1), flag="-k")
    filter_seen: bool | None = option(
        None, "Leave out the items that a user has had.", shown_default=IF_ROWS_RARELY_REPEAT
    )
    max_per_category: int | None = option(
        None, "How many items of one category a user may get; needs categories.", whole(1), shown_default="any number"
    )

    def __post_init__(self) -> None:
        settle(self)


@dataclass(frozen=True, kw_only=True)
class SimilarOptions:
    """Names that are similar to others."""

    k: int = option(10, "How many similar names.", whole(1), flag="-k")

    def __post_init__(self) -> None:
        check_whole(k=self.k)


@dataclass(frozen=True, kw_only=True)
class ExtendOptions:
    """New names in a trained model."""

    reserve: float = option(
        0.25, "How much fuller a bucket may become, as a share of alpha.", Allowed(0, 10, "0 to 10", is_whole=False)
    )
    replace: bool = option(
        False,
        "Remember the pairs and rows of the newer corpus instead of the old ones, not in addition to them.",
        flag="--replace",
    )

    def __post_init__(self) -> None:
        settle(self)
