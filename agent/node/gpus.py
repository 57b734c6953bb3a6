"""The GPUs and their health, from the reports of a child process with NVML, and as entries of the
Device object: resources, topology, and health as conditions.

A condition outlives the agent: after a restart, `restored` reads the health of the cards from the
published Device object. Annotations on the Node cordon cards or release the driver."""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from agent.discover.sysfs import SysfsReader, number
from agent.host.files import Tree
from agent.kube.objects import rfc3339
from agent.model import bounds
from agent.model.devices.device_object import (
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    Condition,
    Device,
    DeviceTopology,
    DeviceType,
)
from agent.model.devices.gpus import (
    CLOSED,
    Gpu,
    GpuInfo,
    GpuInventory,
    GpuPair,
    GpuReading,
    GpuReport,
    pci_address,
)
from agent.model.pod.annotations import AnnotationError
from agent.node import gpu_health
from agent.node.device_listing import Published
from agent.node.gpu_health import RESET_ENDS, Action, GpuActions, GpuCard, GpuCondition, GpuHealth

if TYPE_CHECKING:
    from agent.discover.gpuwatcher import GpuWatcher


def device_entries(
    health: GpuHealth,
    places: Mapping[str, DeviceTopology],
    cordoned: Mapping[str, str] = MappingProxyType({}),
    host_memory_bytes: int = 0,
) -> tuple[Device, ...]:
    """The devices, sorted by minor. A card without a minor, or with the minor of another card, gets
    the next number above all minors, in order of index.

    `places`: by PCI address.
    `cordoned`: reasons by UUID.
    `host_memory_bytes`: the memory that cards without their own memory use."""
    ordered = sorted(
        health.cards, key=lambda card: (card.gpu.index < 0, card.gpu.index, card.gpu.uuid)
    )
    free = max((card.gpu.minor for card in ordered if card.gpu.minor is not None), default=-1)
    taken: set[int] = set()
    numbered = []
    for card in ordered:
        minor = card.gpu.minor
        if minor is None or minor in taken:
            minor = free = free + 1
        taken.add(minor)
        place = places.get(card.gpu.bus) or DeviceTopology(bus=card.gpu.bus)
        cordon = cordoned.get(card.gpu.uuid, "")
        numbered.append(_device(card, minor, place, cordon, host_memory_bytes))
    return tuple(sorted(numbered, key=lambda device: (device.minor, device.uuid)))


def gpu_info(health: GpuHealth) -> GpuInfo:
    """The vendor, product and driver version of the cards."""
    products = {card.gpu.product for card in health.cards} - {""}
    product = products.pop() if len(products) == 1 else ""
    return GpuInfo(VENDOR, product, health.driver) if health.cards else GpuInfo()


def _device(
    card: GpuCard, minor: int, place: DeviceTopology, cordon: str, host_memory_bytes: int
) -> Device:
    gpu = card.gpu
    return Device(
        DeviceType.GPU,
        gpu.uuid,
        minor,
        _resources(gpu, host_memory_bytes),
        card.healthy and not cordon,
        gpu.module,
        place,
        conditions(card, cordoned=cordon),
        labels=card.labels or ({MIG_INSTANCES: str(len(gpu.instances))} if gpu.mig else {}),
    )


def _resources(gpu: Gpu, host_memory_bytes: int) -> dict[str, int]:
    """The resources of a card; empty in MIG mode, with or without instances: such a card can't be
    allocated whole."""
    if gpu.mig:
        return {}
    memory = host_memory_bytes if gpu.memory_bytes is None else gpu.memory_bytes
    return {
        GPU_CORE: 100,
        GPU_MEMORY_RATIO: 100,
        **({GPU_MEMORY: memory} if memory else {}),
    }


VENDOR: Final = "nvidia"


MIG_INSTANCES: Final = "topolet.io/mig-instances"
"""Label of a device: the number of instances of a card in MIG mode."""


HEALTHY: Final = "Healthy"
"""Koordinator's condition. Each fault of a card is a further condition, named by its reason."""

CORDONED: Final = "Cordoned"
CORDONED_GPUS: Final = "topolet.io/cordoned-gpus"
"""Annotation of a Node: UUIDs or PCI addresses, separated by commas, of cards to cordon: they get
no new pods."""

GPU_DRIVER: Final = "topolet.io/gpu-driver"
RELEASED: Final = "released"
"""Annotation of a Node, and its only value: the agent stops using the driver, so that it can be
unloaded or its cards can be reset, and all cards are cordoned."""

_SEVERITY: Final = list(Action)
_REASONS: Final = {each: each.value.title().replace("-", "") for each in Action}


def cordoned(
    annotations: Mapping[str, str], cards: Iterable[Gpu], *, released: bool = False
) -> dict[str, str]:
    """The cordoned cards by UUID, with the reason: all cards if the agent has released the driver
    on request (`released`)."""
    named = _cordoned_names(annotations)
    reasons = {}
    for gpu in cards:
        if released:
            reasons[gpu.uuid] = f"annotation {GPU_DRIVER}: the driver is released"
        elif {gpu.uuid.lower(), gpu.bus} & named:
            reasons[gpu.uuid] = f"annotation {CORDONED_GPUS}"
    return reasons


def unknown_cordons(annotations: Mapping[str, str], cards: Iterable[Gpu]) -> tuple[str, ...]:
    """An error for each name in the annotation that matches no card."""
    names = _cordoned_names(annotations)
    for gpu in cards:
        names -= {gpu.uuid.lower(), gpu.bus}
    return tuple(f"annotation {CORDONED_GPUS}: unknown GPU {name[:60]!r}" for name in sorted(names))


def _cordoned_names(annotations: Mapping[str, str]) -> set[str]:
    """The names in the annotation: UUIDs in lower case, and PCI addresses as the kernel writes
    them. NVIDIA's tools write both differently."""
    listed = annotations.get(CORDONED_GPUS, "").split(",", bounds.MAX_DEVICES)
    named = (each.strip() for each in listed[: bounds.MAX_DEVICES])
    return {pci_address(each) or each.lower() for each in named} - {""}


def release_requested(annotations: Mapping[str, str]) -> bool:
    """Whether the annotation requests to release the driver. Raises AnnotationError."""
    value = annotations.get(GPU_DRIVER, "")
    if value not in ("", RELEASED):
        raise AnnotationError(GPU_DRIVER, f"{value[:60]!r} is not {RELEASED!r}")
    return value == RELEASED


def conditions(card: GpuCard, *, cordoned: str = "") -> tuple[Condition, ...]:
    """The conditions of a card. `Healthy` has the reason of the most severe one and the messages of
    all.

    `cordoned`: the reason, "" if the card is not cordoned."""
    by_severity = sorted(
        card.gpu_conditions, key=lambda each: (-_SEVERITY.index(each.action), each.reason)
    )
    message = "; ".join(f"{each.reason}: {each.message}" for each in by_severity)
    changed = rfc3339(card.health_changed)
    if by_severity:
        healthy = Condition(HEALTHY, "False", by_severity[0].reason, message, changed)
    else:
        healthy = Condition(HEALTHY, "True", "DeviceHealthy", "device is healthy", changed)
    listed = [healthy]
    for fault in card.gpu_conditions:
        time = rfc3339(fault.since)
        listed.append(Condition(fault.reason, "True", _REASONS[fault.action], fault.message, time))
    if cordoned:
        # The annotation has no timestamp.
        listed.append(Condition(CORDONED, "True", "Annotation", cordoned, changed))
    return tuple(sorted(listed, key=lambda condition: condition.type))


def restored(devices: Iterable[Device], actions: GpuActions, driver: str = "") -> GpuHealth:
    """The conditions of an earlier run of the agent, with the current actions. They stay until a
    report refutes them.

    `driver`: its version in that run, "" if unknown."""
    cards = {
        device.uuid: _card(device, actions)
        for device in devices
        if device.type == DeviceType.GPU and device.uuid
    }
    return GpuHealth(tuple(cards[uuid] for uuid in sorted(cards)), driver)


def _card(device: Device, actions: GpuActions) -> GpuCard:
    by_type = {each.type: each for each in device.conditions}
    times = {name: _seconds(each.last_transition_time) for name, each in by_type.items()}
    own = {name: times[name] for name, each in by_type.items() if _is_gpu_condition(each)}
    states = [time for name, time in own.items() if name in RESET_ENDS]
    gpu_conditions = tuple(
        GpuCondition(
            name,
            action,
            time,
            by_type[name].message,
            cleared=gpu_health.is_xid(name) and any(each >= time for each in states),
        )
        for name, time in sorted(own.items())
        if (action := actions[name]) is not Action.IGNORE
    )
    gpu = Gpu(
        device.uuid,
        -1,
        device.topology.bus if device.topology else "",
        minor=device.minor,
        memory_bytes=device.resources.get(GPU_MEMORY),
        module=device.module,
        mig=None if GPU_CORE in device.resources else True,
    )
    changed = times.get(HEALTHY, 0)
    return GpuCard(
        gpu, max(times.values(), default=0), changed, gpu_conditions, labels=device.labels
    )


def _is_gpu_condition(condition: Condition) -> bool:
    """Whether the agent wrote the condition: other writers may add conditions too."""
    about_gpus = gpu_health.is_xid(condition.type) or condition.reason in _REASONS.values()
    return about_gpus and condition.status == "True"


_LAST_SECOND: Final = 253_402_300_799


def _seconds(text: str) -> int:
    """The time in seconds since 1970, 0 if it is invalid or not within the years 1970 to 9999."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return 0
    seconds = int(moment.replace(tzinfo=moment.tzinfo or datetime.UTC).timestamp())
    return seconds if 0 <= seconds <= _LAST_SECOND else 0


log = logging.getLogger(__name__)


class GpuView:
    """Starts the child process when PCI lists an NVIDIA card.

    `root`: where the host's /proc is.
    `watch`: makes the watcher."""

    def __init__(self, root: str, watch: Callable[[], GpuWatcher], actions: GpuActions) -> None:
        self._root = root
        self._watch = watch
        self._actions = actions
        self._watcher: GpuWatcher | None = None
        self._health = GpuHealth()
        self._release_requested = False
        self._boot_seconds: int | None = None
        self.answered = False
        """Whether the driver has listed its cards since the agent started."""
        self.released = False
        """Whether the child closed the driver because an annotation of the Node requests it."""
        self.pairs: tuple[GpuPair, ...] = ()
        """The links between the cards that the driver listed last."""
        self.info = GpuInfo()
        self.fault = ""
        """Why the last query of the driver failed, as a Condition's reason."""
        self.message = ""
        self.readings: tuple[GpuReading, ...] = ()
        """The last readings that the driver returned."""

    def begin(self, published: Published) -> None:
        """Restores the published state, which stays in force until the driver answers."""
        driver = published.gpus.driver_version
        self._health = restored(published.devices, self._actions, driver)
        self.info = published.gpus
        self.pairs = published.pairs

    def rescan(self) -> None:
        """To be called when a device was plugged in or removed."""
        if self._watcher is not None:
            self._watcher.request_report()

    def close(self) -> None:
        """Ends the child."""
        if self._watcher is not None:
            self._watcher.stop()

    def report(self) -> GpuReport | None:
        """The driver's last report; with the cards and links that are known from before if the
        driver does not answer. None without GPUs."""
        cards = tuple(card.gpu for card in self._health.cards)
        if not cards:
            return GpuReport(self.fault, self.message) if self.fault else None
        inventory = GpuInventory(self.info.driver_version, cards, self.pairs)
        return GpuReport(self.fault, self.message, inventory, self.readings)

    def observe(self, cards: tuple[str, ...], *, release: bool = False) -> GpuHealth:
        """The health after the reports since the last call.

        `cards`: PCI addresses of NVIDIA's cards.
        `release`: whether the child has to close the driver."""
        if self._watcher is None:
            if not cards:
                # Cards that were removed while the agent did not run.
                self._health, self.info = GpuHealth(), GpuInfo()
            if not cards or release:
                self._set_released(release)
                return self._health
            self._watcher = self._watch()
            self._watcher.start()
            self._set_released(False)
        elif release is not self._release_requested:
            (self._watcher.release if release else self._watcher.resume)()
        self._release_requested = release
        now = int(time.time())
        for news in self._watcher.take():
            for event in news.events:
                self._health = gpu_health.on_event(self._health, event, now, self._actions)
            if news.report is not None:
                self._apply(news.report, now, cards, release=release)
        return self._health

    def _apply(self, report: GpuReport, now: int, cards: tuple[str, ...], *, release: bool) -> None:
        released = report.fault == CLOSED
        self._set_released(release and released)
        self.fault = "" if released else report.fault
        self.message = report.message
        self.readings = report.readings
        if self._boot_seconds is None:
            # Once: the kernel subtracts the uptime from its clock, which may be set.
            self._boot_seconds = boot_seconds(self._root)
        self._health = gpu_health.on_report(
            self._health, report, now, self._actions, cards, self._boot_seconds
        )
        if report.inventory is not None:
            self.answered = True
            self.pairs = report.inventory.pairs
            self.info = gpu_info(self._health)

    def _set_released(self, now: bool) -> None:
        if now is not self.released:
            log.info("GPUs: the driver is %s", "released" if now else "opened again")
        self.released = now


def boot_seconds(root: str) -> int | None:
    """When the machine was booted, in seconds since 1970; None if unknown."""
    stat = SysfsReader(Tree(root)).text("proc/stat") or ""
    for line in stat.splitlines():
        name, _, value = line.partition(" ")
        if name == "btime":
            return number(value)
    return None
