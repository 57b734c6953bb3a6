"""The node's devices at each look: PCI, RDMA and FPGAs from sysfs, GPUs from a child with NVML."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from agent.allocate.foreign.allocations import given, had_twice
from agent.allocate.foreign.existing import existing, taken, withheld
from agent.allocate.foreign.names import Keys, keys
from agent.discover.reader import Reader
from agent.host.files import Tree
from agent.model import (
    checkpoints,
    gpuactions,
    gpuconditions,
    gpudevices,
    interconnect,
    minors,
    partitions,
)
from agent.model.annotations import AnnotationError
from agent.model.apinode import ApiNode
from agent.model.device_allocation import (
    amounts,
    names,
    renumbered,
    together,
)
from agent.model.devicefiles import NO_FILES, DeviceFiles
from agent.model.devicelist import Found, Published, device_list
from agent.model.devicepaths import capabilities, device_files
from agent.model.devices import Device
from agent.model.functiondevices import nvidia_cards, places
from agent.model.gpuactions import GpuActionError, GpuActions
from agent.model.gpuhealth import GpuHealth
from agent.model.gpus import Gpu, GpuReading
from agent.model.holding import Form, Grant, Holding
from agent.model.pods import Pod
from agent.model.report import DeviceReport
from agent.model.settings import Settings, SettingsError
from agent.model.topology import Topology
from agent.model.visible import DeviceNode
from agent.node.checkpoint import CheckpointView
from agent.node.gpus import GpuView
from agent.node.plugged import Plugged

if TYPE_CHECKING:
    from agent.discover.gpuwatcher import GpuWatcher

log = logging.getLogger(__name__)


class SeenDevices(msgspec.Struct, frozen=True):
    """What is reported of devices, the files that reach them, what of them pods hold that no
    scheduler gave it to, what GPUs read last, and what names of devices lead to. `missing`: where
    PCI has a GPU of which the driver never told; `fault`: why nobody could ask it."""

    report: DeviceReport = DeviceReport()
    files: DeviceFiles = DeviceFiles()
    existing: tuple[Holding, ...] = ()
    readings: tuple[GpuReading, ...] = ()
    keys: Keys = {}
    missing: tuple[str, ...] = ()
    fault: str = ""


class DeviceView:
    """Goes on from the Device object's last state, which it is told once."""

    def __init__(
        self,
        root: str,
        watch: Callable[[], GpuWatcher],
        actions: GpuActions,
        checkpoint: CheckpointView,
        *,
        gfd_labels: bool = False,
        withhold: bool = False,
        files: DeviceFiles = NO_FILES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`root` is where the host's /sys and /proc are; `watch` makes the watcher of GPUs;
        `withhold`: schedulers are listed nothing of what others gave away; `files`: those that an
        agent before us knew in this boot."""
        self._checkpoint = checkpoint
        self._root = root
        self._gfd_labels = gfd_labels
        self._withhold = withhold
        self._clock = clock
        self._plugged = Plugged(root)
        self._gpus = GpuView(root, watch, actions, clock)
        self.files = files
        """How containers reach the devices, also those that can't be seen now."""
        self._cards_before = files.cards or ()
        self._links: partitions.Links | None = None
        self._table: partitions.Table = {}
        self._begun = False
        self.state = Published()
        """What is said from now on."""
        self._said: frozenset[str] = frozenset()
        self._plugins_gave: frozenset[tuple[str, str]] = frozenset()
        """Type and id of whole devices, by the last look."""

    def look_again(self) -> None:
        """Something was plugged in or out."""
        self._plugged.look_again()
        self._gpus.look_again()

    def close(self) -> None:
        """Ends the child."""
        self._gpus.close()

    def now(
        self,
        topology: Topology,
        published: Published | None,
        node: ApiNode,
        pods: Collection[Pod],
        grants: Iterable[Grant] = (),
    ) -> SeenDevices | None:
        """`published`: what the Device object said when we began, None while nobody tells: then
        there is no answer where there are devices, which have their numbers and ills from it; nor
        before PCI could be listed once. `grants`: what the kubelet says that it gave to pods,
        beside its checkpoint, and what containers show. Never fails: what can't be read is logged
        once."""
        plugged = self._plugged
        plugged.look(topology)
        if not plugged.known:
            self._say(plugged.problems)
            return None
        if published is not None and not self._begun:
            self._begun = True
            self.state = published
            self._gpus.begin(published)
        expected = nvidia_cards(plugged.functions)
        if not self._begun and (plugged.rdma.devices or plugged.fpgas.devices or expected):
            return None
        asked, wrong = _release(node)
        health = self._gpus.now(expected, release=asked)
        cards = [card.gpu for card in health.cards]
        allocations, troubles = given(pods)
        made = device_list(
            Found(
                plugged.functions,
                gpudevices.devices(
                    health,
                    places(plugged.functions),
                    gpuconditions.cordoned(node.annotations, cards, let_go=self._gpus.let_go),
                    sum(each.memory_bytes for each in topology.numa_nodes),
                ),
                plugged.rdma.devices,
                plugged.fpgas.devices,
            ),
            self.state,
            gpuconditions.rfc3339(int(self._clock())),
            self._plugins_gave.union(
                (kind, name)
                for of_pod in allocations.values()
                for kind, of_kind in names(of_pod, self.state.devices).items()
                for name in of_kind
            ),
        )
        self.state = Published(made.devices, made.gone, self._gpus.facts, self._gpus.pairs)
        known = keys(made.devices, cards, plugged.rdma.devices, plugged.fpgas.devices)
        found = existing(
            (*grants, *self._checkpoint.grants()),
            known,
            {uid: names(of_pod, made.devices) for uid, of_pod in allocations.items()},
            {pod.uid for pod in pods},
        )
        self._plugins_gave = frozenset(
            (each.type, each.device) for each in found.holdings if each.form is Form.WHOLE
        )
        held = {
            uid: amounts(renumbered(of_pod, made.devices)) for uid, of_pod in allocations.items()
        }
        self.files = self._files(made.devices, cards, expected)
        refused = had_twice(held, made.devices, found.holdings, {pod.uid: pod for pod in pods})
        lacking = self._lacking(health, node, cards)
        self._say(
            (
                *plugged.problems,
                *wrong,
                *lacking,
                *troubles,
                *found.problems,
                *refused,
            )
        )
        links = partitions.links(made.devices, self._gpus.pairs)
        if links != self._links:
            # Of sixteen cards this takes 50 ms.
            self._links, self._table = links, partitions.from_links(links)
        report = DeviceReport(
            made.devices,
            self._gpus.facts,
            {
                **minors.encode(made.gone),
                **partitions.encode(self._table),
                **interconnect.encode(made.devices, self._gpus.pairs),
                **checkpoints.encode(found.holdings),
            },
            together([*held.values(), taken(found.holdings, made.devices)]),
            self._gfd_labels,
            withheld(made.devices, found.holdings) if self._withhold else None,
        )
        return SeenDevices(
            report,
            self.files,
            found.holdings,
            self._gpus.readings,
            known,
            health.unclaimed,
            self._gpus.fault,
        )

    def _files(
        self, devices: tuple[Device, ...], cards: list[Gpu], expected: tuple[str, ...]
    ) -> DeviceFiles:
        found = device_files(
            devices,
            cards if cards or not expected else None,
            self._plugged.rdma,
            self._plugged.fpgas,
            self._capabilities() if any(each.instances for each in cards) else {},
            self.files,
        )
        if not found.cards or self._gpus.answered:
            return found
        # What was published of cards has neither numbers nor instances.
        before = {each.gpu.uuid: each for each in self._cards_before}
        return msgspec.structs.replace(
            found, cards=tuple(before.get(each.gpu.uuid, each) for each in found.cards)
        )

    def _lacking(self, health: GpuHealth, node: ApiNode, cards: list[Gpu]) -> Iterator[str]:
        """What should be here of GPUs and is not."""
        if self._gpus.fault:
            yield f"GPUs: {self._gpus.fault}: {self._gpus.message}"
        else:
            for bus in health.unclaimed:
                yield f"GPU at {bus}: PCI has it, its driver has not"
        if cards:
            for each in gpuconditions.cordons_of_none(node.annotations, cards):
                yield f"Node: {each}"

    def _capabilities(self) -> dict[str, DeviceNode]:
        reader = Reader(Tree(self._root))
        paths = "proc/driver/nvidia-caps/mig-minors", "proc/devices"
        return capabilities(*(reader.text(path) or "" for path in paths))

    def _say(self, problems: Iterable[str]) -> None:
        now = frozenset(problems)
        for problem in sorted(now - self._said):
            log.warning("devices: %s", problem)
        self._said = now


def device_view(
    settings: Settings, wake: Callable[[], None], files: DeviceFiles = NO_FILES
) -> DeviceView | None:
    """As the settings want it, None where they don't. Raises SettingsError."""
    try:
        actions = gpuactions.parse(settings.gpu_actions)
    except GpuActionError as error:
        raise SettingsError(f"gpu-actions: {error}") from None
    if not settings.devices:
        return None

    def watch() -> GpuWatcher:
        from agent.discover.gpuwatcher import GpuWatcher  # half a megabyte that few nodes need

        return GpuWatcher(wake, settings.gpu_driver_root)

    checkpoint = CheckpointView(settings.kubelet_dir)
    return DeviceView(
        settings.root,
        watch,
        actions,
        checkpoint,
        gfd_labels=settings.gfd_labels,
        withhold=settings.withhold_held_devices,
        files=files,
    )


def _release(node: ApiNode) -> tuple[bool, tuple[str, ...]]:
    """Whether the GPUs' driver is to be let go, and what of that can't be read."""
    try:
        return gpuconditions.release_asked(node.annotations), ()
    except AnnotationError as error:
        return False, (f"Node: {error}",)
