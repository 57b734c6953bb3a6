"""Converts NRI's messages to the values that hooks read, and the changes of hooks to NRI's
messages.

protos/nri.proto has the fields that Topolet reads and sets. The runtime takes an empty cpuset for
"no change", so none is ever sent.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from agent.hooks import carriers
from agent.hooks.carriers import Carried
from agent.hooks.requests import (
    FIELDS,
    UNCHANGED,
    CarriedNode,
    Changes,
    DeviceFields,
    announced_pod,
)
from agent.model.devices import visibility
from agent.model.dra import names
from agent.model.linux_resources import NO_QUOTA, NO_RESOURCES, CpuQuota, LinuxResources, hugepages
from agent.model.notifications import PodAnnounced
from agent.model.pod.pods import pod_uid
from agent.proto import nri_pb2 as pb

SETTABLE: Final = DeviceFields(frozenset(FIELDS) - {"removed_cdi_devices"}, numbers=True)
"""All fields but one: the runtime adds a request's CDI devices to the container before it calls a
plugin."""

_CHARACTER: Final = "c"


class NriContainer(msgspec.Struct, frozen=True):
    """A container in the runtime's report. `requested`: its current values, or those with which it
    starts. `pid`: 0 if the container does not run, or its process is unknown."""

    id: str
    pod_uid: str
    title: str
    requested: LinuxResources
    pid: int = 0


def pod(sandbox: pb.PodSandbox) -> PodAnnounced:
    """The pod with the fields that decisions read."""
    return announced_pod(
        sandbox.uid,
        sandbox.namespace,
        sandbox.name,
        sandbox.labels,
        sandbox.annotations,
        sandbox.linux.cgroup_parent,
    )


def trimmed_sandbox(sandbox: pb.PodSandbox) -> pb.PodSandbox:
    """The pod with only the fields that `reported` reads."""
    return pb.PodSandbox(
        id=sandbox.id, uid=sandbox.uid, namespace=sandbox.namespace, name=sandbox.name
    )


def trimmed_container(container: pb.Container) -> pb.Container:
    """The container with only the fields that `reported` reads: its environment may be large."""
    kept = pb.Container(
        id=container.id,
        pod_sandbox_id=container.pod_sandbox_id,
        name=container.name,
        pid=container.pid,
    )
    kept.linux.resources.cpu.CopyFrom(container.linux.resources.cpu)
    kept.linux.resources.memory.CopyFrom(container.linux.resources.memory)
    return kept


def reported(container: pb.Container, sandbox: pb.PodSandbox | None) -> NriContainer:
    """`sandbox` is None for a container of a pod that the runtime does not report."""
    sandbox = sandbox or pb.PodSandbox()
    return NriContainer(
        container.id,
        pod_uid(sandbox.uid, sandbox.namespace, sandbox.name),
        f"{sandbox.namespace}/{sandbox.name} {container.name}",
        requested_resources(container.linux.resources),
        container.pid,
    )


_TEXTS: Final = {"cpus": "cpuset", "mems": "mems"}
"""By field of NRI's LinuxCPU."""
_NUMBERS: Final = {("cpu", "shares"): "shares", ("memory", "limit"): "memory_limit_bytes"}
"""By field of NRI's LinuxResources, and of that message."""


def requested_resources(resources: pb.LinuxResources) -> LinuxResources:
    """The values of a request, or of a container."""
    cpu = resources.cpu
    return msgspec.structs.replace(
        NO_RESOURCES,
        quota=CpuQuota.of(cpu.quota.value, cpu.period.value),
        hugepages=hugepages((each.page_size, each.limit) for each in resources.hugepage_limits),
        **{name: getattr(cpu, field) or None for field, name in _TEXTS.items()},
        **{
            name: getattr(getattr(resources, part), field).value or None
            for (part, field), name in _NUMBERS.items()
        },
    )


_CLAIM: Final = names.VARIABLE.encode()


def carried(container: pb.Container, sandbox: pb.PodSandbox) -> Carried:
    """The devices that a request to create a container names. The runtime has applied CDI to the
    container already. The image's environment can't be distinguished from the request's: `all`
    counts as the image's. The nodes of a privileged container don't count: runtimes list every node
    of the host there."""
    variables = [each.partition(b"=")[::2] for each in container.env]
    named_devices, preload = visibility.VISIBLE_DEVICES.encode(), carriers.PRELOAD.encode()
    named = [value.decode(errors="replace") for name, value in variables if name == named_devices]
    preloaded = [value.decode(errors="replace") for name, value in variables if name == preload]
    annotations = sorted(container.annotations.items())
    injected = [
        name
        for key, value in annotations
        if key.startswith(visibility.CDI_OF_RUNTIME)
        for name in visibility.split(value)
    ]
    privileged = any(map(_allows_all, container.linux.resources.devices))
    return Carried(
        environment=tuple(value for value in named if not carriers.names_all(value)),
        preload=preloaded[-1] if preloaded else "",
        mounts=tuple(
            each.destination
            for each in container.mounts
            if visibility.mounted(each.destination) is not None
        ),
        annotations=tuple(
            (key, value)
            for key, value in annotations
            if visibility.is_cdi_annotation(key) and not key.startswith(visibility.CDI_OF_RUNTIME)
        ),
        cdi_devices=tuple(
            dict.fromkeys([*(each.name for each in container.CDI_devices), *injected])
        ),
        nodes=tuple(
            CarriedNode(each.path, each.path, "rwm", each.major, each.minor)
            for each in container.linux.devices
            if each.type == _CHARACTER and not privileged
        ),
        privileged=privileged,
        serving=carriers.serving(each.source for each in container.mounts),
        of_pod=visibility.of_pod(sandbox.annotations),
        claim_variables=any(name.startswith(_CLAIM) for name, _ in variables),
    )


def _allows_all(rule: pb.LinuxDeviceCgroup) -> bool:
    """Whether the rule allows every device. An absent number and -1 mean any number, an empty type
    means any type."""
    anywhere = all(
        not rule.HasField(name) or getattr(rule, name).value == -1 for name in ("major", "minor")
    )
    return rule.allow and rule.type in ("", "a") and anywhere and "w" in rule.access


def adjustment(changes: Changes, mounted: Collection[str]) -> pb.ContainerAdjustment | None:
    """The adjustment of a container that is being created; None without changes. `mounted`: the
    paths in the container where no further mount is possible."""
    if changes == UNCHANGED:
        return None
    mounts = [
        pb.Mount(
            destination=each.container_path,
            type="bind",
            source=each.host_path,
            options=["rbind", "rw" if each.writable else "ro"],
        )
        for each in changes.mounts
        if each.container_path not in mounted
    ]
    mounts += [pb.Mount(destination=_removed(each)) for each in changes.removed_mounts]
    return pb.ContainerAdjustment(
        annotations={
            key if value else _removed(key): value or "" for key, value in changes.annotations
        },
        mounts=mounts,
        env=[pb.KeyValue(key=name, value=value) for name, value in changes.environment],
        linux=pb.LinuxContainerAdjustment(
            devices=[
                *(
                    pb.LinuxDevice(path=_removed(each.container_path))
                    for each in changes.removed_nodes
                ),
                *(
                    pb.LinuxDevice(
                        path=each.container_path,
                        type=_CHARACTER,
                        major=each.major,
                        minor=each.minor,
                    )
                    for each in changes.nodes
                ),
            ],
            resources=_with_denials(_resources(changes.resources), changes),
        ),
        CDI_devices=[pb.CDIDevice(name=name) for name in changes.cdi_devices],
    )


def _removed(name: str) -> str:
    """NRI's notation for a removed entry."""
    return f"-{name}"


def _with_denials(resources: pb.LinuxResources, changes: Changes) -> pb.LinuxResources:
    """Adds rules that deny the numbers of removed nodes. When a runtime removes a node, it leaves
    the rule that allows its number, and with NRI 0.12 also the node itself."""
    used = {(each.major, each.minor) for each in changes.nodes}
    for each in changes.removed_nodes:
        if (each.major, each.minor) not in used:
            rule = resources.devices.add(allow=False, type=_CHARACTER, access="rwm")
            rule.major.value, rule.minor.value = each.major, each.minor
    return resources


def update(container_id: str, changed: LinuxResources) -> pb.ContainerUpdate:
    """The update of an existing container, of which only the resources can change."""
    linux = pb.LinuxContainerUpdate(resources=_resources(changed))
    return pb.ContainerUpdate(container_id=container_id, linux=linux)


def _resources(changed: LinuxResources) -> pb.LinuxResources:
    cpu = pb.LinuxCPU(**{field: getattr(changed, name) for field, name in _TEXTS.items()})
    if changed.quota is not None:
        cpu.quota.value = changed.quota.microseconds
        if changed.quota != NO_QUOTA:
            cpu.period.value = changed.quota.period_microseconds
    resources = pb.LinuxResources(cpu=cpu)
    for (part, field), name in _NUMBERS.items():
        if (value := getattr(changed, name)) is not None:
            getattr(getattr(resources, part), field).value = value
    return resources
