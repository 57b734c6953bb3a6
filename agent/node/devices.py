"""The node's devices at each look: PCI, RDMA and FPGAs from sysfs, GPUs from a child with NVML."""

from __future__ import annotations

import datetime
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Final

import msgspec

from agent.allocate.foreign.existing import existing
from agent.allocate.foreign.names import keys
from agent.discover import fpga, pci, rdma
from agent.discover.facts import DiscoveryError
from agent.discover.gpuwatcher import GpuWatcher
from agent.model import (
    checkpoints,
    gpuactions,
    gpuconditions,
    gpudevices,
    gpuhealth,
    minors,
)
from agent.model import partitions as gpu_partitions
from agent.model.annotations import AnnotationError
from agent.model.apinode import ApiNode
from agent.model.device_allocation import Holdings, allocated, together
from agent.model.devicefiles import DeviceFiles
from agent.model.devicelist import Found, Published, device_list
from agent.model.devicepaths import capabilities, device_files
from agent.model.devices import Device
from agent.model.fpga import Fpgas
from agent.model.functiondevices import nvidia_cards, places
from agent.model.gpuactions import GpuActionError, GpuActions
from agent.model.gpuhealth import GpuHealth
from agent.model.gpus import GpuPair
from agent.model.holding import Grant, Holding
from agent.model.pci import Function
from agent.model.pods import Pod
from agent.model.rdma import Rdma
from agent.model.report import DeviceReport
from agent.model.settings import Settings, SettingsError
from agent.model.topology import Topology
from agent.model.visible import DeviceNode

log = logging.getLogger(__name__)

RESCAN_SECONDS: Final = 60.0
"""Nobody tells when the port of a network card goes up or down."""


class SeenDevices(msgspec.Struct, frozen=True):
    """What is reported of devices, the files that reach them, and what of them pods hold that no
    scheduler gave it to."""

    report: DeviceReport = DeviceReport()
    files: DeviceFiles = DeviceFiles()
    existing: tuple[Holding, ...] = ()


class DeviceView:
    """Where PCI shows no card of NVIDIA's there is no child."""

    def __init__(
        self,
        root: str,
        watch: Callable[[], GpuWatcher],
        actions: GpuActions,
        *,
        gfd_labels: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`root` is where the host's /sys and /proc are; `watch` makes the watcher of GPUs."""
        self._root = root
        self._watch = watch
        self._actions = actions
        self._gfd_labels = gfd_labels
        self._clock = clock
        self._watcher: GpuWatcher | None = None
        self._scanned: tuple[Topology, float] | None = None
        self._stale = True
        self._scan_problems: tuple[str, ...] = ()
        self._functions: Mapping[str, Function] = {}
        self._rdma = Rdma()
        self._fpgas = Fpgas()
        self._files = DeviceFiles()
        self._health: GpuHealth | None = None
        self._pairs: tuple[GpuPair, ...] = ()
        self._before: Published | None = None
        self._said: frozenset[str] = frozenset()

    def look_again(self) -> None:
        """Something was plugged in or out."""
        self._stale = True
        if self._watcher is not None:
            self._watcher.look_now()

    def close(self) -> None:
        """Ends the child."""
        if self._watcher is not None:
            self._watcher.stop()

    def now(
        self,
        topology: Topology,
        published: Published,
        node: ApiNode,
        pods: Collection[Pod],
        grants: Iterable[Grant] = (),
    ) -> SeenDevices:
        """`published`: what the Device object said when we began; GPUs stay as it had them until
        the driver has answered. `grants`: what the kubelet gave to pods. Never fails: what can't be
        read is logged once."""
        if self._before is None:
            self._before = published
            self._health = gpuconditions.restored(published.devices, self._actions)
        problems = self._scan(topology)
        cards = nvidia_cards(self._functions)
        health = self._looked(cards)
        memory_bytes = sum(each.memory_bytes for each in topology.numa_nodes)
        cordoned = gpuconditions.cordoned(node.annotations, (card.gpu for card in health.cards))
        gpus = gpudevices.devices(health, places(self._functions), cordoned, memory_bytes)
        given, troubles = _given(pods)
        held = together(given.values())
        made = device_list(
            Found(self._functions, gpus, self._rdma.devices, self._fpgas.devices),
            self._before,
            _rfc3339(self._clock()),
            _ids(held, self._before.devices),
        )
        self._before = Published(made.devices, made.gone)
        cards_found = [card.gpu for card in health.cards]
        found = existing(
            grants,
            keys(made.devices, cards_found, self._rdma.devices, self._fpgas.devices),
            {uid: {kind for kind, _ in of_pod} for uid, of_pod in given.items()},
            {pod.uid for pod in pods},
        )
        self._files = device_files(
            made.devices,
            cards_found if cards_found or not cards else None,
            self._rdma,
            self._fpgas,
            self._capabilities(),
            self._files,
        )
        self._say((*problems, *troubles, *made.problems, *found.problems))
        report = DeviceReport(
            made.devices,
            gpudevices.facts(health),
            {
                **minors.encode(made.gone),
                **gpu_partitions.encode(self._partitions(made.devices)),
                **checkpoints.encode(found.holdings),
            },
            held,
            self._gfd_labels,
        )
        return SeenDevices(report, self._files, found.holdings)

    def _capabilities(self) -> dict[str, DeviceNode]:
        mig_minors, known = (
            _text(os.path.join(self._root, path))
            for path in ("proc/driver/nvidia-caps/mig-minors", "proc/devices")
        )
        return capabilities(mig_minors, known)

    def _scan(self, topology: Topology) -> tuple[str, ...]:
        """Reads sysfs where that is due; what can't be listed leaves what was known."""
        now = time.monotonic()
        if not self._stale and self._scanned is not None:
            of, at = self._scanned
            if of == topology and now - at < RESCAN_SECONDS:
                return self._scan_problems
        try:
            functions = pci.read(self._root, topology)
        except DiscoveryError as error:
            return (str(error),)
        self._stale = False
        self._scanned = topology, now
        infiniband = rdma.read(self._root, functions.by_address)
        fpgas = fpga.read(self._root, functions.by_address)
        self._functions, self._rdma, self._fpgas = functions.by_address, infiniband, fpgas
        self._scan_problems = functions.problems + infiniband.problems + fpgas.problems
        return self._scan_problems

    def _looked(self, cards: tuple[str, ...]) -> GpuHealth:
        """The health of the cards after all that came since the last time."""
        health = self._health or GpuHealth()
        if self._watcher is None:
            if not cards:
                # Cards that were taken out while nobody looked.
                self._health = GpuHealth()
                return self._health
            self._watcher = self._watch()
            self._watcher.start()
        news = self._watcher.take()
        now = int(self._clock())
        for event in news.events:
            health = gpuhealth.struck(health, event, now, self._actions)
        if news.sight is not None:
            booted = _booted(self._root)
            health = gpuhealth.looked(health, news.sight, now, self._actions, cards, booted)
            if news.sight.inventory is not None:
                self._pairs = news.sight.inventory.pairs
        self._health = health
        return health

    def _partitions(self, devices: Iterable[Device]) -> gpu_partitions.Table:
        return gpu_partitions.from_links(gpu_partitions.links(devices, self._pairs))

    def _say(self, problems: Iterable[str]) -> None:
        now = frozenset(problems)
        for problem in sorted(now - self._said):
            log.warning("devices: %s", problem)
        self._said = now


def device_view(settings: Settings, wake: Callable[[], None]) -> DeviceView | None:
    """As the settings want it, None where they don't. Raises SettingsError."""
    try:
        actions = gpuactions.parse(settings.gpu_actions)
    except GpuActionError as error:
        raise SettingsError(f"gpu-actions: {error}") from None
    if not settings.devices:
        return None
    watch = partial(GpuWatcher, wake, settings.gpu_driver_root)
    return DeviceView(settings.root, watch, actions, gfd_labels=settings.gfd_labels)


def _given(pods: Iterable[Pod]) -> tuple[dict[str, Holdings], tuple[str, ...]]:
    """By pod (uid) what schedulers gave it, and what of it can't be read."""
    found, troubles = {}, []
    for pod in pods:
        try:
            if of_pod := allocated(pod.annotations):
                found[pod.uid] = of_pod
        except AnnotationError as error:
            troubles.append(f"pod {pod.title}: {error}")
    return found, tuple(troubles)


def _ids(held: Holdings, devices: Iterable[Device]) -> frozenset[tuple[str, str]]:
    ids: Mapping[tuple[str, int], str] = {(each.type, each.minor): each.uuid for each in devices}
    return frozenset((kind, ids[kind, minor]) for kind, minor in held if (kind, minor) in ids)


def _rfc3339(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(int(seconds), datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _booted(root: str) -> int | None:
    """Seconds since 1970."""
    for line in _text(os.path.join(root, "proc/stat")).splitlines():
        name, _, value = line.partition(" ")
        if name == "btime" and value.isdecimal():
            return int(value)
    return None


def _text(path: str) -> str:
    """Empty where it can't be read."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
