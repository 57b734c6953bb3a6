"""All devices of a node as the Device object has them, from what each source found.

An RDMA device whose files are gone while its PCI function is there stays: it is well while a pod
holds it, as it went into the pod's own network namespace, and ill otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from agent.model import deviceobject, minors
from agent.model.annotations import AnnotationError
from agent.model.devices import (
    Condition,
    Device,
    DeviceTopology,
    DeviceType,
    VfGroup,
    VirtualFunction,
)
from agent.model.fpga import Fpga
from agent.model.minors import Minors
from agent.model.nodestatus import FPGA, RDMA, label_value
from agent.model.pci import Function, address_key
from agent.model.rdma import RdmaDevice

HEALTHY: Final = "Healthy"
LINKS: Final = "topolet.io/links"
LINK_LAYER: Final = "topolet.io/link-layer"
DRIVER: Final = "topolet.io/driver"
FUNCTION_ID: Final = "topolet.io/function-id"
INTERFACE_ID: Final = "topolet.io/interface-id"

_WELL: Final = ("DeviceHealthy", "device is healthy")
_NVIDIA: Final = 0x10DE
_DISPLAY: Final = 0x03
_NVIDIA_DRIVERS: Final = frozenset({"", "nvidia"})


class Found(msgspec.Struct, frozen=True):
    """What there is. `functions`: all of PCI, by address; `gpus` as their driver's reader made
    them, with their places from `places`."""

    functions: Mapping[str, Function] = {}
    gpus: tuple[Device, ...] = ()
    rdma: tuple[RdmaDevice, ...] = ()
    fpgas: tuple[Fpga, ...] = ()


class Published(msgspec.Struct, frozen=True):
    """What the Device object says so far; nothing on a node that is new."""

    devices: tuple[Device, ...] = ()
    gone: Minors = {}


class Inventory(msgspec.Struct, frozen=True):
    """By type and minor. `gone`: numbers to be remembered."""

    devices: tuple[Device, ...]
    gone: Minors
    problems: tuple[str, ...] = ()


def published(body: object) -> tuple[Published, tuple[str, ...]]:
    """Of a Device object, and problems; numbers that can't be read are those of its devices alone.
    Raises ObjectError."""
    devices = deviceobject.decode(body)
    metadata = body.get("metadata") if isinstance(body, dict) else None
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    try:
        return Published(devices, minors.decode(annotations or {})), ()
    except AnnotationError as error:
        return Published(devices), (str(error),)


def inventory(
    found: Found,
    before: Published,
    now: str,
    held: Collection[tuple[str, str]] = (),
) -> Inventory:
    """`now` in RFC 3339, for conditions that change; `held`: type and id of the devices that pods
    hold."""
    numbered_here = (each for each in before.devices if each.type != DeviceType.GPU)
    known = minors.known(numbered_here, before.gone)
    earlier = {(device.type, device.uuid): device for device in before.devices}
    problems: list[str] = []
    rdma = [_rdma(each) for each in found.rdma]
    rdma += _hidden(found, before.devices, {each.uuid for each in rdma}, held)
    fpgas = _fpgas(found.fpgas)
    devices = [
        *_unlike(found.gpus, problems),
        *_with_minors(_by_address(rdma), known.get(DeviceType.RDMA, {})),
        *_with_minors(_by_address(fpgas), known.get(DeviceType.FPGA, {})),
    ]
    ordered = sorted(devices, key=lambda each: (each.type, each.minor))
    told = tuple(_since(each, earlier.get((each.type, each.uuid)), now) for each in ordered)
    return Inventory(told, minors.gone(known, told), tuple(problems))


def places(functions: Mapping[str, Function]) -> dict[str, DeviceTopology]:
    """Where each function sits, by address."""
    return {each.address: _topology(each) for each in functions.values()}


def nvidia_cards(functions: Mapping[str, Function]) -> tuple[str, ...]:
    """Addresses of the GPUs that NVIDIA's driver should tell of; one that another driver has
    (`vfio-pci`) was taken on purpose."""
    return tuple(
        each.address
        for each in functions.values()
        if each.vendor == _NVIDIA
        and (each.class_code or 0) >> 16 == _DISPLAY
        and not each.physical
        and each.driver in _NVIDIA_DRIVERS
    )


def _unlike(gpus: Iterable[Device], problems: list[str]) -> Iterator[Device]:
    """Without a second one of a minor or UUID, which nobody could tell apart."""
    seen: set[str | int] = set()
    for gpu in sorted(gpus, key=lambda each: (each.minor, each.uuid)):
        if gpu.minor in seen or gpu.uuid in seen:
            problems.append(f"GPU {gpu.uuid}, minor {gpu.minor}: another one has that name")
        else:
            seen |= {gpu.minor, gpu.uuid}
            yield gpu


def _rdma(device: RdmaDevice) -> Device:
    physical = device.physical
    ill = None
    if not physical.active:
        ill = ("LinkDown", f"no port is active: {', '.join(physical.down)}")
    layers = {port.link_layer for link in physical.links for port in link.ports} - {""}
    labels = {
        LINKS: label_value(".".join(link.name for link in physical.links)),
        LINK_LAYER: label_value(layers.pop() if len(layers) == 1 else ""),
    }
    return Device(
        type=DeviceType.RDMA,
        uuid=physical.address,
        minor=-1,
        resources={RDMA: 100},
        healthy=ill is None,
        topology=_topology(physical.function),
        conditions=(_condition(ill),),
        vf_groups=_groups(
            (each.number or 0, each.address, each.function.driver) for each in device.virtual
        ),
        labels={key: value for key, value in labels.items() if value},
    )


def _hidden(
    found: Found,
    before: Iterable[Device],
    seen: Collection[str],
    held: Collection[tuple[str, str]],
) -> list[Device]:
    reason = ("NotVisible", "its PCI function is there, its RDMA interface is not")
    return [
        device if (device.type, device.uuid) in held else _ill(device, reason)
        for device in before
        if device.type == DeviceType.RDMA
        and device.uuid not in seen
        and device.uuid in found.functions
    ]


def _fpgas(fpgas: Iterable[Fpga]) -> list[Device]:
    """A virtual function is a device of its own only where its physical one is not here."""
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
        ill = None if ports else ("NoAcceleratorPort", "it has no port to reach it by")
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
                healthy=ill is None,
                topology=_topology(each.function),
                conditions=(_condition(ill),),
                vf_groups=_groups(
                    (number, other.address, other.function.driver) for number, other in virtual
                ),
                labels={key: value for key, value in labels.items() if value},
            )
        )
    return devices


def _groups(virtual: Iterable[tuple[int, str, str]]) -> tuple[VfGroup, ...]:
    """Those of one driver are alike."""
    groups: dict[str, list[VirtualFunction]] = {}
    for number, bus, driver in sorted(virtual):
        groups.setdefault(driver, []).append(VirtualFunction(number, bus))
    return tuple(
        VfGroup({DRIVER: label_value(driver)} if driver else {}, tuple(functions))
        for driver, functions in sorted(groups.items())
    )


def _topology(function: Function) -> DeviceTopology:
    return DeviceTopology(function.socket, function.node, function.pcie, function.address)


def _condition(ill: tuple[str, str] | None) -> Condition:
    reason, message = ill or _WELL
    return Condition(HEALTHY, "False" if ill else "True", reason, message, "")


def _ill(device: Device, ill: tuple[str, str]) -> Device:
    others = tuple(each for each in device.conditions if each.type != HEALTHY)
    return msgspec.structs.replace(device, healthy=False, conditions=(*others, _condition(ill)))


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
