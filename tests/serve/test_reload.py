"""A model is replaced without losing a request; one that cannot be loaded changes nothing."""

import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from superbloom.config.serving import Settings
from superbloom.errors import InputError
from superbloom.serve.app import make_app
from superbloom.serve.service import Served
from tests.support import serving
from tests.support.asking import ONE, asking, get, post, until
from tests.support.serving import live


def test_a_model_is_replaced_without_losing_a_request():
    """Old answers before, new ones after, nothing else in between."""
    number = 0

    def load() -> Served:
        nonlocal number
        number += 1
        return Served(serving.of_names(seed=number % 2), f"model {number}")

    expected = [[p.name for p in serving.of_names(seed).predict([ONE], k=3)[0]] for seed in (0, 1)]
    assert expected[0] != expected[1]
    app = make_app(load, Settings(api_key="secret"))
    with live(app) as url, ThreadPoolExecutor(6) as pool:
        until(lambda: get(f"{url}/ready")[0] == 200)
        stop = threading.Event()

        def client() -> list[str]:
            seen = []
            while not stop.is_set():
                status, answer = post(f"{url}/v1/predict", {"context": [ONE], "k": 3}, authorization="Bearer secret")
                assert status == 200
                seed = int(answer["model"].split()[1]) % 2
                assert [p["name"] for p in answer["masks"][0]["predictions"]] == expected[seed]
                seen.append(answer["model"])
            return seen

        clients = [pool.submit(client) for _ in range(6)]
        for _ in range(5):
            assert post(f"{url}/v1/reload", {}, authorization="Bearer secret") == (200, {"status": "reloaded"})
        stop.set()
        seen = [future.result() for future in clients]
        assert all(seen)
        assert post(f"{url}/v1/predict", {"context": [ONE]}, authorization="Bearer secret")[1]["model"] == "model 6"
        request = urllib.request.Request(f"{url}/metrics", headers={"x-api-key": "secret"})
        with urllib.request.urlopen(request) as told:
            assert "superbloom_reloads_total 5.0" in told.read().decode()
        until(lambda: not app.state.models._retiring)


def test_a_model_that_cannot_be_loaded_changes_nothing(caplog):
    wrong: list[Exception] = []
    may = threading.Event()
    may.set()

    def load() -> Served:
        assert may.wait(30)
        if wrong:
            raise wrong[0]
        return Served(serving.of_names(), "cities")

    key = {"x-api-key": "secret"}
    with asking(load, Settings(api_key="secret")) as client, ThreadPoolExecutor(1) as pool:
        until(lambda: client.get("/ready").status_code == 200)
        wrong.append(InputError("/home/me/model is damaged"))
        answer = client.post("/v1/reload", headers=key)
        assert answer.status_code == 409
        line = "the new model cannot be loaded and the old one stays; the server's log has the reason"
        assert answer.json() == {"error": line}
        assert "/home/me/model is damaged" in caplog.text
        wrong[0] = RuntimeError("a defect")
        assert client.post("/v1/reload", headers=key).status_code == 500
        assert client.get("/v1/model", headers=key).json()["name"] == "cities"
        assert client.post("/v1/predict", json={"context": [ONE]}, headers=key).status_code == 200
        wrong.clear()
        may.clear()
        first = pool.submit(client.post, "/v1/reload", headers=key)
        until(lambda: client.app.state.models._is_loading)
        second = client.post("/v1/reload", headers=key)
        assert (second.status_code, second.json()["error"]) == (
            409,
            "a model is already being loaded; try again later",
        )
        may.set()
        assert first.result().status_code == 200
