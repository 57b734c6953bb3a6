"""The devices of a pod divided over its containers (docs/devices.md, "Device visibility"), and the
enforcement of a container's part of a GPU.

The annotation has the devices of the pod; only the containers' requests show which containers
requested devices. Containers that run together take from the front of the list, in the order of
their specification: whole devices first, so that no whole one consists of two halves. An init
container ends before the next one starts: it takes from all devices that no earlier sidecar has,
and later containers may take the same ones.

HAMi-core enforces a part of a GPU in the container, if the pod requests it (Koordinator:
pkg/koordlet/runtimehooks/hooks/gpu/gpu.go, InjectContainerGPUEnv).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from agent.model.devices.device_allocation import AllocatedDevice
from agent.model.devices.device_object import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from agent.model.devices.device_request import RequestError, TypeRequest, type_requests
from agent.model.devices.visibility import Mount, Visibility
from agent.model.pod.annotations import GPU_ISOLATION_PROVIDER
from agent.model.pod.apiobjects import ApiPod

_HAMI_CORE: Final = "HAMi-core"

_LOCK_FOLDER: Final = "/tmp/vgpulock"
"""The path at which the library reads it in its container."""

_WHOLE: Final = 100


class SplitError(ValueError):
    """Containers request more devices than their pod has; the text names the first container that
    does not get enough."""


class ContainerDeviceRequest(msgspec.Struct, frozen=True):
    """The request of one container."""

    name: str
    requests: Mapping[str, TypeRequest] = {}
    """By device type."""
    init: bool = False
    """It runs before the others."""
    sidecar: bool = False
    """It keeps running while all later ones run."""


def container_device_requests(pod: ApiPod) -> tuple[ContainerDeviceRequest, ...] | None:
    """In the order in which containers start; None if the request of a container has a meaning only
    together with those of others."""
    ordered = [(each, True) for each in pod.init_containers]
    ordered += [(each, False) for each in pod.containers]
    try:
        return tuple(
            ContainerDeviceRequest(
                each.name, type_requests({**each.requests, **each.limits}), init, each.sidecar
            )
            for each, init in ordered
        )
    except RequestError:
        return None


def split(
    allocated: Sequence[AllocatedDevice], kind: str, containers: Sequence[ContainerDeviceRequest]
) -> dict[str, tuple[int, ...]]:
    """The devices of each container that requests the type, by name, as indexes of `allocated`,
    which is divided from its front.

    `containers`: in the order in which they start.

    Raises SplitError."""
    ordered = tuple(range(len(allocated)))
    requesting = [container for container in containers if kind in container.requests]
    if len(allocated) == 1 or len(requesting) == 1:
        return {container.name: ordered for container in requesting}
    staying = [container for container in requesting if not container.init or container.sidecar]
    free = _FreeAmounts(kind, allocated)
    taken = {}
    for container in sorted(
        staying, key=lambda container: (not container.sidecar, container.requests[kind].shared)
    ):
        taken[container.name] = free.take(container)
    for before, container in enumerate(requesting):
        if container.name not in taken:
            free = _FreeAmounts(kind, allocated)
            for earlier in requesting[:before]:
                if earlier.sidecar:
                    free.take(earlier)
            taken[container.name] = free.take(container)
    return taken


class _FreeAmounts:
    """The free amounts of each device; None for one that is taken as a whole."""

    def __init__(self, kind: str, given: Sequence[AllocatedDevice]) -> None:
        self._kind = kind
        self._given = given
        self._left: dict[int, dict[str, int] | None] = {
            place: dict(each.resources) for place, each in enumerate(given)
        }

    def take(self, container: ContainerDeviceRequest) -> tuple[int, ...]:
        """Raises SplitError."""
        request = container.requests[self._kind]
        fitting = [place for place in self._left if self._fits(place, request)]
        if len(fitting) < request.count:
            raise SplitError(
                f"container {container.name} requests {request.count} of the {len(self._given)}"
                f" {self._kind} devices of its pod, and {len(fitting)} are left"
            )
        for place in fitting[: request.count]:
            left = self._left[place]
            self._left[place] = (
                {name: amount - request.per.get(name, 0) for name, amount in left.items()}
                if left and request.shared
                else None
            )
        return tuple(fitting[: request.count])

    def _fits(self, place: int, request: TypeRequest) -> bool:
        left = self._left[place]
        if left is None or (not request.shared and left != self._given[place].resources):
            return False
        return all(left[name] >= amount for name, amount in request.per.items() if name in left)


class Isolation(msgspec.Struct, frozen=True):
    """Paths of HAMi-core on the host."""

    library: str = ""
    """Empty if there is none."""
    lock_folder: str = ""
    """The folder of its locks, which all its users may write to."""
    problem: str = ""
    """Why HAMi-core can't be used."""


NO_ISOLATION: Final = Isolation()


def isolated(
    visible: Visibility,
    labels: Mapping[str, str],
    cards: Sequence[AllocatedDevice],
    request: TypeRequest | None,
    isolation: Isolation,
) -> Visibility:
    """Adds the values that limit the container to its part of the cards. No change for a container
    with whole cards or a pod that does not request HAMi-core.

    `request`: None if the container has the pod's devices."""
    if labels.get(GPU_ISOLATION_PROVIDER) != _HAMI_CORE or not cards:
        return visible
    per = request.per if request else {}
    parts = [_part(card.resources, per) for card in cards]
    if not any(_is_part(part) for part in parts):
        return visible
    if not isolation.library:
        return Visibility(refused="its pod requests HAMi-core, which this node does not have")
    if isolation.problem:
        return Visibility(refused=f"its pod requests HAMi-core, and {isolation.problem}")
    if not all(part.get(GPU_MEMORY) for part in parts):
        return Visibility(
            refused="its pod requests HAMi-core, and its part of the memory is unknown"
        )
    environment = [("CUDA_DEVICE_MEMORY_LIMIT", str(min(part[GPU_MEMORY] for part in parts)))]
    cores = [part[GPU_CORE] for part in parts if GPU_CORE in part]
    if cores:
        environment.append(("CUDA_DEVICE_SM_LIMIT", str(min(cores))))
    environment.append(("LD_PRELOAD", isolation.library))
    return msgspec.structs.replace(
        visible,
        environment=tuple(environment),
        mounts=(
            Mount(isolation.library, isolation.library),
            Mount(isolation.lock_folder, _LOCK_FOLDER, writable=True),
        ),
    )


def _part(given: Mapping[str, int], per: Mapping[str, int]) -> dict[str, int]:
    """The container's part of one card: its own request, else the allocation of its pod."""
    part = {**given, **{name: per[name] for name in given.keys() & per.keys()}}
    ratio = given.get(GPU_MEMORY_RATIO)
    if GPU_MEMORY in given and ratio and GPU_MEMORY_RATIO in per and GPU_MEMORY not in per:
        part[GPU_MEMORY] = given[GPU_MEMORY] * per[GPU_MEMORY_RATIO] // ratio
    return part


def _is_part(amounts: Mapping[str, int]) -> bool:
    return amounts.get(GPU_MEMORY_RATIO, _WHOLE) < _WHOLE
