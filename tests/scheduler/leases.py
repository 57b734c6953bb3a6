"""An API server with one Lease, on real sockets."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

from tests.kube import fake_api_server
from tests.kube.fake_api_server import Request, Server

PATH = "/apis/coordination.k8s.io/v1/namespaces/n/leases"


class Leases:
    """`error_code`: while it is set, the status of every response. `drop_responses`: writes take
    effect, but have no response."""

    def __init__(self, server: Server) -> None:
        self.stored: dict[str, Any] | None = None
        self.error_code: int | None = None
        self.drop_responses = False
        self.writes = 0
        self._version = 0
        self._lock = threading.Lock()
        server.answer = self._answer

    @property
    def spec(self) -> dict[str, Any]:
        assert self.stored is not None
        spec: dict[str, Any] = self.stored["spec"]
        return spec

    def put(self, body: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        self.writes += 1
        self.stored = json.loads(json.dumps(body))
        assert self.stored is not None
        self.stored["metadata"]["resourceVersion"] = str(self._version)
        return self.stored

    def _answer(self, server: Server, connection: socket.socket, request: Request) -> bool:
        if self.error_code is not None:
            return _error(connection, self.error_code, "Error")
        with self._lock:
            return self._handle(connection, request)

    def _handle(self, connection: socket.socket, request: Request) -> bool:
        body = json.loads(request.body) if request.body else {}
        if request.method == "POST":
            assert request.path == PATH
            if self.stored is not None:
                return _error(connection, 409, "AlreadyExists")
            return self._store(connection, 201, body)
        assert request.path == f"{PATH}/l"
        if self.stored is None:
            return _error(connection, 404, "NotFound")
        if request.method == "GET":
            return fake_api_server.reply(connection, 200, self.stored)
        assert request.method == "PUT"
        if body["metadata"]["resourceVersion"] != self.stored["metadata"]["resourceVersion"]:
            return _error(connection, 409, "Conflict")
        return self._store(connection, 200, body)

    def _store(self, connection: socket.socket, code: int, body: dict[str, Any]) -> bool:
        stored = self.put(body)
        return False if self.drop_responses else fake_api_server.reply(connection, code, stored)


def _error(connection: socket.socket, code: int, reason: str) -> bool:
    message = "l already exists" if reason == "AlreadyExists" else reason
    return fake_api_server.reply(connection, code, fake_api_server.status(code, reason, message))
