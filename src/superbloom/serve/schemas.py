"""The JSON of requests and answers, which is also the OpenAPI document. Unknown fields and other types are refused.

The fields of a query are generated from QueryOptions (config/query.py), so a new option of a query is also a field of
POST /v1/predict. `seconds` and `exact` exist over HTTP only; NOT_OVER_HTTP lists the options that HTTP does not take.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import Field as OptionField
from dataclasses import asdict, fields
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator, model_validator
from pydantic_core import PydanticCustomError

from superbloom.answers import Certificate, Found, Neighbour, SimilarRow, Why
from superbloom.config import QueryOptions, Settings, SimilarOptions
from superbloom.config.option import default_of, kind_of
from superbloom.config.serving import PUBLISHED_LIMITS
from superbloom.predict import Predictor, Query

NOT_OVER_HTTP = {
    "max_rounds": "`exact` sets it: one round, or until the answer is certified",
    "combine": "it may be a Python function, which JSON cannot hold",
}
OPTIONS = {spec.name: spec for spec in fields(QueryOptions) if spec.name not in NOT_OVER_HTTP}


def field_of(spec: OptionField[Any], hint: Any) -> tuple[Any, Any]:
    """An option as a field of a pydantic model: its type, and its default, limits and description.

    subtle: fail_fast stops at the first fault of a list. A fault takes more memory than the bytes that cause it.
    """
    kind, is_optional = kind_of(hint)
    default, allowed, shown = default_of(spec), spec.metadata["allowed"], spec.metadata["shown_default"]
    rules: dict[str, Any] = {"description": spec.metadata["help"] + (f" Default: {shown}." if shown else "")}
    if isinstance(origin := get_origin(kind), type) and issubclass(origin, Iterable):
        kind, default = GenericAlias(list, get_args(kind)), None if default is None else list(default)
        rules["fail_fast"] = True
    if kind is float:
        rules["allow_inf_nan"] = False
    if allowed is not None and math.isfinite(allowed.low):
        rules["ge" if allowed.includes_low else "gt"] = allowed.low
    if allowed is not None and math.isfinite(allowed.high):
        rules["le" if allowed.includes_high else "lt"] = allowed.high
    return (kind | None if is_optional else kind), Field(default, **rules)


class Json(JSONResponse):
    """An answer in JSON, in UTF-8. Lone surrogates, which a client may have sent, are escaped."""

    def render(self, content: Any) -> bytes:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "backslashreplace")


class Strict(BaseModel):
    """A body, or an object in it. Types are not converted, and unknown fields are refused.

    subtle: pydantic reports every unknown field. A body of a hundred thousand is refused before it does.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _check_number_of_fields(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > len(cls.model_fields):
            known = ", ".join(cls.model_fields)
            raise PydanticCustomError("too_many_fields", f"{len(given):,} fields given; allowed are {known}")
        return given


class Timed(Strict):
    """A body that may say how long its answer may take."""

    seconds: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Refuse the request if it is not answered within this time; the server's own limit still holds.",
    )


class HttpOptions(Timed):
    """The options of a query that exist over HTTP only."""

    exact: bool | None = Field(
        None,
        description="Search until no other name can score higher. Default: true, or false if `beam` is given; the "
        "search then ends after its first round.",
    )

    def options(self) -> dict[str, Any]:
        """The options as Predictor.query takes them."""
        given = {name: getattr(self, name) for name in OPTIONS}
        is_exact = given["beam"] is None if self.exact is None else self.exact
        return given | {"max_rounds": None if is_exact else 1}


if TYPE_CHECKING:
    _QueryRequest = HttpOptions

    InferParameters = HttpOptions

    class _SimilarRequest(Timed):
        k: int
else:
    _HINTS = get_type_hints(QueryOptions)
    _FIELDS = {name: field_of(spec, _HINTS[name]) for name, spec in OPTIONS.items()}
    _QueryRequest = create_model("_QueryRequest", __base__=HttpOptions, **_FIELDS)
    _SCALARS = {name: field for name, field in _FIELDS.items() if name not in ("exclude", "allow", "explain")}
    InferParameters = create_model("InferParameters", __base__=HttpOptions, **_SCALARS)
    _HINTS = get_type_hints(SimilarOptions)
    _FIELDS = {spec.name: field_of(spec, _HINTS[spec.name]) for spec in fields(SimilarOptions)}
    _SimilarRequest = create_model("_SimilarRequest", __base__=Timed, **_FIELDS)


class PredictRequest(_QueryRequest):
    """A context of names, and the options of the query."""

    context: list[str | None] = Field(
        fail_fast=True,
        description='Names. null is a mask, a name to predict; so is "[MASK]", unless it is a name of the catalogue. '
        "A context without a mask gets one at its end.",
        examples=[["Copenhagen", None]],
    )


class TextRequest(_QueryRequest):
    """A text with [MASK] at each place to fill in, and the options of the query."""

    text: str = Field(examples=["Miles Davis plays [MASK]."])


class BatchRequest(Strict):
    """Many queries in one request."""

    queries: list[PredictRequest] = Field(min_length=1, fail_fast=True)


class InferTensor(Strict):
    """An input of the Open Inference Protocol."""

    name: str = Field(examples=["context"])
    shape: list[int] = Field(min_length=1, max_length=2, examples=[[2]])
    datatype: Literal["BYTES"]
    data: list[str] | list[list[str]] = Field(examples=[["Copenhagen", "[MASK]"]])
    parameters: dict[str, Any] | None = Field(None, description="Ignored.")

    @field_validator("shape")
    @classmethod
    def _check_shape(cls, shape: list[int]) -> list[int]:
        if min(shape) < 0:
            raise PydanticCustomError("negative", "lengths from 0 are allowed")
        return shape


class InferOutput(Strict):
    """An output that the client wants."""

    name: str
    parameters: dict[str, Any] | None = Field(None, description="Ignored.")


class InferRequest(Strict):
    """A request of the Open Inference Protocol. parameters: options of a query, except lists and `explain`."""

    id: str | None = None
    parameters: InferParameters = Field(default_factory=lambda: InferParameters.model_validate({}))
    inputs: list[InferTensor] = Field(min_length=1, fail_fast=True)
    outputs: list[InferOutput] = Field([], fail_fast=True)


class InferResult(BaseModel):
    name: str
    datatype: str
    shape: list[int]
    data: list[Any]


class InferAnswer(BaseModel):
    """The outputs: names, scores and probabilities of shape [rows, k]; certified and counts of shape [rows]."""

    model_name: str
    id: str | None = None
    outputs: list[InferResult]


class SimilarRequest(_SimilarRequest):
    """Names to find similar ones of."""

    names: list[str] = Field(
        min_length=1,
        fail_fast=True,
        description="Names of the catalogue. Several are taken together.",
        examples=[["Copenhagen"]],
    )


class Named(BaseModel):
    """A predicted name, its score and its probability among all names of the catalogue."""

    name: str
    score: float
    probability: float


class Search(BaseModel):
    """How an answer was found: rounds of opening buckets (0: every id was scored), and the number of scored ids."""

    rounds: int
    scored: int
    num_ids: int


class Mask(BaseModel):
    """The answer for one mask. certified: no other allowed name has a higher score under this model.

    Scores are logarithms of probabilities. A model that ranks by the paper's sum has no certificate.
    """

    certified: bool
    search: Search
    predictions: list[Named]
    why: list[Why] | None = None
    certificate: Certificate | None = None
    similar_rows: list[SimilarRow] | None = None


class Answer(BaseModel):
    """The context as it was read, with null for each mask, and the answer for each mask."""

    model: str
    context: list[str | None]
    masks: list[Mask]
    unread: list[str] = []


class Answers(BaseModel):
    model: str
    answers: list[Answer]


class SimilarNames(BaseModel):
    """Similar names, the most similar first.

    source: `pairs`, neighbours in training rows, whose score is a cosine; or `network`, if there are no pairs of the
    names: the answers to a context of them, whose score is the logarithm of a probability. note: a line about names
    without pairs.
    """

    model: str
    names: list[str]
    neighbours: list[Neighbour]
    source: Literal["pairs", "network"]
    note: str | None


class Completion(BaseModel):
    name: str
    count: int


class Completions(BaseModel):
    names: list[Completion]


_SETTINGS = get_type_hints(Settings)
_LIMITS: dict[str, Any] = {shown: (kind_of(_SETTINGS[name])[0], ...) for name, shown in PUBLISHED_LIMITS.items()}
Limits = create_model("Limits", **_LIMITS)


class Card(BaseModel):
    """What the model is, and the limits of a request. leaves_out_context: the default of exclude_context."""

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
    memory: str | None
    separate_targets: bool
    leaves_out_context: bool
    steps: int | None
    trained_seconds: float | None
    examples: list[str] | list[list[str]]
    limits: Limits  # type: ignore[valid-type]  # it is generated


class Report(BaseModel):
    """What was measured: validations during training, and an evaluation on test rows."""

    history: list[dict[str, Any]]
    test: dict[str, Any] | None


class State(BaseModel):
    status: str


class Problem(BaseModel):
    """One line for people, and the closest names for each unknown name."""

    error: str
    closest: dict[str, list[str]] | None = None


def context_of(predictor: Predictor, query: Query) -> list[str | None]:
    """The names of the context as the query was read, with None for each mask."""
    return [predictor.model.vocab.name(id_) if id_ >= 0 else None for id_ in query.given]


def mask_of(found: Found, num_ids: int) -> dict[str, Any]:
    """A Mask as JSON."""
    mask: dict[str, Any] = {
        "certified": found.certified,
        "search": {"rounds": found.rounds, "scored": found.scored, "num_ids": num_ids},
        "predictions": [{"name": p.name, "score": p.score, "probability": p.probability} for p in found.predictions],
    }
    return mask if found.explanation is None else mask | asdict(found.explanation)
