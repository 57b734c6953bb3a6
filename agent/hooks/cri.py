"""CRI messages as bytes: what the hooks read of a request, and their changes to it.

Field numbers: Kubernetes, staging/src/k8s.io/cri-api/pkg/apis/runtime/v1/api.proto.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from agent.hooks import carriers
from agent.hooks.carriers import Carried
from agent.hooks.requests import (
    UNCHANGED,
    CarriedNode,
    Changes,
    CreateContainer,
    UpdateContainer,
    announced_pod,
)
from agent.model.devices import visibility
from agent.model.devices.visibility import Mount
from agent.model.linux_resources import NO_RESOURCES, from_cri, to_cri
from agent.model.notifications import PodAnnounced
from agent.model.wire import (
    BYTES,
    fields,
    filtered,
    merged,
    number,
    patch,
    payloads,
    string_map,
    text,
)

# PodSandboxConfig
_METADATA, _LABELS, _POD_ANNOTATIONS, _LINUX = 1, 6, 7, 8
# CreateContainerRequest: config, sandbox_config; config.linux.resources
CONFIG, _SANDBOX_CONFIG = 2, 3
CREATE_RESOURCES = (CONFIG, 15, 1)
_SECURITY_CONTEXT, _PRIVILEGED = (CONFIG, 15, 2), 2
# of config
_ENVIRONMENT, _MOUNTS, _NODES, _ANNOTATIONS, _CDI_DEVICES = 6, 7, 8, 10, 17
# Device: container_path, host_path, permissions
_NODE_PATH, _NODE_HOST_PATH, _NODE_PERMISSIONS = 1, 2, 3
# Mount
_CONTAINER_PATH, _HOST_PATH, _READ_ONLY = 1, 2, 3
# UpdateContainerResourcesRequest: linux
_UPDATE_RESOURCES = (2,)


def run_pod_sandbox(message: bytes) -> PodAnnounced:
    """The pod of a RunPodSandboxRequest. Raises WireError."""
    return _pod(merged(message, 1))


def create_container(message: bytes) -> CreateContainer:
    """What decisions read of a CreateContainerRequest. Raises WireError."""
    config = merged(message, CONFIG)
    return CreateContainer(
        _pod(merged(message, _SANDBOX_CONFIG)),
        text(merged(config, 1), 1),
        from_cri(merged(message, *CREATE_RESOURCES)),
    )


def mounted(message: bytes) -> frozenset[str]:
    """The paths in the container that a request to create it mounts. Raises WireError."""
    mounts = payloads(merged(message, CONFIG), _MOUNTS)
    return frozenset(text(each, _CONTAINER_PATH) for each in mounts)


def update_container(message: bytes) -> UpdateContainer:
    """What decisions read of an UpdateContainerResourcesRequest. Raises WireError."""
    resources = merged(message, *_UPDATE_RESOURCES)
    return UpdateContainer(text(message, 1), from_cri(resources))


def removed_id(message: bytes) -> str:
    """The id in a RemoveContainerRequest. Raises WireError."""
    return text(message, 1)


def created_id(reply: bytes) -> str:
    """The id in a reply of RunPodSandbox or CreateContainer. Raises WireError."""
    return text(reply, 1)


def _pod(sandbox_config: bytes) -> PodAnnounced:
    metadata = merged(sandbox_config, _METADATA)
    name, uid, namespace = (text(metadata, number) for number in (1, 2, 3))
    return announced_pod(
        uid,
        namespace,
        name,
        string_map(sandbox_config, _LABELS),
        string_map(sandbox_config, _POD_ANNOTATIONS),
        text(merged(sandbox_config, _LINUX), 1),
    )


_MARKERS: Final = {
    _ENVIRONMENT: (visibility.VISIBLE_DEVICES.encode(), carriers.PRELOAD.encode()),
    _MOUNTS: (
        b"nvidia-container-devices",
        b"device-plugins",
        b"pod-resources",
        b"node-feature-discovery",
    ),
    _NODES: (b"",),
    _ANNOTATIONS: (visibility.CDI_ANNOTATIONS.encode(),),
    _CDI_DEVICES: (b"",),
}
"""By field of the container's config: each entry that may name devices contains one of these
texts. Other entries are not decoded: most requests have many."""


def carried(message: bytes) -> Carried:
    """The parts of a CreateContainerRequest that may name devices. Raises WireError."""
    found: dict[int, list[bytes]] = {field: [] for field in _MARKERS}
    for field, kind, payload in fields(merged(message, CONFIG)):
        if kind == BYTES and field in found and any(map(payload.__contains__, _MARKERS[field])):
            found[field].append(payload)
    variables = [
        (name, text(each, 2))
        for each in found[_ENVIRONMENT]
        if (name := text(each, 1)) in (visibility.VISIBLE_DEVICES, carriers.PRELOAD)
    ]
    annotations = [
        (key, text(each, 2))
        for each in found[_ANNOTATIONS]
        if visibility.is_cdi_annotation(key := text(each, 1))
    ]
    sandbox = merged(message, _SANDBOX_CONFIG)
    pod_annotations: dict[str, str] = {}
    if visibility.CDI_ANNOTATIONS.encode() in sandbox:
        pod_annotations = string_map(sandbox, _POD_ANNOTATIONS)
    mount_paths = [text(each, _CONTAINER_PATH) for each in found[_MOUNTS]]
    return Carried(
        environment=tuple(value for name, value in variables if name == visibility.VISIBLE_DEVICES),
        preload=dict(variables).get(carriers.PRELOAD, ""),
        mounts=tuple(each for each in mount_paths if visibility.mounted(each) is not None),
        annotations=tuple(annotations),
        cdi_devices=tuple(text(each, 1) for each in found[_CDI_DEVICES]),
        nodes=tuple(_carried_node(each) for each in found[_NODES]),
        privileged=bool(number(merged(message, *_SECURITY_CONTEXT), _PRIVILEGED)),
        serving=carriers.serving(text(each, _HOST_PATH) for each in found[_MOUNTS]),
        of_pod=visibility.of_pod(pod_annotations),
    )


def _carried_node(message: bytes) -> CarriedNode:
    return CarriedNode(
        visibility.cleaned(text(message, _NODE_HOST_PATH)),
        text(message, _NODE_PATH),
        text(message, _NODE_PERMISSIONS),
    )


def create_request_with(message: bytes, changes: Changes) -> bytes | None:
    """The new CreateContainerRequest; None without changes. Raises WireError."""
    if changes == UNCHANGED:
        return None
    patches = _resources(CREATE_RESOURCES, changes)
    if changes.mounts:
        taken = mounted(message)
        patches += [_mount(each) for each in changes.mounts if each.container_path not in taken]
    patches += [_pair(_ENVIRONMENT, *each) for each in changes.environment]
    patches += [_pair(_ANNOTATIONS, key, value) for key, value in changes.annotations if value]
    patches += [patch((CONFIG, _CDI_DEVICES), patch((1,), name)) for name in changes.cdi_devices]
    patches += [_node(each) for each in changes.nodes]
    kept = _without_replaced(message, changes)
    return kept + b"".join(patches) if patches or kept != message else None


def _without_replaced(message: bytes, changes: Changes) -> bytes:
    """The request without the entries that the changes remove or replace."""
    variables = {name for name, _ in changes.environment}
    removed: dict[int, tuple[int, Collection[str]]] = {
        _ENVIRONMENT: (1, variables),
        _ANNOTATIONS: (1, {key for key, _ in changes.annotations}),
        _MOUNTS: (_CONTAINER_PATH, changes.removed_mounts),
        _CDI_DEVICES: (1, changes.removed_cdi_devices),
        _NODES: (_NODE_PATH, [each.container_path for each in changes.removed_nodes]),
    }
    if not any(name.encode() in message for _, names in removed.values() for name in names):
        return message

    def keeps(field: int, payload: bytes) -> bool:
        named_by, names = removed.get(field, (1, ()))
        return not names or text(payload, named_by) not in names

    return filtered(message, keeps, CONFIG)


def update_request_with(message: bytes, changes: Changes) -> bytes | None:
    """The new UpdateContainerResourcesRequest; None without changes."""
    patches = _resources(_UPDATE_RESOURCES, changes)
    return b"".join((message, *patches)) if patches else None


def _resources(path: tuple[int, ...], changes: Changes) -> list[bytes]:
    if changes.resources == NO_RESOURCES:
        return []
    return [patch(path, to_cri(changes.resources))]


def _mount(mount: Mount) -> bytes:
    one = patch((_CONTAINER_PATH,), mount.container_path) + patch((_HOST_PATH,), mount.host_path)
    if not mount.writable:
        one += patch((_READ_ONLY,), 1)
    return patch((CONFIG, _MOUNTS), one)


def _node(node: CarriedNode) -> bytes:
    one = (
        patch((_NODE_PATH,), node.container_path)
        + patch((_NODE_HOST_PATH,), node.host_path)
        + patch((_NODE_PERMISSIONS,), node.permissions)
    )
    return patch((CONFIG, _NODES), one)


def _pair(field: int, key: str, value: str) -> bytes:
    return patch((CONFIG, field), patch((1,), key) + patch((2,), value))
