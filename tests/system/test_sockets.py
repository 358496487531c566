"""Check 21: raw bytes. Whatever arrives on a socket, memory is bounded, the server lives, and others are answered.

A grammar writes requests that are nearly right (odd methods, targets, headers, lengths, chunks, trailers), mutations
make them worse, and some are noise. Floods are requests that never end: headers, addresses, trailers.
"""

import asyncio
import random
import re
import socket
import struct
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from superbloom.serve import connection
from tests.support.cases import CASES
from tests.support.servers import Server, memory, request, save, serve

pytestmark = pytest.mark.system
KEY = "a key of the tests".replace(" ", "-")
NUMBER = 20_000 if CASES > 1000 else 1_500  # cases
TOGETHER = 16  # clients
PATIENCE = 0.03  # seconds without an answer after which a client leaves
MOST_MB = 40  # that a server may grow: 80,000 cases end at +31, of which 29 come with the first 20,000
FLOOD_BYTES = 24 * 2**20
STATUSES = {100, 200, 307, 400, 401, 403, 404, 405, 408, 413, 421, 422, 431, 503}

METHODS = [b"GET", b"POST", b"HEAD", b"PUT", b"OPTIONS", b"CONNECT", b"TRACE", b"get", b"", b"G\0T", b"M" * 300, b"PRI"]
TARGETS = [b"/", b"/health", b"/v1/predict", b"/v1/model", b"/v1/names?prefix=a", b"/v1/names/%ff%00", b"*", b"", b"//"]
TARGETS += [
    b"http://localhost/health",
    b"localhost:80",
    b"/../../etc/passwd",
    b"/%2e%2e/",
    b"/" + b"a" * 9000,
    b"?x",
    b"\xff",
]
VERSIONS = [b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"http/1.1", b"", b"HTTP/1.1 ", b"HTTP/99999.1"]
ENDS = [b"\r\n", b"\n", b"\r", b"\r\r\n", b"\r\n "]
BODY = b'{"context": ["ring 1 name 2"], "k": 3}'
LENGTHS = [
    b"5",
    b"-1",
    b"+5",
    b"0x5",
    b"5, 5",
    b"",
    b" 5 ",
    b"9" * 5000,
    b"18446744073709551616",
    b"\xd9\xa5",
    b"1e3",
    b"4_0",
]
HEADERS = [
    *[b"content-length: " + length for length in LENGTHS],
    *[b"transfer-encoding: " + te for te in (b"chunked", b"Chunked", b"chunked, chunked", b"gzip, chunked", b"x")],
    *[
        b"host: " + host
        for host in (b"localhost", b"[::1%evil]", b"evil.example", b"", b"LOCALHOST.", b"\0", b"a" * 5000)
    ],
    *[b"connection: " + word for word in (b"close", b"upgrade", b"keep-alive", b"close, upgrade")],
    *[b"expect: " + word for word in (b"100-continue", b"200-ok")],
    *[b"authorization: " + word for word in (b"Bearer", b"Bearer " + KEY.encode(), b"Bearer x" * 200, b"Basic \xff")],
    *[b"upgrade: " + word for word in (b"websocket", b"h2c")],
    *[b"content-type: " + word for word in (b"application/json", b"text/plain", b"application/json; charset=utf-7")],
    *[b"no colon", b": no name", b"sp ace: x", b"nul: \0", b" folded", b"a:b"],
    *[b"x" * 5000 + b": y", b"y: " + b"x" * 40_000],
]
CHUNKS = [
    b"5\r\n12345\r\n0\r\n\r\n",
    b"26\r\n" + BODY + b"\r\n0\r\n\r\n",
    b"5;x=y\r\n12345\r\n0\r\n\r\n",
    b"5;" + b"e" * 3000 + b"\r\n12345\r\n0\r\n\r\n",
    b"1\r\na\r\n" * 500 + b"0\r\n\r\n",
    b"0\r\ntrailer: x\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"-1\r\n\r\n",
    b"zz\r\n",
    b"5\r\n123\r\n",
]


def some_request(rng: random.Random) -> bytes:
    """Nearly a request: mostly sound parts, a few odd ones."""

    def drawn(usual: bytes, odd: list[bytes]) -> bytes:
        return usual if rng.random() < 0.9 else rng.choice(odd)

    end = b"\r\n" if rng.random() < 0.9 else rng.choice(ENDS)
    line = b" ".join([drawn(b"POST", METHODS), drawn(b"/v1/predict", TARGETS), drawn(b"HTTP/1.1", VERSIONS)])
    headers = [b"host: localhost", b"content-type: application/json"] * (rng.random() < 0.9)
    headers += [b"x-api-key: " + KEY.encode()] * (rng.random() < 0.5)
    headers += rng.choices(HEADERS, k=rng.choice([0, 0, 0, 1, 1, 3]))
    headers += [b"many: x"] * (200 * (rng.random() < 0.05))
    body = drawn(BODY, [b"", b"\xff" * 50, *CHUNKS]) if rng.random() < 0.5 else rng.choice([b"", *CHUNKS])
    if rng.random() < 0.5:
        length = rng.choice([len(body)] * 9 + [10**8])
        headers.append(b"content-length: %d" % length if rng.random() < 0.7 else b"transfer-encoding: chunked")
    rng.shuffle(headers)
    return end.join([line, *headers, b"", b""]) + body


def some_bytes(rng: random.Random) -> bytes:
    """One case: requests after each other, then damaged, or noise."""
    if rng.random() < 0.1:
        return rng.randbytes(rng.choice([1, 10, 1000, 70_000]))
    sent = b"".join(some_request(rng) for _ in range(rng.choice([1, 1, 1, 2, 40])))
    for _ in range(rng.choice([0, 0, 1, 3])):
        at, size = rng.randrange(len(sent) + 1), rng.choice([1, 2, 20])
        piece = rng.choice([b"", rng.randbytes(size), sent[:size] * 3, b"\r\n", b"\0"])
        sent = sent[:at] + piece + sent[at + rng.choice([0, size]) :]
    return sent


async def sent_by_one(port: int, sent: bytes, cuts: list[int]) -> bytes:
    """What comes back for some bytes, sent in pieces."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    # No address waits for the system to forget it: twenty thousand would.
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    found = b""
    try:
        with suppress(ConnectionError):
            for start, stop in zip([0, *cuts], [*cuts, len(sent)], strict=True):
                writer.write(sent[start:stop])
                await writer.drain()
                await asyncio.sleep(0)
        with suppress(TimeoutError, ConnectionError):
            while piece := await asyncio.wait_for(reader.read(2**16), PATIENCE):
                found += piece
    finally:
        writer.transport.abort()
    return found


def statuses_of(found: bytes) -> list[int]:
    """The statuses of answers; −1 for what is no answer of HTTP."""
    if found and not re.match(rb"HTTP/1\.[01] \d{3} ", found):
        return [-1]
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) [A-Z]", found)]


class Fuzzed(NamedTuple):
    statuses: Counter[int]
    growth_mb: float


async def fuzz(port: int, number: int, seed: int) -> Counter[int]:
    statuses: Counter[int] = Counter()
    left = iter(range(number))

    async def client() -> None:
        for case in left:
            rng = random.Random(f"{seed}/{case}")
            sent = some_bytes(rng)
            cuts = sorted(rng.randrange(len(sent) + 1) for _ in range(rng.choice([0, 0, 0, 1, 5])))
            found = statuses_of(await sent_by_one(port, sent, cuts))
            wrong = set(found) - STATUSES
            assert not wrong, (seed, case, found, sent[:2000])
            statuses.update(found or [0])

    async with asyncio.TaskGroup() as group:
        for _ in range(TOGETHER):
            group.create_task(client())
    return statuses


def reset_peak(process: Any) -> int:
    """Memory of a process now, in kilobytes; from here on its peak is a new one."""
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")
    return memory(process, "VmRSS")


def growth_mb(process: Any, before: int) -> float:
    return (memory(process, "VmHWM") - before) / 2**10


def port_of(url: str) -> int:
    return urlsplit(url).port or 0


@contextmanager
def served(model: Path, folder: Path, *options: object, before: Callable[[], None] | None = None) -> Iterator[Server]:
    with serve(folder, model, "--port", 0, "--seconds", 2, *options, before=before) as server:
        yield server


def fuzzed(model: Path, folder: Path, number: int) -> Fuzzed:
    """What comes back for cases of this number, without a key and with one, and how far memory grows."""
    statuses: Counter[int] = Counter()
    growth = 0.0
    for seed, options in enumerate([(), ("--api-key", KEY)]):
        with served(model, folder, *options) as server:
            url = server.ready()
            asyncio.run(fuzz(port_of(url), 300, -1))  # what is made once, is made
            before = reset_peak(server.process)
            statuses += asyncio.run(fuzz(port_of(url), number // 2, seed))
            growth = max(growth, growth_mb(server.process, before))
            assert request(f"{url}/health") == (200, {"status": "ok"})
            assert "Traceback" not in server.printed, server.printed
    return Fuzzed(statuses, growth)


def test_whatever_arrives_memory_is_bounded_and_the_server_lives(model, tmp_path, check):
    found = fuzzed(model, tmp_path, NUMBER)
    assert found.growth_mb < MOST_MB
    assert {200, 400, 401, 413, 422, 431} <= set(found.statuses)  # the cases reach what they are for
    told = ", ".join(f"{n:,} × {status or 'no answer'}" for status, n in sorted(found.statuses.items()))
    check(21, f"{NUMBER:,} cases of raw bytes: {told}; memory +{found.growth_mb:.1f} MB at most")


# --- requests that never end ---------------------------------------------------------------------------------------

HEAD = b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
FLOODS = {
    "short headers": (HEAD, b"a: b\r\n"),
    "headers of 60 bytes": (HEAD, b"a: " + b"b" * 60 + b"\r\n"),
    "one header": (HEAD + b"a: ", b"b" * 64),
    "the name of a header": (HEAD, b"b" * 64),
    "the address": (b"GET /", b"a" * 64),
    "the method": (b"", b"A" * 64),
    "trailers": (CHUNKED + b"0\r\n", b"a: b\r\n"),
    "one trailer": (CHUNKED + b"0\r\na: ", b"b" * 64),
    "a chunk's extension": (CHUNKED + b"1;", b"e" * 64),
    "requests sent ahead": (b"", b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"),
    "blank lines": (b"", b"\r\n"),
}


class Flood(NamedTuple):
    sent: int  # bytes, before the server ended it
    answered: bytes


def flooded(port: int, begin: bytes, piece: bytes) -> Flood:
    """Send something that never ends until the server closes the connection."""
    sent, answered = 0, b""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        with suppress(ConnectionError):
            client.sendall(begin)
            block = piece * (2**16 // len(piece))
            while sent < FLOOD_BYTES:
                client.sendall(block)
                sent += len(block)
        with suppress(ConnectionError, TimeoutError):
            client.settimeout(0.2)
            answered = client.recv(2**16)
    return Flood(sent, answered)


def growth_of_floods(model: Path, folder: Path, names: list[str], before: Callable[[], None] | None = None) -> float:
    most = 0.0
    with served(model, folder, "--api-key", KEY, before=before) as server:
        port = port_of(server.ready())
        for name in names:
            start = reset_peak(server.process)
            flooded(port, *FLOODS[name])
            most = max(most, growth_mb(server.process, start))
        assert request(f"http://127.0.0.1:{port}/health") == (200, {"status": "ok"})
    return most


def test_requests_that_never_end_take_no_memory(model, tmp_path, check):
    growth = growth_of_floods(model, tmp_path, list(FLOODS))
    assert growth < MOST_MB
    check(21, f"{len(FLOODS)} requests that never end, {FLOOD_BYTES >> 20} MB each: memory +{growth:.1f} MB at most")


def unlimited() -> None:
    """In the process of a server: headers of any size are read."""
    connection.MAX_HEAD_BYTES = connection.MAX_HEADERS = 2**60


def test_headers_without_a_limit_are_noticed(model, tmp_path, check):
    growth = growth_of_floods(model, tmp_path, ["short headers"], before=unlimited)
    assert growth > 3 * MOST_MB
    check.twin(21, "headers have no limit", f"{FLOOD_BYTES >> 20} MB of headers take {growth:.0f} MB")


def answer_to(port: int, sent: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(sent)
        return whole_answer(client)


def whole_answer(client: socket.socket) -> bytes:
    """One answer with its body."""
    found = b""
    while piece := client.recv(2**16):
        found += piece
        head, blank, body = found.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if blank and length and len(body) >= int(length[1]):
            break
    return found


@pytest.mark.parametrize(
    ("sent", "status", "line"),
    [
        (HEAD + b"a: b\r\n" * 100 + b"\r\n", 431, b"more than 100 headers given, the most allowed; send fewer"),
        (HEAD + b"a: " + b"b" * 40_000, 431, b"more than 32,768 bytes of headers given, the most allowed; send fewer"),
        (b"GET /" + b"a" * 40_000, 431, b"more than 32,768 bytes of headers given"),
        (HEAD + b"a: " + b"b" * 40_000 + b"\r\n\r\n", 431, b"more than 32,768 bytes of headers given"),
        (HEAD + (b"a: " + b"b" * 4000 + b"\r\n") * 9 + b"\r\n", 431, b"more than 32,768 bytes of headers given"),
        (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n", 431, b"more than 32,768 bytes of headers given"),
        (b"CONNECT localhost:80 HTTP/1.1\r\n\r\n", 400, b"this is not a request"),
        (CHUNKED + b"0\r\n" + b"a: b\r\n" * 101, 431, b"more than 100 headers given"),
        (b"HELO example.org\r\n\r\n", 400, b"this is not a request of HTTP/1.1; send one"),
        (HEAD + b"content-length: " + b"9" * 5000 + b"\r\n\r\n", 400, b"not a request"),
        (HEAD + b"content-length: " + b"0" * 5000 + b"2\r\n\r\n{}", 422, b"send 'content-type: application/json'"),
        (HEAD + b"host: evil.example\r\n\r\n", 400, b"several Host headers given; send one"),
    ],
)  # fmt: skip
def test_what_is_too_much_is_refused_in_one_line(answering, sent, status, line):
    found = answer_to(answering, sent)
    assert statuses_of(found) == [status]
    assert line in found


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sockets") / "model"
    save(folder)
    return folder


@pytest.fixture(scope="module")
def answering(model, tmp_path_factory) -> Iterator[int]:
    with served(model, tmp_path_factory.mktemp("sockets")) as server:
        yield port_of(server.ready())


def test_headers_up_to_the_limits_are_read(answering):
    for more in (b"a: b\r\n" * 99, b"a: " + b"b" * 32_000 + b"\r\n"):
        assert statuses_of(
            answer_to(answering, HEAD.replace(b"POST /v1/predict", b"GET /health") + more + b"\r\n")
        ) == [200]


def test_a_body_in_pieces_longer_than_the_headers_may_be_is_read(answering):
    body = b" " * 200_000 + BODY
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(body[at : at + 7]), body[at : at + 7]) for at in range(0, len(body), 7))
    kind = b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    assert statuses_of(answer_to(answering, HEAD + kind + pieces + b"0\r\n\r\n")) == [200]


def test_requests_sent_ahead_are_answered_in_order_and_have_a_limit(answering):
    one = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    found = b""
    with socket.create_connection(("127.0.0.1", answering), timeout=10) as client:
        client.sendall(one * 20)
        while found.count(b"HTTP/1.1") < 20:
            found += client.recv(2**16)
    assert statuses_of(found) == [200] * 20
    with socket.create_connection(("127.0.0.1", answering), timeout=10) as client:
        client.sendall(one * 500)
        found = b""
        with suppress(ConnectionResetError):
            while piece := client.recv(2**16):
                found += piece
    assert len(statuses_of(found)) < 500


@pytest.mark.parametrize(
    "bad", [b"CONNECT localhost:80 HTTP/1.1\r\n\r\n", b"GET http://[bad HTTP/1.1\r\n\r\n", b"?\r\n\r\n"]
)
def test_what_is_wrong_after_a_request_is_not_its_answer(answering, bad):
    kind = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY)
    with socket.create_connection(("127.0.0.1", answering), timeout=10) as client:
        client.sendall(HEAD + kind + BODY + bad)
        found = b""
        with suppress(ConnectionResetError):
            while piece := client.recv(2**16):
                found += piece
    assert statuses_of(found)[:1] in ([], [200])


def test_connections_have_a_limit_in_all_and_for_each_address(model, tmp_path):
    options = ("--max-connections", 5, "--max-connections-per-address", 3)
    with served(model, tmp_path, *options) as server:
        port = port_of(server.ready())

        def connect(source: str) -> socket.socket:
            return socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(source, 0))

        def refused(source: str) -> bytes:
            with connect(source) as client:
                return whole_answer(client)

        mine = [connect("127.0.0.1") for _ in range(3)]
        found = refused("127.0.0.1")
        assert statuses_of(found) == [503]
        assert b"\r\nretry-after: 1\r\n" in found
        assert b"3 connections of your address are open, the most allowed; close one" in found
        with pytest.raises(urllib.error.HTTPError, match="503"):  # who is still sending can read it
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/predict", b"x" * 900_000)
        others = [connect("127.0.0.2") for _ in range(2)]
        assert b"5 connections are open, the most allowed" in refused("127.0.0.3")
        for client in (*mine[1:], *others):
            client.close()
        ask = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
        mine[0].sendall(ask)  # those that were there are not disturbed
        assert statuses_of(whole_answer(mine[0])) == [200]
        for _ in range(100):  # those that left are forgotten
            with connect("127.0.0.1") as client:
                client.sendall(ask)
                if statuses_of(whole_answer(client)) == [200]:
                    break
        else:
            pytest.fail("connections that were closed still count")
        mine[0].close()


def test_a_server_may_have_as_many_files_as_connections(model, tmp_path):
    with served(model, tmp_path, "--max-connections", 3000, before=few_files) as server:
        server.ready()
        limits = Path(f"/proc/{server.process.pid}/limits").read_text()
        allowed = next(line.split()[3] for line in limits.splitlines() if line.startswith("Max open files"))
        assert int(allowed) >= 3000


def few_files() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
