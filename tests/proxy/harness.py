"""A proxy without its relay, with messages of protobuf."""

from __future__ import annotations

import time

import pytest
from google.protobuf.message import Message

from agent.model.pod.annotations import RESOURCE_STATUS
from agent.model.pod.qos import QOS_LABEL
from agent.model.settings.frontends import CREATE, RUN, UPDATE, Deadlines
from agent.proto import cri_pb2 as pb
from agent.proxy.gate import CpusetGate
from agent.relay.gate import Call, GateVerdict
from tests.hooks.admission_harness import HOLD_SECONDS, AdmissionHarness


class GateHarness(AdmissionHarness):
    """A gate and admission in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, hold_seconds: float = HOLD_SECONDS) -> None:
        super().__init__(monkeypatch)
        self.gate = CpusetGate(self.admission, Deadlines(hold_seconds))
        self.messages: dict[Call, bytes] = {}

    def call_run(self, uid: str, qos: str = "", claim: str = "") -> tuple[Call, GateVerdict]:
        return self.request(RUN, pb.RunPodSandboxRequest(config=sandbox(uid, qos, claim)))

    def call_create(
        self, uid: str, qos: str = "", claim: str = "", cpuset_: str = ""
    ) -> tuple[Call, GateVerdict]:
        return self.request(CREATE, creation(uid, qos, claim, cpuset_))

    def call_update(
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
