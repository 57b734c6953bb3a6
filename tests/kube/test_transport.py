from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from agent.kube import errors
from agent.kube.auth import AccessError, FileAccess
from agent.kube.errors import (
    ForbiddenError,
    KubeError,
    NotFoundError,
    ServerError,
    TooManyRequestsError,
    UnreachableError,
)
from agent.kube.transport import Reachability, ResponseLimits, Transport, segment
from agent.kube.wire import Stream
from tests.kube import fake_api_server
from tests.kube.fake_api_server import Request, Server, chunk, end, head, reply, status
from tests.waiting import eventually

LIMITS = ResponseLimits(line_bytes=1000, body_bytes=10_000)
SHORT_TIMEOUTS = msgspec.structs.replace(LIMITS, read_seconds=1, whole_seconds=2)
"""Timeouts for a server that never completes its answer."""


@pytest.fixture
def transport(server: Server) -> Iterator[Transport]:
    with contextlib.closing(Transport(FileAccess(server.url), limits=LIMITS)) as it:
        yield it


def ok(server: Server, connection: socket.socket, request: Request) -> bool:
    return reply(connection, 200, {"ok": True})


def test_requests_have_their_headers_and_parameters(server: Server, transport: Transport) -> None:
    server.answer = ok
    wanted = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
    transport.apply("/api/v1/nodes/n", wanted)
    transport.apply("/api/v1/nodes/n/status", wanted, force=False)
    transport.merge("/api/v1/nodes/n/status", {"status": {"capacity": {"a": None}}})
    transport.create("/api/v1/nodes", wanted)
    transport.delete("/api/v1/nodes/n")
    transport.get("/api/v1/nodes", {"fieldSelector": "metadata.name=n"})
    sent = [
        (each.method, each.path, each.query, each.headers.get("content-type"))
        for each in server.requests
    ]
    manager = {"fieldManager": "topolet"}
    assert sent == [
        ("PATCH", "/api/v1/nodes/n", {**manager, "force": "true"}, "application/apply-patch+yaml"),
        (
            "PATCH",
            "/api/v1/nodes/n/status",
            {**manager, "force": "false"},
            "application/apply-patch+yaml",
        ),
        ("PATCH", "/api/v1/nodes/n/status", manager, "application/merge-patch+json"),
        ("POST", "/api/v1/nodes", {}, "application/json"),
        ("DELETE", "/api/v1/nodes/n", {}, None),
        ("GET", "/api/v1/nodes", {"fieldSelector": "metadata.name=n"}, None),
    ]
    assert json.loads(server.requests[0].body) == wanted
    assert server.requests[2].body == b'{"status":{"capacity":{"a":null}}}'
    assert {each.connection for each in server.requests} == {1}, "one connection, which stays open"


def test_connection_closed_by_the_server_is_replaced(server: Server, transport: Transport) -> None:
    def once(server: Server, connection: socket.socket, request: Request) -> bool:
        ok(server, connection, request)
        return False

    server.answer = once
    for _ in range(3):
        transport.get("/x")
        eventually("the connection is closed", lambda: not server.open_connections)
    assert len({each.connection for each in server.requests}) == 3


@pytest.mark.parametrize("header", [None, "7", "Fri, 31 Dec 1999 23:59:59 GMT", "x", "9" * 400])
def test_retry_after(server: Server, transport: Transport, header: str | None) -> None:
    headers = {} if header is None else {"Retry-After": header}
    server.answer = lambda server, connection, request: reply(
        connection, 429, status(429, "TooManyRequests", "later"), headers
    )
    with pytest.raises(errors.TooManyRequestsError, match="GET /x: 429 later") as error:
        transport.get("/x")
    assert error.value.retry_after_seconds == (7 if header == "7" else None)
    assert len(server.requests) == 1


def sends_slowly(server: Server, connection: socket.socket, request: Request) -> bool:
    head(connection)
    connection.settimeout(0.05)
    for _ in range(100):
        chunk(connection, b"x")
        try:
            if not connection.recv(1):
                break
        except TimeoutError:
            continue
    return False


def hangs(server: Server, connection: socket.socket, request: Request) -> bool:
    connection.settimeout(5)
    connection.recv(1)
    return False


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (lambda *_: False, errors.UnreachableError, "GET /x: "),
        (hangs, errors.UnreachableError, "timed out"),
        (sends_slowly, errors.UnreachableError, "no end after"),
        (
            lambda server, connection, request: reply(connection, 200, b"x" * 20_000),
            errors.ServerError,
            "more than 10000 bytes",
        ),
        (
            lambda server, connection, request: reply(connection, 301, b"", {"Location": "/y"}),
            errors.ServerError,
            "GET /x: 301",
        ),
    ],
)
def test_every_answer_is_limited_in_size_and_time(
    server: Server, answer: fake_api_server.Answer, kind: type, text: str
) -> None:
    server.answer = answer
    with contextlib.closing(Transport(FileAccess(server.url), limits=SHORT_TIMEOUTS)) as transport:
        with pytest.raises(kind, match=text):
            transport.get("/x")
        server.answer = ok
        assert transport.get("/x") == b'{"ok": true}'


def test_prefix_of_the_servers_address_is_kept(server: Server) -> None:
    server.answer = ok
    Transport(FileAccess(server.url + "/k8s/clusters/c1/")).get("/api")
    assert server.requests[0].path == "/k8s/clusters/c1/api"


def test_name_is_quoted_as_a_path_segment() -> None:
    assert segment("a/../b?c") == "a%2F..%2Fb%3Fc"


class TokenCheck:
    """Accepts one token."""

    def __init__(self, server: Server, token: str) -> None:
        self.token = token
        server.answer = self

    def __call__(self, server: Server, connection: socket.socket, request: Request) -> bool:
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return reply(connection, 401, status(401, "Unauthorized", "Unauthorized"))
        if request.watches:
            head(connection)
            end(connection)
            return True
        return reply(connection, 200, {})


@pytest.mark.parametrize("streams", [False, True])
def test_token_file_is_read_again_when_replaced(
    server: Server, tmp_path: Path, streams: bool
) -> None:
    path = tmp_path / "token"
    path.write_text("one\n")
    check = TokenCheck(server, "one")
    transport = Transport(FileAccess(server.url, token=str(path)), limits=LIMITS)
    stream = Stream(transport)

    def send() -> None:
        if streams:
            assert list(stream.lines("/x", {"watch": "true"}, 5)) == []
        else:
            transport.get("/x")

    send()
    check.token = "two"
    with pytest.raises(errors.UnauthorizedError):
        send()
    assert len(server.requests) == 2, "the same token is not tried twice"
    path.write_text("two")
    send()
    assert len(server.requests) == 3
    path.write_text("")
    send()
    path.unlink()
    send()
    stream.drop()


def test_token_with_an_undetected_change_is_read_after_a_refusal(
    server: Server, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    access = FileAccess(server.url, token=str(path))
    assert access.headers() == {"Authorization": "Bearer one"}
    TokenCheck(server, "two")
    before = path.stat()
    path.write_text("two")
    # The clock of the file system may not advance between two writes.
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    Transport(access, limits=LIMITS).get("/x")
    assert len(server.requests) == 2


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"a\nb"])
def test_invalid_token_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    transport = Transport(FileAccess("http://127.0.0.1:1", token=str(path)))
    with pytest.raises(AccessError, match=str(path)):
        transport.get("/x")


def test_import_loads_no_large_package() -> None:
    """Requests to an API server do not need these packages."""
    code = (
        "import agent.kube.cluster, agent.kube.store, sys;"
        "print([name for name in ('kubernetes', 'asyncio', 'grpc', 'pydantic', 'requests')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_one_connection_is_kept_per_concurrent_request(server: Server) -> None:
    """Otherwise all but two of the requests would each open a connection."""
    barrier = threading.Barrier(5)

    def answer(server: Server, connection: socket.socket, request: Request) -> bool:
        barrier.wait(10)
        return reply(connection, 200, {"ok": True})

    server.answer = answer
    transport = Transport(FileAccess(server.url), connections=5)
    with ThreadPoolExecutor(5) as pool:
        for _ in range(3):
            for future in [pool.submit(transport.get, "/readyz") for _ in range(5)]:
                future.result()
    transport.close()
    assert len(server.requests) == 15
    assert len({each.connection for each in server.requests}) == 5


@pytest.mark.parametrize("code", [200, 401, 403, 404, 409, 410, 422, 429, 500, 503])
def test_no_token_is_in_logs_or_errors(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    token = "s3cr3t-token-of-the-agent"
    (tmp_path / "token").write_text(token)
    caplog.set_level(logging.DEBUG)
    server.answer = lambda server, connection, request: reply(
        connection, code, status(code, "Reason", "text")
    )
    access = FileAccess(server.url, token=str(tmp_path / "token"))
    found = ""
    with contextlib.closing(Transport(access, limits=LIMITS)) as transport:
        try:
            transport.get("/x")
        except errors.KubeError as error:
            found = f"{error!r} {error.__cause__!r}"
    assert server.requests[0].headers["authorization"] == f"Bearer {token}"
    assert token not in caplog.text + found + repr(access)


class Listener:
    """Counts how often the server became reachable again."""

    def __init__(self) -> None:
        self.returns = 0
        self.reachability = Reachability()
        self.reachability.listen(self.returned)

    def returned(self) -> None:
        self.returns += 1

    def request(self, error: KubeError | None = None) -> None:
        if error is None:
            with self.reachability.reported():
                return
        with pytest.raises(type(error)), self.reachability.reported():
            raise error


@pytest.fixture
def listener() -> Listener:
    return Listener()


def test_first_answer_after_an_outage_is_reported_once(listener: Listener) -> None:
    listener.request()
    assert listener.returns == 0, "there was no outage"
    listener.request(UnreachableError("refused"))
    listener.request(UnreachableError("refused"))
    listener.request()
    listener.request()
    assert listener.returns == 1
    listener.request(UnreachableError("refused"))
    listener.request()
    assert listener.returns == 2


@pytest.mark.parametrize(
    ("error", "answers"),
    [
        (NotFoundError("404"), True),
        (ForbiddenError("403"), True),
        (ServerError("503"), False),
        (TooManyRequestsError("429"), False),
    ],
)
def test_a_4xx_counts_as_reachable_and_overload_does_not(
    listener: Listener, error: KubeError, answers: bool
) -> None:
    listener.request(UnreachableError("refused"))
    listener.request(error)
    assert listener.returns == int(answers)


def test_overload_is_not_an_outage(listener: Listener) -> None:
    """Otherwise answers to other requests would end the pause of a resource that always fails."""
    listener.request(ServerError("503"))
    listener.request()
    assert listener.returns == 0


def test_unsubscribed_listener_is_not_notified(listener: Listener) -> None:
    listener.reachability.ignore(listener.returned)
    listener.reachability.ignore(listener.returned)
    listener.request(UnreachableError("refused"))
    listener.request()
    assert listener.returns == 0


def test_requests_and_streams_report(server: Server, listener: Listener) -> None:
    transport = Transport(FileAccess(server.url), reachability=listener.reachability)
    stream = Stream(transport)
    server.answer = lambda server, connection, request: False
    with pytest.raises(UnreachableError):
        transport.get("/objects")
    server.answer = None
    next(stream.lines("/objects", {"watch": "true", "sendInitialEvents": "true"}, 10))
    assert listener.returns == 1
    server.answer = lambda server, connection, request: False
    with pytest.raises(UnreachableError):
        stream.get("/objects", {})
    server.answer = None
    transport.get("/objects")
    assert listener.returns == 2
    stream.drop()
    transport.close()
