"""The client says what the predictor says, and everything that goes wrong in one line."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random

import pytest

from superbloom import MASK, Client, client
from superbloom.answers import Prediction
from superbloom.config.serving import Settings
from superbloom.errors import InputError
from superbloom.predict import similar
from superbloom.predict.explain import facts_of
from superbloom.serve.app import make_app
from tests.support import serving
from tests.support.serving import live

ONE, TWO = "ring 1 name 2", "ring 3 name 4"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with live(make_app(serving.of_names())) as url:
        yield url


@pytest.fixture(scope="module")
def text_url() -> Iterator[str]:
    with live(make_app(serving.of_text())) as url:
        yield url


def alike(found: list[Prediction], expected: list[Prediction]) -> bool:
    assert [p.name for p in found] == [p.name for p in expected]
    assert [p.certified for p in found] == [p.certified for p in expected]
    for part in ("score", "probability"):
        assert [getattr(p, part) for p in found] == pytest.approx([getattr(p, part) for p in expected], abs=1e-5)
    return True


def test_predictions_are_those_of_the_predictor(url):
    asked, predictor = Client(url), serving.of_names()
    for context in ([ONE, MASK], [ONE], (ONE, "[MASK]"), [ONE, None]):
        assert alike(asked.predict(context, 4), predictor.predict([ONE, MASK], 4)[0])
    found = asked.predict([MASK, ONE, MASK], k=2)
    for one, other in zip(found, predictor.predict([MASK, ONE, MASK], 2), strict=True):
        assert alike(one, other)
    assert asked.predict_all([ONE], 2) == [asked.predict([ONE], 2)]
    options = {"exclude": {TWO}, "allow": iter([TWO, ONE, "a"]), "min_score": -100.0}
    expected = predictor.predict([ONE], exclude=[TWO], allow=[TWO, ONE, "a"])[0]
    assert alike(asked.predict([ONE], **options), expected)
    approximate = predictor.predict([ONE], 5, beam=1, max_rounds=1)[0]
    assert alike(asked.predict([ONE], 5, beam=1), approximate)
    assert not approximate[0].certified
    assert asked.predict([ONE], min_score=1e6) == []


def test_whole_answers_come_with_reasons(url):
    answer = Client(url).ask([ONE, MASK], 2, explain=True)
    assert answer["context"] == [ONE, None]
    assert len(answer["masks"][0]["why"]) == 2
    assert answer["masks"][0]["certificate"]["points"]


def test_many_contexts_are_asked_at_once(url):
    contexts = [[ONE, MASK], [MASK, TWO, MASK], []]
    found = Client(url).predict_batch((context for context in contexts), k=3)
    predictor = serving.of_names()
    for one, context in zip(found, contexts, strict=True):
        for mask, expected in zip(one, predictor.predict(context, 3), strict=True):
            assert alike(mask, expected)
    assert Client(url).predict_batch([]) == []
    (best,) = Client(url).predict([ONE], k=1)
    found = Client(url).predict_batch([[ONE]] * 3, k=1, exclude=(name for name in [best.name]))
    assert [masks[0][0].name != best.name for masks in found] == [True] * 3


def test_a_text_is_filled_in(url, text_url):
    found = Client(text_url).fill_in("Miles Davis plays [MASK] [MASK].", k=2, exclude=["piano"])
    expected = serving.of_text().predict("Miles Davis plays [MASK] [MASK].", 2, exclude=["piano"])
    for one, other in zip(found, expected, strict=True):
        assert alike(one, other)
    with pytest.warns(UserWarning, match="'qq' cannot be read with these word pieces; left out"):
        Client(text_url).fill_in("qq plays [MASK]")
    with pytest.raises(InputError, match="this model reads names, not text; use /v1/predict"):
        Client(url).fill_in("a [MASK]")


def test_similar_names_are_those_of_the_predictor(url):
    with live(make_app(serving.remembering())) as remembering:
        found = Client(remembering).similar((ONE, "a"), k=3)
    assert found == similar(serving.remembering(), [[ONE, "a"]], 3)[0]
    assert (found.source, found.note) == ("pairs", "no pairs of 'a' were counted in training; left out")
    alone = Client(url).similar([ONE], k=3, seconds=5)
    assert (alone.source, len(alone.neighbours)) == ("network", 3)
    with pytest.raises(InputError, match=r"the text 'ring 1 name 2' given as names; give a list of names"):
        Client(url).similar(ONE)
    with pytest.raises(InputError, match="is not among the 215 names; did you mean "):
        Client(url).similar(["ring 1 name 22"])
    with pytest.raises(InputError, match="names: "):
        Client(url).similar([])


def test_names_are_found_whatever_they_hold(url):
    asked, vocab = Client(url), serving.of_names().model.vocab
    for prefix in ("ring 1", "Ø", "日", "%", "/", "#", "?", "two\n", "\u202e", "nothing", ""):
        assert asked.names(prefix, 7) == vocab.starting_with(prefix, 7)
    for name in [*serving.ODD, *serving.SHORT, ONE]:
        assert asked.name(name) == asdict(facts_of(serving.of_names().model, name))
        assert len(asked.predict([name, MASK], 1)) == 1
    assert asked.model()["num_ids"] == len(vocab)


def test_what_the_server_refuses_is_an_input_error_with_its_line(url):
    asked = Client(url)
    with pytest.raises(InputError, match="'ring 1 name 22' is not among the 215 names; did you mean 'ring 1 name 2'"):
        asked.predict(["ring 1 name 22"])
    with pytest.raises(InputError, match="'nobody' is not among the 215 names"):
        asked.name("nobody")
    with pytest.raises(InputError, match="k=1001 given; 1 to 1,000 is allowed"):
        asked.predict([ONE], 1001)
    with pytest.raises(InputError, match="combine: extra inputs are not permitted"):
        asked.predict([ONE], combine="min")
    with pytest.raises(InputError, match="min_score: nan given; input should be a finite number"):
        asked.predict([ONE], min_score=float("nan"))
    with pytest.raises(InputError, match="exclude: 'a' given; input should be a valid list"):
        asked.predict([ONE], exclude="a")
    with pytest.raises(InputError, match="the text 'ring' given as context; give a list of names, or use fill_in"):
        asked.predict("ring")
    for lone in (lambda: asked.predict(["\ud800"]), lambda: asked.name("\ud800")):
        with pytest.raises(InputError, match="is not among the 215 names"):
            lone()
    assert asked.names("\ud800") == []


def test_a_key_is_sent():
    with live(make_app(serving.of_names(), Settings(api_key="a-key:~!"))) as url:
        assert Client(url, key="a-key:~!").model()["name"] == "model"
        for wrong in (None, "another"):
            with pytest.raises(InputError, match="an API key is needed: send it as 'Authorization: Bearer KEY'"):
                Client(url, key=wrong).model()


def test_threads_may_share_a_client(url):
    asked, predictor, rng = Client(url), serving.of_names(), Random(0)
    queries = [(f"ring {rng.randrange(24)} name {rng.randrange(8)}", rng.randint(1, 9)) for _ in range(40)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda query: asked.predict([query[0]], query[1]), queries))
    for answer, (name, k) in zip(answers, queries, strict=True):
        assert alike(answer, predictor.predict([name], k)[0])


@contextmanager
def other_server(*answers: tuple[int, dict[str, str], bytes]) -> Iterator[tuple[str, list[str]]]:
    """A server that gives these answers in turn, the last one again and again; and what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = answers[min(len(asked), len(answers) - 1)]
            asked.append(self.path)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


BUSY = json.dumps({"error": "too many requests are waiting; try again in a moment"}).encode()


def test_a_busy_server_is_asked_again_when_it_says_so(monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr(client.time, "sleep", slept.append)
    busy = [(503, {"retry-after": after}, BUSY) for after in ("2", "Wed, 21 Oct 2026 07:28:00 GMT", "900")]
    with other_server(*busy, (200, {}, b'{"names": []}')) as (url, asked):
        assert Client(url, seconds=20).names("a") == []
        assert len(asked) == 4
        assert slept == [2.0, 1.0, 20.0]
    with other_server((503, {}, BUSY)) as (url, asked):
        with pytest.raises(InputError, match="^too many requests are waiting; try again in a moment$"):
            Client(url, retries=2).names("a")
        assert len(asked) == 3
    with other_server((503, {}, BUSY)) as (url, asked):
        with pytest.raises(InputError, match="too many requests"):
            Client(url, retries=0).names("a")
        assert len(asked) == 1
    with other_server((422, {}, b'{"error": "no"}')) as (url, asked):
        with pytest.raises(InputError, match="^no$"):
            Client(url).names("a")
        assert len(asked) == 1


@pytest.mark.parametrize(
    ("status", "body"),
    [(200, b"<html>"), (200, b""), (200, b"[]"), (404, b"<html>"), (500, b"\xff"), (301, b""), (404, b'"text"')],
)
def test_another_server_is_told_to_be_one(status, body):
    with (
        other_server((status, {}, body)) as (url, _),
        pytest.raises(InputError, match=f"^{url} answers {status}; is it a superbloom server\\?$"),
    ):
        Client(url).model()


def test_a_server_behind_a_path_is_asked_there():
    with other_server((200, {}, b'{"names": [{"name": "a", "count": 1}]}')) as (url, asked):
        assert Client(f"{url}/superbloom/").names("a b", 3) == ["a"]
        assert asked == ["/superbloom/v1/names?prefix=a+b&k=3"]


@pytest.mark.parametrize(
    "url",
    ["", "ftp://host", "http://", "http://:80", "http://host:port", "http://host:99999", "http://[::1", "http://a..b"],
)
def test_a_bad_address_is_told_in_one_line(url):
    with pytest.raises(InputError) as error:
        Client(url)
    assert str(error.value) == f"{url!r} given; an address like http://127.0.0.1:8000 is allowed"


@pytest.mark.parametrize("key", ["line\n", "ключ", "\x00"])
def test_a_key_that_cannot_be_sent_is_told_and_not_shown(key):
    with pytest.raises(InputError, match="the API key holds characters that HTTP cannot send") as error:
        Client(key=key)
    assert key not in str(error.value)


def test_an_address_needs_no_scheme(url):
    assert Client(url.removeprefix("http://")).names("a", 1) == ["a"]


def test_a_server_that_does_not_answer_is_told_in_one_line():
    with other_server((200, {}, b"")) as (url, _):
        pass
    with pytest.raises(InputError) as error:
        Client(url).model()
    assert str(error.value).startswith(f"no answer from {url}: ")
    assert str(error.value).endswith("Connection refused; is `superbloom serve` running there?")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(InputError, match="no answer from .*: it took too long; is `superbloom serve` running"):
            Client(url, seconds=0.05).model()


def test_a_client_needs_no_torch():
    """Nor anything else that is not in the standard library. The commands that ask a server need no torch either."""
    code = """
import sys
before = set(sys.modules)
from superbloom import MASK, Client
loaded = {name.split(".")[0] for name in set(sys.modules) - before}
import superbloom.commands.predict, superbloom.commands.similar
print(sorted(loaded - set(sys.stdlib_module_names)), "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['superbloom'] False\n"
