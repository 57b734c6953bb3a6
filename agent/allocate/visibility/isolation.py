"""A part of a GPU enforced in the container by HAMi-core, where the pod asks for it (Koordinator:
pkg/koordlet/runtimehooks/hooks/gpu/gpu.go, InjectContainerGPUEnv)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from agent.allocate.devices.request import TypeRequest
from agent.model.annotations import GPU_ISOLATION_PROVIDER
from agent.model.device_allocation import AllocatedDevice
from agent.model.nodestatus import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from agent.model.visible import Mount, Visible

HAMI_CORE: Final = "HAMi-core"
LOCK_FOLDER: Final = "/tmp/vgpulock"
"""The path at which the library reads it in its container."""
_WHOLE: Final = 100


class Isolation(msgspec.Struct, frozen=True):
    """On the host. `library`: HAMi-core's, "" where there is none; `lock_folder`: where its users
    wait for each other, which all of them may write to."""

    library: str = ""
    lock_folder: str = ""


NO_ISOLATION: Final = Isolation()


def isolated(
    visible: Visible,
    labels: Mapping[str, str],
    cards: Sequence[AllocatedDevice],
    wish: TypeRequest | None,
    isolation: Isolation,
) -> Visible:
    """With the values that hold the container to its part of the cards; unchanged for one with
    whole cards or without the request. `wish` None: it has the pod's devices."""
    if labels.get(GPU_ISOLATION_PROVIDER) != HAMI_CORE or not cards:
        return visible
    per = wish.per if wish else {}
    parts = [_part(each.resources, per) for each in cards]
    if not any(_is_part(each) for each in parts):
        return visible
    if not isolation.library:
        return Visible(refused="its pod asks for HAMi-core, which this node has not")
    if not all(each.get(GPU_MEMORY) for each in parts):
        return Visible(
            refused="its pod asks for HAMi-core, and nothing says how much memory it has"
        )
    environment = [("CUDA_DEVICE_MEMORY_LIMIT", str(min(each[GPU_MEMORY] for each in parts)))]
    cores = [each[GPU_CORE] for each in parts if GPU_CORE in each]
    if cores:
        environment.append(("CUDA_DEVICE_SM_LIMIT", str(min(cores))))
    environment.append(("LD_PRELOAD", isolation.library))
    return msgspec.structs.replace(
        visible,
        environment=tuple(environment),
        mounts=(
            Mount(isolation.library, isolation.library),
            Mount(isolation.lock_folder, LOCK_FOLDER, writable=True),
        ),
    )


def _part(given: Mapping[str, int], per: Mapping[str, int]) -> dict[str, int]:
    """What the container has of one card: what it asks for itself, else what its pod was given of
    it."""
    part = {**given, **{name: per[name] for name in given.keys() & per.keys()}}
    ratio = given.get(GPU_MEMORY_RATIO)
    if GPU_MEMORY in given and ratio and GPU_MEMORY_RATIO in per and GPU_MEMORY not in per:
        part[GPU_MEMORY] = given[GPU_MEMORY] * per[GPU_MEMORY_RATIO] // ratio
    return part


def _is_part(amounts: Mapping[str, int]) -> bool:
    return amounts.get(GPU_MEMORY_RATIO, _WHOLE) < _WHOLE
