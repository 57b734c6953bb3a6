"""All devices of a node as the Device object has them, from what each source found.

Nothing that was there is lost for a moment's sake: a card that the driver tells no more of while
its PCI function is there stays, ill; so does an RDMA device whose files are gone, which is well
while a pod holds it: it went into the pod's own network namespace.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from agent.model import minors
from agent.model.cards import Card
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
from agent.model.nodestatus import FPGA, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, RDMA, label_value
from agent.model.pci import Function, address, address_key
from agent.model.rdma import RdmaDevice

HEALTHY: Final = "Healthy"
LINKS: Final = "topolet.io/links"
LINK_LAYER: Final = "topolet.io/link-layer"
DRIVER: Final = "topolet.io/driver"
DIVIDED: Final = "topolet.io/mig"
FUNCTION_ID: Final = "topolet.io/function-id"
INTERFACE_ID: Final = "topolet.io/interface-id"

_WELL: Final = ("DeviceHealthy", "device is healthy")
_NVIDIA: Final = 0x10DE
_DISPLAY: Final = 0x03
_NVIDIA_DRIVERS: Final = frozenset({"", "nvidia"})
"""Another one (`vfio-pci`) has taken a card on purpose."""


class Found(msgspec.Struct, frozen=True):
    """What there is. `functions`: all of PCI, by address."""

    functions: Mapping[str, Function] = {}
    cards: tuple[Card, ...] = ()
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


def inventory(
    found: Found,
    before: Published,
    now: str,
    held: Collection[tuple[str, str]] = (),
) -> Inventory:
    """`now` in RFC 3339, for conditions that change; `held`: type and id of the devices that pods
    hold."""
    known = minors.known(before.devices, before.gone)
    earlier = {(device.type, device.uuid): device for device in before.devices}
    problems: list[str] = []
    cards = _cards(found, before.devices, problems)
    rdma = [_rdma(each) for each in found.rdma]
    rdma += _hidden(found, before.devices, {each.uuid for each in rdma}, held)
    fpgas = _fpgas(found.fpgas)
    by_driver = {card.uuid: card.minor for card in found.cards if card.minor is not None}
    devices = [
        *_with_minors(cards, known.get(DeviceType.GPU, {}) | by_driver),
        *_with_minors(_by_address(rdma), known.get(DeviceType.RDMA, {})),
        *_with_minors(_by_address(fpgas), known.get(DeviceType.FPGA, {})),
    ]
    ordered = sorted(devices, key=lambda each: (each.type, each.minor))
    told = tuple(_since(each, earlier.get((each.type, each.uuid)), now) for each in ordered)
    return Inventory(told, minors.gone(known, told), tuple(problems))


def _cards(found: Found, before: Iterable[Device], problems: list[str]) -> list[Device]:
    """Those of the driver, then those that it lost, all without a valid minor."""
    cards: dict[str, Device] = {}
    told = set()
    for card in sorted(found.cards, key=lambda each: address_key(address(each.address))):
        if card.uuid in cards:
            problems.append(f"GPU {card.uuid}: two cards have this UUID")
            continue
        told.add(address(card.address))
        cards[card.uuid] = _card(card, found.functions)
    known = {
        device.topology.bus: device
        for device in before
        if device.type == DeviceType.GPU and device.topology and device.topology.bus
    }
    for function in found.functions.values():
        if function.address in told or not _is_card(function):
            continue
        device = known.get(function.address)
        if device is None or device.uuid in cards:
            problems.append(f"GPU at {function.address}: its driver does not tell of it")
        else:
            reason = ("NotSeenByDriver", f"PCI shows it at {function.address}, its driver does not")
            cards[device.uuid] = _ill(device, reason)
    return list(cards.values())


def _is_card(function: Function) -> bool:
    return (
        function.vendor == _NVIDIA
        and (function.class_code or 0) >> 16 == _DISPLAY
        and not function.physical
        and function.driver in _NVIDIA_DRIVERS
    )


def _card(card: Card, functions: Mapping[str, Function]) -> Device:
    """One that is divided gives nothing as a whole, and says so in zeros: schedulers take a
    resource that is not listed for one without limit."""
    share = 0 if card.divided else 1
    bus = address(card.address)
    return Device(
        type=DeviceType.GPU,
        uuid=card.uuid,
        minor=-1,
        resources={
            GPU_CORE: 100 * share,
            GPU_MEMORY: card.memory_bytes * share,
            GPU_MEMORY_RATIO: 100 * share,
        },
        healthy=card.ill is None,
        module=card.module,
        topology=_topology(functions.get(bus) or Function(bus)),
        conditions=(_condition(card.ill),),
        labels=card.labels | ({DIVIDED: "true"} if card.divided else {}),
    )


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
    """A condition keeps its time while its status stays."""
    times = {each.type: each for each in before.conditions} if before else {}
    conditions = []
    for each in device.conditions:
        old = times.get(each.type)
        time = old.last_transition_time if old and old.status == each.status else ""
        conditions.append(msgspec.structs.replace(each, last_transition_time=time or now))
    return msgspec.structs.replace(device, conditions=tuple(conditions))


def _by_address(devices: Iterable[Device]) -> list[Device]:
    return sorted(devices, key=lambda each: address_key(each.uuid))


def _with_minors(devices: list[Device], known: Mapping[str, int]) -> list[Device]:
    numbers = minors.numbered((each.uuid for each in devices), known)
    return [msgspec.structs.replace(each, minor=numbers[each.uuid]) for each in devices]
