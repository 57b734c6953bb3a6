"""CRI messages as bytes: reads the fields that the hooks need, with the CRI's field numbers
(Kubernetes: staging/src/k8s.io/cri-api/pkg/apis/runtime/v1/api.proto), and adds changes as patches
after the original bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from agent.hooks import carriers, wire
from agent.hooks.carriers import Carried
from agent.hooks.changes import UNCHANGED, CarriedNode, Changes
from agent.hooks.requests import CreateContainer, UpdateContainer, announced_pod, scaled_quota
from agent.model import gpunames
from agent.model.notifications import PodAnnounced, RequestedResources
from agent.model.visible import Mount
from agent.model.wanted import PERIOD_MICROSECONDS, UNLIMITED

# PodSandboxConfig
_METADATA, _LABELS, _ANNOTATIONS, _LINUX = 1, 6, 7, 8
# CreateContainerRequest: config, sandbox_config; config.linux.resources
CONFIG, _SANDBOX_CONFIG = 2, 3
CREATE_RESOURCES = (CONFIG, 15, 1)
SECURITY_CONTEXT, PRIVILEGED = (CONFIG, 15, 2), 2
# of config
ENVIRONMENT, MOUNTS, NODES, ANNOTATIONS, CDI_DEVICES = 6, 7, 8, 10, 17
# Device: container_path, host_path, permissions
NODE_PATH, NODE_HOST_PATH, NODE_PERMISSIONS = 1, 2, 3
# Mount
CONTAINER_PATH, HOST_PATH, READ_ONLY = 1, 2, 3
# UpdateContainerResourcesRequest: linux
UPDATE_RESOURCES = (2,)
# LinuxContainerResources
CPU_PERIOD, CPU_QUOTA, CPU_SHARES, MEMORY_LIMIT, CPUSET, MEMS = 1, 2, 3, 4, 6, 7


def run_pod_sandbox(message: bytes) -> PodAnnounced:
    """Raises WireError."""
    return _pod(wire.merged(message, 1))


def create_container(message: bytes) -> CreateContainer:
    """Raises WireError."""
    config = wire.merged(message, CONFIG)
    resources = wire.merged(message, *CREATE_RESOURCES)
    return CreateContainer(
        _pod(wire.merged(message, _SANDBOX_CONFIG)),
        wire.text(wire.merged(config, 1), 1),
        _asked(resources),
    )


def mounted(message: bytes) -> frozenset[str]:
    """The paths in the container that a request to create it mounts. Raises WireError."""
    return frozenset(wire.text(each, CONTAINER_PATH) for each in _entries(message, MOUNTS))


def update_container(message: bytes) -> UpdateContainer:
    """Raises WireError."""
    resources = wire.merged(message, *UPDATE_RESOURCES)
    return UpdateContainer(wire.text(message, 1), _asked(resources))


def removed_id(message: bytes) -> str:
    """The container of a request to remove one. Raises WireError."""
    return wire.text(message, 1)


def created_id(reply: bytes) -> str:
    """The id in a reply of RunPodSandbox or CreateContainer. Raises WireError."""
    return wire.text(reply, 1)


def _entries(message: bytes, wanted: int) -> list[bytes]:
    return [
        payload
        for field, kind, payload in wire.fields(wire.merged(message, CONFIG))
        if (field, kind) == (wanted, wire.BYTES)
    ]


def _asked(resources: bytes) -> RequestedResources:
    return RequestedResources(
        wire.text(resources, CPUSET),
        wire.text(resources, MEMS),
        wire.number(resources, CPU_SHARES),
        scaled_quota(wire.number(resources, CPU_QUOTA), wire.number(resources, CPU_PERIOD)),
        wire.number(resources, MEMORY_LIMIT),
    )


def _pod(sandbox_config: bytes) -> PodAnnounced:
    metadata = wire.merged(sandbox_config, _METADATA)
    name, uid, namespace = (wire.text(metadata, number) for number in (1, 2, 3))
    return announced_pod(
        uid,
        namespace,
        name,
        wire.string_map(sandbox_config, _LABELS),
        wire.string_map(sandbox_config, _ANNOTATIONS),
        wire.text(wire.merged(sandbox_config, _LINUX), 1),
    )


_SIGNS: Final = {
    ENVIRONMENT: (gpunames.VISIBLE_DEVICES.encode(), carriers.PRELOAD.encode()),
    MOUNTS: (
        b"nvidia-container-devices",
        b"device-plugins",
        b"pod-resources",
        b"node-feature-discovery",
    ),
    NODES: (b"",),
    ANNOTATIONS: (gpunames.CDI_ANNOTATIONS.encode(),),
    CDI_DEVICES: (b"",),
}
"""Part of every entry that may name devices: most requests have many other entries."""


def carried(message: bytes) -> Carried:
    """The carriers of devices of a request to create a container. Raises WireError."""
    found: dict[int, list[bytes]] = {field: [] for field in _SIGNS}
    for field, kind, payload in wire.fields(wire.merged(message, CONFIG)):
        if kind == wire.BYTES and field in found:
            signs = _SIGNS[field]
            if any(sign in payload for sign in signs):
                found[field].append(payload)
    variables = [
        (name, wire.text(each, 2))
        for each in found[ENVIRONMENT]
        if (name := wire.text(each, 1)) in (gpunames.VISIBLE_DEVICES, carriers.PRELOAD)
    ]
    notes = [
        (key, wire.text(each, 2))
        for each in found[ANNOTATIONS]
        if gpunames.is_cdi_annotation(key := wire.text(each, 1))
    ]
    places = [wire.text(each, CONTAINER_PATH) for each in found[MOUNTS]]
    return Carried(
        environment=tuple(value for name, value in variables if name == gpunames.VISIBLE_DEVICES),
        preload=dict(variables).get(carriers.PRELOAD, ""),
        mounts=tuple(each for each in places if carriers.mounted_name(each) is not None),
        annotations=tuple(notes),
        cdi_devices=tuple(wire.text(each, 1) for each in found[CDI_DEVICES]),
        nodes=tuple(_carried_node(each) for each in found[NODES]),
        privileged=bool(wire.number(wire.merged(message, *SECURITY_CONTEXT), PRIVILEGED)),
        serving=any(carriers.serves(wire.text(each, HOST_PATH)) for each in found[MOUNTS]),
    )


def _carried_node(message: bytes) -> CarriedNode:
    return CarriedNode(
        gpunames.cleaned(wire.text(message, NODE_HOST_PATH)),
        wire.text(message, NODE_PATH),
        wire.text(message, NODE_PERMISSIONS),
    )


def create_request_with(message: bytes, changes: Changes) -> bytes | None:
    """The new CreateContainerRequest; None without changes. Raises WireError."""
    if changes == UNCHANGED:
        return None
    patches = list(_resources(CREATE_RESOURCES, changes))
    if changes.mounts:
        taken = mounted(message)
        patches += [_mount(each) for each in changes.mounts if each.container_path not in taken]
    patches += [_pair(ENVIRONMENT, *each) for each in changes.environment]
    patches += [_pair(ANNOTATIONS, key, value) for key, value in changes.annotations if value]
    patches += [
        wire.patch((CONFIG, CDI_DEVICES), wire.patch((1,), name)) for name in changes.cdi_devices
    ]
    patches += [_node(each) for each in changes.nodes]
    left = _without(message, changes)
    return left + b"".join(patches) if patches or left != message else None


def _without(message: bytes, changes: Changes) -> bytes:
    """The entries without removed ones and those that are replaced."""
    variables = {name for name, _ in changes.environment}
    gone: dict[int, tuple[int, Collection[str]]] = {
        ENVIRONMENT: (1, variables),
        ANNOTATIONS: (1, {key for key, _ in changes.annotations}),
        MOUNTS: (CONTAINER_PATH, changes.removed_mounts),
        CDI_DEVICES: (1, changes.removed_cdi_devices),
        NODES: (NODE_PATH, [each.container_path for each in changes.removed_nodes]),
    }
    if not any(name.encode() in message for _, names in gone.values() for name in names):
        return message

    def keeps(field: int, payload: bytes) -> bool:
        named_by, names = gone.get(field, (1, ()))
        return not names or wire.text(payload, named_by) not in names

    return wire.filtered(message, keeps, CONFIG)


def update_request_with(message: bytes, changes: Changes) -> bytes | None:
    """The new UpdateContainerResourcesRequest; None without changes."""
    patches = b"".join(_resources(UPDATE_RESOURCES, changes))
    return message + patches if patches else None


def _resources(path: tuple[int, ...], changes: Changes) -> Iterator[bytes]:
    quota = changes.quota_microseconds
    values: tuple[tuple[int, str | int | None], ...] = (
        (CPUSET, changes.cpuset),
        (MEMS, changes.mems),
        (CPU_SHARES, changes.shares),
        (CPU_QUOTA, quota),
        (MEMORY_LIMIT, changes.memory_limit_bytes),
        (CPU_PERIOD, None if quota in (None, UNLIMITED) else PERIOD_MICROSECONDS),
    )
    return (wire.patch((*path, field), value) for field, value in values if value is not None)


def _mount(mount: Mount) -> bytes:
    one = wire.patch((CONTAINER_PATH,), mount.container_path) + wire.patch(
        (HOST_PATH,), mount.host_path
    )
    if not mount.writable:
        one += wire.patch((READ_ONLY,), 1)
    return wire.patch((CONFIG, MOUNTS), one)


def _node(node: CarriedNode) -> bytes:
    one = (
        wire.patch((NODE_PATH,), node.container_path)
        + wire.patch((NODE_HOST_PATH,), node.host_path)
        + wire.patch((NODE_PERMISSIONS,), node.permissions)
    )
    return wire.patch((CONFIG, NODES), one)


def _pair(field: int, key: str, value: str) -> bytes:
    return wire.patch((CONFIG, field), wire.patch((1,), key) + wire.patch((2,), value))
