"""The devices of this node that an annotation names, or the reason why no pod can have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from agent.model.device_allocation import AllocatedDevice
from agent.model.devicefiles import CardFiles, DeviceFiles, OtherFiles
from agent.model.devices import DeviceType
from agent.model.gpunames import is_uuid
from agent.model.nodestatus import FPGA, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, RDMA
from agent.model.visible import DeviceNode, VisibleGpu

_WHOLE: Final = 100
_LONGEST: Final = 64
_PERCENTS: Final = (GPU_CORE, GPU_MEMORY_RATIO, RDMA, FPGA)


class RefusedError(ValueError):
    """Why a pod can't have what its annotation says."""


class MatchedDevice(msgspec.Struct, frozen=True):
    """A device of the annotation on this node. `keys`: of all devices that no other pod can have
    then."""

    given: AllocatedDevice
    keys: tuple[str, ...]
    gpu: VisibleGpu | None = None
    nodes: tuple[DeviceNode, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether it leaves nothing to others: a function is never shared, and an annotation
        without a part means all."""
        amounts = self.given.resources
        if self.given.functions or not any(amounts.get(name) for name in (*_PERCENTS, GPU_MEMORY)):
            return True
        return all(amounts[name] >= _WHOLE for name in _PERCENTS if name in amounts)

    def fits(self, others: Sequence[MatchedDevice]) -> bool:
        """Whether there is room for it beside these."""
        beside = (self, *others)
        return not others or (
            not any(each.whole for each in beside)
            and all(
                sum(each.given.resources.get(name, 0) for each in beside) <= _WHOLE
                for name in _PERCENTS
            )
        )


def is_ours(kind: str, devices: Sequence[AllocatedDevice], files: DeviceFiles) -> bool:
    """Other vendors' GPUs have the same resource names: names of our cards are never theirs, and on
    a node without our cards names without a vendor are theirs."""
    if kind != DeviceType.GPU:
        return kind in (DeviceType.RDMA, DeviceType.FPGA)
    ids = [each.id for each in devices if each.id]
    if not ids:
        return files.cards is None or bool(files.cards)
    return any(map(is_uuid, ids))


def find(kind: str, device: AllocatedDevice, files: DeviceFiles) -> MatchedDevice:
    """Raises RefusedError."""
    title = f"{kind} {device.id[:_LONGEST] or device.minor}"
    if kind == DeviceType.GPU:
        gpu = _gpu(title, device, files.cards or ())
        return MatchedDevice(device, (gpu.uuid,), gpu)
    other = _other(kind, title, device, files.others)
    if not device.functions:
        alone = MatchedDevice(device, (other.uuid,), nodes=other.nodes)
        parts = sorted(other.functions) if alone.whole else ()
        return msgspec.structs.replace(alone, keys=(other.uuid, *parts))
    nodes: list[DeviceNode] = []
    for bus in device.functions:
        if bus not in other.functions:
            raise RefusedError(f"{title} has no virtual function {bus[:_LONGEST]} on this node")
        nodes += other.functions[bus]
    return MatchedDevice(device, device.functions, nodes=tuple(nodes))


def _gpu(title: str, device: AllocatedDevice, cards: Iterable[CardFiles]) -> VisibleGpu:
    for card in cards:
        for instance in card.instances:
            if device.id and device.id == instance.uuid:
                return instance
        if device.id == card.gpu.uuid if device.id else device.minor == card.minor:
            if card.divided:
                raise RefusedError(f"{title} is divided, and only its MIG instances can be had")
            return card.gpu
    raise RefusedError(f"{title} is not on this node")


def _other(
    kind: str, title: str, device: AllocatedDevice, others: Iterable[OtherFiles]
) -> OtherFiles:
    for other in others:
        same = device.id == other.uuid if device.id else device.minor == other.minor
        if other.type == kind and same:
            return other
    raise RefusedError(f"{title} is not on this node")
