"""A proxy without its relay, with real files and sockets and messages of protobuf."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
from google.protobuf.message import Message

from agent.hooks.admission import Admission
from agent.hooks.agent_client import Notifier, SnapshotFile
from agent.hooks.cpuset import Grants
from agent.hooks.requests import DeviceFields
from agent.model.audit import Record
from agent.model.cpu.pools import Pool, Pools
from agent.model.devices.visibility import (
    DeviceNode,
    NodeDevice,
    NodeVisibility,
    Visibility,
    VisibleGpu,
)
from agent.model.linux_resources import NO_QUOTA, LinuxResources
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.model.pod.qos import QOS_LABEL, QoS
from agent.model.settings import failure_policy
from agent.model.settings.failure_policy import CREATE, RUN, UPDATE, Deadlines
from agent.model.settings.frontends import ProxySettings
from agent.model.snapshot import Owner, PodWanted, Snapshot, Wanted
from agent.proto import cri_pb2 as pb
from agent.proxy.gate import CpusetGate
from agent.relay.gate import Call, GateVerdict
from tests.hooks.simulated_agent import SimulatedAgent

BOOT = "this-boot"
DEFAULTS = ProxySettings()


def pools(cpus: str) -> Pools:
    """Pools of all classes with these CPUs, on one NUMA node."""
    return {"ls": (Pool(0, 0, cpus),), "be": (Pool(0, 0, cpus),)}


EMPTY = Snapshot(1, 0, BOOT, False, pools("0-3"), (), {}, {})
OWNED = msgspec.structs.replace(
    EMPTY,
    pools=pools("0,2-3"),
    owners=(Owner("own", "ns/own", QoS.LSE, "1"),),
    pods={
        "own": PodWanted(
            "ns/own", QoS.LSE, Wanted(LinuxResources("1", quota=NO_QUOTA), exclusive=True)
        )
    },
    containers={
        "c-own": Wanted(LinuxResources("1", quota=NO_QUOTA), exclusive=True),
        "c-kubelet": Wanted(),
    },
)
"""The LSE pod `own` owns CPU 1 of 4."""

CARD = VisibleGpu("GPU-own", "1", (DeviceNode("/dev/nvidia1", 195, 1),))
WITH_DEVICES = msgspec.structs.replace(
    EMPTY,
    pods={
        "own": PodWanted("ns/own", QoS.LS, Wanted(LinuxResources("0-3"))).with_visible(
            Visibility(()), {"main": Visibility((CARD,))}
        ),
        "lost": PodWanted("ns/lost", QoS.LS, Wanted(LinuxResources("0-3"))).with_visible(
            Visibility(refused="gpu 7 is not on this node"), {}
        ),
    },
    devices=NodeVisibility(
        (
            NodeDevice("GPU-other", "0", nodes=("/dev/nvidia0",), holders=("other",)),
            NodeDevice("GPU-own", "1", nodes=("/dev/nvidia1",), holders=("own",)),
            NodeDevice("GPU-free", "2", nodes=("/dev/nvidia2",)),
        )
    ),
)
"""Container `main` of pod `own` sees GPU-own, its other containers see no GPU. The GPU that is
allocated to pod `lost` is not on the node."""


class GateHarness(SimulatedAgent):
    """A gate and a simulated agent. `records`: those of the audit trail."""

    def __init__(
        self, folder: Path, hold_seconds: float = 60.0, policy: str = DEFAULTS.hook_failure_policy
    ) -> None:
        self.path = folder / "snapshot.json"
        super().__init__(self.path, folder / "doorbell.sock")
        self.notifier = Notifier(str(folder / "doorbell.sock"))
        self.grants = Grants()
        self.records: list[Record] = []
        self.snapshots = SnapshotFile(str(self.path), BOOT)
        self.admission = Admission(
            self.snapshots,
            self.notifier,
            self.grants,
            failure_policy.parse_policies(policy),
            str(folder),
            DeviceFields(),
            self.records.extend,
        )
        self.gate = CpusetGate(self.admission, Deadlines(hold_seconds))
        self.messages: dict[Call, bytes] = {}

    def run(self, uid: str, qos: str = "", claim: str = "") -> tuple[Call, GateVerdict]:
        return self.request(RUN, pb.RunPodSandboxRequest(config=sandbox(uid, qos, claim)))

    def create(
        self, uid: str, qos: str = "", claim: str = "", cpuset_: str = ""
    ) -> tuple[Call, GateVerdict]:
        return self.request(CREATE, creation(uid, qos, claim, cpuset_))

    def create_guaranteed(
        self, uid: str, shares: int, extra: bytes = b""
    ) -> tuple[Call, GateVerdict]:
        """`extra`: fields that Topolet's subset of the CRI does not have."""
        config = sandbox(uid)
        config.linux.cgroup_parent = f"/kubepods/pod{uid}"
        request = pb.CreateContainerRequest(sandbox_config=config)
        request.config.metadata.name = "main"
        request.config.linux.resources.cpu_shares = shares
        request.MergeFromString(extra)
        return self.request(CREATE, request)

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

    def created(self, call: Call, container_id: str) -> None:
        reply = pb.CreateContainerResponse(container_id=container_id)
        self.gate.reply(call, reply.SerializeToString())

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
