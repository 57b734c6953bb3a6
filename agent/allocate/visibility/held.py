"""All devices of a node, with the pods that have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent.allocate.visibility.shown import PodShown
from agent.model.devicefiles import DeviceFiles
from agent.model.devices import DeviceType
from agent.model.visible import DeviceNode, HeldDevice


def held(files: DeviceFiles, pods: Mapping[str, PodShown]) -> tuple[HeldDevice, ...]:
    """For hooks and the agent after us. An RDMA device is without its files: they are open to many
    at once, those of its functions are not."""
    holders: dict[str, list[str]] = {}
    for uid, pod in sorted(pods.items()):
        for device in pod.devices:
            holders.setdefault(device, []).append(uid)

    def one(uuid: str, nodes: Iterable[DeviceNode], index: str = "", card: str = "") -> HeldDevice:
        paths = tuple(each.path for each in nodes)
        return HeldDevice(uuid, index, card, paths, tuple(holders.get(uuid, ())))

    devices = []
    for each in files.cards or ():
        devices.append(one(each.gpu.uuid, each.gpu.nodes, each.gpu.index))
        devices += [
            one(
                part.uuid,
                (node for node in part.nodes if node not in each.gpu.nodes),
                part.index,
                each.gpu.uuid,
            )
            for part in each.instances
        ]
    for other in files.others:
        devices.append(one(other.uuid, () if other.type == DeviceType.RDMA else other.nodes))
        devices += [one(bus, nodes) for bus, nodes in sorted(other.functions.items())]
    return tuple(devices)
