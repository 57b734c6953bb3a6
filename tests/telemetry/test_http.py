from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator

import pytest

from agent.model.settings.options import SettingsError
from agent.telemetry.http import HttpError, HttpServer
from agent.telemetry.page import HttpResponse
from tests.waiting import eventually

PAGES = {
    "/ok": lambda: HttpResponse(200, "fine ✓\n"),
    "/no": lambda: HttpResponse(503, "wait\n", "text/x"),
}


@pytest.fixture
def server() -> Iterator[HttpServer]:
    it = HttpServer("127.0.0.1:0", PAGES)
    yield it
    it.close()


def get(server: HttpServer, path: str, method: str = "GET") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request(method, path)
        reply = connection.getresponse()
        return reply.status, reply.read().decode(), reply.headers.get("Content-Type", "")
    finally:
        connection.close()


def test_pages(server: HttpServer) -> None:
    assert get(server, "/ok?x=1") == (200, "fine ✓\n", "text/plain; charset=utf-8")
    assert get(server, "/no") == (503, "wait\n", "text/x")
    assert get(server, "/none")[0] == 404
    assert get(server, "/ok", "POST")[0] == 404


def test_a_page_that_fails_ends_no_other(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> HttpResponse:
        raise ValueError("odd")

    server = HttpServer("127.0.0.1:0", {**PAGES, "/fails": fails})
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"GET /fails HTTP/1.1\r\n\r\n")
        eventually("the failure is logged", lambda: "a page failed" in caplog.text)
        assert get(server, "/ok")[0] == 200
    server.close()


def test_a_port_in_use_is_named(server: HttpServer) -> None:
    with pytest.raises(HttpError, match=f"127.0.0.1:{server.port}: Address already in use"):
        HttpServer(f"127.0.0.1:{server.port}", PAGES)


@pytest.mark.parametrize("address", ["", "9326", "host", "host:", "host:99999", "host:-1"])
def test_an_invalid_address(address: str) -> None:
    with pytest.raises(SettingsError, match="is not HOST:PORT"):
        HttpServer(address, PAGES)


def test_start_makes_no_dns_query(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolver_that_is_down(_: str = "") -> str:
        raise AssertionError("asked for our own name")

    monkeypatch.setattr(socket, "getfqdn", resolver_that_is_down)
    server = HttpServer("127.0.0.1:0", PAGES)
    assert get(server, "/ok")[0] == 200
    server.close()
