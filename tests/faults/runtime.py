"""A simulated container runtime: a CRI server with the calls that the agent uses."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import msgspec

from agent.cri.client import RuntimeContainer, Sandbox, VerboseStatus
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.pods import ContainerState
from agent.proto import cri_pb2 as pb
from tests.fixtures.grpc_peers import serve

_STATES = {
    ContainerState.CREATED: pb.CONTAINER_CREATED,
    ContainerState.RUNNING: pb.CONTAINER_RUNNING,
}
_PREFIX = "/runtime.v1.RuntimeService/"


class SimulatedRuntime(grpc.GenericRpcHandler):
    """`sandboxes`, `containers` and `statuses`: by id; change them with `lock`. `environment`: of
    each container, as NAME=VALUE. `replies`: by method, replaces the reply.
    `event`: GetContainerEvents repeats it without end. `on_update`: called with the group and the
    CPUs when a running container is updated."""

    def __init__(self, path: Path, on_update: Callable[[str, CpuSet], None]) -> None:
        self._apply_update = on_update
        self.lock = threading.RLock()
        self.sandboxes: dict[str, Sandbox] = {}
        self.containers: dict[str, RuntimeContainer] = {}
        self.statuses: dict[str, VerboseStatus] = {}
        self.environment: tuple[str, ...] = ()
        self.replies: dict[str, bytes] = {}
        self.event = b""
        self._path = path
        self._server = serve(path, self, threads=4)

    def close(self) -> None:
        self.event = b""
        self._server.stop(None).wait()
        self._path.unlink(missing_ok=True)

    def take_over(self, other: SimulatedRuntime) -> None:
        """Takes over the containers of another runtime."""
        self.sandboxes, self.containers = other.sandboxes, other.containers
        self.statuses = other.statuses

    def service(
        self, details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        method = details.method.removeprefix(_PREFIX)
        answer = {
            "ListPodSandbox": self._sandboxes,
            "ListContainers": self._containers,
            "PodSandboxStatus": self._sandbox_status,
            "ContainerStatus": self._container_status,
            "UpdateContainerResources": self._update,
        }.get(method)
        if method == "GetContainerEvents" and self.event:
            return grpc.unary_stream_rpc_method_handler(self._events)
        if answer is None and method not in self.replies:
            return None

        def call(request: bytes, context: grpc.ServicerContext) -> bytes:
            if method in self.replies:
                return self.replies[method]
            assert answer is not None
            return answer(request, context)

        return grpc.unary_unary_rpc_method_handler(call)

    def _events(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        while self.event and context.is_active():
            yield self.event

    def _sandboxes(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        reply = pb.ListPodSandboxResponse()
        with self.lock:
            for each in self.sandboxes.values():
                reply.items.add(
                    id=each.id,
                    metadata=pb.PodSandboxMetadata(
                        name=each.name, uid=each.uid, namespace=each.namespace
                    ),
                    state=pb.SANDBOX_READY if each.ready else pb.SANDBOX_NOTREADY,
                    created_at=each.created_at,
                    labels=each.labels,
                    annotations=each.annotations,
                    runtime_handler=each.handler,
                )
        return reply.SerializeToString()

    def _containers(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        reply = pb.ListContainersResponse()
        with self.lock:
            for each in self.containers.values():
                reply.containers.add(
                    id=each.id,
                    pod_sandbox_id=each.sandbox_id,
                    metadata=pb.ContainerMetadata(name=each.name),
                    state=_STATES[each.state],
                )
        return reply.SerializeToString()

    def _sandbox_status(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        wanted = pb.PodSandboxStatusRequest.FromString(request).pod_sandbox_id
        config = {"linux": {"cgroup_parent": self._status(wanted, context).cgroup_parent}}
        info = self._info(wanted, context) | {"config": config}
        return pb.PodSandboxStatusResponse(info={"info": json.dumps(info)}).SerializeToString()

    def _container_status(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        wanted = pb.ContainerStatusRequest.FromString(request).container_id
        text = json.dumps(self._info(wanted, context))
        return pb.ContainerStatusResponse(info={"info": text}).SerializeToString()

    def _info(self, wanted: str, context: grpc.ServicerContext) -> dict[str, object]:
        status = self._status(wanted, context)
        resources = {"cpu": {"cpus": status.resources.cpuset or ""}}
        linux = {"cgroupsPath": status.cgroups_path, "resources": resources}
        spec = {"linux": linux, "process": {"env": self.environment}}
        pairs = [each.partition("=") for each in self.environment]
        envs = [{"key": name, "value": value} for name, _, value in pairs]
        return {"pid": status.pid, "config": {"envs": envs}, "runtimeSpec": spec}

    def _status(self, wanted: str, context: grpc.ServicerContext) -> VerboseStatus:
        with self.lock:
            status = self.statuses.get(wanted)
        if status is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"{wanted} does not exist")
            raise AssertionError("abort raises")
        return status

    def _update(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Sets the CPUs of a container, which may be running."""
        update = pb.UpdateContainerResourcesRequest.FromString(request)
        cpuset = update.linux.cpuset_cpus
        with self.lock:
            status = self._status(update.container_id, context)
            if cpuset:
                self.statuses[update.container_id] = msgspec.structs.replace(
                    status, resources=msgspec.structs.replace(status.resources, cpuset=cpuset)
                )
                if self.containers[update.container_id].state is ContainerState.RUNNING:
                    self._apply_update(status.cgroups_path, CpuSet.parse(cpuset))
        return pb.UpdateContainerResourcesResponse().SerializeToString()
