"""PCI functions and adapters below one switch, as discovered."""

from __future__ import annotations

from agent.model.devices.pci import Function, RdmaDevice, RdmaFunction, RdmaLink, RdmaPort

SWITCH = ("0000:17:00.0", "0000:18:00.0", "0000:19:04.0")


def function(bus: str, **others: object) -> Function:
    fields = {"root": "pci0000:17", "bridges": SWITCH, "node": 1, "socket": 0} | others
    return Function(f"0000:{bus}", **fields)  # type: ignore[arg-type]


def gpu_function(bus: str, driver: str = "nvidia", **others: object) -> Function:
    return function(bus, vendor=0x10DE, class_code=0x030200, driver=driver, **others)


def nic(bus: str, *states: str, name: str = "mlx5_0", **others: object) -> RdmaDevice:
    ports = tuple(RdmaPort(n, state, link_layer="InfiniBand") for n, state in enumerate(states, 1))
    return RdmaDevice(RdmaFunction(function(bus, **others), (RdmaLink(name, ports=ports),)))


def by_address(*functions: Function) -> dict[str, Function]:
    return {each.address: each for each in functions}
