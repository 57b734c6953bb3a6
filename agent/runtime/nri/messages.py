"""NRI's messages to the values that hooks read, and what hooks change into NRI's messages.

What Topolet reads and sets is in ../../../protos/nri.proto. An empty cpuset means "no change" to
the runtime, so none is ever sent.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from agent.hooks.changes import UNCHANGED, Changes
from agent.hooks.requests import pod_comes, scaled_quota
from agent.model.doorbell import Asked, PodComes
from agent.model.limits import PERIOD_MICROSECONDS, UNLIMITED
from agent.model.pods import pod_uid
from agent.proto import nri_pb2 as pb


class Seen(msgspec.Struct, frozen=True):
    """A container as the runtime tells of it; `asked`: what it has, or will start with. `pid` is 0
    where it does not run or that is not known."""

    id: str
    pod_uid: str
    title: str
    asked: Asked
    pid: int = 0


def pod(sandbox: pb.PodSandbox) -> PodComes:
    """The pod as decisions see it."""
    return pod_comes(
        sandbox.uid,
        sandbox.namespace,
        sandbox.name,
        sandbox.labels,
        sandbox.annotations,
        sandbox.linux.cgroup_parent,
    )


def seen(container: pb.Container, sandbox: pb.PodSandbox | None) -> Seen:
    """None for a pod that the runtime did not tell of."""
    of_pod = sandbox or pb.PodSandbox()
    return Seen(
        container.id,
        pod_uid(of_pod.uid, of_pod.namespace, of_pod.name),
        f"{of_pod.namespace}/{of_pod.name} {container.name}",
        asked(container.linux.resources),
        container.pid,
    )


def asked(resources: pb.LinuxResources) -> Asked:
    """What a request asks for, or a container has."""
    cpu = resources.cpu
    return Asked(
        cpu.cpus,
        cpu.mems,
        cpu.shares.value,
        scaled_quota(cpu.quota.value, cpu.period.value),
        resources.memory.limit.value,
    )


def adjustment(changes: Changes, mounted: Collection[str]) -> pb.ContainerAdjustment | None:
    """For a container that is being made and mounts something at `mounted` itself; None where
    nothing changes."""
    if changes == UNCHANGED:
        return None
    mounts = [
        pb.Mount(
            destination=each.container_path,
            type="bind",
            source=each.host_path,
            options=["rbind", "ro"],
        )
        for each in changes.mounts
        if each.container_path not in mounted
    ]
    return pb.ContainerAdjustment(
        mounts=mounts,
        env=[pb.KeyValue(key=name, value=value) for name, value in changes.environment],
        linux=pb.LinuxContainerAdjustment(resources=_resources(changes)),
        CDI_devices=[pb.CDIDevice(name=name) for name in changes.cdi_devices],
    )


def update(container_id: str, changes: Changes) -> pb.ContainerUpdate:
    """For a container that exists: its resources alone can change."""
    linux = pb.LinuxContainerUpdate(resources=_resources(changes))
    return pb.ContainerUpdate(container_id=container_id, linux=linux)


def _resources(changes: Changes) -> pb.LinuxResources:
    cpu = pb.LinuxCPU(cpus=changes.cpuset or "", mems=changes.mems or "")
    if changes.shares is not None:
        cpu.shares.value = changes.shares
    if changes.quota_microseconds is not None:
        cpu.quota.value = changes.quota_microseconds
        if changes.quota_microseconds != UNLIMITED:
            cpu.period.value = PERIOD_MICROSECONDS
    resources = pb.LinuxResources(cpu=cpu)
    if changes.memory_limit_bytes is not None:
        resources.memory.limit.value = changes.memory_limit_bytes
    return resources
