"""The node's devices: PCI, RDMA and FPGAs from sysfs, GPUs from a child process with NVML, and
devices that the kubelet's device plugins gave to pods.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from agent.allocate.device_holders.holdings import (
    allocated_by_schedulers,
    held_by_two_pods,
    resolve_holdings,
    taken,
    without_taken,
)
from agent.allocate.device_holders.names import Keys, keys
from agent.discover.sysfs import SysfsReader
from agent.discover.sysfs_devices import SysfsDevices
from agent.host.files import Tree
from agent.kube.objects import rfc3339
from agent.model.cpu.topology import Topology
from agent.model.devices import holding, interconnect
from agent.model.devices.device_allocation import (
    AllocatedDevices,
    DeviceAmounts,
    amounts,
    names,
    renumbered,
    sum_amounts,
)
from agent.model.devices.device_files import NO_FILES, DeviceFiles, capabilities, device_files
from agent.model.devices.device_object import Device, DeviceType
from agent.model.devices.gpus import Gpu, GpuReading, GpuReport
from agent.model.devices.holding import DeviceHolding, Form, HoldingSource, ReportedDevices
from agent.model.devices.pci import Function
from agent.model.devices.visibility import DeviceNode
from agent.model.pod.annotations import AnnotationError
from agent.model.pod.apiobjects import ApiNode
from agent.model.pod.pods import Pod
from agent.model.settings.agent import AgentSettings
from agent.model.settings.options import SettingsError
from agent.node import device_listing as listing
from agent.node import gpu_health, gpus
from agent.node.device_listing import (
    DiscoveredDevices,
    Published,
    device_list,
    nvidia_cards,
    places,
)
from agent.node.gpu_health import GpuActionError, GpuActions, GpuHealth
from agent.node.gpus import GpuView
from agent.node.kubelet_view import DeviceCheckpointView
from agent.node.network_devices import NetworkDevices, of_containers
from agent.node.node_resource_topology import DeviceReport
from agent.node.sources import SourceName, Sources

if TYPE_CHECKING:
    from agent.discover.gpuwatcher import GpuWatcher

log = logging.getLogger(__name__)


_LONGEST: Final = 64


class DeviceState(msgspec.Struct, frozen=True):
    """The devices of the node in one pass."""

    report: DeviceReport = DeviceReport()
    """For the cluster."""
    files: DeviceFiles = DeviceFiles()
    """How containers reach the devices."""
    existing: tuple[DeviceHolding, ...] = ()
    """Devices that pods hold without an allocation of a scheduler."""
    readings: tuple[GpuReading, ...] = ()
    """The last readings of the GPUs."""
    keys: Keys = {}
    """The devices by each of their names."""
    missing: tuple[str, ...] = ()
    """PCI addresses of GPUs that the driver does not list."""
    fault: str = ""
    """Why the driver could not be queried."""
    functions: Mapping[str, Function] = {}
    """All PCI functions by address."""
    network: Mapping[tuple[str, str], tuple[str, ...]] = {}
    """By pod uid and container name, the addresses of the PCI functions whose interfaces are in the
    network namespace of the pod."""


class DeviceView:
    """Observes the devices of the node. It starts from the Device object of the last agent, so that
    devices keep their numbers and conditions.

    `root`: where the host's /sys and /proc are.
    `watch`: makes the watcher of GPUs.
    `withhold`: the Device object omits devices that a device plugin gave to pods.
    `files`: the files that the last agent found.
    `network`: finds network devices in the namespaces of pods; None if they are not searched."""

    def __init__(
        self,
        root: str,
        watch: Callable[[], GpuWatcher],
        actions: GpuActions,
        checkpoint: DeviceCheckpointView,
        *,
        withhold: bool = False,
        files: DeviceFiles = NO_FILES,
        sources: Sources | None = None,
        network: NetworkDevices | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._network = network
        self._root = root
        self._withhold = withhold
        self._plugged = SysfsDevices(root)
        self._gpus = GpuView(root, watch, actions)
        self.files = files
        """How containers reach the devices, also those that are not visible now."""
        self._cards_before = files.cards or ()
        self._links: interconnect.Links | None = None
        self._table: interconnect.PartitionTable = {}
        self._begun = False
        self.state = Published()
        """The next state of the Device object."""
        self._sources = sources or Sources()
        self._plugin_devices: frozenset[tuple[str, str]] = frozenset()
        """Type and id of whole devices, at the last call of `observe`."""
        self._foreign: frozenset[str] = frozenset()
        self._unproven: frozenset[str] = frozenset()

    @property
    def sysfs(self) -> SysfsDevices:
        """What sysfs showed at the last call of `observe`."""
        return self._plugged

    def gpu_report(self) -> GpuReport | None:
        """What the GPUs' driver reported last; None without GPUs."""
        return self._gpus.report()

    def rescan(self) -> None:
        """To be called when a device was plugged in or removed."""
        self._plugged.rescan()
        self._gpus.rescan()

    def close(self) -> None:
        """Ends the child."""
        self._gpus.close()

    def observe(
        self,
        topology: Topology,
        published: Published | None,
        node: ApiNode,
        pods: Collection[Pod],
        reported_devices: Iterable[ReportedDevices] = (),
    ) -> DeviceState | None:
        """The devices in this pass; None before PCI could be listed, and on a node with devices
        before `published` is known. What can't be read is logged once. Raises RpcError when the
        runtime does not answer.

        `published`: the Device object when the agent started, None while it is not known.
        `reported_devices`: devices that the kubelet gave to pods according to PodResources, and
            those that containers show."""
        plugged = self._plugged
        plugged.update(topology)
        if not plugged.known:
            self._report(plugged.problems)
            return None
        if published is not None and not self._begun:
            self._begun = True
            self.state = published
            self._gpus.begin(published)
        expected = nvidia_cards(plugged.functions)
        if not self._begun and (plugged.rdma.devices or plugged.fpgas.devices or expected):
            return None
        release, release_problems = _release(node)
        health = self._gpus.observe(expected, release=release)
        cards = [card.gpu for card in health.cards]
        allocations, problems = allocated_by_schedulers(pods)
        self._log_foreign(pods, allocations)
        self.state = numbered = self._numbered(topology, node, health, allocations)
        device_keys = keys(numbered.devices, cards, plugged.rdma.devices, plugged.fpgas.devices)
        moved = self._network.observe(plugged.functions, pods) if self._network else {}
        network = of_containers(moved, pods) if moved else {}
        resolved = resolve_holdings(
            (
                *reported_devices,
                *self._checkpoint.reported_devices(),
                *_known(network, device_keys),
            ),
            device_keys,
            {uid: names(of_pod, numbered.devices) for uid, of_pod in allocations.items()},
            {pod.uid for pod in pods},
        )
        self._unproven = _logged(resolved.unproven, self._unproven)
        self._plugin_devices = frozenset(
            (holding.type, holding.device)
            for holding in resolved.holdings
            if holding.form is Form.WHOLE
        )
        held = {
            uid: amounts(renumbered(of_pod, numbered.devices))
            for uid, of_pod in allocations.items()
        }
        self.files = self._files(numbered.devices, cards, expected)
        refused = held_by_two_pods(
            held, numbered.devices, resolved.holdings, {pod.uid: pod for pod in pods}
        )
        missing = self._missing(health, node, cards)
        self._report(
            (
                *plugged.problems,
                *release_problems,
                *missing,
                *problems,
                *resolved.problems,
                *refused,
            )
        )
        return DeviceState(
            self._device_report(numbered, resolved.holdings, held),
            self.files,
            resolved.holdings,
            self._gpus.readings,
            device_keys,
            health.unclaimed,
            self._gpus.fault,
            plugged.functions,
            network,
        )

    def _numbered(
        self,
        topology: Topology,
        node: ApiNode,
        health: GpuHealth,
        allocations: Mapping[str, AllocatedDevices],
    ) -> Published:
        """The next state of the Device object: the discovered devices with their numbers. A device
        that a pod holds keeps its number while it is missing.

        `allocations`: by pod uid."""
        plugged = self._plugged
        cards = [card.gpu for card in health.cards]
        listed = device_list(
            DiscoveredDevices(
                plugged.functions,
                gpus.device_entries(
                    health,
                    places(plugged.functions),
                    gpus.cordoned(node.annotations, cards, released=self._gpus.released),
                    sum(numa_node.memory_bytes for numa_node in topology.numa_nodes),
                ),
                plugged.rdma.devices,
                plugged.fpgas.devices,
            ),
            self.state,
            rfc3339(int(time.time())),
            self._plugin_devices.union(
                (kind, name)
                for of_pod in allocations.values()
                for kind, of_kind in names(of_pod, self.state.devices).items()
                for name in of_kind
            ),
        )
        return Published(listed.devices, listed.gone, self._gpus.info, self._gpus.pairs)

    def _device_report(
        self,
        published: Published,
        holdings: tuple[DeviceHolding, ...],
        held: Mapping[str, DeviceAmounts],
    ) -> DeviceReport:
        """The report of these devices.

        `holdings`: devices that pods hold without an allocation.
        `held`: by pod uid, the amounts of its allocation."""
        links = interconnect.link_matrix(published.devices, self._gpus.pairs)
        if links != self._links:
            # This takes 50 ms with sixteen cards.
            self._links, self._table = links, interconnect.gpu_partitions(links)
        return DeviceReport(
            published.devices,
            self._gpus.info,
            {
                **listing.encode_gone(published.gone),
                **interconnect.encode_partitions(self._table),
                **interconnect.encode_links(published.devices, self._gpus.pairs),
                **holding.encode(holdings),
            },
            sum_amounts([*held.values(), taken(holdings, published.devices)]),
            without_taken(published.devices, holdings) if self._withhold else None,
        )

    def _log_foreign(
        self, pods: Collection[Pod], allocations: Mapping[str, AllocatedDevices]
    ) -> None:
        """Logs once the devices of each pod that their plugin has to pass to its containers,
        because their type is not known here."""
        types = frozenset(each.value for each in DeviceType)
        texts = frozenset(
            f"pod {pod.title}: the files of its allocated devices of type {kind[:_LONGEST]!r} are"
            " not known here: their device plugin has to pass them to the containers"
            for pod in pods
            for kind in allocations.get(pod.uid, {}).keys() - types
        )
        self._foreign = _logged(texts, self._foreign)

    def _files(
        self, devices: tuple[Device, ...], cards: list[Gpu], expected: tuple[str, ...]
    ) -> DeviceFiles:
        files = device_files(
            devices,
            cards if cards or not expected else None,
            self._plugged.rdma,
            self._plugged.fpgas,
            self._capabilities() if any(each.instances for each in cards) else {},
            self.files,
        )
        if not files.cards or self._gpus.answered:
            return files
        # The published state of cards has neither numbers nor instances.
        before = {each.gpu.uuid: each for each in self._cards_before}
        return msgspec.structs.replace(
            files, cards=tuple(before.get(each.gpu.uuid, each) for each in files.cards)
        )

    def _missing(self, health: GpuHealth, node: ApiNode, cards: list[Gpu]) -> Iterator[str]:
        """Why GPUs are missing, and the cordons of unknown GPUs."""
        if self._gpus.fault:
            yield f"GPUs: {self._gpus.fault}: {self._gpus.message}"
        else:
            for bus in health.unclaimed:
                yield f"GPU at {bus}: PCI lists it, its driver does not list it"
        if cards:
            for each in gpus.unknown_cordons(node.annotations, cards):
                yield f"Node: {each}"

    def _capabilities(self) -> dict[str, DeviceNode]:
        reader = SysfsReader(Tree(self._root))
        paths = "proc/driver/nvidia-caps/mig-minors", "proc/devices"
        return capabilities(*(reader.text(path) or "" for path in paths))

    def _report(self, problems: Iterable[str]) -> None:
        self._sources.report(SourceName.DEVICES, problems)


def configured_actions(settings: AgentSettings) -> GpuActions:
    """Raises SettingsError."""
    try:
        return gpu_health.parse_actions(settings.gpu_actions)
    except GpuActionError as error:
        raise SettingsError(f"gpu-actions: {error}") from None


def device_view(
    settings: AgentSettings,
    wake: Callable[[], None],
    checkpoint: DeviceCheckpointView,
    files: DeviceFiles = NO_FILES,
    sources: Sources | None = None,
    network: NetworkDevices | None = None,
) -> DeviceView | None:
    """The view that the settings configure; None when they switch devices off. Raises
    SettingsError."""
    actions = configured_actions(settings)
    if not settings.devices:
        return None

    def watch() -> GpuWatcher:
        from agent.discover.gpuwatcher import GpuWatcher  # half a megabyte that few nodes need

        return GpuWatcher(wake, settings.gpu_driver_root)

    return DeviceView(
        settings.root,
        watch,
        actions,
        checkpoint,
        withhold=settings.managed_by == "Koordinator",
        files=files,
        sources=sources,
        network=network,
    )


def _known(
    network: Mapping[tuple[str, str], tuple[str, ...]], keys: Keys
) -> Iterator[ReportedDevices]:
    """The devices in network namespaces that the Device object lists."""
    for (uid, name), addresses in network.items():
        listed = tuple(each for each in addresses if each in keys)
        if listed:
            yield ReportedDevices(uid, name, "", listed, HoldingSource.NETWORK)


def _logged(texts: Iterable[str], before: frozenset[str]) -> frozenset[str]:
    """Logs the texts that are not in `before`, and returns all."""
    now = frozenset(texts)
    for text in sorted(now - before):
        log.info("%s", text)
    return now


def _release(node: ApiNode) -> tuple[bool, tuple[str, ...]]:
    """Whether to release the GPUs' driver, and the problems of the annotation that requests it."""
    try:
        return gpus.release_requested(node.annotations), ()
    except AnnotationError as error:
        return False, (f"Node: {error}",)
