"""CRI requests with the changes of a hook: patches after the original bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from agent.hooks import wire
from agent.hooks.changes import UNCHANGED, CarriedNode, Changes
from agent.hooks.requests import (
    ANNOTATIONS,
    CDI_DEVICES,
    CONFIG,
    CONTAINER_PATH,
    CPU_PERIOD,
    CPU_QUOTA,
    CPU_SHARES,
    CPUSET,
    CREATE_RESOURCES,
    ENVIRONMENT,
    HOST_PATH,
    MEMORY_LIMIT,
    MEMS,
    MOUNTS,
    NODE_HOST_PATH,
    NODE_PATH,
    NODE_PERMISSIONS,
    NODES,
    READ_ONLY,
    UPDATE_RESOURCES,
    mounted,
)
from agent.model.visible import Mount
from agent.model.wanted import PERIOD_MICROSECONDS, UNLIMITED


def create_container(message: bytes, changes: Changes) -> bytes | None:
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


def update_container(message: bytes, changes: Changes) -> bytes | None:
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
