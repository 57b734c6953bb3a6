"""A process without free file descriptors neither spins nor stops accepting for ever."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import DEADLINE_SECONDS, eventually

WINDOW_SECONDS = 1.0
MAX_ATTEMPTS = 40
"""Within WINDOW_SECONDS. The shortest pause is 0.1 s; a loop without pauses makes tens of thousands
of attempts."""
REQUEST = b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n"


class Child:
    def __init__(self, kind: str, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.http.descriptors_child", kind, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def command(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def attempts(self) -> int:
        return int(self.command(f"count {WINDOW_SECONDS}"))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def child(kind: str, folder: Path) -> Iterator[Child]:
    it = Child(kind, folder)
    try:
        yield it
    finally:
        it.close()


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS)


def answered(client: socket.socket) -> bool:
    client.sendall(REQUEST)
    return client.recv(4096).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("kind", ["server", "page"])
def test_an_http_port_pauses_without_descriptors(kind: str, tmp_path: Path) -> None:
    with child(kind, tmp_path) as process:
        process.command("take")
        with connected(process.port) as waiting:
            eventually("the loop has tried", lambda: process.command("total") != "0")
            assert process.attempts() < MAX_ATTEMPTS
            process.command("free")
            assert answered(waiting)


@pytest.mark.parametrize("kind", ["server", "page"])
def test_an_http_port_closes_its_oldest_idle_connection_without_descriptors(
    kind: str, tmp_path: Path
) -> None:
    with child(kind, tmp_path) as process, contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connected(process.port)) for _ in range(80)]
        assert answered(stack.enter_context(connected(process.port)))
        assert idle[0].recv(1) == b""
        idle[-1].sendall(b"GET")


def listening(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    listener.settimeout(DEADLINE_SECONDS)
    return listener


def test_the_relay_pauses_without_descriptors(tmp_path: Path) -> None:
    with (
        listening(tmp_path / "back.sock") as runtime,
        child("relay", tmp_path) as process,
        socket.socket(socket.AF_UNIX) as waiting,
    ):
        process.command("take")
        waiting.connect(str(tmp_path / "front.sock"))
        eventually("the loop has tried", lambda: process.command("total") != "0")
        assert process.attempts() < MAX_ATTEMPTS
        process.command("free")
        runtime.accept()[0].close()


def test_the_plugin_pauses_between_its_connections_without_descriptors(tmp_path: Path) -> None:
    with child("link", tmp_path) as process:
        process.command("take")
        with listening(tmp_path / "back.sock") as runtime:
            assert process.attempts() < MAX_ATTEMPTS
            process.command("free")
            runtime.accept()[0].close()


def test_the_agent_is_notified_without_descriptors(tmp_path: Path) -> None:
    with (
        child("notifications", tmp_path) as process,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as frontend,
    ):
        process.command("take")
        assert process.attempts() == 0, "the wait ends without a notification"
        frontend.sendto(b"{}", str(tmp_path / "notifications.sock"))
        eventually("the wait has ended", lambda: process.command("total") == "1")
        assert process.attempts() == 0, "one notification ends one wait"
