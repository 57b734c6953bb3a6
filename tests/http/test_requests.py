from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.http.requests import BadRequestError, RequestHead, head_end, parse_head


def head(*lines: bytes, request_line: bytes = b"POST /a HTTP/1.1") -> RequestHead:
    return parse_head(b"\r\n".join([request_line, *lines, b"", b""]))


def test_a_request_of_kube_scheduler() -> None:
    found = head(
        b"Host: a:9444",
        b"User-Agent: Go-http-client/1.1",
        b"Content-Length: 12",
        b"Content-Type: application/json",
        b"Accept-Encoding: gzip",
        request_line=b"POST /filter?timeout=5s HTTP/1.1",
    )
    assert found == RequestHead("POST", "/filter", "application/json", 12, True, False, "a:9444")


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/a%62c?x=/y", "/abc"),
        (b"http://host:1/metrics?a", "/metrics"),
        (b"http://host", "/"),
        (b"*", "*"),
        (b"/%zz%", "/%zz%"),
    ],
)
def test_the_path_of_a_request_target(target: bytes, path: str) -> None:
    assert head(request_line=b"GET " + target + b" HTTP/1.1").path == path


@pytest.mark.parametrize(
    ("line", "keep_alive"),
    [
        (b"Connection: close", False),
        (b"connection: keep-alive, CLOSE", False),
        (b"Connection: keep-alive", True),
        (b"X: close", True),
    ],
)
def test_connections_that_stay_open(line: bytes, keep_alive: bool) -> None:
    assert head(line).keep_alive is keep_alive
    assert not head(line, request_line=b"GET / HTTP/1.0").keep_alive


@pytest.mark.parametrize(
    ("line", "message", "status"),
    [
        (b"Content-Length: -1", "not a number", 400),
        (b"Content-Length: +1", "not a number", 400),
        (b"Content-Length: 1_0", "not a number", 400),
        (b"Content-Length: \xb2", "not a number", 400),
        (b"Content-Length:", "not a number", 400),
        (b"Content-Length: 1\r\nContent-Length: 2", "not a number", 400),
        (b"Content-Length: 1\r\ncontent-length: 1", "not a number", 400),
        (b"Content-Length: 1\r\nTransfer-Encoding: chunked", "both", 400),
        (b"Content-Length : 1", "NAME: VALUE", 400),
        (b" Content-Length: 1", "NAME: VALUE", 400),
        (b"X: a\r\n folded", "NAME: VALUE", 400),
        (b"X: a\nY: b", "NAME: VALUE", 400),
        (b"X: a\rY: b", "NAME: VALUE", 400),
        (b"X: a\0", "NAME: VALUE", 400),
        (b"X", "NAME: VALUE", 400),
        (b"\r\n".join([b"X: 1"] * 65), "more than 64 headers", 431),
    ],
)
def test_ambiguous_requests_are_refused(line: bytes, message: str, status: int) -> None:
    with pytest.raises(BadRequestError, match=message) as error:
        head(line)
    assert error.value.status == status


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /", 400),
        (b"GET / HTTP/2.0", 505),
        (b"GET  / HTTP/1.1", 400),
        (b"get / HTTP/1.1", 400),
        (b"GET / http/1.1", 400),
        (b"GET /\x7f HTTP/1.1", 400),
        (b"PRI * HTTP/2.0", 505),
        (b"", 400),
    ],
)
def test_request_lines_that_are_refused(request_line: bytes, status: int) -> None:
    with pytest.raises(BadRequestError) as error:
        head(request_line=request_line)
    assert error.value.status == status


@given(st.binary(max_size=300))
@example(b"GET / HTTP/1.1\r\n:\r\n\r\n")
def test_any_bytes_are_a_head_or_an_error(text: bytes) -> None:
    status, found = 0, None
    try:
        found = parse_head(text + b"\r\n\r\n")
    except BadRequestError as error:
        status = error.status
    assert 400 <= status <= 505 if found is None else (found.content_length or 0) >= 0


@given(st.lists(st.sampled_from([b"a", b"\r", b"\n", b"\r\n", b"\r\n\r\n"])), st.data())
def test_the_end_of_the_head_is_found_in_pieces(parts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(parts)
    received, searched, found = bytearray(), 0, 0
    while len(received) < len(whole) and not found:
        size = data.draw(st.integers(1, 5))
        received += whole[len(received) : len(received) + size]
        found = head_end(received, searched, 10_000)
        searched = len(received)
    assert found == whole.find(b"\r\n\r\n") + 4 or (not found and b"\r\n\r\n" not in whole)


@pytest.mark.parametrize(("text", "status"), [(b"a" * 50, 414), (b"a\r\n" + b"b" * 50, 431)])
def test_a_longer_head_is_refused(text: bytes, status: int) -> None:
    assert head_end(bytearray(text), 0, 60) == 0
    with pytest.raises(BadRequestError, match="maximum of 50") as error:
        head_end(bytearray(text), 0, 50)
    assert error.value.status == status


@pytest.mark.parametrize("blanks", [b" ", b"\t", b" \t"])
def test_a_header_of_many_blanks_costs_linear_time(blanks: bytes) -> None:
    """Any neighbour on the network may send one, and one loop serves all connections."""
    many = blanks * 4_000
    began = time.thread_time()
    with pytest.raises(BadRequestError, match="not NAME: VALUE"):
        parse_head(b"GET / HTTP/1.1\r\na:" + many + b"\0\r\n\r\n")
    found = parse_head(b"GET / HTTP/1.1\r\nContent-Type:" + many + b"a b" + many + b"\r\n\r\n")
    assert found.content_type == "a b"
    assert time.thread_time() - began < 1
