"""A snapshot with an owner, and containers that the guard is asked about."""

from __future__ import annotations

from agent.guard.request import ValidatedContainer
from agent.model.linux_resources import NO_QUOTA, LinuxResources
from agent.model.pod.annotations import DEVICE_ALLOCATED, RESOURCE_STATUS
from agent.model.pod.qos import QOS_LABEL, Pool, QoS
from agent.model.snapshot import Owner, PodWanted, Snapshot, Wanted
from agent.proto import nri_pb2 as pb

OWN = Wanted(LinuxResources("4-7", quota=NO_QUOTA), exclusive=True)
SHARED = Wanted(LinuxResources("0-3"))
BASE = Snapshot(
    1,
    100,
    "boot",
    False,
    {"ls": (Pool(0, 0, "0-3"),), "be": (Pool(0, 0, "0-3"),)},
    (Owner("own", "ns/own", QoS.LSE, "4-7"),),
    {
        "own": PodWanted("ns/own", QoS.LSE, OWN, {"sidecar": SHARED}),
        "ls": PodWanted("ns/ls", QoS.LS, SHARED),
    },
    {},
    excluded=("quiet",),
)
PARENTS = {"guaranteed": "/kubepods/podx", "besteffort": "/kubepods/besteffort/podx"}
PARENTS["burstable"] = "/kubepods/burstable/podx"


def pod(
    uid: str,
    qos_label: str = "",
    kube: str = "burstable",
    namespace: str = "ns",
    **notes: str,
) -> pb.PodSandbox:
    sandbox = pb.PodSandbox(uid=uid, name=uid, namespace=namespace)
    if qos_label:
        sandbox.labels[QOS_LABEL] = qos_label
    keys = {"status": RESOURCE_STATUS, "devices": DEVICE_ALLOCATED}
    for name, value in notes.items():
        sandbox.annotations[keys[name]] = value
    sandbox.linux.cgroup_parent = PARENTS[kube]
    return sandbox


def container(
    sandbox: pb.PodSandbox, cpus: str = "", name: str = "main", shares: int = 0, **fields: object
) -> ValidatedContainer:
    """`cpus`: after the adjustment."""
    request = pb.ValidateContainerAdjustmentRequest(pod=sandbox, **fields)  # type: ignore[arg-type]
    request.container.name = name
    request.container.linux.resources.cpu.shares.value = shares
    request.adjust.linux.resources.cpu.cpus = cpus
    return ValidatedContainer(request.SerializeToString())
