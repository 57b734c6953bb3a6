"""CRI messages as bytes: what the hooks read of a request, and their changes as patches behind it.

The hooks read few fields and change fewer, so a message is never decoded as a whole and no
protobuf library is loaded. Two properties of the encoding make that possible: occurrences of an
embedded message merge, and the last occurrence of a scalar wins. So the concatenated payloads of
all occurrences are the merged message, and a patch appended to a request overrides a nested field
while every original byte stays, also of fields that we do not know.

Field numbers: Kubernetes, staging/src/k8s.io/cri-api/pkg/apis/runtime/v1/api.proto.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
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
    hugepages,
    scaled_quota,
)
from agent.model.devices import visibility
from agent.model.devices.visibility import Mount
from agent.model.notifications import PodAnnounced, RequestedResources
from agent.model.snapshot import PERIOD_MICROSECONDS, UNLIMITED

_VARINT, _FIXED64, BYTES, _FIXED32 = 0, 1, 2, 5


class WireError(ValueError):
    """Bytes that are not a protobuf message."""


def fields(message: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(field number, wire type, payload) in order; a varint's payload is its bytes."""
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        field, kind = key >> 3, key & 7
        start = at
        if kind == BYTES:
            size, start = _varint(message, at)
            at = start + size
        elif kind == _VARINT:
            _, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise WireError(f"wire type {kind} of field {field} at byte {at}")
        if at > end or not field:
            raise WireError(f"field {field} runs past the end at byte {end}")
        yield field, kind, message[start:at]


def merged(message: bytes, *path: int) -> bytes:
    """The embedded message at the path of field numbers; empty when absent. Raises WireError."""
    for wanted in path:
        message = b"".join(
            payload for each, kind, payload in fields(message) if (each, kind) == (wanted, BYTES)
        )
    return message


def text(message: bytes, wanted: int) -> str:
    """A string field, "" when absent. Raises WireError."""
    last = b""
    for each, kind, payload in fields(message):
        if (each, kind) == (wanted, BYTES):
            last = payload
    return _decode(last)


def number(message: bytes, wanted: int) -> int:
    """An int64 field, 0 when absent. Raises WireError."""
    last = 0
    for each, kind, payload in fields(message):
        if (each, kind) == (wanted, _VARINT):
            last, _ = _varint(payload, 0)
    last &= (1 << 64) - 1
    return last - (1 << 64) if last >> 63 else last


def string_map(message: bytes, wanted: int) -> dict[str, str]:
    """A map<string, string> field. Raises WireError."""
    return {
        text(entry, 1): text(entry, 2)
        for each, kind, entry in fields(message)
        if (each, kind) == (wanted, BYTES)
    }


def filtered(message: bytes, keeps: Callable[[int, bytes], bool], *path: int) -> bytes:
    """The message with only those fields of the embedded one at the path that `keeps`, by number
    and payload, accepts; fields of other types than BYTES stay. Raises WireError."""
    kept = []
    for field, kind, payload in fields(message):
        if kind == BYTES:
            if path and field == path[0]:
                payload = filtered(payload, keeps, *path[1:])
            elif not path and not keeps(field, payload):
                continue
            kept.append(_embedded(field, payload))
        else:
            kept.append(_encode_varint(field << 3 | kind) + payload)
    return b"".join(kept)


def patch(path: tuple[int, ...], value: str | int | bytes) -> bytes:
    """Bytes that, appended to a message, set the field (a string, an int64, or the bytes of one
    more message) at the path of field numbers."""
    *above, last = path
    if isinstance(value, int):
        encoded = _encode_varint(last << 3 | _VARINT) + _encode_varint(value & (1 << 64) - 1)
    else:
        encoded = _embedded(last, value if isinstance(value, bytes) else value.encode())
    for each in reversed(above):
        encoded = _embedded(each, encoded)
    return encoded


def _embedded(wanted: int, payload: bytes) -> bytes:
    return _encode_varint(wanted << 3 | BYTES) + _encode_varint(len(payload)) + payload


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise WireError(f"a string is not UTF-8: {error}") from None


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise WireError(f"a number is cut off at byte {at}")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


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
# LinuxContainerResources
_CPU_PERIOD, CPU_QUOTA, _CPU_SHARES, _MEMORY_LIMIT, CPUSET, _MEMS = 1, 2, 3, 4, 6, 7
_HUGEPAGE_LIMITS = 8
# HugepageLimit
_PAGE_SIZE, _LIMIT = 1, 2


def run_pod_sandbox(message: bytes) -> PodAnnounced:
    """Raises WireError."""
    return _pod(merged(message, 1))


def create_container(message: bytes) -> CreateContainer:
    """Raises WireError."""
    config = merged(message, CONFIG)
    resources = merged(message, *CREATE_RESOURCES)
    return CreateContainer(
        _pod(merged(message, _SANDBOX_CONFIG)),
        text(merged(config, 1), 1),
        _requested(resources),
        hugepages(
            (text(payload, _PAGE_SIZE), number(payload, _LIMIT))
            for field, kind, payload in fields(resources)
            if (field, kind) == (_HUGEPAGE_LIMITS, BYTES)
        ),
    )


def mounted(message: bytes) -> frozenset[str]:
    """The paths in the container that a request to create it mounts. Raises WireError."""
    return frozenset(text(each, _CONTAINER_PATH) for each in _entries(message, _MOUNTS))


def update_container(message: bytes) -> UpdateContainer:
    """Raises WireError."""
    resources = merged(message, *_UPDATE_RESOURCES)
    return UpdateContainer(text(message, 1), _requested(resources))


def removed_id(message: bytes) -> str:
    """The container of a request to remove one. Raises WireError."""
    return text(message, 1)


def created_id(reply: bytes) -> str:
    """The id in a reply of RunPodSandbox or CreateContainer. Raises WireError."""
    return text(reply, 1)


def _entries(message: bytes, wanted: int) -> list[bytes]:
    return [
        payload
        for field, kind, payload in fields(merged(message, CONFIG))
        if (field, kind) == (wanted, BYTES)
    ]


def _requested(resources: bytes) -> RequestedResources:
    return RequestedResources(
        text(resources, CPUSET),
        text(resources, _MEMS),
        number(resources, _CPU_SHARES),
        scaled_quota(number(resources, CPU_QUOTA), number(resources, _CPU_PERIOD)),
        number(resources, _MEMORY_LIMIT),
    )


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


_SIGNS: Final = {
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
"""Part of every entry that may name devices: most requests have many other entries."""


def carried(message: bytes) -> Carried:
    """The carriers of devices of a request to create a container. Raises WireError."""
    found: dict[int, list[bytes]] = {field: [] for field in _SIGNS}
    for field, kind, payload in fields(merged(message, CONFIG)):
        if kind == BYTES and field in found:
            signs = _SIGNS[field]
            if any(sign in payload for sign in signs):
                found[field].append(payload)
    variables = [
        (name, text(each, 2))
        for each in found[_ENVIRONMENT]
        if (name := text(each, 1)) in (visibility.VISIBLE_DEVICES, carriers.PRELOAD)
    ]
    notes = [
        (key, text(each, 2))
        for each in found[_ANNOTATIONS]
        if visibility.is_cdi_annotation(key := text(each, 1))
    ]
    places = [text(each, _CONTAINER_PATH) for each in found[_MOUNTS]]
    return Carried(
        environment=tuple(value for name, value in variables if name == visibility.VISIBLE_DEVICES),
        preload=dict(variables).get(carriers.PRELOAD, ""),
        mounts=tuple(each for each in places if carriers.mounted_name(each) is not None),
        annotations=tuple(notes),
        cdi_devices=tuple(text(each, 1) for each in found[_CDI_DEVICES]),
        nodes=tuple(_carried_node(each) for each in found[_NODES]),
        privileged=bool(number(merged(message, *_SECURITY_CONTEXT), _PRIVILEGED)),
        serving=any(carriers.serves(text(each, _HOST_PATH)) for each in found[_MOUNTS]),
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
    patches = list(_resources(CREATE_RESOURCES, changes))
    if changes.mounts:
        taken = mounted(message)
        patches += [_mount(each) for each in changes.mounts if each.container_path not in taken]
    patches += [_pair(_ENVIRONMENT, *each) for each in changes.environment]
    patches += [_pair(_ANNOTATIONS, key, value) for key, value in changes.annotations if value]
    patches += [patch((CONFIG, _CDI_DEVICES), patch((1,), name)) for name in changes.cdi_devices]
    patches += [_node(each) for each in changes.nodes]
    left = _without(message, changes)
    return left + b"".join(patches) if patches or left != message else None


def _without(message: bytes, changes: Changes) -> bytes:
    """The entries without removed ones and those that are replaced."""
    variables = {name for name, _ in changes.environment}
    gone: dict[int, tuple[int, Collection[str]]] = {
        _ENVIRONMENT: (1, variables),
        _ANNOTATIONS: (1, {key for key, _ in changes.annotations}),
        _MOUNTS: (_CONTAINER_PATH, changes.removed_mounts),
        _CDI_DEVICES: (1, changes.removed_cdi_devices),
        _NODES: (_NODE_PATH, [each.container_path for each in changes.removed_nodes]),
    }
    if not any(name.encode() in message for _, names in gone.values() for name in names):
        return message

    def keeps(field: int, payload: bytes) -> bool:
        named_by, names = gone.get(field, (1, ()))
        return not names or text(payload, named_by) not in names

    return filtered(message, keeps, CONFIG)


def update_request_with(message: bytes, changes: Changes) -> bytes | None:
    """The new UpdateContainerResourcesRequest; None without changes."""
    patches = b"".join(_resources(_UPDATE_RESOURCES, changes))
    return message + patches if patches else None


def _resources(path: tuple[int, ...], changes: Changes) -> Iterator[bytes]:
    quota = changes.quota_microseconds
    values: tuple[tuple[int, str | int | None], ...] = (
        (CPUSET, changes.cpuset),
        (_MEMS, changes.mems),
        (_CPU_SHARES, changes.shares),
        (CPU_QUOTA, quota),
        (_MEMORY_LIMIT, changes.memory_limit_bytes),
        (_CPU_PERIOD, None if quota in (None, UNLIMITED) else PERIOD_MICROSECONDS),
    )
    return (patch((*path, field), value) for field, value in values if value is not None)


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
