"""The agent's hook server with a gRPC client that acts as koord-runtime-proxy, and a simulated
agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import msgspec

from agent.host.files import boot_id
from agent.koordinator.server import HookServer
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.model.pod.qos import QOS_LABEL
from agent.model.settings.agent import AgentSettings
from agent.model.snapshot import Snapshot
from agent.proto import koordinator_hooks_pb2 as pb
from tests.hooks.simulated_agent import SimulatedAgent

SERVICE = "runtime.v1alpha1.RuntimeHookService"


class ServerHarness(SimulatedAgent):
    """The hook server, a client and a simulated agent."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.settings = AgentSettings(
            state_dir=str(folder),
            hook_server_socket=str(folder / "hooks" / "hooks.sock"),
            **settings,  # type: ignore[arg-type]
        )
        self.socket = self.settings.hook_server_socket
        self.registration = folder / "hookserver.d" / "topolet.json"
        super().__init__(folder / "snapshot.json", folder / "notifications.sock")
        self.frontend = HookServer(self.settings, str(folder / "hookserver.d"), notice_seconds=0.0)
        self.frontend.start()
        self._closed = False
        self.channel = grpc.insecure_channel(f"unix://{self.socket}")

    def publish(self, snapshot: Snapshot) -> None:
        super().publish(msgspec.structs.replace(snapshot, boot_id=boot_id()))

    def raw(self, hook: str, message: bytes, timeout: float | None = 10.0) -> bytes:
        """Raises grpc.RpcError."""
        reply: bytes = self.channel.unary_unary(f"/{SERVICE}/{hook}Hook")(message, timeout=timeout)
        return reply

    def sandbox(self, hook: str, uid: str, qos: str = "", claim: str = "") -> None:
        """PreRunPodSandbox or PostStopPodSandbox; neither changes anything."""
        request = pb.PodSandboxHookRequest(cgroup_parent=f"/kubepods/burstable/pod{uid}")
        request.pod_meta.CopyFrom(_meta(uid))
        _describe(request.labels, request.annotations, qos, claim)
        assert self.raw(hook, request.SerializeToString()) == b""

    def container(
        self, hook: str, request: pb.ContainerResourceHookRequest, timeout: float | None = 10.0
    ) -> pb.ContainerResourceHookResponse:
        reply = self.raw(hook, request.SerializeToString(), timeout)
        return pb.ContainerResourceHookResponse.FromString(reply)

    def close(self) -> None:
        self.channel.close()
        self.close_frontend()
        super().close()

    def close_frontend(self) -> None:
        """Closes the server as the agent does."""
        if not self._closed:
            self._closed = True
            self.frontend.close()

    def metric(self, line: str) -> float:
        """The value of the sample with this name and these labels; 0 if it is absent."""
        for each in self.frontend.page().splitlines():
            name, _, value = each.rpartition(" ")
            if name == line:
                return float(value)
        return 0.0


def container(
    uid: str, qos: str = "", claim: str = "", container_id: str = "", cpuset: str = ""
) -> pb.ContainerResourceHookRequest:
    """`claim`: a cpuset, or a whole resource-status."""
    request = pb.ContainerResourceHookRequest(pod_cgroup_parent=f"/kubepods/burstable/pod{uid}")
    request.pod_meta.CopyFrom(_meta(uid))
    request.container_meta.name, request.container_meta.id = "main", container_id
    request.container_resources.cpu_shares = 512
    request.container_resources.oom_score_adj = 5
    request.container_resources.cpuset_cpus = cpuset
    _describe(request.pod_labels, request.pod_annotations, qos, claim)
    return request


def _meta(uid: str) -> pb.PodSandboxMetadata:
    return pb.PodSandboxMetadata(uid=uid, namespace="ns", name=uid)


def _describe(labels: Any, annotations: Any, qos: str, claim: str) -> None:
    if qos:
        labels[QOS_LABEL] = qos
    if claim:
        annotations[RESOURCE_STATUS] = (
            claim if claim.startswith("{") else json.dumps({"cpuset": claim})
        )
