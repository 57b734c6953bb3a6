from __future__ import annotations

import contextlib
import gc
import http.client
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.host import files
from agent.http.certificates import CertificateError, CertificateFiles, certificate_names
from agent.http.limits import ConnectionLimits
from agent.http.peers import NodeAddresses
from agent.http.requests import BadRequestError, Reply
from agent.http.routes import Route, text_reply
from agent.http.server import HttpListenError, HttpServer, ServerLimits
from tests.integration.apiserver.certificates import Authority
from tests.waiting import DEADLINE_SECONDS, eventually

CONNECTIONS = ConnectionLimits(
    connections=40,
    reserved=8,
    each_peer=32,
    handshake_seconds=DEADLINE_SECONDS,
    head_seconds=DEADLINE_SECONDS,
    body_seconds=DEADLINE_SECONDS,
    reply_seconds=DEADLINE_SECONDS,
    idle_seconds=120.0,
    head_bytes=2000,
    body_bytes=1000,
    bodies_bytes=20_000,
)
LIMITS = ServerLimits(CONNECTIONS, threads=4)


def limited(**fields: Any) -> ServerLimits:
    """LIMITS with other limits of connections."""
    connections = msgspec.structs.replace(CONNECTIONS, **fields)
    return msgspec.structs.replace(LIMITS, connections=connections)


def patient(**fields: Any) -> ServerLimits:
    """Without an end of any phase."""
    phases = ("handshake", "head", "body", "reply")
    return limited(**{f"{each}_seconds": 3600.0 for each in phases}, **fields)


HASTY = limited(body_seconds=1.0, reply_seconds=1.0)
"""For clients that never finish."""

# More than the buffers of two sockets.
LARGE_BYTES = 64 << 20


class Held:
    """A handler that answers when the test releases it."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.go = threading.Event()

    def __call__(self, body: bytes) -> Reply:
        self.asked.set()
        assert self.go.wait(DEADLINE_SECONDS)
        return Reply(200, b'"held"')


def echo(body: bytes) -> Reply:
    if body == b"no":
        raise BadRequestError("no is no body")
    return Reply(200, json.dumps(body.decode()).encode())


def broken(body: bytes) -> Reply:
    raise RuntimeError("a fault of ours")


def certified(folder: Path) -> Authority:
    made = Authority(folder)
    made.server("server")
    return made


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return certified(tmp_path_factory.mktemp("certificates"))


Started = Callable[..., HttpServer]


@pytest.fixture(scope="module")
def started(authority: Authority) -> Iterator[Started]:
    servers: list[HttpServer] = []

    def start(
        limits: ServerLimits = LIMITS,
        held: Held | None = None,
        shown: Authority | None = authority,
        client_ca: str = "",
        clients: Sequence[str] = (),
    ) -> HttpServer:
        server = HttpServer(
            "127.0.0.1:0",
            {
                "/echo": Route("POST", echo),
                "/broken": Route("POST", broken),
                "/held": Route("POST", held or Held()),
                "/away": Route("GET", lambda _: text_reply(503, "another leads")),
                "/large": Route("GET", lambda _: Reply(200, b"x" * LARGE_BYTES)),
                "/healthz": Route("GET", lambda _: Reply(200, b"ok\n", "text/plain")),
            },
            limits,
            NodeAddresses(),
            shown and CertificateFiles(*paths(shown), client_ca),
            clients,
        )
        server.start()
        servers.append(server)
        return server

    yield start
    for each in servers:
        each.close()


@pytest.fixture(scope="module")
def server(started: Started) -> HttpServer:
    return started()


def paths(authority: Authority) -> tuple[str, str]:
    return str(authority.folder / "server.crt"), str(authority.folder / "server.key")


def connection(server: HttpServer, authority: Authority) -> http.client.HTTPSConnection:
    trust = ssl.create_default_context(cafile=str(authority.folder / "ca.crt"))
    return http.client.HTTPSConnection(
        "127.0.0.1", server.port, context=trust, timeout=DEADLINE_SECONDS
    )


def plainly(server: HttpServer) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_SECONDS)


def exchange(
    made: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | Iterator[bytes] | None = None,
    content_type: str = "application/json; charset=utf-8",
) -> tuple[int, str]:
    made.request(method, path, body, {"Content-Type": content_type})
    reply = made.getresponse()
    return reply.status, reply.read().decode()


def test_several_answers_on_one_connection(server: HttpServer, authority: Authority) -> None:
    made = connection(server, authority)
    assert exchange(made, "GET", "/healthz") == (200, "ok\n")
    assert exchange(made, "POST", "/echo?timeout=5s", b"hello") == (200, '"hello"')
    first = made.sock
    assert exchange(made, "POST", "/echo", b"") == (200, '""')
    assert made.sock is first
    made.close()


@pytest.mark.parametrize(
    ("method", "path", "body", "content_type", "status", "message"),
    [
        ("POST", "/echo", b"no", "application/json", 400, "no is no body"),
        (
            "GET",
            "/none",
            None,
            "",
            404,
            "the paths are /away, /broken, /echo, /healthz, /held, /large",
        ),
        ("GET", "/echo", None, "", 405, "accepts POST only"),
        ("POST", "/healthz", b"", "application/json", 405, "accepts GET only"),
        ("POST", "/echo", iter([b"a"]), "application/json", 411, "Content-Length is missing"),
        ("POST", "/echo", b"x" * 1001, "application/json", 413, "exceeds the maximum"),
        ("POST", "/echo", b"a", "text/plain", 415, "is not application/json"),
        ("GET", "/healthz?" + "x" * 3000, None, "", 414, "exceeds the maximum"),
        ("POST", "/broken", b"a", "application/json", 500, ""),
    ],
)
def test_invalid_requests_get_an_error(
    server: HttpServer,
    authority: Authority,
    method: str,
    path: str,
    body: bytes | Iterator[bytes] | None,
    content_type: str,
    status: int,
    message: str,
) -> None:
    made = connection(server, authority)
    code, text = exchange(made, method, path, body, content_type)
    assert (code, message in text) == (status, True), text
    made.close()
    made = connection(server, authority)
    assert exchange(made, "GET", "/healthz")[0] == 200
    made.close()


def test_a_503_closes_the_connection(plain: HttpServer) -> None:
    """A connection that stays open would always reach this process."""
    made = http.client.HTTPConnection("127.0.0.1", plain.port, timeout=DEADLINE_SECONDS)
    assert exchange(made, "GET", "/away") == (503, "another leads\n")
    assert made.sock is None
    made.close()


def test_an_incomplete_request_does_not_block_the_server(started: Started) -> None:
    limits = msgspec.structs.replace(patient(), stop_seconds=1)
    server = started(limits, shown=None)
    with socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_SECONDS) as half:
        half.sendall(b"POST /echo HTTP/1.1\r\n")
        made = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_SECONDS)
        assert exchange(made, "GET", "/healthz")[0] == 200, "the half is being read"
        made.close()
        server.close()
        with contextlib.suppress(ConnectionResetError):
            while half.recv(1 << 16):
                pass


@pytest.mark.parametrize("length", ["-1", "-1000000", "x", "", "1e3"])
def test_an_invalid_length_is_refused_before_the_body_is_read(
    server: HttpServer, authority: Authority, length: str
) -> None:
    made = connection(server, authority)
    made.putrequest("POST", "/echo")
    made.putheader("Content-Type", "application/json")
    made.putheader("Content-Length", length)
    made.endheaders()
    reply = made.getresponse()
    assert reply.status == 400
    assert b"Content-Length" in reply.read()
    made.close()


def raw(either: http.client.HTTPConnection) -> socket.socket:
    either.connect()
    assert either.sock is not None
    return either.sock


def posted(body: bytes, length: int | None = None, path: str = "/echo") -> bytes:
    size = len(body) if length is None else length
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {size}\r\n\r\n".encode() + body


def test_pipelined_requests_are_answered_in_order(
    either: http.client.HTTPConnection,
) -> None:
    """The first read returns only a part of them: TLS buffers the rest."""
    sock = raw(either)
    bodies = [letter * 999 for letter in (b"a", b"b") for _ in range(10)]
    sock.sendall(b"".join(posted(each) for each in bodies))
    came = b""
    while came.count(b'"') < 2 * len(bodies):
        some = sock.recv(1 << 16)
        assert some
        came += some
    assert re.findall(rb'"(.*?)"', came) == bodies
    either.close()


def test_an_incomplete_request_is_a_bad_request(plain: HttpServer) -> None:
    with socket.create_connection(("127.0.0.1", plain.port), timeout=DEADLINE_SECONDS) as sock:
        sock.sendall(posted(b"no", length=3))
        sock.shutdown(socket.SHUT_WR)
        with http.client.HTTPResponse(sock) as reply:
            reply.begin()
            assert reply.status == 400


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 200),
        (b"HEAD /echo HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 200),
        (b"GET /h%65althz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 200),
        (b"\0\0\0\r\n\r\n", 400),
        (b"GET /healthz\r\n\r\n", 400),
        (b"GET /\xff\0 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 400),
        (b"GET /healthz HTTP/9.9\r\n\r\n", 505),
    ],
)
def test_unusual_requests(plain: HttpServer, request_bytes: bytes, status: int) -> None:
    with socket.create_connection(("127.0.0.1", plain.port), timeout=DEADLINE_SECONDS) as sock:
        sock.sendall(request_bytes)
        with http.client.HTTPResponse(sock, method=request_bytes[:4].strip().decode()) as reply:
            reply.begin()
            assert reply.status == status
            reply.read()


def test_plain_http_gets_an_error(server: HttpServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_SECONDS) as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"this port serves HTTPS only" in plain.recv(4096)


def test_a_connection_without_a_request_occupies_no_thread(
    started: Started, authority: Authority
) -> None:
    """More clients than threads; their requests would never end."""
    server = started(patient())
    silent = [
        socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_SECONDS)
        for _ in range(LIMITS.threads + 1)
    ]
    made = connection(server, authority)
    assert exchange(made, "GET", "/healthz") == (200, "ok\n")
    made.close()
    for each in silent:
        each.close()


@pytest.mark.parametrize("tls", [False, True])
def test_many_incomplete_requests_delay_other_clients_only_shortly(
    started: Started, authority: Authority, tls: bool
) -> None:
    """More clients than threads; without other clients each would have all the time it needs."""
    server = started(patient(), shown=authority if tls else None)
    halves = [
        socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_SECONDS)
        for _ in range(3 * LIMITS.threads)
    ]
    for each in halves:
        each.sendall(b"\x16\x03\x01\x02" if tls else b"POST /echo HTTP/1.1\r\n")
    made = connection(server, authority) if tls else plainly(server)
    assert exchange(made, "GET", "/healthz") == (200, "ok\n")
    made.close()
    for each in halves:
        each.close()


@pytest.mark.parametrize("tls", [False, True])
def test_few_connections_without_a_request_are_kept(
    started: Started, authority: Authority, tls: bool
) -> None:
    """Each connection takes a file descriptor: without a free one the process could not renew its
    lease."""
    server = started(shown=authority if tls else None)
    kept = connection(server, authority) if tls else plainly(server)
    assert exchange(kept, "GET", "/healthz") == (200, "ok\n")
    spoken = kept.sock
    silent = [
        socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_SECONDS)
        for _ in range(3 * CONNECTIONS.connections)
    ]
    for each in silent[: -CONNECTIONS.connections]:
        assert each.recv(1) == b"", "the oldest is closed first"
    assert exchange(kept, "GET", "/healthz") == (200, "ok\n")
    assert kept.sock is spoken, "an answered connection stays"
    kept.close()
    for each in silent:
        each.close()


def test_requests_beyond_the_limit_are_closed_at_once(started: Started) -> None:
    """A connection that only garbage collection closes would keep a file descriptor."""
    held = Held()
    server = started(msgspec.structs.replace(LIMITS, threads=1), held, shown=None)
    many: list[socket.socket] = []
    ended: set[socket.socket] = set()

    def all_but_those_that_wait() -> bool:
        for each in many:
            with contextlib.suppress(BlockingIOError):
                try:
                    while each.recv(4096):
                        pass
                except ConnectionError:
                    pass
                ended.add(each)
        return len(ended) == len(many) - CONNECTIONS.connections

    gc.disable()
    try:
        for _ in range(2 * CONNECTIONS.connections):
            made = socket.create_connection(("127.0.0.1", server.port), timeout=10)
            with contextlib.suppress(ConnectionError):
                made.sendall(posted(b"", path="/held"))
            made.setblocking(False)
            many.append(made)
        eventually("the others end", all_but_those_that_wait)
    finally:
        gc.enable()
        held.go.set()
        for each in many:
            each.close()


def test_an_answered_connection_occupies_a_thread_shortly(plain: HttpServer) -> None:
    """More clients than threads."""
    kept = [
        http.client.HTTPConnection("127.0.0.1", plain.port, timeout=DEADLINE_SECONDS)
        for _ in range(LIMITS.threads + 1)
    ]
    for _ in range(2):
        for each in kept:
            assert exchange(each, "GET", "/healthz") == (200, "ok\n")
    for each in kept:
        each.close()


def test_an_incomplete_handshake_is_dropped_in_time(started: Started, authority: Authority) -> None:
    server = started(limited(handshake_seconds=2.0))
    halves = [
        socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_SECONDS)
        for _ in range(LIMITS.threads + 1)
    ]
    for each in halves:
        each.sendall(b"\x16\x03\x01\x02")
    made = connection(server, authority)
    assert exchange(made, "GET", "/healthz") == (200, "ok\n")
    for each in halves:
        assert each.recv(1) == b""
        each.close()
    made.close()


@pytest.fixture(scope="module")
def plain(started: Started) -> HttpServer:
    return started(shown=None)


@pytest.fixture(params=["plain", "tls"])
def either(
    request: pytest.FixtureRequest, server: HttpServer, plain: HttpServer, authority: Authority
) -> http.client.HTTPConnection:
    if request.param == "tls":
        return connection(server, authority)
    return plainly(plain)


@pytest.fixture(params=["plain", "tls"])
def hasty(
    request: pytest.FixtureRequest, started: Started, authority: Authority
) -> http.client.HTTPConnection:
    """To a server with short time limits."""
    if request.param == "tls":
        return connection(started(HASTY), authority)
    return http.client.HTTPConnection(
        "127.0.0.1", started(HASTY, shown=None).port, timeout=DEADLINE_SECONDS
    )


def test_a_slowly_sent_request_is_dropped_in_time(hasty: http.client.HTTPConnection) -> None:
    """Each byte arrives within any limit of a single read."""
    assert exchange(hasty, "GET", "/healthz")[0] == 200
    hasty.putrequest("POST", "/echo")
    hasty.putheader("Content-Type", "application/json")
    hasty.putheader("Content-Length", "1000")
    hasty.endheaders()
    ended = threading.Event()
    sent_on = hasty.sock  # the connection forgets it once it reads the reply

    def drip() -> None:
        while not ended.wait(0.1):
            try:
                sent_on.send(b"x")
            except OSError:
                return

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        assert hasty.getresponse().status == 408
    finally:
        ended.set()
        thread.join()
        hasty.close()


def test_a_slow_reader_is_dropped_in_time(
    hasty: http.client.HTTPConnection,
) -> None:
    hasty.request("GET", "/large")
    taken = 0

    def ended() -> bool:
        nonlocal taken
        try:
            some = hasty.sock.recv(64 << 10)
        except ConnectionResetError:
            return True
        taken += len(some)
        return not some

    # Not `eventually`: its growing pauses would make the reader too slow for the deadline.
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not ended():
        assert time.monotonic() < deadline, "the server does not give up"
        time.sleep(0.01)
    assert taken < LARGE_BYTES
    hasty.close()


def test_several_answers_on_one_plain_connection(plain: HttpServer) -> None:
    made = http.client.HTTPConnection("127.0.0.1", plain.port, timeout=DEADLINE_SECONDS)
    assert exchange(made, "POST", "/echo", b"hello") == (200, '"hello"')
    first = made.sock
    assert exchange(made, "POST", "/echo", b"no")[0] == 400
    assert exchange(made, "GET", "/healthz") == (200, "ok\n")
    assert made.sock is first
    made.close()


def shown_by(
    server: HttpServer, authority: Authority, name: str, of: Authority | None = None
) -> http.client.HTTPSConnection:
    """A connection of a client with a certificate for that name."""
    trust = ssl.create_default_context(cafile=str(authority.folder / "ca.crt"))
    if name:
        folder = (of or authority).folder
        trust.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    return http.client.HTTPSConnection(
        "127.0.0.1", server.port, context=trust, timeout=DEADLINE_SECONDS
    )


@pytest.fixture(scope="module")
def clients(authority: Authority) -> Authority:
    authority.client("kube-scheduler", "system:masters")
    authority.client("another")
    return authority


def test_with_a_client_ca_clients_need_a_certificate(
    started: Started, clients: Authority, tmp_path: Path
) -> None:
    server = started(client_ca=str(clients.folder / "ca.crt"))
    foreign = certified(tmp_path)
    foreign.client("kube-scheduler")
    for name, of in (("", None), ("kube-scheduler", foreign)):
        made = shown_by(server, clients, name, of)
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            exchange(made, "GET", "/healthz")
        made.close()
    for name in ("kube-scheduler", "another"):
        made = shown_by(server, clients, name)
        assert exchange(made, "POST", "/echo", b"hello") == (200, '"hello"')
        made.close()


def test_only_clients_with_an_accepted_name_are_answered(
    started: Started, clients: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    server = started(client_ca=str(clients.folder / "ca.crt"), clients=["kube-scheduler", "x"])
    made = shown_by(server, clients, "another")
    assert exchange(made, "GET", "/healthz")[0] == 403
    made.close()
    assert f"port {server.port}: client certificate refused: names another" in caplog.messages
    made = shown_by(server, clients, "kube-scheduler")
    assert exchange(made, "GET", "/healthz")[0] == 200
    made.close()


def test_refused_certificates_do_not_fill_the_log(
    started: Started, clients: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    server = started(client_ca=str(clients.folder / "ca.crt"), clients=["kube-scheduler"])
    for _ in range(5):
        made = shown_by(server, clients, "another")
        assert exchange(made, "GET", "/healthz")[0] == 403
        made.close()
    assert sum("certificate refused" in each for each in caplog.messages) == 1


def test_a_replaced_client_ca_is_used(started: Started, clients: Authority, tmp_path: Path) -> None:
    other = certified(tmp_path)
    other.client("kube-scheduler")
    path = str(tmp_path / "client-ca.crt")
    files.replace(path, (clients.folder / "ca.crt").read_bytes(), durable=False)
    server = started(client_ca=path)
    made = shown_by(server, clients, "kube-scheduler")
    assert exchange(made, "GET", "/healthz")[0] == 200
    made.close()
    files.replace(path, (other.folder / "ca.crt").read_bytes(), durable=False)
    made = shown_by(server, clients, "kube-scheduler")
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
        exchange(made, "GET", "/healthz")
    made.close()
    made = shown_by(server, clients, "kube-scheduler", other)
    assert exchange(made, "GET", "/healthz")[0] == 200
    made.close()


def test_an_invalid_client_ca_is_named(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match=f"client CA {tmp_path}/none"):
        CertificateFiles(*paths(authority), str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("certificate", "names"),
    [
        ({}, set()),
        ({"subject": ((("organizationName", "g"),), (("commonName", "a"),))}, {"a"}),
        (
            {
                "subject": ((("commonName", "a"),),),
                "subjectAltName": (("DNS", "b"), ("URI", "spiffe://c")),
            },
            {"a", "b", "spiffe://c"},
        ),
    ],
)
def test_names_of_a_certificate(certificate: dict[str, Any], names: set[str]) -> None:
    assert certificate_names(certificate) == names


def serial(server: HttpServer, authority: Authority) -> str:
    made = connection(server, authority)
    made.connect()
    found = made.sock.getpeercert()
    made.close()
    assert found
    return str(found["serialNumber"])


def test_a_replaced_certificate_is_used(
    started: Started, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = certified(tmp_path)
    server = started(shown=authority)
    before = serial(server, authority)
    kept = connection(server, authority)
    assert exchange(kept, "GET", "/healthz")[0] == 200
    certificate, key = paths(authority)
    old = [Path(path).read_bytes() for path in (certificate, key)]
    authority.server("server")
    new = [Path(path).read_bytes() for path in (certificate, key)]
    files.replace(key, old[1], durable=False)
    assert serial(server, authority) == before, "certificate and key don't fit each other"
    assert serial(server, authority) == before
    lines = [each for each in caplog.messages if "the previous certificate stays in use" in each]
    assert len(lines) == 1, "logged once, not for every connection"
    assert certificate in lines[0]
    files.replace(key, new[1], durable=False)
    assert serial(server, authority) != before
    Path(key).unlink()
    assert serial(server, authority) != before
    assert exchange(kept, "GET", "/healthz")[0] == 200, "existing connections continue"
    kept.close()


def test_invalid_certificate_files_are_named(tmp_path: Path) -> None:
    certificate, key = paths(certified(tmp_path))
    Path(certificate).write_text("none")
    with pytest.raises(CertificateError, match=f"certificate {certificate}, key {key}"):
        CertificateFiles(certificate, key)
    with pytest.raises(CertificateError, match="No such file"):
        CertificateFiles(certificate + ".none", key)


def test_requests_in_progress_end_before_the_server_stops(
    started: Started, authority: Authority
) -> None:
    held = Held()
    server = started(held=held)
    idle = connection(server, authority)
    assert exchange(idle, "GET", "/healthz")[0] == 200
    made = connection(server, authority)
    answers: list[tuple[int, str]] = []
    waiting_thread = threading.Thread(
        target=lambda: answers.append(exchange(made, "POST", "/held", b"{}"))
    )
    waiting_thread.start()
    assert held.asked.wait(DEADLINE_SECONDS)
    closing = threading.Thread(target=server.close)
    closing.start()
    eventually("accepts no more", lambda: not accepts(server))
    held.go.set()
    closing.join(DEADLINE_SECONDS)
    waiting_thread.join(DEADLINE_SECONDS)
    assert answers == [(200, '"held"')]
    assert idle.sock.recv(1) == b""
    idle.close()
    made.close()


def accepts(server: HttpServer) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", server.port)) == 0


def test_an_address_in_use_is_named(server: HttpServer, authority: Authority) -> None:
    certificate = CertificateFiles(*paths(authority))
    second = HttpServer(f"127.0.0.1:{server.port}", {}, LIMITS, NodeAddresses(), certificate)
    with pytest.raises(HttpListenError, match=f"127.0.0.1:{server.port}.*in use"):
        second.start()
