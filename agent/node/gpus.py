"""The GPUs and their health, from the reports of a child process with NVML."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from agent.discover.sysfs import SysfsReader, number
from agent.host.files import Tree
from agent.model.devices.gpus import CLOSED, GpuInfo, GpuInventory, GpuPair, GpuReading, GpuReport
from agent.node import gpu_devices, gpu_health
from agent.node.device_listing import Published
from agent.node.gpu_actions import GpuActions
from agent.node.gpu_health import GpuHealth

if TYPE_CHECKING:
    from agent.discover.gpuwatcher import GpuWatcher

log = logging.getLogger(__name__)


class GpuView:
    """Starts the child process when PCI lists an NVIDIA card.

    `root`: where the host's /proc is.
    `watch`: makes the watcher.
    `clock`: seconds since 1970."""

    def __init__(
        self,
        root: str,
        watch: Callable[[], GpuWatcher],
        actions: GpuActions,
        clock: Callable[[], float],
    ) -> None:
        self._root = root
        self._watch = watch
        self._actions = actions
        self._clock = clock
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
        self._health = gpu_devices.restored(published.devices, self._actions, driver)
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
        now = int(self._clock())
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
            self.info = gpu_devices.gpu_info(self._health)

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
