"""The Open Inference Protocol (KServe v2) in JSON, for platforms that speak it (docs/serving.md).

A query is one BYTES tensor: `context`, names of shape [n] or [contexts, n], or `text`, texts of shape [texts], for a
model of text. The answer has a row for each mask, in order:

    names, scores, probabilities (rows, k)    certified, counts (rows,)    a row with fewer names ends in "" and 0
"""

from __future__ import annotations

import math
from typing import Any

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import ValidationError

from superbloom.errors import InputError
from superbloom.serve.errors import GET_PROBLEMS, POST_PROBLEMS, WRONG_HOST, RefusedError, described
from superbloom.serve.routes import answer_batch, models_of
from superbloom.serve.schemas import InferAnswer, InferRequest, Json, PredictRequest, Problem, TextRequest
from superbloom.serve.service import Service
from superbloom.serve.tasks import run_unless_gone
from superbloom.version import __version__

router = APIRouter(prefix="/v2", tags=["KServe v2"])
OUTPUTS = {"names": "BYTES", "scores": "FP64", "probabilities": "FP64", "certified": "BOOL", "counts": "INT32"}
NO_MODEL = described(404, "The server has no model of this name.")
NOT_READY: dict[int | str, dict[str, Any]] = WRONG_HOST | {503: {"model": Problem}}


@router.get("")
async def server_metadata() -> Response:
    """The server's name and version."""
    return Json({"name": "superbloom", "version": __version__, "extensions": []})


@router.get("/health/live", responses=WRONG_HOST)
async def live() -> Response:
    """Whether the server answers."""
    return Json({"live": True})


@router.get("/health/ready", responses=NOT_READY)
async def ready(request: Request) -> Response:
    """Whether the server accepts requests."""
    models_of(request).check_ready()
    return Json({"ready": True})


@router.get("/models/{name}/ready", responses=GET_PROBLEMS | NO_MODEL)
async def model_ready(name: str, request: Request) -> Response:
    """Whether the model accepts requests."""
    models = models_of(request)
    models.check_ready()
    _check_name(name, models.service)
    return Json({"name": name, "ready": True})


@router.get("/models/{name}", responses=GET_PROBLEMS | NO_MODEL)
async def model_metadata(name: str, request: Request) -> Response:
    """The tensors that the model takes and returns."""
    service = models_of(request).service
    _check_name(name, service)
    is_text = service.predictor.model.vocab.is_text
    shape = [-1] if is_text else [-1, -1]
    inputs = [{"name": _input_name(service), "datatype": "BYTES", "shape": shape}]
    outputs = [
        {"name": output, "datatype": kind, "shape": [-1] if output in ("certified", "counts") else [-1, -1]}
        for output, kind in OUTPUTS.items()
    ]
    return Json({"name": name, "versions": [], "platform": "superbloom", "inputs": inputs, "outputs": outputs})


@router.post("/models/{name}/infer", response_model=InferAnswer, responses=POST_PROBLEMS | NO_MODEL)
async def infer(name: str, body: InferRequest, request: Request) -> Response:
    """The k best names for each mask of each context. Parameters are the options of POST /v1/predict."""
    models, wanted = models_of(request), [output.name for output in body.outputs] or list(OUTPUTS)
    with models.use() as service:
        _check_name(name, service)
        if unknown := sorted(set(wanted) - set(OUTPUTS)):
            raise InputError(f"the output {unknown[0]!r:.80} requested; {', '.join(OUTPUTS)} are allowed")
        queries = _queries(body, service)
        deadline = models.deadline(request.scope["began"], body.parameters.seconds)
        service.gatherer.check_time(len(queries), deadline)
        answers = await run_unless_gone(request, answer_batch(queries, service, deadline))
        tensors = _tensors([mask for answer in answers for mask in answer["masks"]])
    answer = {"model_name": name, "outputs": [tensors[output] for output in wanted]}
    return Json(answer | ({} if body.id is None else {"id": body.id}))


def _check_name(name: str, service: Service) -> None:
    if name != service.served.name:
        raise RefusedError(404, f"no model {name!r:.80} here; the model is {service.served.name!r:.80}")


def _input_name(service: Service) -> str:
    return "text" if service.predictor.model.vocab.is_text else "context"


def _queries(body: InferRequest, service: Service) -> list[PredictRequest | TextRequest]:
    """The query of each row of the input tensor."""
    wanted = _input_name(service)
    if [tensor.name for tensor in body.inputs] != [wanted]:
        given = ", ".join(repr(tensor.name)[:80] for tensor in body.inputs)
        raise InputError(f"the inputs {given} given; one input {wanted!r} is allowed")
    tensor, options = body.inputs[0], body.parameters.model_dump(exclude_unset=True)
    flat = [part for row in tensor.data for part in ([row] if isinstance(row, str) else row)]
    if math.prod(tensor.shape) != len(flat) or not 1 <= len(tensor.shape) <= 2:
        raise InputError(
            f"{wanted}: shape {tensor.shape!s:.80} and {len(flat):,} elements given; [n] or [rows, n] with as many "
            "elements is allowed"
        )
    most, number = service.settings.max_queries, len(flat) if wanted == "text" else ([1, *tensor.shape][-2])
    if number > most:
        raise InputError(f"{number:,} contexts given; up to {most:,} are allowed")
    try:
        if wanted == "text":
            return [TextRequest.model_validate({"text": text, **options}) for text in flat]
        if len(tensor.shape) == 1:
            return [PredictRequest.model_validate({"context": flat, **options})]
        rows, length = tensor.shape
        contexts = [_unpadded(flat[row * length : (row + 1) * length]) for row in range(rows)]
        return [PredictRequest.model_validate({"context": context, **options}) for context in contexts]
    except ValidationError as error:
        faults = [{**fault, "loc": ("body", "parameters", *fault["loc"])} for fault in error.errors()]
        raise RequestValidationError(faults) from None


def _unpadded(row: list[str]) -> list[str]:
    """A row without the empty texts at its end, which make rows of a tensor equally long.

    >>> _unpadded(["Oslo", "", "[MASK]", "", ""])
    ['Oslo', '', '[MASK]']
    """
    while row and row[-1] == "":
        row.pop()
    return row


def _tensors(masks: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The outputs by name, from masks as POST /v1/predict returns them."""
    lists = [mask["predictions"] for mask in masks]
    rows, width = len(lists), max(map(len, lists), default=0)

    def matrix(part: str, fill: Any) -> list[Any]:
        return [value for row in lists for value in [p[part] for p in row] + [fill] * (width - len(row))]

    data = {
        "names": matrix("name", ""),
        "scores": matrix("score", 0.0),
        "probabilities": matrix("probability", 0.0),
        "certified": [mask["certified"] for mask in masks],
        "counts": [len(row) for row in lists],
    }
    return {
        name: {
            "name": name,
            "datatype": OUTPUTS[name],
            "shape": [rows] if len(values) == rows and name in ("certified", "counts") else [rows, width],
            "data": values,
        }
        for name, values in data.items()
    }
