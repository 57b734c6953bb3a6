"""What containers have by our decisions, for those who ask the kubelet.

A kubelet lists the devices that its plugins gave and the CPUs of its own static policy. Where a
scheduler gave devices, hooks put them in the place of the plugin's; where a pod has CPUs of its own
or is held to a pool by its class, the kubelet's word on its CPUs is none. A pod that was refused
its devices keeps its plugin's, if anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from agent.model.corrections import ContainerCorrection, Corrections, OwnDevice, PodCorrection
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.devicefiles import DeviceFiles
from agent.model.devices import Device, DeviceType
from agent.model.pods import Pod
from agent.model.visible import Visible
from agent.model.wanted import PodWanted, Wanted


def corrections(
    pods: Iterable[Pod],
    wanted: Mapping[str, PodWanted],
    files: DeviceFiles,
    devices: Iterable[Device],
) -> Corrections:
    """`wanted` by pod uid, with what containers see. Pods of one name are left out: nobody could
    tell whose word it is."""
    pods = tuple(pods)
    of_name = Counter((pod.namespace, pod.name) for pod in pods)
    own = _Devices(files, devices)

    def of_container(want: Wanted) -> ContainerCorrection:
        return ContainerCorrection(_cpus(want), own.seen(want.visible or Visible()))

    found = {}
    for pod in pods:
        key, want = (pod.namespace, pod.name), wanted.get(pod.uid)
        if of_name[key] == 1 and want is not None:
            containers = {name: of_container(each) for name, each in want.containers.items()}
            found[key] = PodCorrection(of_container(want.each), containers)
    return found


def _cpus(wanted: Wanted) -> CpuSet | None:
    """To a kubelet, CPUs that are shared are none."""
    if wanted.cpuset is None:
        return None
    return CpuSet.parse(wanted.cpuset) if wanted.exclusive else EMPTY


class _Devices:
    """From what a container sees to the devices themselves."""

    def __init__(self, files: DeviceFiles, devices: Iterable[Device]) -> None:
        self._nodes: dict[str, tuple[int, ...]] = {
            device.uuid: (device.topology.node,)
            for device in devices
            if device.topology is not None and device.topology.node >= 0
        }
        self._by_path: dict[str, OwnDevice] = {}
        for card in files.cards or ():
            near = self._nodes.get(card.gpu.uuid, ())
            self._nodes |= {part.uuid: near for part in card.instances}
        for other in files.others:
            near = self._nodes.get(other.uuid, ())
            for node in other.nodes:
                self._by_path[node.path] = OwnDevice(other.uuid, near)
            for bus, nodes in other.functions.items():
                self._by_path |= {node.path: OwnDevice(bus, near) for node in nodes}

    def seen(self, visible: Visible) -> dict[str, tuple[OwnDevice, ...]]:
        """By type, those that were decided about; nothing of who was refused."""
        if visible.refused:
            return {}
        found: dict[str, tuple[OwnDevice, ...]] = {}
        if visible.gpus is not None:
            found[DeviceType.GPU.value] = tuple(
                OwnDevice(each.uuid, self._nodes.get(each.uuid, ())) for each in visible.gpus
            )
        for kind, nodes in visible.nodes.items():
            known = (self._by_path.get(node.path) for node in nodes)
            found[kind] = tuple(dict.fromkeys(each for each in known if each is not None))
        return found
