"""GPUs as Devices of the node: their resources, topology and health."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from agent.model.devices import Device, DeviceTopology, DeviceType
from agent.model.gpuconditions import conditions
from agent.model.gpuhealth import GpuCard, GpuHealth
from agent.model.gpus import Gpu
from agent.model.nodestatus import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, GpuFacts

VENDOR: Final = "nvidia"
MIG_INSTANCES: Final = "topolet.io/mig-instances"
"""Label of a Device: how many instances a card in MIG mode has."""


def devices(
    health: GpuHealth,
    places: Mapping[str, DeviceTopology],
    cordoned: Mapping[str, str] = MappingProxyType({}),
    host_memory_bytes: int = 0,
) -> tuple[Device, ...]:
    """By minor. `places`: by PCI address; `cordoned`: by UUID, why; `host_memory_bytes`: what cards
    have that have no memory of their own. A card without a minor, or that is not enumerated and
    whose minor another one has now, has the next that is free after all that are taken, in order of
    index."""
    ordered = sorted(
        health.cards, key=lambda card: (card.gpu.index < 0, card.gpu.index, card.gpu.uuid)
    )
    free = max((card.gpu.minor for card in ordered if card.gpu.minor is not None), default=-1)
    taken: set[int] = set()
    found = []
    for card in ordered:
        minor = card.gpu.minor
        if minor is None or minor in taken:
            minor = free = free + 1
        taken.add(minor)
        place = places.get(card.gpu.bus) or DeviceTopology(bus=card.gpu.bus)
        held_back = cordoned.get(card.gpu.uuid, "")
        found.append(_device(card, minor, place, held_back, host_memory_bytes))
    return tuple(sorted(found, key=lambda each: (each.minor, each.uuid)))


def facts(health: GpuHealth) -> GpuFacts:
    """What the cards have in common."""
    products = {card.gpu.product for card in health.cards} - {""}
    product = products.pop() if len(products) == 1 else ""
    return GpuFacts(VENDOR, product, health.driver) if health.cards else GpuFacts()


def _device(
    card: GpuCard, minor: int, place: DeviceTopology, held_back: str, host_memory_bytes: int
) -> Device:
    gpu = card.gpu
    return Device(
        DeviceType.GPU,
        gpu.uuid,
        minor,
        _resources(gpu, host_memory_bytes),
        card.healthy and not held_back,
        gpu.module,
        place,
        conditions(card, cordoned=held_back),
        labels=card.labels or ({MIG_INSTANCES: str(len(gpu.instances))} if gpu.mig else {}),
    )


def _resources(gpu: Gpu, host_memory_bytes: int) -> dict[str, int]:
    """A card in MIG mode gives no whole card, with instances or without."""
    if gpu.mig:
        return {}
    memory = host_memory_bytes if gpu.memory_bytes is None else gpu.memory_bytes
    return {
        GPU_CORE: 100,
        GPU_MEMORY_RATIO: 100,
        **({GPU_MEMORY: memory} if memory else {}),
    }
