"""The NUMA nodes of the devices of each container, by whatever way it got them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from agent.allocate.device_holders.names import Keys
from agent.model.cpu.cpuset import CpuSet
from agent.model.devices.device_object import Device
from agent.model.devices.holding import DeviceHolding, DeviceNodes, HoldingSource

_OF_PLUGIN = frozenset({HoldingSource.CHECKPOINT, HoldingSource.ANSWER})


def device_nodes(
    plugins: DeviceNodes,
    holdings: Iterable[DeviceHolding],
    allocated: Mapping[tuple[str, str], Collection[str]],
    devices: Iterable[Device],
    keys: Keys,
) -> DeviceNodes:
    """The NUMA nodes of all devices of the containers that have some. What a device plugin says of
    its own device counts instead of what the machine shows.

    `plugins`: what device plugins say of the devices that they gave.
    `holdings`: the devices that containers hold without an allocation of a scheduler.
    `allocated`: the names of the devices that a scheduler allocated, by pod uid and container name.
    `devices`: all devices of the machine.
    `keys`: the devices by each of their names."""
    node_of = {
        (device.type, device.uuid): device.topology.node
        for device in devices
        if device.topology is not None
    }

    def nodes_of(device: tuple[str, str]) -> CpuSet:
        node = node_of.get(device, -1)
        return CpuSet((node,) if node >= 0 else ())

    located: dict[tuple[str, str], list[CpuSet]] = {
        key: list(of_container) for key, of_container in plugins.items() if of_container
    }
    placed_by_plugin = {key for key, of_container in located.items() if any(of_container)}
    for each in holdings:
        container = each.uid, each.container
        if each.device and not (each.source in _OF_PLUGIN and container in placed_by_plugin):
            located.setdefault(container, []).append(nodes_of((each.type, each.device)))
    for container, names in allocated.items():
        for name in sorted(names):
            if target := keys.get(name):
                nodes = nodes_of((target.type, target.device))
                located.setdefault(container, []).append(nodes)
    return {container: tuple(nodes) for container, nodes in located.items()}
