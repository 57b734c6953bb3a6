"""A node of eight CPUs in two NUMA nodes, its pods and RebindResources on an API server, and the
controller. The watches lag: they report only when `report` is called."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

from agent.kube.auth import FileAccess
from agent.kube.objects import Change, ChangeKind, ObjectKey
from agent.kube.transport import ResponseLimits, Transport
from agent.model import rebind_resource
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.scheduler.rebind.controller import RebindRequests, Rebinds
from agent.scheduler.state.cluster import SchedulerCache
from tests.kube.fake_api_server import Request, Server, reply, status
from tests.scheduler import objects

Object = dict[str, Any]
NOON = 1_767_268_800.0
"""2026-01-01T12:00:00Z."""


class World:
    """`refuse`: status codes of refused writes, by the number of the write. `lose`: the numbers of
    writes that take effect and are answered with an error."""

    def __init__(self, server: Server) -> None:
        self.pods: dict[str, Object] = {}
        self.rebinds: dict[str, Object] = {}
        self.now = NOON
        self.leading = True
        self.writes = 0
        self.patches: list[str] = []
        self.refuse: dict[int, int] = {}
        self.lose: set[int] = set()
        self.after_write: Callable[[], None] = lambda: None
        self._version = 0
        self._reported: set[str] = set()
        self.cluster = SchedulerCache()
        self.cluster.nodes_changed([objects.node_change(objects.node("n1"))])
        self.cluster.topologies_changed([objects.topology_change(objects.topology("n1"))])
        self.cluster.pods_changed([objects.pod_change(objects.agent("n1"))])
        limits = ResponseLimits(connect_seconds=2, read_seconds=5, whole_seconds=5)
        self.transport = Transport(FileAccess(server.url), limits=limits)
        self.start()
        server.answer = self._answer

    def start(self) -> None:
        """Starts a new process, whose watches have reported all objects."""
        self.requests = RebindRequests(self.cluster)
        self.report()
        self.controller = Rebinds(
            self.transport,
            self.cluster,
            self.requests,
            lambda: self.leading,
            clock=lambda: self.now,
        )

    def owner(self, name: str, cpus: str, count: int = 0, **more: Any) -> Object:
        """An LSR pod that owns these CPUs."""
        labels = {"koordinator.sh/qosClass": "LSR"}
        requests = {"cpu": str(count or len(cpus.split(",")))}
        body = objects.pod(
            name, "n1", uid=name, cpus=cpus, labels=labels, requests=requests, **more
        )
        self.pods[name] = self._stamped(body)
        return body

    def rebind(self, name: str = "r", node: str = "n1", **spec: Any) -> Object:
        body = {
            "metadata": {"name": name, "uid": name, "creationTimestamp": "2026-01-01T11:00:00Z"},
            "spec": {"nodeName": node, "rebindAction": "RebindCPU", **spec},
            "status": {"phase": "Unknown", "reason": "no controller has taken it"},
        }
        self.rebinds[name] = self._stamped(body)
        return body

    def report(self) -> None:
        """Reports the current objects as watches do."""
        for body in self.pods.values():
            self.cluster.pods_changed([objects.pod_change(body)])
        for name in self._reported - self.pods.keys():
            deleted = objects.pod(name, "n1", uid=name)
            self.cluster.pods_changed([objects.pod_change(deleted, ChangeKind.DELETED)])
        self._reported = set(self.pods)
        for name, body in self.rebinds.items():
            read = rebind_resource.decode(json.dumps(body).encode())
            self.requests.changed([Change(ChangeKind.MODIFIED, ObjectKey("", name), read)])

    def step(self) -> None:
        """Reports all objects, and runs one step of the controller."""
        self.report()
        self.controller.step()

    def until_write(self, number: int) -> None:
        """Runs steps until the write of this number was tried."""
        for _ in range(30):
            if self.writes > number:
                return
            self.step()
        raise AssertionError(f"write {number} does not happen: {self.status_of()}")

    def finish(self, name: str = "r", steps: int = 30) -> Object:
        """Runs steps until the RebindResource has ended. Returns its status."""
        for _ in range(steps):
            self.step()
            found = self.status_of(name)
            if found.get("updateTimestamp") and found["phase"] != "Pending":
                self.report()
                return found
        raise AssertionError(f"RebindResource {name} does not end: {self.status_of(name)}")

    def status_of(self, name: str = "r") -> Object:
        found: Object = self.rebinds[name]["status"]
        return found

    def cpus(self) -> dict[str, str]:
        """The CPUs in the annotation of each pod."""
        return {
            name: json.loads(body["metadata"]["annotations"][RESOURCE_STATUS]).get("cpuset", "")
            for name, body in self.pods.items()
        }

    def _stamped(self, body: Object) -> Object:
        self._version += 1
        body["metadata"]["resourceVersion"] = str(self._version)
        return body

    def _answer(self, server: Server, connection: socket.socket, request: Request) -> bool:
        if request.method == "GET":
            selector = request.query.get("fieldSelector", "")
            node = selector.removeprefix("spec.nodeName=")
            items = [body for body in self.pods.values() if body["spec"]["nodeName"] == node]
            return reply(connection, 200, {"metadata": {"resourceVersion": "1"}, "items": items})
        number = self.writes
        self.writes += 1
        if code := self.refuse.get(number):
            return reply(connection, code, status(code, "Refused"))
        patch = json.loads(request.body)
        parts = request.path.split("/")
        plural, name = parts[-3:-1] if parts[-1] == "status" else parts[-2:]
        found = (self.rebinds if plural == "rebindresources" else self.pods).get(name)
        if found is None:
            return reply(connection, 404, status(404, "NotFound"))
        metadata = found["metadata"]
        changed = patch["metadata"]
        if (changed["uid"], changed["resourceVersion"]) != (
            metadata["uid"],
            metadata["resourceVersion"],
        ):
            return reply(connection, 409, status(409, "Conflict"))
        if plural == "rebindresources":
            merged = found["status"] | patch["status"]
            found["status"] = {key: value for key, value in merged.items() if value is not None}
        else:
            metadata["annotations"] |= changed["annotations"]
        self._stamped(found)
        self.patches.append(name)
        self.after_write()
        if number in self.lose:
            return reply(connection, 500, status(500, "InternalError"))
        return reply(connection, 200, found)
