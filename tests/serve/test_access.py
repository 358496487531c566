"""Who may ask: keys, hosts, origins, and settings that are safe by default (check 11)."""

import hmac
from contextlib import suppress
from typing import Any

import pytest

from superbloom.config.serving import Settings
from superbloom.errors import InputError
from superbloom.serve import guard
from superbloom.serve.app import make_app
from superbloom.serve.errors import RefusedError
from tests.support import serving
from tests.support.asking import ONE, asking, raw

# Who may ask


@pytest.mark.parametrize(
    "path", ["/v1/model", "/v1/names", "/v1/report", f"/v1/names/{ONE}", "/metrics", "/openapi.json"]
)
def test_with_a_key_the_model_is_told_to_those_who_have_it(path, monkeypatch):
    compared = []
    monkeypatch.setattr(
        hmac, "compare_digest", lambda one, other: compared.append((one, other)) or one == other
    )  # constant time is its promise
    with asking(settings=Settings(api_key="secret-of-16-chars", host="0.0.0.0")) as client:
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "Bearer secret-of-16-chars2"},
            {"authorization": "Basic secret-of-16-chars"},
            {"authorization": "secret-of-16-chars"},
            {"authorization": "Bearer"},
            {"authorization": "Bearer \xe9"},
            {"x-api-key": "wrong"},
            {"x-api-key": ""},
            {"authorization": "Bearer wrong", "x-api-key": "secret-of-16-chars"},
        ):
            answer = client.get(path, headers={name: value.encode("latin-1") for name, value in headers.items()})
            assert answer.status_code == 401, headers
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json() == {"error": "an API key is needed: send it as 'Authorization: Bearer KEY'"}
        assert len(compared) == 10
        for headers in (
            {"authorization": "Bearer secret-of-16-chars"},
            {"authorization": "bearer secret-of-16-chars"},
            {"x-api-key": "secret-of-16-chars"},
            {"authorization": "Bearer secret-of-16-chars", "x-api-key": "wrong"},
        ):
            assert client.get(path, headers=headers | {"host": "any.example"}).status_code == 200
        assert all(b"secret-of-16-chars" in pair for pair in compared)


def test_with_a_key_predictions_need_it_before_their_body_is_read():
    read = []

    async def never() -> dict[str, Any]:
        read.append(1)
        raise AssertionError

    app = make_app(serving.of_names(), Settings(api_key="secret-of-16-chars"))
    for path in ("/v1/predict", "/v1/predict/batch", "/v1/text", "/v1/similar", "/v1/reload"):
        assert raw(app, never, path)[0]["status"] == 401
    assert not read
    with asking(settings=Settings(api_key="secret-of-16-chars")) as client:
        assert client.get("/health").status_code == client.get("/ready").status_code == 200
        answer = client.post("/v1/predict", json={"context": [ONE]}, headers={"x-api-key": "secret-of-16-chars"})
        assert answer.status_code == 200


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("localhost:8000", True),
        ("127.0.0.1:1", True),
        ("127.8.9.1", True),
        ("[::1]:8000", True),
        ("[::1]", True),
        ("LocalHost:8000", True),
        ("localhost.", True),
        ("localhost.:8000", True),
        ("[::1%evil]", False),
        ("::1%evil", False),
        ("localhost..", False),
        ("[::1", False),
        ("evil.example", False),
        ("evil.example:8000", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("10.0.0.1", False),
        ("[2001:db8::1]:80", False),
        ("localhost@evil.example", False),
        ("evil.example#localhost", False),
        ("", False),
        ("[", False),
    ],
)
def test_without_a_key_no_page_of_another_site_can_ask_through_a_browser(names, host, allowed):
    """DNS rebinding: the page's own name is made to point here."""
    for path in ("/v1/model", "/health", "/ready", "/metrics", "/openapi.json", "/"):
        answer = names.get(path, headers={"host": host})
        assert (answer.status_code != 421) == allowed
        if not allowed:
            assert answer.json()["error"].startswith("this server answers requests to localhost only")


def test_what_a_browser_asks_for_another_site_is_not_answered(names):
    asked = {"sec-fetch-site": "cross-site", "origin": "https://example.org"}
    for path in ("/v1/model", "/v1/names/nobody"):
        answer = names.get(path, headers=asked)
        assert (answer.status_code, answer.json()["error"]) == (
            403,
            "pages of other sites may not use this server; --cors ORIGIN allows one",
        )
    assert names.get("/", headers=asked).status_code == 200  # a link to the page may stand anywhere
    assert names.get("/v1/model", headers={"sec-fetch-site": "same-origin"}).status_code == 200
    with asking(settings=Settings(cors=("https://example.org",))) as client:
        assert client.get("/v1/model", headers=asked).status_code == 200


def test_pages_of_other_sites_may_not_ask_unless_told(names):
    asked = {"origin": "https://example.org"}
    assert not any(name.startswith("access-control") for name in names.get("/v1/model", headers=asked).headers)
    preflight = {**asked, "access-control-request-method": "POST", "access-control-request-headers": "x-api-key"}
    assert names.options("/v1/predict", headers=preflight).status_code in (404, 405)
    with asking(settings=Settings(cors=("https://example.org",), api_key="secret-of-16-chars")) as client:
        answer = client.get("/v1/model", headers=asked | {"x-api-key": "secret-of-16-chars"})
        assert answer.headers["access-control-allow-origin"] == "https://example.org"
        assert "access-control-allow-credentials" not in answer.headers
        assert client.options("/v1/predict", headers=preflight).status_code == 200
        other = client.get("/v1/model", headers={"origin": "https://evil.example", "x-api-key": "secret-of-16-chars"})
        assert "access-control-allow-origin" not in other.headers
        refused = client.get("/v1/model", headers=asked)  # what is refused can be read there, too
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, "https://example.org")


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"host": "0.0.0.0"}, "--host 0.0.0.0 lets other machines send requests; give an --api-key"),
        ({"host": "::"}, "--host :: lets other machines send requests"),
        ({"host": ""}, "--host  lets other machines send requests"),
        ({"host": "192.168.1.5"}, "lets other machines send requests"),
        ({"host": "example.org"}, "lets other machines send requests"),
        ({"api_key": ""}, "the API key is empty"),
        ({"host": "0.0.0.0", "api_key": "x" * 15}, "an API key of 15 characters given; .* at least 16 are needed"),
        ({"api_key": "a\nb"}, "the API key holds characters that HTTP cannot send"),
        ({"api_key": "ключ"}, "the API key holds characters that HTTP cannot send"),
        ({"cors": ("*",)}, r"--cors \* given; an origin like https://example.org is allowed"),
        ({"cors": ("https://*.example.org",)}, "an origin like"),
        ({"cors": ("example.org",)}, "an origin like"),
        ({"cors": ("https://example.org/page",)}, "an origin like"),
        ({"max_k": 0}, "max_k=0: 1 or more is allowed"),
        ({"seconds": float("nan")}, "seconds=nan: more than 0 is allowed"),
        ({"seconds": float("inf")}, "seconds=inf: more than 0 is allowed"),
        ({"queue": -1}, "queue=-1: 1 or more is allowed"),
    ],
)
def test_settings_that_are_not_safe_are_refused(settings, line):
    with pytest.raises(InputError, match=line):
        Settings(**settings)


def test_settings_listen_to_this_machine():
    assert Settings().host == "127.0.0.1"
    assert (Settings().api_key, Settings().cors) == (None, ())
    for host in ("localhost", "127.0.0.1", "127.1.2.3", "::1"):
        assert Settings(host=host).is_local
    assert not Settings(host="0.0.0.0", api_key="secret-of-16-chars").is_local


EVIL = {"host": "evil.example"}
ELSEWHERE = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
OF_THE_MODEL = ("/v1/model", "/v1/names", "/v1/report", "/metrics", "/openapi.json")


def unsafe(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a stranger could do with a server that is started as it is by default, or with a key."""
    found, compared = [], []
    for given in ({"host": "0.0.0.0"}, {"host": "::"}, {"host": "192.168.1.5"}, {"api_key": ""}, {"cors": ("*",)}):
        with suppress(InputError):
            Settings(**given)
            found.append(f"it starts with {given}")
    if not Settings().is_local:
        found.append("others can reach it by default")
    with asking() as client:
        answered = [path for path in OF_THE_MODEL if client.get(path, headers=EVIL).is_success]
        found += [f"{path} answers to another host" for path in answered]
        asked = client.get("/v1/model", headers=ELSEWHERE)
        if asked.is_success:
            found.append("a page of another site is answered")
        preflight = client.options("/v1/predict", headers=ELSEWHERE | {"access-control-request-method": "POST"})
        headers = [*asked.headers.items(), *preflight.headers.items()]
        found += [f"{name}: {value}" for name, value in headers if name.startswith("access-control")]
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda *both: compared.append(both) or compare(*both))
    with asking(settings=Settings(api_key="secret-of-16-chars", host="0.0.0.0")) as client:
        for path in OF_THE_MODEL:
            for key in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "secre"}):
                if client.get(path, headers=key).is_success:
                    found.append(f"{path} is told without the key")
        if len(compared) != 3 * len(OF_THE_MODEL):
            found.append("keys are not compared in constant time")
    monkeypatch.setattr(hmac, "compare_digest", compare)
    return found


def test_by_default_it_is_safe(monkeypatch, check):
    assert unsafe(monkeypatch) == []
    check(11, "loopback; no other host, site or origin, and nothing without the key, compared in constant time")


def compared_plainly(headers: Any, key: str) -> None:
    if headers.get("authorization") != f"Bearer {key}":
        raise RefusedError(401, "an API key is needed")


@pytest.mark.parametrize(
    ("what", "place", "name", "instead", "noticed"),
    [
        ("the Host is not looked at", guard, "_check_host", lambda _: None, 5),
        ("the site is not looked at", guard, "_check_site", lambda *_: None, 1),
        ("the key is not looked at", guard, "_check_key", lambda *_: None, 16),
        ("keys are compared by ==", guard, "_check_key", compared_plainly, 1),
        ("settings are not looked at", Settings, "__post_init__", lambda _: None, 5),
    ],
)
def test_what_is_not_safe_is_noticed(monkeypatch, check, what, place, name, instead, noticed):
    monkeypatch.setattr(place, name, instead)
    found = unsafe(monkeypatch)
    assert len(found) == noticed, found
    check.twin(11, what, f"{found[0]}" + (f" and {noticed - 1} more" if noticed > 1 else ""))
