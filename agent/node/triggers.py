"""Triggers of a pass of the reconcile loop, besides notifications, and the pauses between
passes."""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Iterator, Set
from typing import Final

from agent.cri.events import ContainerEvents
from agent.host import kernel_events
from agent.host.kernel_events import Inotify, Uevents
from agent.kubelet import cpu_manager_state
from agent.model.settings.agent import AgentSettings
from agent.node.cgroup_watch import CgroupWatch
from agent.node.notifications import NotificationSocket
from agent.node.sources import SourceName, Sources

SETTLE_SECONDS: Final = 5.0
"""A container's cgroup exists before the runtime lists it as running, and some runtimes have no
events for the agent: for this long after any event the passes repeat, after pauses that double from
FIRST_PAUSE_SECONDS to the period."""
FIRST_PAUSE_SECONDS: Final = 0.02
LEAST_REST_SECONDS: Final = 0.02

SUBSYSTEMS: Final = frozenset({"pci", "infiniband", "fpga_region", "fpga", "dfl"})
"""Subsystems whose uevents report devices. `pci`: functions that are plugged in or out, virtual
functions, drivers that bind and unbind, and bus errors; `infiniband`: links that are renamed or
moved to another network namespace. No uevent reports the link state of a port: the pass at the end
of every period reads it."""
_HOTPLUGGED: Final = frozenset({"cpu", "node"}) | SUBSYSTEMS


class Trigger(enum.Enum):
    """What triggered a pass; the values are labels of a metric."""

    NOTIFICATION = "ring"
    TREE = "tree"
    RUNTIME = "runtime"
    KUBELET = "kubelet"
    CLUSTER = "cluster"
    HOTPLUG = "hotplug"
    CLOCK = "clock"


class KubeletWatch:
    """The state file of the kubelet's CPU manager, which is replaced. Its folder may appear
    late."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._queue = Inotify()
        self.watching = False
        self.try_again()

    def fileno(self) -> int:
        return self._queue.fileno()

    def try_again(self) -> None:
        """Watches the folder once it exists."""
        if not self.watching:
            with contextlib.suppress(OSError):
                self._queue.watch(self._folder, kernel_events.MOVED_TO | kernel_events.CLOSE_WRITE)
                self.watching = True

    def read(self) -> bool:
        """Whether the file has changed."""
        events = self._queue.read()
        if any(each.mask & kernel_events.IGNORED for each in events):
            self.watching = False
        return any(
            each.name == cpu_manager_state.FILE_NAME or each.mask & kernel_events.OVERFLOW
            for each in events
        )

    def close(self) -> None:
        self._queue.close()


class Triggers:
    """Ends the wait for notifications on an event. A source that this machine does not have is
    reported once.

    Events during a pass trigger one pass together.
    """

    def __init__(
        self,
        notification_socket: NotificationSocket,
        hierarchy_root: str,
        kubelet_dir: str,
        runtime_socket: str,
        cluster_news: threading.Event | None = None,
        sources: Sources | None = None,
    ) -> None:
        """A change in the cluster sets `cluster_news` and ends the wait for notifications."""
        self._sources = sources or Sources()
        self._tree: CgroupWatch | None = None
        self._kubelet: KubeletWatch | None = None
        self._uevents: Uevents | None = None
        self._last_event = -SETTLE_SECONDS
        with self._reported_if_missing(SourceName.CGROUP_WATCH):
            self._tree = CgroupWatch(hierarchy_root)
            notification_socket.also_wake_on(self._tree.fileno())
        with self._reported_if_missing(SourceName.KUBELET_WATCH):
            self._kubelet = KubeletWatch(kubelet_dir)
            notification_socket.also_wake_on(self._kubelet.fileno())
        with self._reported_if_missing(SourceName.UEVENTS):
            self._uevents = Uevents()
            notification_socket.also_wake_on(self._uevents.fileno())
        self._cluster_news = cluster_news
        self._runtime_event = threading.Event()

        def happened() -> None:
            self._runtime_event.set()
            notification_socket.wake()

        self._runtime = ContainerEvents(runtime_socket, happened)

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
        """How long after `began`, in seconds, the next pass is due without an event. `triggers` of
        the last pass, `healthy` whether it succeeded."""
        if Trigger.CLOCK in triggers and began - self._last_event >= SETTLE_SECONDS:
            self._catch_up()
        if triggers & {Trigger.NOTIFICATION, Trigger.TREE, Trigger.RUNTIME}:
            self._last_event = began
        complete = self._tree is not None and self._tree.complete
        since = began - self._last_event
        settled = self._runtime.telling or since >= SETTLE_SECONDS
        if healthy and complete and settled:
            return max(settings.full_pass_seconds, settings.period_seconds)
        if healthy and not settled:
            return min(max(since, FIRST_PAUSE_SECONDS), settings.period_seconds)
        return settings.period_seconds

    def close(self) -> None:
        """Closes all sources."""
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
                source, (f"the agent sees these changes once a period only: {error}",)
            )

    def _catch_up(self) -> None:
        if self._tree:
            self._tree.watch_all()
        if self._kubelet:
            self._kubelet.try_again()


def rest(settings: AgentSettings, took_seconds: float) -> float:
    """For how many seconds after a pass of this length only a notification triggers another:
    endless cgroup changes keep the agent busy for half of the time at most."""
    return min(max(took_seconds, LEAST_REST_SECONDS), settings.period_seconds)
