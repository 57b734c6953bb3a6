"""CRI requests with what a hook changes of them: patches behind the bytes that came."""

from __future__ import annotations

from collections.abc import Iterator

from agent.hooks import wire
from agent.hooks.changes import UNCHANGED, Changes, Mount
from agent.hooks.requests import (
    CDI_DEVICES,
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
    READ_ONLY,
    UPDATE_RESOURCES,
    mounted,
)
from agent.model.limits import PERIOD_MICROSECONDS, UNLIMITED


def create_container(message: bytes, changes: Changes) -> bytes | None:
    """The new CreateContainerRequest, None where nothing changes. Raises WireError."""
    if changes == UNCHANGED:
        return None
    patches = list(_resources(CREATE_RESOURCES, changes))
    if changes.mounts:
        taken = mounted(message)
        patches += [_mount(each) for each in changes.mounts if each.container_path not in taken]
    patches += [
        wire.patch(ENVIRONMENT, wire.patch((1,), name) + wire.patch((2,), value))
        for name, value in changes.environment
    ]
    patches += [wire.patch(CDI_DEVICES, wire.patch((1,), name)) for name in changes.cdi_devices]
    return message + b"".join(patches) if patches else None


def update_container(message: bytes, changes: Changes) -> bytes | None:
    """The new UpdateContainerResourcesRequest, None where nothing changes."""
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
    one = (
        wire.patch((CONTAINER_PATH,), mount.container_path)
        + wire.patch((HOST_PATH,), mount.host_path)
        + wire.patch((READ_ONLY,), 1)
    )
    return wire.patch(MOUNTS, one)
