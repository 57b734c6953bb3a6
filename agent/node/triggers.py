"""Events that trigger a pass of the reconcile loop, besides notifications, and the pauses between
passes.

The agent watches the pods' part of the cpuset hierarchy (new and removed groups, changed cpusets
and limits), the state file of the kubelet's CPU manager, uevents of devices, the container events
of the runtime, and the cluster.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import logging
import os
import threading
from collections.abc import Iterator, Set
from typing import Final

from agent.cgroup import limits
from agent.cgroup.hierarchy import CPUS, MEMS
from agent.cri.events import ContainerEvents
from agent.host import kernel_events
from agent.host.kernel_events import Inotify, Uevents
from agent.kubelet.cpu_manager_state import CpuManagerStateWatch
from agent.model.settings.agent import AgentSettings
from agent.node.notifications import NotificationSocket
from agent.node.sources import SourceName, Sources

log = logging.getLogger(__name__)

SETTLE_SECONDS: Final = 5.0
"""A container's cgroup exists before the runtime lists it as running, and some runtimes have no
events for the agent: for this long after any event the passes repeat, with pauses that double from
FIRST_PAUSE_SECONDS to REPEAT_SECONDS."""
REPEAT_SECONDS: Final = 0.5
"""The longest pause between two passes while events are incomplete: shortly after an event, without
the watch of cgroups, and after a pass that failed."""
FIRST_PAUSE_SECONDS: Final = 0.02
LEAST_COOLDOWN_SECONDS: Final = 0.1
"""With a runtime that has events. The start of a pod makes some twenty events in half a second, and
every pass calls the runtime that is starting the pod (`benchmarks/podstart.py`)."""
FRONTEND_COOLDOWN_SECONDS: Final = 0.25
"""The same for SETTLE_SECONDS after a notification of a frontend, whose calls already have their
CPUs: the start of a pod takes 0.2 s."""
COLLECT_SECONDS: Final = 0.02
"""How long a pass waits for a notification after another event. The cluster reports a bound pod,
and the kubelet creates its cgroup, 10 to 20 ms before it calls RunPodSandbox: one pass
handles them together."""

SUBSYSTEMS: Final = frozenset({"pci", "infiniband", "fpga_region", "fpga", "dfl", "drm"})
"""Subsystems whose uevents report devices. `pci`: functions that are plugged in or out, virtual
functions, drivers that bind and unbind, and bus errors; `infiniband`: links that are renamed or
moved to another network namespace; `drm`: files of XRT's cards, which come with the shell. No
uevent reports the link state of a port: the pass at the end of every period reads it."""
_HOTPLUGGED: Final = frozenset({"cpu", "node"}) | SUBSYSTEMS


class Trigger(enum.Enum):
    """What triggered a pass; the values are labels of a metric."""

    NOTIFICATION = "notification"
    TREE = "cgroup"
    RUNTIME = "runtime"
    KUBELET = "kubelet"
    CLUSTER = "cluster"
    HOTPLUG = "uevent"
    CLOCK = "timer"


class Triggers:
    """Ends the wait for notifications when an event occurs. Reports once a source of events that
    this machine does not have. All events during one pass trigger only one further pass.

    `cluster_news`: set by a change in the cluster, which ends the wait for notifications."""

    def __init__(
        self,
        notification_socket: NotificationSocket,
        hierarchy_root: str,
        kubelet_dir: str,
        runtime_socket: str,
        cluster_news: threading.Event | None = None,
        sources: Sources | None = None,
    ) -> None:
        self._sources = sources or Sources()
        self._tree: CgroupWatch | None = None
        self._kubelet: CpuManagerStateWatch | None = None
        self._uevents: Uevents | None = None
        self._last_event = self._last_notification = -SETTLE_SECONDS
        self._by_frontend = False
        with self._reported_if_missing(SourceName.CGROUP_WATCH):
            self._tree = CgroupWatch(hierarchy_root)
            notification_socket.also_wake_on(self._tree.fileno())
        with self._reported_if_missing(SourceName.KUBELET_WATCH):
            self._kubelet = CpuManagerStateWatch(kubelet_dir)
            notification_socket.also_wake_on(self._kubelet.fileno())
        with self._reported_if_missing(SourceName.UEVENTS):
            self._uevents = Uevents()
            notification_socket.also_wake_on(self._uevents.fileno())
        self._cluster_news = cluster_news
        self._runtime_event = threading.Event()

        def on_event() -> None:
            self._runtime_event.set()
            notification_socket.wake()

        self._runtime = ContainerEvents(runtime_socket, on_event)

    def take(self) -> set[Trigger]:
        """The triggers since the last call."""
        triggers = set()
        if self._tree and self._tree.read():
            triggers.add(Trigger.TREE)
        if self._kubelet and self._kubelet.read():
            triggers.add(Trigger.KUBELET)
        if self._uevents and self._uevents.read(_HOTPLUGGED):
            triggers.add(Trigger.HOTPLUG)
        if self._runtime_event.is_set():
            self._runtime_event.clear()
            triggers.add(Trigger.RUNTIME)
        if self._cluster_news is not None and self._cluster_news.is_set():
            self._cluster_news.clear()
            triggers.add(Trigger.CLUSTER)
        return triggers

    def pause(
        self, settings: AgentSettings, healthy: bool, triggers: Set[Trigger], began: float
    ) -> float:
        """How long after `began`, in seconds, the next pass is due without an event.

        `healthy`: whether the last pass succeeded.
        `triggers`, `began`: those of the last pass."""
        if Trigger.CLOCK in triggers and began - self._last_event >= SETTLE_SECONDS:
            self._catch_up()
        if triggers & {Trigger.NOTIFICATION, Trigger.TREE, Trigger.RUNTIME}:
            self._last_event = began
        if Trigger.NOTIFICATION in triggers:
            self._last_notification = began
        self._by_frontend = began - self._last_notification < SETTLE_SECONDS
        complete = self._tree is not None and self._tree.complete
        since = began - self._last_event
        settled = self._runtime.streaming or since >= SETTLE_SECONDS
        if healthy and complete and settled:
            return settings.period_seconds
        repeat = min(REPEAT_SECONDS, settings.period_seconds)
        if healthy and not settled:
            return min(max(since, FIRST_PAUSE_SECONDS), repeat)
        return repeat

    def cooldown(self, took_seconds: float) -> float:
        """The seconds after a pass in which only a frontend that holds a call triggers another one.
        They are at least as long as the pass was: endless changes of cgroups keep the agent busy at
        most half of the time."""
        least = FIRST_PAUSE_SECONDS
        if self._runtime.streaming:
            least = FRONTEND_COOLDOWN_SECONDS if self._by_frontend else LEAST_COOLDOWN_SECONDS
        return min(max(took_seconds, least), REPEAT_SECONDS)

    def close(self) -> None:
        self._runtime.close()
        for source in (self._tree, self._kubelet, self._uevents):
            if source is not None:
                source.close()

    @contextlib.contextmanager
    def _reported_if_missing(self, source: SourceName) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._sources.report(
                source, (f"the agent finds these changes only once a period: {error}",)
            )

    def _catch_up(self) -> None:
        if self._tree:
            self._tree.watch_all()
        if self._kubelet:
            self._kubelet.try_again()


class GroupKind(enum.Enum):
    """The kinds of groups."""

    TOP = "top"
    """The root of the hierarchy."""
    OTHER = "other"
    """A group right below the root, which may contain the pods (the kubelet's --cgroup-root)."""
    KUBEPODS = "kubepods"
    """The root of the pods."""
    QOS = "qos"
    POD = "pod"
    CONTAINER = "container"


_FILES: Final = frozenset({CPUS, MEMS, limits.MAX, limits.WEIGHT, limits.MEMORY_MAX})
"""The files whose changes need a pass. On v1 the limits are in other hierarchies, which are not
watched: the next pass reads them."""
_OUTSIDE: Final = frozenset({GroupKind.TOP, GroupKind.OTHER})
_MASKS: Final = {
    GroupKind.TOP: kernel_events.CREATE | kernel_events.DELETE,
    GroupKind.OTHER: kernel_events.CREATE | kernel_events.DELETE,
    GroupKind.KUBEPODS: kernel_events.CREATE | kernel_events.DELETE,
    GroupKind.QOS: kernel_events.CREATE | kernel_events.DELETE,
    GroupKind.POD: kernel_events.CREATE | kernel_events.DELETE | kernel_events.MODIFY,
    # Groups that a container makes below its own are not managed.
    GroupKind.CONTAINER: kernel_events.MODIFY,
}


class CgroupWatch:
    """Watches the groups of pods by inotify, below the mount point `root`. The kernel keeps the
    watch of a removed cgroup (its inode still has links), so this class ends it.

    Raises OSError when the limit of inotify instances is reached."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._queue = Inotify()
        self._watched: dict[int, tuple[str, GroupKind]] = {}
        self._numbers: dict[str, int] = {}
        self.complete = True
        """False while some group is not watched, because the kernel allows no more watches."""
        self._enter(root, GroupKind.TOP)

    def fileno(self) -> int:
        return self._queue.fileno()

    def read(self) -> bool:
        """Reads all events, and watches new groups. Returns whether a change needs a pass."""
        news = False
        for event in self._queue.read():
            if event.mask & kernel_events.OVERFLOW:
                news = True
                self.watch_all()
            elif not event.mask & kernel_events.IGNORED:
                news |= self._handle(event)
        return news

    def watch_all(self) -> None:
        """Walks the tree: watches the groups that exist, and ends the watches of all others."""
        self.complete = True
        before, self._numbers = self._numbers, {}
        self._enter(self._root, GroupKind.TOP)
        there = set(self._numbers.values())
        for number in before.values():
            if number not in there:
                self._unwatch(number)

    def close(self) -> None:
        self._queue.close()

    def _handle(self, event: kernel_events.InotifyEvent) -> bool:
        directory, kind = self._watched.get(event.watch, ("", None))
        if kind is None:
            return False
        if not event.mask & kernel_events.IS_DIRECTORY:
            return event.mask & kernel_events.MODIFY != 0 and event.name in _FILES
        below = kind_below(kind, event.name)
        if below is None:
            return False
        path = os.path.join(directory, event.name)
        if event.mask & kernel_events.CREATE:
            self._enter(path, below)
        elif event.mask & kernel_events.DELETE and path in self._numbers:
            self._unwatch(self._numbers.pop(path))
        return below not in _OUTSIDE

    def _unwatch(self, number: int) -> None:
        self._queue.unwatch(number)
        self._watched.pop(number, None)

    def _enter(self, directory: str, kind: GroupKind) -> None:
        """Watches a directory, then those in it. The watch begins before the listing: a change in
        between is reported twice, but never missed."""
        try:
            number = self._queue.watch(directory, _MASKS[kind])
            if (before := self._numbers.get(directory, number)) != number:
                self._unwatch(before)
            self._watched[number] = (directory, kind)
            self._numbers[directory] = number
            if kind is GroupKind.CONTAINER:
                return
            with os.scandir(directory) as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV, errno.ENOTDIR):
                if self.complete:
                    log.warning("not every cgroup is watched: %s", error)
                self.complete = False
            return
        for name in names:
            below = kind_below(kind, name)
            if below is not None:
                self._enter(os.path.join(directory, name), below)


def kind_below(parent: GroupKind, name: str) -> GroupKind | None:
    """The kind of the group of this name in such a parent; None for one that is not watched."""
    if parent in _OUTSIDE:
        if name in ("kubepods", "kubepods.slice") or name.endswith("-kubepods.slice"):
            return GroupKind.KUBEPODS
        return GroupKind.OTHER if parent is GroupKind.TOP else None
    if parent is GroupKind.KUBEPODS:
        stem = name.removesuffix(".slice")
        return GroupKind.QOS if stem.endswith(("burstable", "besteffort")) else GroupKind.POD
    if parent is GroupKind.QOS:
        return GroupKind.POD
    return GroupKind.CONTAINER if parent is GroupKind.POD else None
