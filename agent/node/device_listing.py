"""The devices of a node as its Device object lists them, collected from all sources.

This module builds RDMA devices and FPGAs from PCI functions; GPUs come from `gpus`. The
published object is the only store: minors and the times of conditions are read back from it. A
pod's allocation names its devices by minor, so a device keeps its minor; the annotation
`topolet.io/gone-device-minors` has the minors of removed devices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Final

import msgspec

from agent.model import bounds
from agent.model.devices import device_object, interconnect
from agent.model.devices.device_object import (
    FPGA,
    RDMA,
    RESOURCE_OF,
    Condition,
    Device,
    DeviceTopology,
    DeviceType,
    VfGroup,
    VirtualFunction,
)
from agent.model.devices.gpus import GpuInfo, GpuPair
from agent.model.devices.interconnect import Interconnect
from agent.model.devices.pci import Fpga, Function, RdmaDevice, address_key
from agent.model.nrt import node_status
from agent.model.objects import label_value
from agent.model.pod.annotations import AnnotationError, decoded

GONE_MINORS: Final = "topolet.io/gone-device-minors"
"""Annotation of the Device object: `{"rdma": {"0000:1a:00.0": 0}}`, the minors of removed
devices."""


HEALTHY: Final = "Healthy"
LINKS: Final = "topolet.io/links"
LINK_LAYER: Final = "topolet.io/link-layer"
DRIVER: Final = "topolet.io/driver"
FUNCTION_ID: Final = "topolet.io/function-id"
INTERFACE_ID: Final = "topolet.io/interface-id"


_MAX_DEVICES: Final = bounds.MAX_DEVICES
"""The most devices of one type on a node, and the most removed ones that are stored."""


Minors = dict[str, dict[str, int]]
"""Minors by type and id of a device."""


class DiscoveredDevices(msgspec.Struct, frozen=True):
    functions: Mapping[str, Function] = {}
    """By address."""
    gpus: tuple[Device, ...] = ()
    """The result of `device_entries`."""
    rdma: tuple[RdmaDevice, ...] = ()
    fpgas: tuple[Fpga, ...] = ()


class Published(msgspec.Struct, frozen=True):
    """The content of the published Device object; empty on a new node."""

    devices: tuple[Device, ...] = ()
    gone: Minors = {}
    """The minors of removed devices."""
    gpus: GpuInfo = GpuInfo()
    pairs: tuple[GpuPair, ...] = ()
    """The links of its GPUs."""


class DeviceList(msgspec.Struct, frozen=True):
    """All devices with their minors, sorted by type and minor."""

    devices: tuple[Device, ...]
    gone: Minors
    """The minors of removed devices, to be stored."""


def published(body: object) -> tuple[Published, tuple[str, ...]]:
    """The content of a Device object, and problems. An annotation that can't be read counts as
    absent. Raises ObjectError."""
    devices = device_object.decode(body)
    metadata = body.get("metadata") if isinstance(body, dict) else None
    annotations, labels = (
        (metadata.get(field) if isinstance(metadata, dict) else None) or {}
        for field in ("annotations", "labels")
    )
    gpus = node_status.from_labels(labels)
    gone: Minors = {}
    links: Interconnect = {}
    problems = []
    try:
        gone = decode_gone(annotations)
    except AnnotationError as error:
        problems.append(str(error))
    try:
        links = interconnect.decode_links(annotations)
    except AnnotationError as error:
        problems.append(str(error))
    return Published(devices, gone, gpus, interconnect.gpu_pairs(links, devices)), tuple(problems)


def device_list(
    discovered: DiscoveredDevices,
    before: Published,
    now: str,
    held: Collection[tuple[str, str]] = (),
) -> DeviceList:
    """All devices with their minors.

    `now`: the time of conditions that change, in RFC 3339.
    `held`: type and id of the devices that pods hold."""
    numbered_here = (device for device in before.devices if device.type in RESOURCE_OF)
    minors = known_minors(numbered_here, before.gone)
    earlier = {(device.type, device.uuid): device for device in before.devices}
    rdma = rdma_devices(discovered.rdma, discovered.functions, before.devices, held)
    fpgas = fpga_devices(discovered.fpgas)
    devices = [
        *discovered.gpus,
        *_with_minors(_by_address(rdma), minors.get(DeviceType.RDMA, {})),
        *_with_minors(_by_address(fpgas), minors.get(DeviceType.FPGA, {})),
    ]
    ordered = sorted(devices, key=lambda device: (device.type, device.minor))
    timed = tuple(
        _since(device, earlier.get((device.type, device.uuid)), now) for device in ordered
    )
    return DeviceList(timed, gone_minors(minors, timed))


def _since(device: Device, before: Device | None, now: str) -> Device:
    """The device with a time in every condition: that of the published condition if the status is
    the same, else `now`."""
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


def _with_minors(devices: list[Device], before: Mapping[str, int]) -> list[Device]:
    numbers = with_numbers((each.uuid for each in devices), before)
    return [msgspec.structs.replace(each, minor=numbers[each.uuid]) for each in devices]


def with_numbers(ids: Iterable[str], before: Mapping[str, int]) -> dict[str, int]:
    """Each id with its number: the known number, or the lowest that no id has or had. New ids get
    numbers in the given order. If two ids have the same known number, the first keeps it."""
    wanted = list(dict.fromkeys(ids))
    numbers: dict[str, int] = {}
    used: set[int] = set()
    for each in wanted:
        number = before.get(each, -1)
        if 0 <= number < _MAX_DEVICES and number not in used:
            numbers[each] = number
            used.add(number)
    used |= set(before.values())
    free = (number for number in range(len(wanted) + len(used)) if number not in used)
    for each in wanted:
        if each not in numbers:
            numbers[each] = next(free)
    return {each: numbers[each] for each in wanted}


def known_minors(published: Iterable[Device], gone: Minors) -> Minors:
    """All numbers in a Device object; its devices take precedence over removed ones."""
    minors = {kind: dict(ids) for kind, ids in gone.items()}
    for device in published:
        minors.setdefault(device.type, {})[device.uuid] = device.minor
    return minors


def gone_minors(before: Minors, devices: Iterable[Device]) -> Minors:
    """The numbers of removed devices, the lowest ones if there are too many."""
    present = {(device.type, device.uuid) for device in devices}
    minors: Minors = {}
    for kind, ids in sorted(before.items()):
        absent = [(number, each) for each, number in ids.items() if (kind, each) not in present]
        if absent:
            minors[kind] = {each: number for number, each in sorted(absent)[:_MAX_DEVICES]}
    return minors


def decode_gone(annotations: Mapping[str, str]) -> Minors:
    """The annotation of a Device object. Raises AnnotationError."""
    return decoded(annotations, GONE_MINORS, _decoder, bounds.OBJECT_LIST_BYTES) or {}


def encode_gone(minors: Minors) -> dict[str, str]:
    """The annotation, empty if no device was removed."""
    return {GONE_MINORS: msgspec.json.encode(minors, order="sorted").decode()} if minors else {}


_Ids = Annotated[dict[str, int], msgspec.Meta(max_length=_MAX_DEVICES)]
_decoder: Final = msgspec.json.Decoder(
    Annotated[dict[str, _Ids], msgspec.Meta(max_length=bounds.MAX_RESOURCES)] | None
)


_HEALTHY: Final = ("DeviceHealthy", "device is healthy")
_NVIDIA: Final = 0x10DE
_DISPLAY: Final = 0x03
_NVIDIA_DRIVERS: Final = frozenset({"", "nvidia"})


def places(functions: Mapping[str, Function]) -> dict[str, DeviceTopology]:
    """The location of each function, by address."""
    return {each.address: _topology(each) for each in functions.values()}


def nvidia_cards(functions: Mapping[str, Function]) -> tuple[str, ...]:
    """Addresses of the GPUs that NVIDIA's driver should list. GPUs with another driver (`vfio-pci`)
    are left out."""
    return tuple(
        each.address
        for each in functions.values()
        if each.vendor == _NVIDIA
        and (each.class_code or 0) >> 16 == _DISPLAY
        and not each.physical
        and each.driver in _NVIDIA_DRIVERS
    )


def rdma_devices(
    rdma: Iterable[RdmaDevice],
    functions: Mapping[str, Function],
    before: Iterable[Device],
    held: Collection[tuple[str, str]],
) -> list[Device]:
    """The visible devices, and those of `before` whose function exists without RDMA files. The
    latter are healthy if a pod holds them, because they are in the pod's network namespace, else
    unhealthy.

    `held`: type and id of the devices that pods hold."""
    seen = [_rdma(device) for device in rdma]
    return seen + _hidden(functions, before, {device.uuid for device in seen}, held)


def fpga_devices(fpgas: Iterable[Fpga]) -> list[Device]:
    """A virtual function is a device of its own only if its physical function is not visible."""
    by_address = {each.address: each for each in fpgas}
    devices = []
    for each in by_address.values():
        if each.function.physical in by_address:
            continue
        virtual = [
            (number, by_address[place])
            for number, place in each.function.virtual
            if place in by_address and by_address[place].function.physical == each.address
        ]
        ports = [*each.ports, *(port for _, other in virtual for port in other.ports)]
        loaded = {port.function_id for port in ports} - {""}
        fault = None if ports else ("NoAcceleratorPort", "no accelerator port is available")
        labels = {
            FUNCTION_ID: loaded.pop() if len(loaded) == 1 else "",
            INTERFACE_ID: each.interface_id,
        }
        devices.append(
            Device(
                type=DeviceType.FPGA,
                uuid=each.address,
                minor=-1,
                resources={FPGA: 100},
                healthy=fault is None,
                topology=_topology(each.function),
                conditions=(_condition(fault),),
                vf_groups=_groups(
                    (number, other.address, other.function.driver) for number, other in virtual
                ),
                labels={key: value for key, value in labels.items() if value},
            )
        )
    return devices


def _rdma(device: RdmaDevice) -> Device:
    physical = device.physical
    fault = None
    if not physical.active:
        fault = ("LinkDown", f"no port is active: {', '.join(physical.down)}")
    layers = {port.link_layer for link in physical.links for port in link.ports} - {""}
    labels = {
        LINKS: label_value(".".join(link.name for link in physical.links)),
        LINK_LAYER: label_value(layers.pop() if len(layers) == 1 else ""),
    }
    virtual = ((each.number or 0, each.address, each.function.driver) for each in device.virtual)
    return _rdma_device(physical.function, fault, _groups(virtual), labels)


def _rdma_device(
    function: Function,
    fault: tuple[str, str] | None,
    groups: tuple[VfGroup, ...],
    labels: Mapping[str, str],
) -> Device:
    return Device(
        type=DeviceType.RDMA,
        uuid=function.address,
        minor=-1,
        resources={RDMA: 100},
        healthy=fault is None,
        topology=_topology(function),
        conditions=(_condition(fault),),
        vf_groups=groups,
        labels={key: value for key, value in labels.items() if value},
    )


def _hidden(
    functions: Mapping[str, Function],
    before: Iterable[Device],
    seen: Collection[str],
    held: Collection[tuple[str, str]],
) -> list[Device]:
    """The devices of `before` whose function still exists, without RDMA files. Only address and
    labels are taken from `before`: other fields may be withheld there."""
    devices = []
    for device in before:
        function = functions.get(device.uuid)
        if device.type != DeviceType.RDMA or device.uuid in seen or function is None:
            continue
        fault = None
        if (device.type, device.uuid) not in held:
            fault = ("NotVisible", "the PCI function exists, its RDMA interface is not visible")
        virtual = (
            (number, address, functions[address].driver)
            for number, address in function.virtual
            if address in functions
        )
        devices.append(_rdma_device(function, fault, _groups(virtual), device.labels))
    return devices


def _groups(virtual: Iterable[tuple[int, str, str]]) -> tuple[VfGroup, ...]:
    """One group for each driver."""
    groups: dict[str, list[VirtualFunction]] = {}
    for number, bus, driver in sorted(virtual):
        groups.setdefault(driver, []).append(VirtualFunction(number, bus))
    return tuple(
        VfGroup({DRIVER: label_value(driver)} if driver else {}, tuple(functions))
        for driver, functions in sorted(groups.items())
    )


def _topology(function: Function) -> DeviceTopology:
    return DeviceTopology(function.socket, function.node, function.pcie, function.address)


def _condition(fault: tuple[str, str] | None) -> Condition:
    reason, message = fault or _HEALTHY
    return Condition(HEALTHY, "False" if fault else "True", reason, message, "")
