"""What operators expect: probes, ids of requests, a log in JSON, options from the environment."""

import json
import re
from dataclasses import fields

import pytest
import typer

from superbloom.cli import app
from superbloom.config import HeadOptions, Settings, environment_name
from superbloom.serve.logs import JsonFormatter
from tests.support.asking import MISSPELT, ONE, asking
from tests.support.servers import request, serve, until


def test_probes_have_both_names(names):
    for one, other in (("/health", "/livez"), ("/ready", "/readyz")):
        assert names.get(one).json() == names.get(other).json()
        assert names.get(other).status_code == 200


@pytest.mark.parametrize(
    ("given", "is_kept"),
    [("7c9e6679-7425", True), ("a" * 128, True), ("a" * 129, False), ("a b", False), ("", False), (None, False)],
)
def test_every_answer_has_the_id_of_its_request(names, given, is_kept):
    headers = {} if given is None else {"x-request-id": given}
    for answer in (
        names.get("/v1/model", headers=headers),
        names.get("/nothing", headers=headers),
        names.post("/v1/predict", json={"context": [MISSPELT]}, headers=headers),
        names.get("/health", headers=headers | {"host": "evil.example"}),
    ):
        told = answer.headers["x-request-id"]
        assert told == given if is_kept else re.fullmatch("[0-9a-f]{32}", told)


def test_the_log_has_a_line_of_json_for_each_request(caplog):
    caplog.set_level("INFO", logger="superbloom.serve.requests")
    caplog.handler.setFormatter(JsonFormatter())
    caplog.handler.stream.truncate(0)
    with asking() as client:

        def broken(_: object) -> None:
            raise RuntimeError("seven\nlines")

        assert client.get("/v1/model", headers={"x-request-id": "first"}).status_code == 200
        client.app.state.models.service.gatherer._work = broken
        client.post("/v1/predict", json={"context": [ONE]}, headers={"x-request-id": "second"})
    lines = [json.loads(line) for line in caplog.text.replace("\0", "").splitlines() if "request_id" in line]
    seen = [(line["request_id"], line["message"], line.get("code")) for line in lines]
    assert seen == [("first", "request", 200), ("second", "a defect", None), ("second", "request", 500)]
    assert {"time", "level", "method", "path", "seconds"} <= lines[0].keys()
    assert "seven\nlines" in lines[1]["error"]


@pytest.mark.system
def test_a_server_takes_its_options_from_the_environment_and_logs_json(model, tmp_path):
    """Its messages are lines of JSON as well."""
    given = {"SUPERBLOOM_MODEL": model, "SUPERBLOOM_PORT": 0, "SUPERBLOOM_WORKERS": 2, "SUPERBLOOM_MAX_K": 7}
    given |= {"SUPERBLOOM_LOG_FORMAT": "json", "SUPERBLOOM_PRIOR": 0, "SUPERBLOOM_CORS": "https://a.b https://c.d"}
    with serve(tmp_path, environment=given) as server:
        url = server.ready()
        card = request(f"{url}/v1/model")[1]
        assert (card["limits"]["k"], card["prior"]) == (7, False)
        assert len(server.workers()) == 2
        assert request(f"{url}/v1/predict", {"context": [ONE], "k": 8})[0] == 422
        until(lambda: '"/v1/predict"' in server.printed)  # a request is logged after its answer was sent
        lines = [json.loads(line) for line in server.printed.splitlines()]
    assert all(line.keys() >= {"time", "level", "message"} for line in lines)
    requests = [(line["path"], line["code"]) for line in lines if line["message"] == "request"]
    assert requests == [("/v1/model", 200), ("/v1/predict", 422)]


def test_every_option_has_its_variable():
    parameters = {p.name: p.envvar for p in typer.main.get_command(app).commands["serve"].params}
    for kind in (Settings, HeadOptions):
        for spec in fields(kind):
            assert parameters[spec.name] == environment_name(spec.name)
    assert {name for name, variable in parameters.items() if variable is None} == {"help"} & parameters.keys()
