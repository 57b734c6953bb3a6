"""The optional sources of information (all but the runtime, the machine and the cgroups), and the
problems of each.

If a source fails, only what depends on it stops. Its problems are reported here, to log and metric.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from agent.host.files import with_host_paths

log = logging.getLogger(__name__)


class SourceName(enum.Enum):
    """The sources; the values are their names in log and metric."""

    KUBELET_PROCESS = "kubelet-process"
    KUBELET_CONFIG = "kubelet-config"
    KUBELET_CONFIGZ = "kubelet-configz"
    KUBELET_COMBINATION = "kubelet-combination"
    KUBELET_RESERVATION = "kubelet-reservation"
    CPU_MANAGER_STATE = "cpu-manager-state"
    MEMORY_MANAGER_STATE = "memory-manager-state"
    DEVICE_CHECKPOINT = "device-checkpoint"
    POD_RESOURCES = "pod-resources"
    POD_RESOURCES_CONTENT = "pod-resources-content"
    DEVICES = "devices"
    LOCK_FOLDER = "lock-folder"
    NODE_OBJECT = "node-object"
    CGROUP_WATCH = "cgroup-watch"
    KUBELET_WATCH = "kubelet-watch"
    UEVENTS = "uevents"
    JOURNAL = "journal"
    CLUSTER_MEMORY = "cluster-memory"
    SNAPSHOT = "snapshot"
    RESOURCE_SLICES = "resource-slices"
    DRA = "dra-driver"
    NAMESPACES = "namespaces"
    STRATEGIES = "strategies"
    COLOCATION = "colocation"
    QUIET = "quiet"


LEVELS: Final[Mapping[SourceName, int]] = {
    SourceName.CGROUP_WATCH: logging.WARNING,
    SourceName.KUBELET_WATCH: logging.WARNING,
    SourceName.UEVENTS: logging.WARNING,
    SourceName.DEVICES: logging.WARNING,
    SourceName.DEVICE_CHECKPOINT: logging.WARNING,
    SourceName.RESOURCE_SLICES: logging.WARNING,
    SourceName.NAMESPACES: logging.WARNING,
    SourceName.STRATEGIES: logging.WARNING,
    SourceName.COLOCATION: logging.WARNING,
    SourceName.QUIET: logging.WARNING,
}
"""The log levels of problems; ERROR for all other sources."""


class Sources:
    """Logs each problem once, and when a source has no problem any more. Safe to call from any
    thread.

    `count`: called with a source's name and its number of problems when they change.
    `root`: where the host's files are; problems have paths of the host."""

    def __init__(self, count: Callable[[str, int], None] | None = None, root: str = "/") -> None:
        self._count = count
        self._root = root
        self._lock = threading.Lock()
        self._problems: dict[SourceName, frozenset[str]] = {}

    @property
    def problems(self) -> dict[SourceName, tuple[str, ...]]:
        """The problems that last, sorted, of the sources that have some."""
        with self._lock:
            return {name: tuple(sorted(each)) for name, each in self._problems.items() if each}

    def report(self, source: SourceName, problems: Iterable[str] = (), level: int = 0) -> None:
        """Replaces the problems of a source by these, none when it works.

        `level`: the log level, instead of the one in LEVELS."""
        now = frozenset(with_host_paths(self._root, problem) for problem in problems)
        with self._lock:
            before = self._problems.get(source)
            self._problems[source] = now
        if self._count is not None and before != now:
            self._count(source.value, len(now))
        for problem in sorted(now - (before or frozenset())):
            log.log(level or LEVELS.get(source, logging.ERROR), "%s: %s", source.value, problem)
        if before and not now:
            log.info("%s: can be used again", source.value)
