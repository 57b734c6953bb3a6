"""One Lease of an API server, on real sockets."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

from tests.kube import hostile
from tests.kube.hostile import Request, Server

PATH = "/apis/coordination.k8s.io/v1/namespaces/n/leases"


class Leases:
    """`trouble`: while it is set, it is the answer to every request. `lost`: writes take effect,
    but their answers are lost."""

    def __init__(self, server: Server) -> None:
        self.stored: dict[str, Any] | None = None
        self.trouble: int | None = None
        self.lost = False
        self.writes = 0
        self._version = 0
        self._lock = threading.Lock()
        server.answer = self._answer

    @property
    def spec(self) -> dict[str, Any]:
        assert self.stored is not None
        spec: dict[str, Any] = self.stored["spec"]
        return spec

    def put(self, wanted: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        self.writes += 1
        self.stored = json.loads(json.dumps(wanted))
        assert self.stored is not None
        self.stored["metadata"]["resourceVersion"] = str(self._version)
        return self.stored

    def _answer(self, server: Server, connection: socket.socket, request: Request) -> bool:
        if self.trouble is not None:
            return _refused(connection, self.trouble, "Trouble")
        with self._lock:
            return self._honest(connection, request)

    def _honest(self, connection: socket.socket, request: Request) -> bool:
        wanted = json.loads(request.body) if request.body else {}
        if request.method == "POST":
            assert request.path == PATH
            if self.stored is not None:
                return _refused(connection, 409, "AlreadyExists")
            return self._written(connection, 201, wanted)
        assert request.path == f"{PATH}/l"
        if self.stored is None:
            return _refused(connection, 404, "NotFound")
        if request.method == "GET":
            return hostile.reply(connection, 200, self.stored)
        assert request.method == "PUT"
        if wanted["metadata"]["resourceVersion"] != self.stored["metadata"]["resourceVersion"]:
            return _refused(connection, 409, "Conflict")
        return self._written(connection, 200, wanted)

    def _written(self, connection: socket.socket, code: int, wanted: dict[str, Any]) -> bool:
        stored = self.put(wanted)
        return False if self.lost else hostile.reply(connection, code, stored)


def _refused(connection: socket.socket, code: int, reason: str) -> bool:
    message = "l already exists" if reason == "AlreadyExists" else reason
    return hostile.reply(connection, code, hostile.status(code, reason, message))
