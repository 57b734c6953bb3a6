"""The API server of a simulated cluster, which answers at once: lists, watches, Bindings, a Lease.

It is a separate process: `python -m benchmarks.stubapi NODES PODS` prints its port and serves until
its stdin ends.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, BinaryIO, Final
from urllib.parse import parse_qs

from tests.fixtures import fleet

NODE: Final = "/api/v1/nodes"
POD: Final = "/api/v1/pods"
NAMESPACE: Final = "/api/v1/namespaces"
TOPOLOGY: Final = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
DEVICE: Final = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
BUDGET: Final = "/apis/policy/v1/poddisruptionbudgets"
LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/"
_VERSION: Final = 1000
_GROUP: Final = 400
"""Events written at once."""


def node_name(number: int) -> str:
    return f"node-{number:05d}.example"


def pod_name(kind: int, number: int) -> str:
    """The name of a pod to be bound, which contains its kind."""
    return f"new-{kind}-{number}"


class Cluster:
    """`pods`: the number of running pods, which are small and spread evenly."""

    def __init__(self, nodes: int, pods: int) -> None:
        self._nodes = nodes
        self._pods = pods
        self._machines = [fleet.Machine(model) for model in fleet.MODELS]
        self._kinds = fleet.kinds()
        self._small = (fleet.guaranteed_pod("100m", "128Mi"), fleet.ls_pod("250m", 1))
        self._bound: dict[str, dict[str, Any]] = {}

    def objects(self, path: str) -> Iterator[dict[str, Any]]:
        for number in range(self._nodes):
            name = node_name(number)
            machine = self._machines[number % len(self._machines)]
            if path == NODE:
                yield machine.node(name)
            elif path == TOPOLOGY:
                yield machine.topology(name)
            elif path == DEVICE and machine.model.gpus:
                yield machine.devices(name)
            elif path == POD:
                yield fleet.agent(name)
        if path == POD:
            for number in range(self._pods):
                node = node_name(number % self._nodes)
                yield self._small[number % 2].pod(f"run-{number}", node=node)

    def bind(self, name: str, binding: dict[str, Any]) -> dict[str, Any]:
        """Returns the pod with its node."""
        kind = int(name.split("-")[1])
        pod_kind = fleet.NOTHING if kind == len(self._kinds) else self._kinds[kind]
        pod = pod_kind.pod(name, uid=binding["metadata"]["uid"], node=binding["target"]["name"])
        pod["metadata"]["annotations"] |= binding["metadata"].get("annotations") or {}
        self._bound[name] = pod
        return pod

    def delete(self, name: str) -> dict[str, Any] | None:
        return self._bound.pop(name, None)


class Server:
    """Threads on sockets: its cost must be small compared with the measured times."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._version = _VERSION
        self._watching: list[socket.socket] = []
        self._lease: dict[str, Any] | None = None
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._listener.getsockname()[1]

    def serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve_connection, args=(connection,), daemon=True).start()

    def _serve_connection(self, connection: socket.socket) -> None:
        reader = connection.makefile("rb")
        with contextlib.suppress(OSError):
            while (request := _read(reader)) is not None:
                self._answer(connection, *request)

    def _answer(self, connection: socket.socket, method: str, target: str, body: bytes) -> None:
        path, _, query = target.partition("?")
        if method == "POST" and path.endswith("/binding"):
            pod = self._cluster.bind(path.split("/")[-2], json.loads(body))
            _reply(connection, b'{"kind":"Status","status":"Success"}', 201)
            self._send_event("MODIFIED", pod)
        elif method == "DELETE":
            deleted = self._cluster.delete(path.split("/")[-1])
            _reply(connection, b"{}", 200 if deleted else 404)
            if deleted:
                self._send_event("DELETED", deleted)
        elif path.startswith(LEASES):
            self._answer_lease(connection, method, body)
        elif path in (NODE, POD, NAMESPACE, TOPOLOGY, DEVICE, BUDGET):
            if "watch=true" in query:
                self._watch(connection, path, "sendInitialEvents" in query)
                self._end_watch(connection, int(parse_qs(query)["timeoutSeconds"][0]))
            else:
                self._list(connection, path, query)
        elif path in (TOPOLOGY.rpartition("/")[0], DEVICE.rpartition("/")[0]):
            names = [each.rpartition("/")[2] for each in (TOPOLOGY, DEVICE)]
            _reply(
                connection, json.dumps({"resources": [{"name": each} for each in names]}).encode()
            )
        else:
            _reply(connection, b'{"kind":"Status","code":404}', 404)

    def _list(self, connection: socket.socket, path: str, query: str) -> None:
        """Clients with working watches request no whole list. Of a list of at most one item they
        read only the version, and there are no unscheduled pods."""
        if "limit=1" not in query.split("&") and "fieldSelector=" not in query:
            _reply(connection, b'{"kind":"Status","code":404}', 404)
            return
        with self._lock:
            metadata = {"resourceVersion": str(self._version)}
        _reply(connection, json.dumps({"metadata": metadata, "items": []}).encode())

    def _watch(self, connection: socket.socket, path: str, initial: bool) -> None:
        connection.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        if initial:
            lines: list[bytes] = []
            for each in self._cluster.objects(path):
                lines.append(_event("ADDED", _versioned(each, _VERSION)))
                if len(lines) == _GROUP:
                    _chunk(connection, b"".join(lines))
                    lines.clear()
            annotations = {"k8s.io/initial-events-end": "true"}
            metadata = {"name": "", "resourceVersion": str(_VERSION), "annotations": annotations}
            lines.append(_event("BOOKMARK", {"metadata": metadata}))
            _chunk(connection, b"".join(lines))
        if path == POD:
            with self._lock:
                self._watching.append(connection)

    def _end_watch(self, connection: socket.socket, seconds: int) -> None:
        """As an API server does: a bookmark, and the end of the response after its time."""
        time.sleep(seconds)
        with self._lock:
            if connection in self._watching:
                self._watching.remove(connection)
            metadata = {"name": "", "resourceVersion": str(self._version)}
        _chunk(connection, _event("BOOKMARK", {"metadata": metadata}))
        connection.sendall(b"0\r\n\r\n")

    def _answer_lease(self, connection: socket.socket, method: str, body: bytes) -> None:
        with self._lock:
            if method in ("POST", "PUT"):
                self._version += 1
                self._lease = _versioned(json.loads(body), self._version)
            lease = self._lease
        if lease is None:
            _reply(connection, b'{"kind":"Status","code":404}', 404)
        else:
            _reply(connection, json.dumps(lease).encode(), 201 if method == "POST" else 200)

    def _send_event(self, kind: str, pod: dict[str, Any]) -> None:
        with self._lock:
            self._version += 1
            line = _event(kind, _versioned(pod, self._version))
            for connection in tuple(self._watching):
                try:
                    _chunk(connection, line)
                except OSError:  # the client has closed it
                    self._watching.remove(connection)


def _read(reader: BinaryIO) -> tuple[str, str, bytes] | None:
    line = reader.readline()
    if not line:
        return None
    method, target, _ = line.decode().split()
    length = 0
    while (header := reader.readline()) not in (b"\r\n", b""):
        if header[:15].lower() == b"content-length:":
            length = int(header[15:])
    return method, target, reader.read(length)


def _reply(connection: socket.socket, body: bytes, code: int = 200) -> None:
    connection.sendall(
        b"HTTP/1.1 %d x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
        % (code, len(body), body)
    )


def _versioned(body: dict[str, Any], version: int) -> dict[str, Any]:
    body["metadata"]["resourceVersion"] = str(version)
    return body


def _event(kind: str, body: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": body}).encode() + b"\n"


def _chunk(connection: socket.socket, data: bytes) -> None:
    connection.sendall(b"%x\r\n%s\r\n" % (len(data), data))


def main() -> None:
    server = Server(Cluster(int(sys.argv[1]), int(sys.argv[2])))
    threading.Thread(target=server.serve, daemon=True).start()
    print(server.port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
