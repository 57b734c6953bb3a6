"""All devices of a node as the Device object has them, from the devices that each source found.
Numbers and times continue from the published object, which is their only store."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from agent.model import deviceobject, interconnect, minors, nodestatus
from agent.model.annotations import AnnotationError
from agent.model.devices import Device, DeviceType
from agent.model.functiondevices import fpga_devices, rdma_devices
from agent.model.gpus import GpuPair
from agent.model.interconnect import Interconnect
from agent.model.minors import Minors
from agent.model.nodestatus import GpuFacts
from agent.model.pci import Fpga, Function, address_key
from agent.model.rdma import RdmaDevice

_NUMBERED_HERE: Final = frozenset({DeviceType.RDMA, DeviceType.FPGA})


class DiscoveredDevices(msgspec.Struct, frozen=True):
    """What there is. `functions`: all of PCI, by address; `gpus` as `gpudevices.devices` makes
    them, each with a minor and a UUID of its own."""

    functions: Mapping[str, Function] = {}
    gpus: tuple[Device, ...] = ()
    rdma: tuple[RdmaDevice, ...] = ()
    fpgas: tuple[Fpga, ...] = ()


class Published(msgspec.Struct, frozen=True):
    """The published Device object; empty on a new node. `pairs`: the links of its GPUs."""

    devices: tuple[Device, ...] = ()
    gone: Minors = {}
    gpus: GpuFacts = GpuFacts()
    pairs: tuple[GpuPair, ...] = ()


class DeviceList(msgspec.Struct, frozen=True):
    """By type and minor. `gone`: numbers to be remembered."""

    devices: tuple[Device, ...]
    gone: Minors


def published(body: object) -> tuple[Published, tuple[str, ...]]:
    """The devices of a Device object, and problems. Without readable numbers those of its devices
    count, without readable links there are none. Raises ObjectError."""
    devices = deviceobject.decode(body)
    metadata = body.get("metadata") if isinstance(body, dict) else None
    annotations, labels = (
        (metadata.get(field) if isinstance(metadata, dict) else None) or {}
        for field in ("annotations", "labels")
    )
    gpus = nodestatus.labelled(labels)
    gone: Minors = {}
    told: Interconnect = {}
    problems = []
    try:
        gone = minors.decode(annotations)
    except AnnotationError as error:
        problems.append(str(error))
    try:
        told = interconnect.decode(annotations)
    except AnnotationError as error:
        problems.append(str(error))
    return Published(devices, gone, gpus, interconnect.pairs(told, devices)), tuple(problems)


def device_list(
    found: DiscoveredDevices,
    before: Published,
    now: str,
    held: Collection[tuple[str, str]] = (),
) -> DeviceList:
    """`now` in RFC 3339, for conditions that change; `held`: type and id of the devices that pods
    hold."""
    numbered_here = (each for each in before.devices if each.type in _NUMBERED_HERE)
    known = minors.known(numbered_here, before.gone)
    earlier = {(device.type, device.uuid): device for device in before.devices}
    rdma = rdma_devices(found.rdma, found.functions, before.devices, held)
    fpgas = fpga_devices(found.fpgas)
    devices = [
        *found.gpus,
        *_with_minors(_by_address(rdma), known.get(DeviceType.RDMA, {})),
        *_with_minors(_by_address(fpgas), known.get(DeviceType.FPGA, {})),
    ]
    ordered = sorted(devices, key=lambda each: (each.type, each.minor))
    told = tuple(_since(each, earlier.get((each.type, each.uuid)), now) for each in ordered)
    return DeviceList(told, minors.gone(known, told))


def _since(device: Device, before: Device | None, now: str) -> Device:
    """A condition without a time has the one from which its status stayed."""
    times = {each.type: each for each in before.conditions} if before else {}
    conditions = []
    for each in device.conditions:
        old = times.get(each.type)
        same = old.last_transition_time if old and old.status == each.status else ""
        time = each.last_transition_time or same or now
        conditions.append(msgspec.structs.replace(each, last_transition_time=time))
    return msgspec.structs.replace(device, conditions=tuple(conditions))


def _by_address(devices: Iterable[Device]) -> list[Device]:
    return sorted(devices, key=lambda each: address_key(each.uuid))


def _with_minors(devices: list[Device], known: Mapping[str, int]) -> list[Device]:
    numbers = minors.numbered((each.uuid for each in devices), known)
    return [msgspec.structs.replace(each, minor=numbers[each.uuid]) for each in devices]
