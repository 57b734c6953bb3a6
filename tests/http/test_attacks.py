"""Clients that try to exhaust the connections, threads, memory or CPU time of a server, which still
answers probes of the node and requests of other addresses.

The phases of a connection have no timeout here: only the limits of connections help.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

import msgspec
import pytest

from agent.host.loop import Loop
from agent.http.certificates import CertificateFiles
from agent.http.limits import ConnectionLimits
from agent.http.listener import PageListener
from agent.http.peers import NodeAddresses
from agent.http.requests import Reply, Route
from agent.http.server import HttpServer, ServerLimits
from tests.integration.apiserver.certificates import Authority
from tests.waiting import DEADLINE_SECONDS, eventually

LIMITS = ConnectionLimits(
    connections=28,
    reserved=8,
    each_peer=8,
    handshake_seconds=3600.0,
    head_seconds=3600.0,
    body_seconds=3600.0,
    reply_seconds=3600.0,
    idle_seconds=3600.0,
    head_bytes=4096,
    body_bytes=1 << 20,
    bodies_bytes=4 << 20,
)
NODE = "127.0.0.1"
OTHER = "127.0.0.2"
ATTACKERS = [f"127.0.1.{number}" for number in range(1, 7)]
SOCKETS = 2 * LIMITS.connections
LARGE_BYTES = 8 << 20


class OneNode(NodeAddresses):
    """The tests use loopback addresses; NODE is the address of the node."""

    def local(self, peer: str, own: str) -> bool:
        return peer == NODE


class Attack(msgspec.Struct, frozen=True):
    """The data that each socket sends: `first` once, then `repeated`."""

    first: bytes
    repeated: bytes = b""


POST = b"POST /blocked HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: "
ATTACKS = {
    "idle": Attack(b""),
    "slow_loris": Attack(b"GET /healthz HTTP/1.1\r\nX-Slow: ", b"a"),
    "hello": Attack(b"\x16\x03\x01\x40\x00\x01", b"\x00"),
    "huge_headers": Attack(b"GET /healthz HTTP/1.1\r\n", b"X-Filler: " + b"a" * 900 + b"\r\n"),
    "endless_body": Attack(POST + b"1048576\r\n\r\n", b"a" * 4096),
    "too_long_a_body": Attack(POST + b"999999999999\r\n\r\n", b"a" * 4096),
    "endless_chunks": Attack(
        b"POST /blocked HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"400\r\n" + b"a" * 1024
    ),
    "pipelining": Attack(b"", b"GET /healthz HTTP/1.1\r\n\r\n" * 40),
    "no_reading": Attack(b"", b"GET /large HTTP/1.1\r\n\r\n"),
    "busy_handlers": Attack(POST + b"2\r\n\r\n{}"),
}


class Attackers:
    """Sockets of many addresses that send without end, and connect again after they are closed."""

    def __init__(self, port: int, attack: Attack, tls: ssl.SSLContext | None = None) -> None:
        self.rounds = 0
        self._port = port
        self._attack = attack
        self._tls = tls
        self._sockets: list[socket.socket | None] = [None] * SOCKETS
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Attackers:
        self._thread.start()
        eventually("all sockets have sent", lambda: self.rounds >= 3)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for each in self._sockets:
            if each is not None:
                each.close()

    def _run(self) -> None:
        while not self._ended.wait(0.02):
            for number, each in enumerate(self._sockets):
                if self._ended.is_set():
                    return
                if each is None:
                    with contextlib.suppress(OSError):
                        self._sockets[number] = self._connect(number)
                    continue
                try:
                    if self._closed(each):
                        raise ConnectionResetError
                    if self._attack.repeated:
                        each.send(self._attack.repeated)
                except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    continue
                except OSError:
                    each.close()
                    self._sockets[number] = None
            self.rounds += 1

    def _closed(self, each: socket.socket) -> bool:
        if self._attack is ATTACKS["no_reading"] or isinstance(each, ssl.SSLSocket):
            return False
        try:
            return each.recv(1 << 16, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False

    def _connect(self, number: int) -> socket.socket:
        source = (ATTACKERS[number % len(ATTACKERS)], 0)
        client = socket.create_connection((NODE, self._port), 5, source_address=source)
        try:
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_hostname=NODE)
            if self._attack.first:
                client.sendall(self._attack.first)
        except OSError:
            client.close()
            raise
        client.setblocking(False)
        return client


class BlockedHandler:
    """A handler that answers when the test ends."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def __call__(self, _: bytes) -> Reply:
        self.ended.wait(DEADLINE_SECONDS)
        return Reply(200, b"{}")


def routes(blocked: BlockedHandler) -> dict[str, Route]:
    return {
        "/healthz": Route("GET", lambda _: Reply(200, b"ok\n", "text/plain")),
        "/large": Route("GET", lambda _: Reply(200, b"x" * LARGE_BYTES, "text/plain")),
        "/blocked": Route("POST", blocked),
    }


def threaded(
    blocked: BlockedHandler,
    certificate: CertificateFiles | None = None,
    connections: ConnectionLimits = LIMITS,
) -> tuple[int, Callable[[], None]]:
    limits = ServerLimits(connections, threads=4, stop_seconds=0.1)
    server = HttpServer("0.0.0.0:0", routes(blocked), limits, OneNode(), certificate)
    server.start()
    return server.port, server.close


def unthreaded(blocked: BlockedHandler) -> tuple[int, Callable[[], None]]:
    """A server like that of the agent's port."""
    connections = msgspec.structs.replace(LIMITS, idle_seconds=0.0, body_bytes=0, bodies_bytes=0)
    limits = ServerLimits(connections, threads=0, stop_seconds=0.1)
    server = HttpServer("0.0.0.0:0", routes(blocked), limits, OneNode())
    server.start()
    return server.port, server.close


def paged(
    blocked: BlockedHandler, connections: ConnectionLimits = LIMITS
) -> tuple[int, Callable[[], None]]:
    loop = Loop()
    limits = msgspec.structs.replace(connections, idle_seconds=0.0, body_bytes=0, bodies_bytes=0)
    server = PageListener(loop, ("0.0.0.0", 0), routes(blocked), OneNode(), limits)
    thread = threading.Thread(target=loop.run)
    thread.start()

    def close() -> None:
        assert thread.is_alive(), "the loop has ended"
        loop.stop()
        thread.join()
        server.close()
        loop.close()

    return server.port, close


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    signed = Authority(tmp_path_factory.mktemp("certificates"))
    signed.server("server")
    return signed


def certificate_files(
    authority: Authority, *, client_ca: bool = False, client_optional: bool = False
) -> CertificateFiles:
    """`client_ca`: a client needs a certificate, as in the extender's configuration."""
    names = ("server.crt", "server.key", "ca.crt")[: 3 if client_ca else 2]
    paths = [str(authority.folder / each) for each in names]
    return CertificateFiles(*paths, client_optional=client_optional)


def client_context(authority: Authority, name: str = "") -> ssl.SSLContext:
    """`name`: the client has a certificate for it."""
    folder = authority.folder
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    if name:
        authority.client(name)
        context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    return context


def connection(
    port: int, source: str, tls: ssl.SSLContext | None = None
) -> http.client.HTTPConnection:
    if tls is None:
        return http.client.HTTPConnection(NODE, port, DEADLINE_SECONDS, (source, 0))
    return http.client.HTTPSConnection(
        NODE, port, timeout=DEADLINE_SECONDS, source_address=(source, 0), context=tls
    )


def status(port: int, source: str, tls: ssl.SSLContext | None = None) -> int:
    """The status of GET /healthz on a new connection."""
    with contextlib.closing(connection(port, source, tls)) as client:
        client.request("GET", "/healthz", headers={"Connection": "close"})
        return client.getresponse().status


def answers(port: int, source: str, tls: ssl.SSLContext | None = None) -> Callable[[], bool]:
    def once() -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return status(port, source, tls) == 200
        return False

    return once


@pytest.fixture
def blocked() -> Iterator[BlockedHandler]:
    it = BlockedHandler()
    yield it
    it.ended.set()


@pytest.mark.parametrize("name", [each for each in ATTACKS if each != "hello"])
def test_a_probe_of_the_node_is_answered_under_attack(blocked: BlockedHandler, name: str) -> None:
    port, close = threaded(blocked)
    try:
        with Attackers(port, ATTACKS[name]):
            for _ in range(5):
                assert status(port, NODE) == 200
            if name != "busy_handlers":
                eventually("another client is answered", answers(port, OTHER))
        blocked.ended.set()
        eventually("the connections of the attackers are free again", answers(port, OTHER))
    finally:
        blocked.ended.set()
        close()


PAGE_ATTACKS = [each for each in ATTACKS if each not in ("hello", "busy_handlers")]


@pytest.mark.parametrize(
    ("serve", "name"),
    [
        *((paged, each) for each in PAGE_ATTACKS),
        (unthreaded, "slow_loris"),
        (unthreaded, "no_reading"),
    ],
)
def test_a_probe_of_a_server_in_one_loop_is_answered_under_attack(
    blocked: BlockedHandler,
    serve: Callable[[BlockedHandler], tuple[int, Callable[[], None]]],
    name: str,
) -> None:
    """The agent's server, and the metrics page of the plugin and the proxy."""
    port, close = serve(blocked)
    try:
        with Attackers(port, ATTACKS[name]):
            for _ in range(5):
                assert status(port, NODE) == 200
            eventually("another client is answered", answers(port, OTHER))
    finally:
        close()


@pytest.mark.parametrize("name", ["idle", "hello"])
def test_clients_without_a_certificate_do_not_block_those_with_one(
    blocked: BlockedHandler, authority: Authority, name: str
) -> None:
    trust = client_context(authority, "kube-scheduler")
    port, close = threaded(blocked, certificate_files(authority, client_ca=True))
    try:
        with contextlib.closing(connection(port, OTHER, trust)) as kept:
            kept.request("GET", "/healthz")
            assert kept.getresponse().read() == b"ok\n"
            first = kept.sock
            with Attackers(port, ATTACKS[name]):
                for _ in range(5):
                    kept.request("GET", "/healthz")
                    assert kept.getresponse().read() == b"ok\n"
                assert kept.sock is first, "the connection of an answered client was closed"
                eventually("a new connection is answered", answers(port, OTHER, trust))
                eventually("the node is answered", answers(port, NODE, trust))
    finally:
        close()


LOW_RATE = msgspec.structs.replace(LIMITS, connections=40, each_peer=16, new_each_second=1e-6)
"""Hardly any new connections; an address may have more than the loop accepts at one event."""
ATTEMPTS = 3 * LOW_RATE.each_peer


def test_a_neighbour_makes_the_server_compute_few_handshakes(
    blocked: BlockedHandler, authority: Authority
) -> None:
    """Complete handshakes, one after the other. Clients with a certificate are not limited."""
    trust = client_context(authority)
    files = certificate_files(authority, client_ca=True, client_optional=True)
    port, close = threaded(blocked, files, LOW_RATE)
    try:
        answered = sum(answers(port, ATTACKERS[0], trust)() for _ in range(ATTEMPTS))
        assert answered == LOW_RATE.each_peer
        assert status(port, OTHER, trust) == 200
        assert [status(port, NODE, trust) for _ in range(ATTEMPTS)] == [200] * ATTEMPTS
        certified = client_context(authority, "kube-scheduler")
        assert [status(port, OTHER, certified) for _ in range(ATTEMPTS)] == [200] * ATTEMPTS
    finally:
        close()


def test_a_neighbour_of_a_server_without_a_client_ca_makes_it_compute_few_handshakes(
    blocked: BlockedHandler, authority: Authority
) -> None:
    """Each address has the same limit."""
    trust = client_context(authority)
    port, close = threaded(blocked, certificate_files(authority), LOW_RATE)
    try:
        with contextlib.closing(connection(port, OTHER, trust)) as kept:
            for _ in range(LOW_RATE.each_peer):
                assert answers(port, ATTACKERS[0], trust)()
            for _ in range(ATTEMPTS):
                assert not answers(port, ATTACKERS[0], trust)()
                kept.request("GET", "/healthz")
                assert kept.getresponse().read() == b"ok\n"
            for _ in range(LOW_RATE.each_peer - 1):
                assert status(port, OTHER, trust) == 200
        assert [status(port, NODE, trust) for _ in range(ATTEMPTS)] == [200] * ATTEMPTS
    finally:
        close()


def test_a_neighbour_makes_the_server_build_few_pages(blocked: BlockedHandler) -> None:
    port, close = paged(blocked, LOW_RATE)
    try:
        answered = sum(answers(port, ATTACKERS[0])() for _ in range(ATTEMPTS))
        assert answered == LOW_RATE.each_peer
        assert status(port, OTHER) == 200
        assert [status(port, NODE) for _ in range(ATTEMPTS)] == [200] * ATTEMPTS
    finally:
        close()


@pytest.mark.parametrize("name", ["slow_loris", "endless_body", "no_reading"])
def test_a_probe_is_answered_under_attacks_over_tls(
    blocked: BlockedHandler, authority: Authority, name: str
) -> None:
    trust = client_context(authority)
    port, close = threaded(blocked, certificate_files(authority))
    try:
        with Attackers(port, ATTACKS[name], trust):
            for _ in range(3):
                assert status(port, NODE, trust) == 200
            eventually("another client is answered", answers(port, OTHER, trust))
    finally:
        close()


def _is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_requests_in_flight_take_no_more_memory_than_their_limit(blocked: BlockedHandler) -> None:
    """Each body is within its limit; all bodies together exceed theirs."""
    port, close = threaded(blocked)
    complete_bodies = LIMITS.bodies_bytes // LIMITS.body_bytes
    try:
        with contextlib.ExitStack() as stack:
            senders = []
            for number in range(complete_bodies + 2):
                client = stack.enter_context(
                    socket.create_connection(
                        (NODE, port), DEADLINE_SECONDS, source_address=(ATTACKERS[number], 0)
                    )
                )
                client.sendall(POST + b"1048576\r\n\r\n" + b"a" * 1_000_000)
                senders.append(client)
            eventually("the oldest is closed", lambda: _is_closed(senders[0]))
            assert status(port, OTHER) == 200
    finally:
        close()
