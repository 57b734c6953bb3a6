"""An API server with a few objects on real sockets; tests can replace its answers."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
import pytest

from agent.kube.auth import FileAccess
from agent.kube.transport import Transport


class Request(msgspec.Struct, frozen=True):
    """`at`: the time of the test's clock."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    at: float
    connection: int

    @property
    def watches(self) -> bool:
        return "watch" in self.query


Answer = Callable[["Server", socket.socket, Request], bool]
"""Returns whether the connection stays open."""


class Server:
    """Objects below /objects. `answer`, if it is set, answers instead of the server; it may call
    `standard_answer`."""

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.answer: Answer | None = None
        self.requests: list[Request] = []
        self.objects: dict[str, dict[str, Any]] = {}
        self.events: list[tuple[int, str, dict[str, Any]]] = []
        self.version = 100
        self.oldest = 0
        self.watch_list = True
        self._clock = clock
        self._changed = threading.Condition()
        self._connections: set[socket.socket] = set()
        self._watching: set[socket.socket] = set()
        self._count = 0
        self._closed = False
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    # for tests
    def put(self, name: str, value: str = "", uid: str = "") -> None:
        """Adds or changes an object."""
        with self._changed:
            before = self.objects.get(name)
            if before and uid and before["metadata"]["uid"] != uid:
                self._remove(name)
                before = None
            self.version += 1
            old = before["metadata"]["uid"] if before else uid or f"uid-{self.version}"
            metadata = {"name": name, "uid": old, "resourceVersion": str(self.version)}
            self.objects[name] = {"metadata": metadata, "value": value}
            kind = "MODIFIED" if before else "ADDED"
            self.events.append((self.version, kind, self.objects[name]))
            self._changed.notify_all()

    def remove(self, name: str) -> None:
        with self._changed:
            self._remove(name)
            self._changed.notify_all()

    def bookmark(self) -> None:
        """Sends a bookmark to every watch."""
        with self._changed:
            self.version += 1
            mark = {"metadata": {"resourceVersion": str(self.version)}}
            self.events.append((self.version, "BOOKMARK", mark))
            self._changed.notify_all()

    def compact(self) -> None:
        """No watch can begin at an earlier version than the current one."""
        with self._changed:
            self.oldest = self.version

    def break_watches(self) -> None:
        """Breaks the connection of every watch."""
        with self._changed:
            for each in tuple(self._watching):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    @property
    def watching(self) -> int:
        return len(self._watching)

    @property
    def open_connections(self) -> int:
        return len(self._connections)

    def values(self) -> dict[str, str]:
        with self._changed:
            return {name: each["value"] for name, each in self.objects.items()}

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with self._changed:
            for each in tuple(self._connections):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            self._changed.notify_all()

    # the server
    def _remove(self, name: str) -> None:
        self.version += 1
        removed = json.loads(json.dumps(self.objects.pop(name)))
        removed["metadata"]["resourceVersion"] = str(self.version)
        self.events.append((self.version, "DELETED", removed))

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._count += 1
            self._connections.add(connection)
            threading.Thread(
                target=self._serve, args=(connection, self._count), daemon=True
            ).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        with connection, contextlib.suppress(OSError):
            reader = connection.makefile("rb")
            while (request := self._read(reader, number)) is not None:
                self.requests.append(request)
                if not (self.answer or standard_answer)(self, connection, request):
                    break
            # `reader` still has the socket open; the client must get the end of the stream.
            connection.shutdown(socket.SHUT_RDWR)
        self._connections.discard(connection)

    def _read(self, reader: Any, number: int) -> Request | None:
        line = reader.readline().decode()
        if not line:
            return None
        method, target, _ = line.split()
        headers = {}
        while (header := reader.readline().decode().strip()) != "":
            name, _, value = header.partition(":")
            headers[name.lower()] = value.strip()
        body = reader.read(int(headers.get("content-length", 0)))
        parts = urlsplit(target)
        return Request(
            method, parts.path, dict(parse_qsl(parts.query)), headers, body, self._clock(), number
        )

    def listed(self, query: dict[str, str]) -> dict[str, Any]:
        with self._changed:
            names = sorted(self.objects)
            begin, version = 0, str(self.version)
            if "continue" in query:
                begin, _, version = query["continue"].partition("@")
                begin = int(begin)
            end = begin + int(query.get("limit") or len(names))
            metadata = {"resourceVersion": version}
            if end < len(names):
                metadata["continue"] = f"{end}@{version}"
            return {"metadata": metadata, "items": [self.objects[n] for n in names[begin:end]]}

    def watched(self, connection: socket.socket, query: dict[str, str]) -> None:
        """Sends events until the connection breaks."""
        with self._changed:
            self._watching.add(connection)
            head(connection)
            if "sendInitialEvents" in query:
                after = self.version
                for each in self.objects.values():
                    chunk(connection, event("ADDED", each))
                mark = {"k8s.io/initial-events-end": "true"}
                metadata = {"resourceVersion": str(after), "annotations": mark}
                chunk(connection, event("BOOKMARK", {"metadata": metadata}))
            else:
                after = int(query["resourceVersion"])
        try:
            while not self._closed:
                with self._changed:
                    newer = [each for each in self.events if each[0] > after]
                    for version, kind, changed in newer:
                        chunk(connection, event(kind, changed))
                        after = version
                    self._changed.wait(0.05)
                    connection.send(b"", socket.MSG_DONTWAIT)
        finally:
            self._watching.discard(connection)


def standard_answer(server: Server, connection: socket.socket, request: Request) -> bool:
    """Answers like a real API server."""
    if not request.watches:
        return reply(connection, 200, server.listed(request.query))
    if "sendInitialEvents" in request.query and not server.watch_list:
        return reply(connection, 422, status(422, "Invalid", "sendInitialEvents is forbidden"))
    if int(request.query.get("resourceVersion", server.version)) < server.oldest:
        head(connection)
        chunk(connection, event("ERROR", status(410, "Expired", "too old resource version")))
        end(connection)
        return True
    server.watched(connection, request.query)
    return False


def status(code: int, reason: str = "", message: str = "", **details: Any) -> dict[str, Any]:
    return {
        "kind": "Status",
        "code": code,
        "reason": reason,
        "message": message,
        "details": details,
    }


def event(kind: str, changed: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": changed}).encode() + b"\n"


def reply(
    connection: socket.socket, code: int, body: Any, headers: dict[str, str] | None = None
) -> bool:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {code} x", f"Content-Length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + data)
    return True


def head(connection: socket.socket) -> None:
    """Sends the head of a chunked answer."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")


def chunk(connection: socket.socket, data: bytes) -> None:
    connection.sendall(b"%x\r\n%s\r\n" % (len(data), data))


def end(connection: socket.socket) -> None:
    connection.sendall(b"0\r\n\r\n")


@contextlib.contextmanager
def serving(clock: Callable[[], float] = lambda: 0.0) -> Iterator[Server]:
    server = Server(clock)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def server() -> Iterator[Server]:
    """The fixture, for the conftest of a folder."""
    with serving() as it:
        yield it


@pytest.fixture
def transport(server: Server) -> Iterator[Transport]:
    """A connection to the server, for the conftest of a folder."""
    with contextlib.closing(Transport(FileAccess(server.url))) as it:
        yield it
