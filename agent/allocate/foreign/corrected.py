"""The devices and CPUs that containers have by our decisions, for clients of the kubelet. A kubelet
lists the devices of its plugins and the CPUs of its own static policy. When a scheduler allocated
devices, hooks replaced those of the plugin; when a pod owns CPUs or its class holds it to a pool,
the kubelet's CPUs do not count. A pod whose devices were refused keeps its plugin's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from agent.model.cpuset import EMPTY, CpuSet
from agent.model.devicefiles import DeviceFiles
from agent.model.devices import Device, DeviceType
from agent.model.podresources import ContainerCorrection, Corrections, OwnDevice, PodCorrection
from agent.model.pods import Pod
from agent.model.visible import Visible
from agent.model.wanted import PodWanted, Wanted


def corrections(
    pods: Iterable[Pod],
    wanted: Mapping[str, PodWanted],
    files: DeviceFiles,
    devices: Iterable[Device],
) -> Corrections:
    """`wanted` by pod uid, with the visible devices. Omits pods of one name: the kubelet's list has
    no uids."""
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
        """By type, the decided devices; none of a refused pod."""
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
