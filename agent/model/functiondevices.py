"""What PCI functions are for the Device object: RDMA devices, FPGAs, and where all of them sit.

They have no numbers yet (`minor` is -1) and no times: those are the list's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from agent.model.deviceobject import (
    Condition,
    Device,
    DeviceTopology,
    DeviceType,
    VfGroup,
    VirtualFunction,
)
from agent.model.nodestatus import FPGA, RDMA, label_value
from agent.model.pci import Fpga, Function, RdmaDevice

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


def places(functions: Mapping[str, Function]) -> dict[str, DeviceTopology]:
    """Where each function sits, by address."""
    return {each.address: _topology(each) for each in functions.values()}


def nvidia_cards(functions: Mapping[str, Function]) -> tuple[str, ...]:
    """Addresses of the GPUs that NVIDIA's driver should list. A GPU of another driver (`vfio-pci`)
    was taken on purpose."""
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
    """A device stays while its function exists without files: healthy while a pod holds it (`held`:
    by type and id), as it moved into the pod's network namespace, otherwise unhealthy."""
    seen = [_rdma(each) for each in rdma]
    return seen + _hidden(functions, before, {each.uuid for each in seen}, held)


def fpga_devices(fpgas: Iterable[Fpga]) -> list[Device]:
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
    virtual = ((each.number or 0, each.address, each.function.driver) for each in device.virtual)
    return _rdma_device(physical.function, ill, _groups(virtual), labels)


def _rdma_device(
    function: Function,
    ill: tuple[str, str] | None,
    groups: tuple[VfGroup, ...],
    labels: Mapping[str, str],
) -> Device:
    return Device(
        type=DeviceType.RDMA,
        uuid=function.address,
        minor=-1,
        resources={RDMA: 100},
        healthy=ill is None,
        topology=_topology(function),
        conditions=(_condition(ill),),
        vf_groups=groups,
        labels={key: value for key, value in labels.items() if value},
    )


def _hidden(
    functions: Mapping[str, Function],
    before: Iterable[Device],
    seen: Collection[str],
    held: Collection[tuple[str, str]],
) -> list[Device]:
    """Matched by address and labels alone: other fields may have been withheld."""
    devices = []
    for device in before:
        function = functions.get(device.uuid)
        if device.type != DeviceType.RDMA or device.uuid in seen or function is None:
            continue
        ill = None
        if (device.type, device.uuid) not in held:
            ill = ("NotVisible", "its PCI function is there, its RDMA interface is not")
        virtual = (
            (number, address, functions[address].driver)
            for number, address in function.virtual
            if address in functions
        )
        devices.append(_rdma_device(function, ill, _groups(virtual), device.labels))
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
