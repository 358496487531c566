"""What goes over the wire, as the OpenAPI document tells it; unknown fields and other types are refused."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from superbloom.answers import Certificate, Found, Why
from superbloom.predict import Predictor, Query


class _Strict(BaseModel):
    """subtle: of a body that is wrong in a hundred thousand places, only the first is worth time and memory."""

    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _few(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > len(cls.model_fields):
            known = ", ".join(cls.model_fields)
            raise PydanticCustomError("too_many_fields", f"{len(given):,} fields given; allowed are {known}")
        return given


class _Asked(_Strict):
    k: int = Field(10, ge=1, description="How many names.")
    exact: bool | None = Field(
        None, description="Search until no other name can score higher; true unless `beam` is given."
    )
    beam: int | None = Field(
        None, ge=1, description="Open so many buckets of each hash, at first, or alone if not exact."
    )
    exclude: list[str] = Field([], fail_fast=True, description="Names that may not be answered.")
    exclude_context: bool = Field(False, description="Leave out the names of the context.")
    allow: list[str] | None = Field(None, fail_fast=True, description="The only names that may be answered.")
    min_score: float | None = Field(None, allow_inf_nan=False, description="Answer with no name that scores less.")
    explain: bool = Field(False, description="Tell why, with the certificate.")
    seconds: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="How long the answer is worth waiting for, if less than the limit."
    )

    def options(self) -> dict[str, Any]:
        """As Predictor.query takes them."""
        exact = self.beam is None if self.exact is None else self.exact
        names = ("k", "beam", "exclude", "exclude_context", "allow", "min_score", "explain")
        return {name: getattr(self, name) for name in names} | {"max_rounds": None if exact else 1}


class PredictRequest(_Asked):
    """A context of names, and what to answer."""

    context: list[str | None] = Field(
        fail_fast=True,
        description='Names; null, or "[MASK]" if no name is called so, is what to predict: at the end if left out.',
        examples=[["Copenhagen", None]],
    )


class TextRequest(_Asked):
    """A text with [MASK] where something is to be filled in."""

    text: str = Field(examples=["Miles Davis plays [MASK]."])


class BatchRequest(_Strict):
    """Many queries at once."""

    queries: list[PredictRequest] = Field(min_length=1, fail_fast=True)


class Named(BaseModel):
    """An answer: its probability is between at_least and probability, as far as the search has told."""

    name: str
    score: float
    probability: float
    at_least: float


class Search(BaseModel):
    """How an answer was found: rounds of opening buckets (0: every id was ranked), and how many ids were scored."""

    rounds: int
    scored: int
    num_ids: int


class Mask(BaseModel):
    """The answer for one [MASK]; certified says that no other name of the catalogue scores higher."""

    certified: bool
    search: Search
    predictions: list[Named]
    why: list[Why] | None = None
    certificate: Certificate | None = None


class Answer(BaseModel):
    """The context as it was read, null for each mask, and what was found for each."""

    model: str
    context: list[str | None]
    masks: list[Mask]
    unread: list[str] = []


class Answers(BaseModel):
    model: str
    answers: list[Answer]


class Completion(BaseModel):
    name: str
    count: int


class Completions(BaseModel):
    names: list[Completion]


class Limits(BaseModel):
    k: int
    context: int
    queries: int
    body_bytes: int
    seconds: float


class Card(BaseModel):
    """What a model is, and what may be asked of it."""

    name: str
    version: str
    reads: str
    num_ids: int
    num_hashes: int
    num_buckets: int
    alpha: int
    dim: int
    layers: int
    seq_len: int
    parameters: int
    precision: str
    prior: bool
    separate_targets: bool
    steps: int | None
    trained_seconds: float | None
    examples: list[str] | list[list[str]]
    limits: Limits


class Report(BaseModel):
    """What was measured: validations during training, and the evaluation on test rows."""

    history: list[dict[str, Any]]
    test: dict[str, Any] | None


class State(BaseModel):
    status: str


class Problem(BaseModel):
    """One line for people; of unknown names, those they may have meant."""

    error: str
    closest: dict[str, list[str]] | None = None


def context_of(predictor: Predictor, query: Query) -> list[str | None]:
    """The names a query was read as; None is a mask."""
    return [predictor.model.vocab.name(id_) if id_ >= 0 else None for id_ in query.given]


def mask_of(found: Found, num_ids: int) -> dict[str, Any]:
    mask: dict[str, Any] = {
        "certified": found.certified,
        "search": {"rounds": found.rounds, "scored": found.scored, "num_ids": num_ids},
        "predictions": [
            {"name": p.name, "score": p.score, "probability": p.probability, "at_least": p.at_least}
            for p in found.predictions
        ],
    }
    return mask if found.explanation is None else mask | asdict(found.explanation)
