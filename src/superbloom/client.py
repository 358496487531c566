"""Query a server from Python: Client(url).predict(["Copenhagen", MASK]). Needs the standard library only.

If the server is busy, the client waits as long as the server says and tries again. Any other refusal raises
InputError with the line of the server.
"""

from __future__ import annotations

import http.client
import json
import time
import warnings
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from superbloom.answers import Neighbour, Prediction, Similar, unread_line
from superbloom.config import QueryOptions, RecommendOptions, SimilarOptions
from superbloom.errors import InputError, check_key
from superbloom.special import Special

SURROGATES = "surrogatepass"  # lone surrogates are sent as they are; the server knows no such name


class Client:
    """A server that `superbloom serve` runs at an address.

    key: the API key of the server. seconds: how long one answer may take. retries: how often to try again while the
    server is busy. A client holds no connection, so threads may share it.

    >>> client = Client("http://127.0.0.1:8000", seconds=5)                 # sends nothing yet
    >>> Client("ftp://127.0.0.1")
    Traceback (most recent call last):
    superbloom.errors.InputError: 'ftp://127.0.0.1' given; an address like http://127.0.0.1:8000 is allowed
    """

    def __init__(
        self, url: str = "http://127.0.0.1:8000", *, key: str | None = None, seconds: float = 30.0, retries: int = 3
    ) -> None:
        try:
            parts = urlsplit(url if "//" in url else f"//{url}", scheme="http")
            host, _ = (parts.hostname or "").encode("idna"), parts.port
            is_valid = parts.scheme in ("http", "https") and bool(host)
        except ValueError:
            is_valid = False
        if not is_valid:
            raise InputError(f"{url!r} given; an address like http://127.0.0.1:8000 is allowed")
        check_key(key)
        self._parts, self._key, self._seconds, self._retries = parts, key, seconds, retries

    def predict(
        self, context: Sequence[str | Special | None], k: int = QueryOptions.k, **options: Any
    ) -> list[Prediction] | list[list[Prediction]]:
        """The k best names for the mask of the context; a list per mask if it has several. Options: see /v1/predict."""
        masks = self.predict_all(context, k, **options)
        return masks[0] if len(masks) == 1 else masks

    def predict_all(
        self, context: Sequence[str | Special | None], k: int = QueryOptions.k, **options: Any
    ) -> list[list[Prediction]]:
        """The k best names for each mask of the context: always a list of lists."""
        return predictions_of(self.ask(context, k, **options))

    def predict_batch(
        self, contexts: Iterable[Sequence[str | Special | None]], k: int = QueryOptions.k, **options: Any
    ) -> list[list[list[Prediction]]]:
        """The k best names for each mask of each context."""
        shared = {"k": k, **_jsonable(options)}
        queries = [{"context": _names(context), **shared} for context in contexts]
        answers = self._call("POST", "/v1/predict/batch", {"queries": queries})["answers"] if queries else []
        return [predictions_of(answer) for answer in answers]

    def fill_in(self, text: str, k: int = QueryOptions.k, **options: Any) -> list[list[Prediction]]:
        """The k best entries for each [MASK] of a text. The model must be a model of text."""
        return predictions_of(self.ask_text(text, k, **options))

    def ask_text(self, text: str, k: int = QueryOptions.k, **options: Any) -> dict[str, Any]:
        """The whole answer to a text, as of `ask`."""
        answer = self._call("POST", "/v1/text", {"text": text, "k": k, **_jsonable(options)})
        if answer["unread"]:
            warnings.warn(unread_line(answer["unread"]), stacklevel=3)
        return answer

    def ask(self, context: Sequence[str | Special | None], k: int = QueryOptions.k, **options: Any) -> dict[str, Any]:
        """The whole answer as the server sends it. explain=True adds the reasons and the certificate."""
        return self._call("POST", "/v1/predict", {"context": _names(context), "k": k, **_jsonable(options)})

    def similar(self, names: Sequence[str], k: int = SimilarOptions.k, **options: Any) -> Similar:
        """The k names that are most similar to these names together: their neighbours in training rows."""
        if isinstance(names, str):
            raise InputError(f"the text {names!r:.80} given as names; give a list of names")
        found = self._call("POST", "/v1/similar", {"names": [str(name) for name in names], "k": k, **options})
        neighbours = [Neighbour(**neighbour) for neighbour in found["neighbours"]]
        return Similar(found["names"], neighbours, found["source"], found["note"])

    def recommend(
        self, histories: Iterable[Sequence[str]], k: int = RecommendOptions.k, **rules: Any
    ) -> list[list[Prediction]]:
        """The k best next names of each history. Rules: allow, exclude, categories, max_per_category, filter_seen.

        Names that the model does not know are left out with a warning.
        """
        lists = []
        for names in histories:
            if isinstance(names, str):
                raise InputError(f"the text {names!r:.80} given as a history; give lists of names: [['name a']]")
            lists.append([str(name) for name in names])
        if not lists:
            return []
        found = self._call("POST", "/v1/recommend", {"histories": lists, "k": k, **_jsonable(rules)})
        if found["unknown"]:
            warnings.warn(
                f"{len(found['unknown'])} names of histories are unknown: {found['unknown'][0]!r} …; left out",
                stacklevel=2,
            )
        return [[Prediction(certified=one["certified"], **item) for item in one["items"]] for one in found["answers"]]

    def names(self, prefix: str = "", k: int = QueryOptions.k) -> list[str]:
        """The most frequent names that start with a prefix."""
        found = self._call("GET", f"/v1/names?{urlencode({'prefix': prefix, 'k': k}, errors=SURROGATES)}")
        return [completion["name"] for completion in found["names"]]

    def name(self, name: str) -> dict[str, Any]:
        """A name's id, count and digest, and other names in its buckets."""
        return self._call("GET", f"/v1/names/{quote(name, safe='', errors=SURROGATES)}")

    def model(self) -> dict[str, Any]:
        """What the model is, and the limits of a request."""
        return self._call("GET", "/v1/model")

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        for retries_left in range(self._retries, -1, -1):
            status, headers, found = self._send(method, path, data)
            if status == 200 and found:
                return found
            if status != 503 or not retries_left:
                break
            retry_after = headers.get("retry-after", "")
            time.sleep(min(float(retry_after) if retry_after.isdecimal() else 1.0, self._seconds))
        raise InputError(
            str(found.get("error") or f"{self._parts.geturl()} answers {status}; is it a superbloom server?")
        )

    def _send(self, method: str, path: str, data: bytes | None) -> tuple[int, Any, dict[str, Any]]:
        secure = self._parts.scheme == "https"
        connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = connect(str(self._parts.hostname), self._parts.port, timeout=self._seconds)
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {self._key}"} if self._key else {})
        try:
            connection.request(method, self._parts.path.rstrip("/") + path, data, headers)
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            reason = "it took too long" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
            raise InputError(
                f"no answer from {self._parts.geturl()}: {reason}; is `superbloom serve` running there?"
            ) from None
        finally:
            connection.close()
        try:
            found = json.loads(text)
        except ValueError:
            found = {}
        return answer.status, answer.headers, found if isinstance(found, dict) else {}


def _names(context: Sequence[str | Special | None]) -> list[str | None]:
    if isinstance(context, str):
        raise InputError(f"the text {context!r:.80} given as context; give a list of names, or use fill_in")
    return [None if name is Special.MASK or name is None else str(name) for name in context]


def _jsonable(options: dict[str, Any]) -> dict[str, Any]:
    """Options as JSON can hold them: every iterable except a text and a mapping becomes a list.

    >>> _jsonable({"exclude": (name for name in ["Oslo"]), "explain": True})
    {'exclude': ['Oslo'], 'explain': True}
    """
    return {
        name: list(value) if isinstance(value, Iterable) and not isinstance(value, str | dict) else value
        for name, value in options.items()
    }


def predictions_of(answer: dict[str, Any]) -> list[list[Prediction]]:
    """The predictions in an answer of the server, a list for each mask."""
    return [
        [Prediction(certified=mask["certified"], **prediction) for prediction in mask["predictions"]]
        for mask in answer["masks"]
    ]
