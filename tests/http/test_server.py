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
from agent.http.requests import BadRequestError, Reply, Route, text_reply
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
    """LIMITS with other limits per connection."""
    connections = msgspec.structs.replace(CONNECTIONS, **fields)
    return msgspec.structs.replace(LIMITS, connections=connections)


SHORT_TIMEOUTS = limited(body_seconds=1.0, reply_seconds=1.0)
"""For clients that do not finish."""

REFUSED = (ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)
"""A client whose certificate the server refuses."""

LARGE_BYTES = 64 << 20
"""More than the buffers of two sockets."""


class BlockedHandler:
    """A handler that answers after the test sets `released`. `called`: it has a request."""

    def __init__(self) -> None:
        self.called = threading.Event()
        self.released = threading.Event()

    def __call__(self, body: bytes) -> Reply:
        self.called.set()
        assert self.released.wait(DEADLINE_SECONDS)
        return Reply(200, b'"blocked"')


def echo(body: bytes) -> Reply:
    if body == b"refused":
        raise BadRequestError("not accepted")
    return Reply(200, json.dumps(body.decode()).encode())


def broken(body: bytes) -> Reply:
    raise RuntimeError("broken")


def authority_with_server(folder: Path) -> Authority:
    signed = Authority(folder)
    signed.server("server")
    return signed


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority_with_server(tmp_path_factory.mktemp("certificates"))


StartServer = Callable[..., HttpServer]


@pytest.fixture(scope="module")
def start_server(authority: Authority) -> Iterator[StartServer]:
    servers: list[HttpServer] = []

    def start(
        limits: ServerLimits = LIMITS,
        blocked: BlockedHandler | None = None,
        certified_by: Authority | None = authority,
        client_ca: str = "",
        clients: Sequence[str] = (),
    ) -> HttpServer:
        server = HttpServer(
            "127.0.0.1:0",
            {
                "/echo": Route("POST", echo),
                "/broken": Route("POST", broken),
                "/blocked": Route("POST", blocked or BlockedHandler()),
                "/away": Route("GET", lambda _: text_reply(503, "another process leads")),
                "/large": Route("GET", lambda _: Reply(200, b"x" * LARGE_BYTES)),
                "/healthz": Route("GET", lambda _: Reply(200, b"ok\n", "text/plain")),
            },
            limits,
            NodeAddresses(),
            certified_by and CertificateFiles(*paths(certified_by), client_ca),
            clients,
        )
        server.start()
        servers.append(server)
        return server

    yield start
    for each in servers:
        each.close()


@pytest.fixture(scope="module")
def server(start_server: StartServer) -> HttpServer:
    return start_server()


def paths(authority: Authority) -> tuple[str, str]:
    return str(authority.folder / "server.crt"), str(authority.folder / "server.key")


def https_connection(
    server: HttpServer, authority: Authority, name: str = "", issuer: Authority | None = None
) -> http.client.HTTPSConnection:
    """`name`: the client has a certificate for it, of this issuer or of the same authority."""
    trust = ssl.create_default_context(cafile=str(authority.folder / "ca.crt"))
    if name:
        folder = (issuer or authority).folder
        trust.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    return http.client.HTTPSConnection(
        "127.0.0.1", server.port, context=trust, timeout=DEADLINE_SECONDS
    )


def http_connection(server: HttpServer) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_SECONDS)


def exchange(
    client: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | Iterator[bytes] | None = None,
    content_type: str = "application/json; charset=utf-8",
) -> tuple[int, str]:
    client.request(method, path, body, {"Content-Type": content_type})
    reply = client.getresponse()
    return reply.status, reply.read().decode()


def probe_status(client: http.client.HTTPConnection) -> int:
    """The status of GET /healthz on a new connection, which is closed."""
    with contextlib.closing(client):
        return exchange(client, "GET", "/healthz")[0]


def test_several_answers_on_one_connection(plain_or_tls: http.client.HTTPConnection) -> None:
    assert exchange(plain_or_tls, "GET", "/healthz") == (200, "ok\n")
    assert exchange(plain_or_tls, "POST", "/echo?timeout=5s", b"hello") == (200, '"hello"')
    first = plain_or_tls.sock
    assert exchange(plain_or_tls, "POST", "/echo", b"") == (200, '""')
    assert exchange(plain_or_tls, "POST", "/echo", b"refused")[0] == 400
    assert exchange(plain_or_tls, "GET", "/healthz") == (200, "ok\n")
    assert plain_or_tls.sock is first
    plain_or_tls.close()


@pytest.mark.parametrize(
    ("method", "path", "body", "content_type", "status", "message"),
    [
        ("POST", "/echo", b"refused", "application/json", 400, "not accepted"),
        (
            "GET",
            "/none",
            None,
            "",
            404,
            "the paths are /away, /blocked, /broken, /echo, /healthz, /large",
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
    client = https_connection(server, authority)
    code, text = exchange(client, method, path, body, content_type)
    assert (code, message in text) == (status, True), text
    client.close()
    assert probe_status(https_connection(server, authority)) == 200


def test_a_503_closes_the_connection(plain: HttpServer) -> None:
    """The client connects again, perhaps to another process of the Service."""
    client = http_connection(plain)
    assert exchange(client, "GET", "/away") == (503, "another process leads\n")
    assert client.sock is None
    client.close()


def test_an_invalid_length_is_refused_before_the_body_is_read(
    server: HttpServer, authority: Authority
) -> None:
    client = https_connection(server, authority)
    client.putrequest("POST", "/echo")
    client.putheader("Content-Type", "application/json")
    client.putheader("Content-Length", "-1")
    client.endheaders()
    reply = client.getresponse()
    assert reply.status == 400
    assert b"Content-Length" in reply.read()
    client.close()


def raw(plain_or_tls: http.client.HTTPConnection) -> socket.socket:
    plain_or_tls.connect()
    assert plain_or_tls.sock is not None
    return plain_or_tls.sock


def posted(body: bytes, length: int | None = None, path: str = "/echo") -> bytes:
    size = len(body) if length is None else length
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {size}\r\n\r\n".encode() + body


def test_pipelined_requests_are_answered_in_order(
    plain_or_tls: http.client.HTTPConnection,
) -> None:
    """The first read returns only some of the requests; TLS buffers the others."""
    sock = raw(plain_or_tls)
    bodies = [letter * 999 for letter in (b"a", b"b") for _ in range(10)]
    sock.sendall(b"".join(posted(each) for each in bodies))
    came = b""
    while came.count(b'"') < 2 * len(bodies):
        some = sock.recv(1 << 16)
        assert some
        came += some
    assert re.findall(rb'"(.*?)"', came) == bodies
    plain_or_tls.close()


def test_an_incomplete_request_is_a_bad_request(plain: HttpServer) -> None:
    with socket.create_connection(("127.0.0.1", plain.port), timeout=DEADLINE_SECONDS) as sock:
        sock.sendall(posted(b"hello", length=20))
        sock.shutdown(socket.SHUT_WR)
        with http.client.HTTPResponse(sock) as reply:
            reply.begin()
            assert reply.status == 400


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
        (b"HEAD /echo HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
        (b"\0\0\0\r\n\r\n", 400),
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
        plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"this port serves HTTPS only" in plain.recv(4096)


def test_requests_beyond_the_limit_are_closed_at_once(start_server: StartServer) -> None:
    """They are closed without garbage collection, since each has a file descriptor."""
    blocked = BlockedHandler()
    server = start_server(msgspec.structs.replace(LIMITS, threads=1), blocked, certified_by=None)
    many: list[socket.socket] = []
    ended: set[socket.socket] = set()

    def all_beyond_the_limit_ended() -> bool:
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
            client = socket.create_connection(("127.0.0.1", server.port), timeout=10)
            with contextlib.suppress(ConnectionError):
                client.sendall(posted(b"", path="/blocked"))
            client.setblocking(False)
            many.append(client)
        eventually("the others end", all_beyond_the_limit_ended)
    finally:
        gc.enable()
        blocked.released.set()
        for each in many:
            each.close()


def test_an_open_connection_occupies_no_thread(plain: HttpServer) -> None:
    """More clients than threads."""
    kept = [http_connection(plain) for _ in range(LIMITS.threads + 1)]
    for _ in range(2):
        for each in kept:
            assert exchange(each, "GET", "/healthz") == (200, "ok\n")
    for each in kept:
        each.close()


def test_an_incomplete_handshake_is_dropped_in_time(
    start_server: StartServer, authority: Authority
) -> None:
    server = start_server(limited(handshake_seconds=2.0))
    incomplete = [
        socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_SECONDS)
        for _ in range(LIMITS.threads + 1)
    ]
    for each in incomplete:
        each.sendall(b"\x16\x03\x01\x02")
    client = https_connection(server, authority)
    assert exchange(client, "GET", "/healthz") == (200, "ok\n")
    for each in incomplete:
        assert each.recv(1) == b""
        each.close()
    client.close()


@pytest.fixture(scope="module")
def plain(start_server: StartServer) -> HttpServer:
    return start_server(certified_by=None)


@pytest.fixture(params=["plain", "tls"])
def plain_or_tls(
    request: pytest.FixtureRequest, server: HttpServer, plain: HttpServer, authority: Authority
) -> http.client.HTTPConnection:
    if request.param == "tls":
        return https_connection(server, authority)
    return http_connection(plain)


@pytest.fixture(params=["plain", "tls"])
def short_timeouts(
    request: pytest.FixtureRequest, start_server: StartServer, authority: Authority
) -> http.client.HTTPConnection:
    """A connection to a server with short timeouts."""
    if request.param == "tls":
        return https_connection(start_server(SHORT_TIMEOUTS), authority)
    return http_connection(start_server(SHORT_TIMEOUTS, certified_by=None))


def test_a_slowly_sent_request_is_dropped_in_time(
    short_timeouts: http.client.HTTPConnection,
) -> None:
    """Each byte arrives before a timeout of a single read."""
    assert exchange(short_timeouts, "GET", "/healthz")[0] == 200
    short_timeouts.putrequest("POST", "/echo")
    short_timeouts.putheader("Content-Type", "application/json")
    short_timeouts.putheader("Content-Length", "1000")
    short_timeouts.endheaders()
    ended = threading.Event()
    sock = short_timeouts.sock  # None after the reply

    def drip() -> None:
        while not ended.wait(0.1):
            try:
                sock.send(b"x")
            except OSError:
                return

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        assert short_timeouts.getresponse().status == 408
    finally:
        ended.set()
        thread.join()
        short_timeouts.close()


def test_a_slow_reader_is_dropped_in_time(
    short_timeouts: http.client.HTTPConnection,
) -> None:
    short_timeouts.request("GET", "/large")
    received_bytes = 0

    def ended() -> bool:
        nonlocal received_bytes
        try:
            some = short_timeouts.sock.recv(64 << 10)
        except ConnectionResetError:
            return True
        received_bytes += len(some)
        return not some

    # Not `eventually`: its growing pauses would make the reader too slow for the deadline.
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not ended():
        assert time.monotonic() < deadline, "the server keeps the connection"
        time.sleep(0.01)
    assert received_bytes < LARGE_BYTES
    short_timeouts.close()


@pytest.fixture(scope="module")
def clients(authority: Authority) -> Authority:
    authority.client("kube-scheduler", "system:masters")
    authority.client("another")
    return authority


def test_with_a_client_ca_clients_need_a_certificate(
    start_server: StartServer, clients: Authority, tmp_path: Path
) -> None:
    server = start_server(client_ca=str(clients.folder / "ca.crt"))
    foreign = authority_with_server(tmp_path)
    foreign.client("kube-scheduler")
    for name, issuer in (("", None), ("kube-scheduler", foreign)):
        with pytest.raises(REFUSED):
            probe_status(https_connection(server, clients, name, issuer))
    for name in ("kube-scheduler", "another"):
        client = https_connection(server, clients, name)
        assert exchange(client, "POST", "/echo", b"hello") == (200, '"hello"')
        client.close()


def test_only_clients_with_an_accepted_name_are_answered(
    start_server: StartServer, clients: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server(client_ca=str(clients.folder / "ca.crt"), clients=["kube-scheduler", "x"])
    for _ in range(5):
        assert probe_status(https_connection(server, clients, "another")) == 403
    refusals = [each for each in caplog.messages if "certificate refused" in each]
    assert refusals == [f"port {server.port}: client certificate refused: names another"]
    assert probe_status(https_connection(server, clients, "kube-scheduler")) == 200


def test_a_replaced_client_ca_is_used(
    start_server: StartServer, clients: Authority, tmp_path: Path
) -> None:
    other = authority_with_server(tmp_path)
    other.client("kube-scheduler")
    path = str(tmp_path / "client-ca.crt")
    files.replace(path, (clients.folder / "ca.crt").read_bytes(), durable=False)
    server = start_server(client_ca=path)
    assert probe_status(https_connection(server, clients, "kube-scheduler")) == 200
    files.replace(path, (other.folder / "ca.crt").read_bytes(), durable=False)
    with pytest.raises(REFUSED):
        probe_status(https_connection(server, clients, "kube-scheduler"))
    assert probe_status(https_connection(server, clients, "kube-scheduler", other)) == 200


def test_a_reply_larger_than_the_buffers_of_a_socket_is_complete(plain: HttpServer) -> None:
    with contextlib.closing(http_connection(plain)) as client:
        _, text = exchange(client, "GET", "/large")
    assert len(text) == LARGE_BYTES


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
    client = https_connection(server, authority)
    client.connect()
    found = client.sock.getpeercert()
    client.close()
    assert found
    return str(found["serialNumber"])


def test_a_replaced_certificate_is_used(
    start_server: StartServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = authority_with_server(tmp_path)
    server = start_server(certified_by=authority)
    before = serial(server, authority)
    kept = https_connection(server, authority)
    assert exchange(kept, "GET", "/healthz")[0] == 200
    certificate, key = paths(authority)
    old = [Path(path).read_bytes() for path in (certificate, key)]
    authority.server("server")
    new = [Path(path).read_bytes() for path in (certificate, key)]
    files.replace(key, old[1], durable=False)
    assert serial(server, authority) == before, "the certificate does not match the key"
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
    certificate, key = paths(authority_with_server(tmp_path))
    Path(certificate).write_text("none")
    with pytest.raises(CertificateError, match=f"certificate {certificate}, key {key}"):
        CertificateFiles(certificate, key)
    with pytest.raises(CertificateError, match="No such file"):
        CertificateFiles(certificate + ".none", key)


def test_requests_in_progress_end_before_the_server_stops(
    start_server: StartServer, authority: Authority
) -> None:
    blocked = BlockedHandler()
    server = start_server(blocked=blocked)
    idle = https_connection(server, authority)
    assert exchange(idle, "GET", "/healthz")[0] == 200
    client = https_connection(server, authority)
    answers: list[tuple[int, str]] = []
    waiting_thread = threading.Thread(
        target=lambda: answers.append(exchange(client, "POST", "/blocked", b"{}"))
    )
    waiting_thread.start()
    assert blocked.called.wait(DEADLINE_SECONDS)
    closing = threading.Thread(target=server.close)
    closing.start()
    eventually("it accepts no connection", lambda: not accepts(server))
    blocked.released.set()
    closing.join(DEADLINE_SECONDS)
    waiting_thread.join(DEADLINE_SECONDS)
    assert answers == [(200, '"blocked"')]
    assert idle.sock.recv(1) == b""
    idle.close()
    client.close()


def accepts(server: HttpServer) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", server.port)) == 0


def test_an_address_in_use_is_named(server: HttpServer, authority: Authority) -> None:
    certificate = CertificateFiles(*paths(authority))
    second = HttpServer(f"127.0.0.1:{server.port}", {}, LIMITS, NodeAddresses(), certificate)
    with pytest.raises(HttpListenError, match=f"127.0.0.1:{server.port}.*in use"):
        second.start()
