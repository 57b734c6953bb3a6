"""What the agent decided of a new container's devices. Where it decides about none, this is all
that is ever asked."""

from __future__ import annotations

from typing import Final

from agent.hooks.cpuset import Wait
from agent.hooks.requests import CreateContainer
from agent.model.device_allocation import DEVICE_ALLOCATED
from agent.model.exclusion import excludes
from agent.model.snapshot import Snapshot
from agent.model.visible import Visible

_UNDECIDED: Final = Visible()


def seen(request: CreateContainer, snapshot: Snapshot | None) -> Visible | Wait | None:
    """What the agent decided for the container; None where nothing is said of its devices."""
    pod = request.pod
    if snapshot is None:
        allocated = DEVICE_ALLOCATED in pod.annotations
        return Wait("the agent has written no snapshot") if allocated else None
    if snapshot.devices is None:
        return None
    if excludes(snapshot.excluded, pod.namespace, pod.name, request.container_name):
        return None
    known = snapshot.pods.get(pod.uid)
    visible = known.of(request.container_name).visible if known else None
    if visible is not None:
        return visible
    if DEVICE_ALLOCATED in pod.annotations:
        return Wait("the agent has not decided about this pod's devices")
    return _UNDECIDED if snapshot.devices.concerns_all else None
