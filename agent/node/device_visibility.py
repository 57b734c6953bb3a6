"""Device visibility: which devices each container of the node sees, for the snapshot."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from agent.allocate.present import in_api
from agent.allocate.visibility.pod_devices import (
    NO_ISOLATION,
    UNDECIDED,
    DevicePod,
    DeviceVisibility,
    Holders,
    Isolation,
    container_device_requests,
    held,
    pod_visibility,
)
from agent.host.files import host_path
from agent.model.cpu.topology import Topology
from agent.model.devices.device_files import DeviceFiles
from agent.model.devices.holding import DeviceHolding, Form, HoldingSource, ReportedDevices
from agent.model.devices.visibility import KUBELET_DIR, NodeVisibility, UnrequestedGpus, split
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod.pods import Pod
from agent.model.settings.agent import AgentSettings
from agent.node.cluster_view import ClusterCache, ClusterState
from agent.node.devices import DeviceState, DeviceView

_PARTS = frozenset({Form.INSTANCE, Form.FUNCTION})
_TAKES_NOTHING = frozenset({Form.OPEN, Form.CPUS})


class VisibilityPolicy(msgspec.Struct, frozen=True):
    """The settings of device visibility; see NodeVisibility and Isolation."""

    unrequested_gpus: UnrequestedGpus = "hide"
    cdi_kind: str = ""
    isolation: Isolation = NO_ISOLATION
    monitors: tuple[str, ...] = ()
    kubelet_dir: str = KUBELET_DIR


def policy(settings: AgentSettings) -> VisibilityPolicy:
    locks = os.path.join(settings.state_dir, "vgpulock")
    isolation = Isolation(settings.hami_core_library, locks)
    return VisibilityPolicy(
        settings.unrequested_gpus,
        settings.gpu_cdi_kind,
        isolation,
        tuple(split(settings.gpu_monitor_namespaces)),
        host_path(settings.root, settings.kubelet_dir),
    )


MAX_LOCK_BYTES: Final = 16 << 20
MAX_LOCK_FILES: Final = 16_384


def prepare(by: VisibilityPolicy) -> VisibilityPolicy:
    """Creates the lock folder that containers mount: a runtime does not create it for NRI, and
    otherwise creates one in which only root may create files. Makes it writable for every user if
    it is a file system of its own with limits; otherwise a pod could fill the one with the agent's
    state. Without that, `problem` says why, and containers that need the folder are refused. Raises
    OSError."""
    folder = by.isolation.lock_folder
    if not by.isolation.library:
        return by
    os.makedirs(folder, mode=0o755, exist_ok=True)
    problem = _lock_folder_problem(folder)
    if not problem:
        os.chmod(folder, 0o1777)
    isolation = msgspec.structs.replace(by.isolation, problem=problem)
    return msgspec.structs.replace(by, isolation=isolation)


def _lock_folder_problem(folder: str) -> str:
    if os.stat(folder).st_dev == os.stat(os.path.dirname(folder)).st_dev:
        return f"{folder} is not a file system of its own"
    filesystem = os.statvfs(folder)
    if filesystem.f_blocks * filesystem.f_frsize > MAX_LOCK_BYTES:
        return f"the file system {folder} has more than {MAX_LOCK_BYTES} bytes"
    if not 0 < filesystem.f_files <= MAX_LOCK_FILES:
        return f"the file system {folder} has room for more than {MAX_LOCK_FILES} files"
    return ""


def visibility(
    pods: Iterable[Pod],
    api_pods: Iterable[ApiPod],
    files: DeviceFiles,
    existing: Iterable[DeviceHolding] = (),
    by: VisibilityPolicy = VisibilityPolicy(),  # noqa: B008  a frozen value
    before: Holders = MappingProxyType({}),
) -> DeviceVisibility:
    """Decides which devices the containers of `pods` see. If two pods claim one device, it goes to
    the pod that held it, otherwise to one whose containers exist, otherwise to the older one. On a
    node without GPUs no GPU is hidden.

    `api_pods`: the pods whose requests are known.
    `existing`: devices that pods hold without an allocation of a scheduler.
    `by`: the settings.
    `before`: the holders at the last call."""
    ordered = sorted(pods, key=lambda pod: (not pod.containers, pod.created_at, pod.uid))
    requested = in_api(ordered, api_pods)
    decided = pod_visibility(
        [
            DevicePod(
                pod.uid,
                pod.title,
                pod.annotations,
                pod.labels,
                container_device_requests(requested[pod.uid]) if pod.uid in requested else None,
            )
            for pod in ordered
        ],
        files,
        by.isolation,
        _held_otherwise(existing, {pod.uid: pod.title for pod in ordered}),
        before,
        {pod.uid for pod in ordered if pod.containers},
    )
    unrequested_gpus = "leave" if files.cards == () else by.unrequested_gpus
    node = NodeVisibility(
        held(files, decided), unrequested_gpus, by.cdi_kind, by.monitors, by.kubelet_dir
    )
    return DeviceVisibility(decided, node)


class DeviceVisibilityView:
    """The devices of the node and the containers that see them.

    `devices`: the devices of the node; None when the settings switch devices off, and the agent
        decides nothing about them."""

    def __init__(self, devices: DeviceView | None, policy: VisibilityPolicy | None = None) -> None:
        self._devices = devices
        self._policy = policy or VisibilityPolicy()

    def observe(
        self,
        topology: Topology,
        cluster: ClusterState,
        cache: ClusterCache,
        pods: tuple[Pod, ...],
        reported_devices: tuple[ReportedDevices, ...],
        before: Holders,
    ) -> tuple[DeviceState, DeviceVisibility | None]:
        """The devices and their visibility, which is UNDECIDED until PCI could be listed and the
        numbers of the devices are known, from the Device object or from `cache`; None if the
        settings switch devices off.

        `before`: the holders at the last call."""
        if self._devices is None:
            return DeviceState(), None
        cached = cache.known
        published = cluster.devices or cached.devices
        state = self._devices.observe(topology, published, cached.node, pods, reported_devices)
        if state is None:
            return DeviceState(), UNDECIDED
        if published is not None:
            cache.store_devices(self._devices.state, self._devices.files)
        api_pods = cluster.pods.values()
        decided = visibility(pods, api_pods, state.files, state.existing, self._policy, before)
        return state, decided


def _held_otherwise(
    existing: Iterable[DeviceHolding], titles: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """The devices that pods hold without an allocation of a scheduler: by name, the title of each
    holder by its uid. A part of a card is listed under its own name, so that no other pod can hold
    the whole card."""
    holders: dict[str, dict[str, str]] = {}
    for holding in existing:
        if holding.source is HoldingSource.ALLOCATION or holding.form in _TAKES_NOTHING:
            continue
        # A share of an instance, `MIG-a::1`, holds the instance.
        key = holding.part.partition("::")[0] if holding.form in _PARTS else holding.device
        holders.setdefault(key, {})[holding.uid] = titles.get(holding.uid, holding.uid)
    return holders
