"""Pages: the clients that may read them, and their headers and document."""

from __future__ import annotations

import re

import msgspec
import pytest

from agent.http.page import Viewed, page_routes
from agent.http.peers import is_loopback
from agent.http.requests import (
    HttpRequest,
    Reply,
    Route,
    dispatch,
    encode_reply,
    parse_head,
    text_reply,
)

ROUTES = page_routes("node", {"load": lambda: b"{}"})


def get(path: str, host: str = "localhost:9326", *, loopback: bool = True) -> Reply:
    return dispatch(ROUTES, HttpRequest("GET", path, "", b"", False, host, loopback))


def test_the_document_is_complete_and_refers_to_no_other_host() -> None:
    reply = get("/page")
    text = reply.body.decode()
    assert (reply.status, reply.content_type) == (200, "text/html; charset=utf-8")
    assert text.startswith("<!doctype html>")
    assert not re.search(r"\{(nonce|style|body|script)\}", text)
    urls = set(re.findall(r"https?://[^\s'\"`)<]+", text))
    assert urls == {"http://www.w3.org/2000/svg"}  # the XML namespace of SVG
    assert "innerHTML" not in text


def test_only_script_and_style_with_the_nonce_of_the_reply_run() -> None:
    policies = [dict(get("/page").headers)["Content-Security-Policy"] for _ in range(2)]
    assert policies[0] != policies[1]
    reply = get("/page")
    policy = dict(reply.headers)["Content-Security-Policy"]
    (nonce,) = set(re.findall(r"'nonce-([^']+)'", policy))
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy
    text = reply.body.decode()
    for tag in ("script", "style"):
        assert re.findall(rf"<{tag}\b[^>]*>", text) == [f'<{tag} nonce="{nonce}">']
    assert not re.search(r"<[^>]+\son[a-z]+=|<[^>]+\sstyle=", text)


@pytest.mark.parametrize("path", ["/page", "/page/load"])
def test_no_other_site_may_store_or_embed_a_page(path: str) -> None:
    headers = dict(get(path).headers)
    assert headers["Cache-Control"] == "no-store"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize("path", ["/page", "/page/load"])
def test_a_client_of_another_machine_is_refused(path: str) -> None:
    reply = get(path, loopback=False)
    assert (reply.status, b"port-forward" in reply.body) == (403, True)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:9326",
        "localhost.evil.example",
        "localhost:9326, a",
        "10.0.0.1",
    ],
)
def test_a_page_of_another_site_reads_nothing_by_dns_rebinding(host: str) -> None:
    assert get("/page/load", host).status == 403


@pytest.mark.parametrize("path", ["/metrics", "/readyz", "/healthz", "/"])
def test_no_path_is_read_by_dns_rebinding(path: str) -> None:
    routes = {each: Route("GET", lambda _: text_reply(200, "ok")) for each in ("/metrics", "/")}
    routes |= {each: Route("POST", lambda _: text_reply(200, "ok")) for each in ("/readyz",)}
    for host in ("evil.example", "evil.example:9326", "localhost.evil.example", "127.0.0.1.nip.io"):
        rebound = HttpRequest("GET", path, "", None, host=host, loopback=True)
        assert dispatch(routes, rebound).status == 403
        for other in ({"loopback": False}, {"tls": True}, {"host": "10.0.0.1:9326"}):
            known = msgspec.structs.replace(rebound, **other)
            assert dispatch(routes, known).status != 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:9326", "[::1]:9326"])
def test_loopback_hosts(host: str) -> None:
    assert get("/page/load", host).status == 200


def test_a_request_with_two_host_headers_has_no_host() -> None:
    assert parse_head(b"GET /page HTTP/1.1\r\nHost: localhost:1\r\n\r\n").host == "localhost:1"
    twice = parse_head(b"GET /page HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n")
    assert get("/page", twice.host).status == 403


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("::ffff:10.0.0.1", False),
    ],
)
def test_loopback_addresses(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


def test_headers_of_a_reply_are_sent() -> None:
    sent = encode_reply(
        Reply(200, b"x", headers=(("A", "b"), ("C", "d"))), with_body=True, close=True
    )
    assert b"\r\nA: b\r\nC: d\r\n\r\nx" in sent


def test_a_page_answers_posts_only_of_itself() -> None:
    """A form or script of another site can't post JSON without a CORS preflight."""
    routes = page_routes("cluster", {}, {"state": lambda body: Reply(200, body)})
    request = HttpRequest(
        "POST", "/page/state", "application/json", b"{}", False, "localhost:9329", True
    )
    reply = dispatch(routes, request)
    assert (reply.status, reply.body) == (200, b"{}")
    assert dict(reply.headers)["Cross-Origin-Resource-Policy"] == "same-origin"
    for changes in ({"loopback": False}, {"host": "example.com"}):
        refused = msgspec.structs.replace(request, **changes)  # type: ignore[arg-type]
        assert dispatch(routes, refused).status == 403
    plain = msgspec.structs.replace(request, content_type="text/plain")
    assert dispatch(routes, plain).status == 415


def test_values_are_kept_while_a_browser_reads_them() -> None:
    values: list[object] = []

    def make() -> object:
        values.append(object())
        return values[-1]

    viewed = Viewed(make)
    viewed.forget(0.0)
    assert viewed.current() is viewed.current() is values[0]
    viewed.forget(60.0)
    assert viewed.current() is values[0]
    viewed.forget(-1.0)
    assert viewed.current() is values[1]
