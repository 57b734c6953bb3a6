"""A proxy without its relay, with real files and sockets and messages of protobuf."""

from __future__ import annotations

import time
from pathlib import Path

from google.protobuf.message import Message

from agent.hooks.admission import Admission
from agent.hooks.agent_client import Notifier, SnapshotFile
from agent.hooks.cpuset import AssumedContainers
from agent.hooks.requests import DeviceFields
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.model.pod.qos import QOS_LABEL
from agent.model.settings import frontends as failure_policy
from agent.model.settings.frontends import CREATE, RUN, UPDATE, Deadlines, ProxySettings
from agent.proto import cri_pb2 as pb
from agent.proxy.gate import CpusetGate
from agent.relay.gate import Call, GateVerdict
from tests.hooks.simulated_agent import SimulatedAgent
from tests.hooks.snapshots import BOOT


class GateHarness(SimulatedAgent):
    """A gate and a simulated agent."""

    def __init__(self, folder: Path, hold_seconds: float = 60.0) -> None:
        self.path = folder / "snapshot.json"
        super().__init__(self.path, folder / "notifications.sock")
        self.notifier = Notifier(str(folder / "notifications.sock"))
        self.assumed = AssumedContainers()
        self.snapshots = SnapshotFile(str(self.path), BOOT)
        policies, _ = failure_policy.failure_policies(ProxySettings())
        self.admission = Admission(
            self.snapshots,
            self.notifier,
            self.assumed,
            policies,
            str(folder),
            DeviceFields(),
        )
        self.gate = CpusetGate(self.admission, Deadlines(hold_seconds))
        self.messages: dict[Call, bytes] = {}

    def run(self, uid: str, qos: str = "", claim: str = "") -> tuple[Call, GateVerdict]:
        return self.request(RUN, pb.RunPodSandboxRequest(config=sandbox(uid, qos, claim)))

    def create(
        self, uid: str, qos: str = "", claim: str = "", cpuset_: str = ""
    ) -> tuple[Call, GateVerdict]:
        return self.request(CREATE, creation(uid, qos, claim, cpuset_))

    def update(
        self, container_id: str, cpuset_: str = "", *, shares: int = 0
    ) -> tuple[Call, GateVerdict]:
        request = pb.UpdateContainerResourcesRequest(container_id=container_id)
        request.linux.cpuset_cpus = cpuset_
        request.linux.cpu_quota = 5
        request.linux.cpu_shares = shares
        return self.request(UPDATE, request)

    def retry(self, call: Call) -> GateVerdict:
        """The relay retries a held call."""
        return self.gate.request(call, self.messages[call])

    def request(
        self, method: str, request: Message, service: str = "runtime.v1.RuntimeService"
    ) -> tuple[Call, GateVerdict]:
        call = self.new_call(method, request, service)
        return call, self.retry(call)

    def new_call(
        self, method: str, request: Message, service: str = "runtime.v1.RuntimeService"
    ) -> Call:
        """A call whose message is complete, before the relay passes it to the gate."""
        call = Call(f"/{service}/{method}".encode(), time.monotonic())
        self.messages[call] = request.SerializeToString()
        return call

    def close(self) -> None:
        super().close()
        self.notifier.close()


def creation(
    uid: str, qos: str = "", claim: str = "", cpuset_: str = ""
) -> pb.CreateContainerRequest:
    request = pb.CreateContainerRequest(sandbox_config=sandbox(uid, qos, claim))
    request.config.metadata.name = "main"
    request.config.linux.resources.cpu_shares = 512
    request.config.linux.resources.cpuset_cpus = cpuset_
    return request


def sandbox(uid: str, qos: str = "", claim: str = "") -> pb.PodSandboxConfig:
    """`claim`: a cpuset, or a whole resource-status."""
    config = pb.PodSandboxConfig()
    config.metadata.uid, config.metadata.namespace, config.metadata.name = uid, "ns", uid
    config.linux.cgroup_parent = f"/kubepods/burstable/pod{uid}"
    config.labels["app"] = "unread"
    if qos:
        config.labels[QOS_LABEL] = qos
    if claim:
        status = claim if claim.startswith("{") else f'{{"cpuset": "{claim}"}}'
        config.annotations[RESOURCE_STATUS] = status
    return config
