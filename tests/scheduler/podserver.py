"""An API server with pods and their binding subresource, on real sockets."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from typing import Any

from tests.kube.fake_api_server import Request, Server, reply, status

Object = dict[str, Any]


class PodServer:
    """`pods` by namespace and name. A function in `intercept` is called before each Binding: if it
    returns a bool, it has answered the request; after None the Binding takes effect."""

    def __init__(self, server: Server) -> None:
        self.pods: dict[tuple[str, str], Object] = {}
        self.bindings: list[Object] = []
        self.intercept: Callable[[socket.socket, Request], bool | None] | None = None
        self._lock = threading.Lock()
        server.answer = self._answer

    def put(self, name: str, uid: str, node: str = "", **more: Any) -> Object:
        metadata = {"name": name, "namespace": "default", "uid": uid, "annotations": {}}
        spec = {"containers": [{"name": "c"}], "nodeName": node}
        pod = {"metadata": metadata | more.get("metadata", {}), "spec": spec | more.get("spec", {})}
        self.pods["default", name] = pod
        return pod

    def bind(self, request: Request) -> tuple[int, Object]:
        """Applies a Binding; returns the status and the body of the response."""
        _, _, _, _, namespace, _, name, _ = request.path.split("/")
        binding = json.loads(request.body)
        with self._lock:
            pod = self.pods.get((namespace, name))
            if pod is None:
                return 404, status(404, "NotFound")
            node, uid = pod["spec"]["nodeName"], pod["metadata"]["uid"]
            if node or uid != binding["metadata"]["uid"]:
                return 409, status(409, "Conflict")
            pod["spec"]["nodeName"] = binding["target"]["name"]
            pod["metadata"]["annotations"].update(binding["metadata"]["annotations"])
            self.bindings.append(binding)
            return 201, {"kind": "Status", "status": "Success"}

    def _answer(self, server: Server, connection: socket.socket, request: Request) -> bool:
        if request.method == "POST" and request.path.endswith("/binding"):
            if self.intercept is not None:
                keep_open = self.intercept(connection, request)
                if keep_open is not None:
                    return keep_open
            return reply(connection, *self.bind(request))
        _, _, _, _, namespace, _, name = request.path.split("/")
        pod = self.pods.get((namespace, name))
        if pod is None:
            return reply(connection, 404, status(404, "NotFound"))
        return reply(connection, 200, pod)
