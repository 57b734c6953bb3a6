"""Everything that means "look again", besides the proxy's rings; and how long to rest without."""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
from collections.abc import Iterator, Set
from typing import Final

from agent.discover import hotplug
from agent.host import inotify
from agent.host.inotify import Inotify
from agent.host.uevents import Uevents
from agent.kubelet import cpu_manager_state
from agent.model.settings import Settings
from agent.node.doorbell import Doorbell
from agent.node.treewatch import TreeWatch
from agent.runtime.events import ContainerEvents

log = logging.getLogger(__name__)

SETTLE_SECONDS: Final = 5.0
"""A container's group is there before the runtime calls it running, which nobody tells where the
runtime has no events for us: for this long after any event the agent looks again and again, after
pauses that double from FIRST_PAUSE_SECONDS to the period."""
FIRST_PAUSE_SECONDS: Final = 0.02
LEAST_REST_SECONDS: Final = 0.02

_HOTPLUGGED: Final = frozenset({"cpu", "node"}) | hotplug.SUBSYSTEMS


class Source(enum.Enum):
    """What woke the agent."""

    RING = "ring"
    TREE = "tree"
    RUNTIME = "runtime"
    KUBELET = "kubelet"
    CLUSTER = "cluster"
    HOTPLUG = "hotplug"
    CLOCK = "clock"


class KubeletWatch:
    """The kubelet's state of its CPU manager, a file that is replaced; its folder may come late."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._queue = Inotify()
        self.watching = False
        self.try_again()

    def fileno(self) -> int:
        return self._queue.fileno()

    def try_again(self) -> None:
        """Watches the folder if it is there."""
        if not self.watching:
            with contextlib.suppress(OSError):
                self._queue.watch(self._folder, inotify.MOVED_TO | inotify.CLOSE_WRITE)
                self.watching = True

    def read(self) -> bool:
        """Whether the file was written."""
        events = self._queue.read()
        if any(each.mask & inotify.IGNORED for each in events):
            self.watching = False
        return any(
            each.name == cpu_manager_state.FILE_NAME or each.mask & inotify.OVERFLOW
            for each in events
        )

    def close(self) -> None:
        self._queue.close()


class Events:
    """Wakes the doorbell. A source that this machine does not have is told once and done without.

    Everything that came during a look is heard as one at the next wait.
    """

    def __init__(
        self,
        doorbell: Doorbell,
        hierarchy_root: str,
        kubelet_dir: str,
        runtime_socket: str,
        cluster_news: threading.Event | None = None,
    ) -> None:
        """`cluster_news` is set, and the doorbell woken, by who hears from the cluster."""
        self._tree: TreeWatch | None = None
        self._kubelet: KubeletWatch | None = None
        self._uevents: Uevents | None = None
        self._last_event = -SETTLE_SECONDS
        with _told_if_missing("cgroups are not watched"):
            self._tree = TreeWatch(hierarchy_root)
            doorbell.also_wake_on(self._tree.fileno())
        with _told_if_missing("the kubelet's state is not watched"):
            self._kubelet = KubeletWatch(kubelet_dir)
            doorbell.also_wake_on(self._kubelet.fileno())
        with _told_if_missing("CPU hotplug is not told"):
            self._uevents = Uevents()
            doorbell.also_wake_on(self._uevents.fileno())
        self._cluster_news = cluster_news
        self._runtime_told = threading.Event()

        def happened() -> None:
            self._runtime_told.set()
            doorbell.wake()

        self._runtime = ContainerEvents(runtime_socket, happened)

    def heard(self) -> set[Source]:
        """What has come since the last time."""
        sources = set()
        if self._tree and self._tree.read():
            sources.add(Source.TREE)
        if self._kubelet and self._kubelet.read():
            sources.add(Source.KUBELET)
        if self._uevents and self._uevents.read(_HOTPLUGGED):
            sources.add(Source.HOTPLUG)
        if self._runtime_told.is_set():
            self._runtime_told.clear()
            sources.add(Source.RUNTIME)
        if self._cluster_news is not None and self._cluster_news.is_set():
            self._cluster_news.clear()
            sources.add(Source.CLUSTER)
        return sources

    def pause(self, settings: Settings, healthy: bool, sources: Set[Source], began: float) -> float:
        """How long after `began`, in seconds, the next look is due if nothing comes; `sources`
        are what this one began on, `healthy` whether it succeeded."""
        if Source.CLOCK in sources and began - self._last_event >= SETTLE_SECONDS:
            self._catch_up()
        if sources & {Source.RING, Source.TREE, Source.RUNTIME}:
            self._last_event = began
        told = self._tree is not None and self._tree.complete
        since = began - self._last_event
        settled = self._runtime.telling or since >= SETTLE_SECONDS
        if healthy and told and settled:
            return max(settings.full_pass_seconds, settings.period_seconds)
        if healthy and not settled:
            return min(max(since, FIRST_PAUSE_SECONDS), settings.period_seconds)
        return settings.period_seconds

    def close(self) -> None:
        """Wakes nobody any more."""
        self._runtime.close()
        for source in (self._tree, self._kubelet, self._uevents):
            if source is not None:
                source.close()

    def _catch_up(self) -> None:
        if self._tree:
            self._tree.watch_all()
        if self._kubelet:
            self._kubelet.try_again()


def rest(settings: Settings, took_seconds: float) -> float:
    """How long, in seconds, nothing but a ring begins another look after one that took so long:
    who changes cgroups without end keeps the agent busy half of the time at most."""
    return min(max(took_seconds, LEAST_REST_SECONDS), settings.period_seconds)


@contextlib.contextmanager
def _told_if_missing(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        log.warning("%s: %s", what, error)
