"""The kubelet's PodResources API on a socket of the agent, corrected by its decisions, for
exporters.

The kubelet lists the devices of its plugins and the CPUs of its own static policy. When a scheduler
allocated devices, the hooks replaced those of the plugin. When a pod owns CPUs, or its class
restricts it to a pool, the kubelet's CPUs do not apply. A pod whose allocation was refused keeps
the devices of the plugin.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from agent.allocate.visibility.pod_devices import DeviceVisibility
from agent.kubelet.podresources import CorrectedLister, Known
from agent.model.cpu.cpuset import CpuSet
from agent.model.devices.device_files import DeviceFiles
from agent.model.devices.device_object import Device, DeviceType
from agent.model.devices.visibility import Visibility
from agent.model.pod.pod_resources import (
    ContainerCorrection,
    CorrectedDevice,
    Corrections,
    PodCorrection,
)
from agent.model.pod.pods import Pod
from agent.model.snapshot import PodWanted, Wanted
from agent.node.devices import DeviceState

log = logging.getLogger(__name__)

_GRACE_SECONDS = 2.0


class PodResourcesServer(Protocol):
    """A server whose socket listens."""

    def start(self) -> None:
        """Starts to answer."""
        ...

    def stop(self, grace_seconds: float) -> None:
        """Waits for the calls in progress, at most `grace_seconds`."""
        ...


Serve = Callable[[Callable[[str, bytes], bytes]], PodResourcesServer]
"""Creates a server from a function of method and request, which raises RpcError. Raises OSError."""


class CorrectedPodResources:
    """Serves the corrected answers. Before the first `update` callers get UNAVAILABLE."""

    def __init__(self, kubelet_socket: str, serve: Serve) -> None:
        self._lister = CorrectedLister(kubelet_socket, lambda: self._known)
        self._serve = serve
        self._known: Known | None = None
        self._server: PodResourcesServer | None = None

    def start(self) -> None:
        """Raises OSError."""
        self._server = self._serve(self._lister.answer)
        self._server.start()
        log.info("corrected PodResources are served")

    def update(
        self,
        pods: Iterable[Pod],
        wanted: Mapping[str, PodWanted],
        devices: DeviceState,
        visibility: DeviceVisibility | None,
    ) -> None:
        """Replaces the corrections in force."""
        shown = visibility.pods if visibility else {}
        with_devices = {
            uid: each.with_visible(shown[uid].each, shown[uid].containers) if uid in shown else each
            for uid, each in wanted.items()
        }
        corrected = corrections(pods, with_devices, devices.files, devices.report.devices)
        self._known = corrected, devices.keys

    def close(self) -> None:
        if self._server is not None:
            self._server.stop(_GRACE_SECONDS)
        self._lister.close()


def corrections(
    pods: Iterable[Pod],
    wanted: Mapping[str, PodWanted],
    files: DeviceFiles,
    devices: Iterable[Device],
) -> Corrections:
    """The corrections by the name of a pod. Pods that have the same name as another one are left
    out, because the kubelet's list has no uids.

    `wanted`: by pod uid, with the visible devices."""
    pods = tuple(pods)
    of_name = Counter((pod.namespace, pod.name) for pod in pods)
    own = _Devices(files, devices)

    def of_container(container: Wanted) -> ContainerCorrection:
        return ContainerCorrection(_cpus(container), own.seen(container.visible or Visibility()))

    by_name = {}
    for pod in pods:
        key, decided = (pod.namespace, pod.name), wanted.get(pod.uid)
        if of_name[key] == 1 and decided is not None:
            containers = {
                name: of_container(container) for name, container in decided.containers.items()
            }
            by_name[key] = PodCorrection(of_container(decided.each), containers)
    return by_name


def _cpus(wanted: Wanted) -> CpuSet | None:
    """The CPUs of an owner; PodResources lists exclusive CPUs only."""
    if wanted.cpuset is None:
        return None
    return wanted.own


class _Devices:
    """Finds the devices that a container sees, by the files that it sees."""

    def __init__(self, files: DeviceFiles, devices: Iterable[Device]) -> None:
        self._nodes: dict[str, tuple[int, ...]] = {
            device.uuid: (device.topology.node,)
            for device in devices
            if device.topology is not None and device.topology.node >= 0
        }
        self._by_path: dict[str, CorrectedDevice] = {}
        for card in files.cards or ():
            near = self._nodes.get(card.gpu.uuid, ())
            self._nodes |= {part.uuid: near for part in card.instances}
        for other in files.others:
            near = self._nodes.get(other.uuid, ())
            for node in other.nodes:
                self._by_path[node.path] = CorrectedDevice(other.uuid, near)
            for bus, nodes in other.functions.items():
                self._by_path |= {node.path: CorrectedDevice(bus, near) for node in nodes}

    def seen(self, visible: Visibility) -> dict[str, tuple[CorrectedDevice, ...]]:
        """By type, the devices that a container sees; empty for a pod whose allocation was
        refused."""
        if visible.refused:
            return {}
        by_type: dict[str, tuple[CorrectedDevice, ...]] = {}
        if visible.gpus is not None:
            by_type[DeviceType.GPU.value] = tuple(
                CorrectedDevice(each.uuid, self._nodes.get(each.uuid, ())) for each in visible.gpus
            )
        for kind, nodes in visible.nodes.items():
            held = (self._by_path.get(node.path) for node in nodes)
            by_type[kind] = tuple(dict.fromkeys(each for each in held if each is not None))
        return by_type
