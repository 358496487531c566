"""The Open Inference Protocol (KServe v2): the same answers as POST /v1/predict, as tensors."""

import pytest
from starlette.testclient import TestClient

from superbloom.config.serving import Settings
from tests.support.asking import MISSPELT, ONE, TWO, Gate, asking


def infer(client: TestClient, data: object, shape: list[int], name: str = "context", **more: object):
    tensor = {"name": name, "shape": shape, "datatype": "BYTES", "data": data}
    return client.post("/v2/models/model/infer", json={"inputs": [tensor], **more})


def outputs(answer) -> dict[str, list]:
    assert answer.status_code == 200, answer.text
    return {output["name"]: output["data"] for output in answer.json()["outputs"]}


def test_a_context_is_answered_as_predict_answers_it(names):
    context = [ONE, "[MASK]", TWO, "[MASK]"]
    masks = names.post("/v1/predict", json={"context": context, "k": 3, "exclude_context": True}).json()["masks"]
    options = {"k": 3, "exclude_context": True}
    answer = infer(names, context, [4], id="42", parameters=options)
    assert (answer.json()["id"], answer.json()["model_name"]) == ("42", "model")
    found = outputs(answer)
    for output, part in (("names", "name"), ("scores", "score"), ("probabilities", "probability")):
        flat = [prediction[part] for mask in masks for prediction in mask["predictions"]]
        assert found[output] == (flat if part == "name" else pytest.approx(flat, rel=1e-5))
    assert found["certified"] == [mask["certified"] for mask in masks]
    assert found["counts"] == [3, 3]
    shapes = {output["name"]: output["shape"] for output in answer.json()["outputs"]}
    assert shapes == {"names": [2, 3], "scores": [2, 3], "probabilities": [2, 3], "certified": [2], "counts": [2]}


@pytest.mark.parametrize("data", [[ONE, TWO, "a", ""], [[ONE, TWO], ["a", ""]]], ids=["flat", "nested"])
def test_rows_of_a_tensor_are_contexts(names, data):
    found = outputs(infer(names, data, [2, 2], parameters={"k": 2}))
    alone = [outputs(infer(names, context, [len(context)], parameters={"k": 2})) for context in ([ONE, TWO], ["a"])]
    assert found["names"] == alone[0]["names"] + alone[1]["names"]
    assert found["scores"] == pytest.approx(alone[0]["scores"] + alone[1]["scores"], rel=1e-5)


def test_shorter_answers_are_filled_up(names):
    alone = outputs(infer(names, [ONE], [1], parameters={"k": 5}))
    least = alone["probabilities"][1]  # of one context two names reach it, of the other perhaps more or fewer
    found = infer(names, [ONE, TWO], [2, 1], parameters={"k": 5, "min_score": least * 0.999})
    tensors, width = outputs(found), found.json()["outputs"][0]["shape"][1]
    assert tensors["counts"][0] == 2
    assert width == max(tensors["counts"])
    for row, count in enumerate(tensors["counts"]):
        part = slice(row * width, (row + 1) * width)
        assert [bool(p) for p in tensors["probabilities"][part]] == [True] * count + [False] * (width - count)
        assert tensors["names"][part][count:] == [""] * (width - count)


def test_an_empty_context_and_wanted_outputs(names):
    found = infer(names, [], [0], outputs=[{"name": "counts"}, {"name": "names"}], parameters={"k": 1})
    assert [output["name"] for output in found.json()["outputs"]] == ["counts", "names"]
    best = names.post("/v1/predict", json={"context": [], "k": 1}).json()["masks"][0]["predictions"][0]["name"]
    assert outputs(found) == {"counts": [1], "names": [best]}
    assert outputs(infer(names, [], [2, 0], parameters={"k": 1}))["names"] == [best, best]


def test_a_text_is_filled_in(text):
    given = ["miles davis plays [MASK].", "[MASK] is jazz"]
    masks = [text.post("/v1/text", json={"text": one, "k": 2}).json()["masks"][0] for one in given]
    found = outputs(infer(text, given, [2], name="text", parameters={"k": 2}))
    assert found["names"] == [prediction["name"] for mask in masks for prediction in mask["predictions"]]


def test_metadata_says_what_infer_takes(names, text):
    card = names.get("/v2/models/model").json()
    assert card["inputs"] == [{"name": "context", "datatype": "BYTES", "shape": [-1, -1]}]
    told = infer(names, [ONE], [1], parameters={"k": 2}).json()["outputs"]
    assert [(o["name"], o["datatype"]) for o in told] == [(o["name"], o["datatype"]) for o in card["outputs"]]
    assert text.get("/v2/models/model").json()["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    assert names.get("/v2").json()["name"] == "superbloom"


@pytest.mark.parametrize(
    ("body", "status", "line"),
    [
        ({"inputs": []}, 422, "inputs: "),
        ({"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}, 422, "one input 'context'"),
        ({"inputs": [{"name": "context", "shape": [1], "datatype": "FP32", "data": ["a"]}]}, 422, "'BYTES'"),
        ({"inputs": [{"name": "context", "shape": [3], "datatype": "BYTES", "data": ["a"]}]}, 422, "1 elements given"),
        ({"inputs": [{"name": "context", "shape": [-1], "datatype": "BYTES", "data": ["a"]}]}, 422, "from 0"),
        ({"inputs": [{"name": "context", "shape": [9, 0], "datatype": "BYTES", "data": []}]}, 422, "up to 3 are"),
        ({"inputs": [{"name": "context", "shape": [1], "datatype": "BYTES", "data": [MISSPELT]}]}, 422, "did you mean"),
        ({"inputs": [], "parameters": {"k": 0}}, 422, "parameters.k: 0 given"),
        ({"inputs": [], "parameters": {"explain": True}}, 422, "parameters.explain: "),
        (
            {"inputs": [{"name": "context", "shape": [7], "datatype": "BYTES", "data": ["a"] * 7}]},
            422,
            "a context of 7",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(body, status, line):
    with asking(settings=Settings(max_queries=3, max_context=6)) as client:
        answer = client.post("/v2/models/model/infer", json=body)
    assert answer.status_code == status
    assert line in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


def test_an_output_that_does_not_exist_is_refused(names):
    answer = infer(names, [ONE], [1], outputs=[{"name": "digest"}])
    assert (answer.status_code, answer.json()["error"]) == (
        422,
        "the output 'digest' requested; names, scores, probabilities, certified, counts are allowed",
    )


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("GET", "/ready"), ("POST", "/infer")])
def test_another_model_is_not_found(names, method, path):
    body = {"inputs": [{"name": "context", "shape": [1], "datatype": "BYTES", "data": [ONE]}]}
    answer = names.request(method, f"/v2/models/other{path}", json=body if method == "POST" else None)
    assert answer.status_code == 404
    assert answer.json()["error"] == "no model 'other' here; the model is 'model'"


def test_health_and_readiness(names):
    assert names.get("/v2/health/live").json() == {"live": True}
    assert names.get("/v2/health/ready").json() == {"ready": True}
    assert names.get("/v2/models/model/ready").json() == {"name": "model", "ready": True}


def test_the_key_and_a_full_queue_hold_for_it_as_well():
    with asking(settings=Settings(api_key="secret")) as client:
        assert client.get("/v2/health/ready").status_code == 200
        assert client.get("/v2/models/model").status_code == 401
        assert infer(client, [ONE], [1]).status_code == 401
    gate = Gate()
    with asking(gate.predictor) as client:
        client.app.state.models.service.gatherer.waiting = 10**6
        answer = infer(client, [ONE], [1])
        assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
        client.app.state.models.service.gatherer.waiting = 0
