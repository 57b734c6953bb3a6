"""Watches the kubelet's part of the cpuset hierarchy: pods and containers that appear and
disappear, and changed cpusets and limits."""

from __future__ import annotations

import enum
import errno
import logging
import os
from typing import Final

from agent.cgroup import limits
from agent.cgroup.hierarchy import CPUS, MEMS
from agent.host import kernel_events
from agent.host.kernel_events import Inotify

log = logging.getLogger(__name__)


class GroupKind(enum.Enum):
    """What a group is. The kubelet's own root may lie one level down (its --cgroup-root)."""

    TOP = "top"
    BESIDE = "beside"
    KUBEPODS = "kubepods"
    QOS = "qos"
    POD = "pod"
    CONTAINER = "container"


_FILES: Final = frozenset({CPUS, MEMS, limits.MAX, limits.WEIGHT, limits.MEMORY_MAX})
"""On v1 the limits are in other hierarchies, and wait for the next look."""
_OUTSIDE: Final = frozenset({GroupKind.TOP, GroupKind.BESIDE})
_MASKS: Final = {
    GroupKind.TOP: kernel_events.CREATE | kernel_events.DELETE,
    GroupKind.BESIDE: kernel_events.CREATE | kernel_events.DELETE,
    GroupKind.KUBEPODS: kernel_events.CREATE | kernel_events.DELETE,
    GroupKind.QOS: kernel_events.CREATE | kernel_events.DELETE,
    GroupKind.POD: kernel_events.CREATE | kernel_events.DELETE | kernel_events.MODIFY,
    # What a container makes below its own group is no concern of ours.
    GroupKind.CONTAINER: kernel_events.MODIFY,
}


def place_below(parent: GroupKind, name: str) -> GroupKind | None:
    """What the group of this name is in such a parent; None for one that is not watched."""
    if parent in _OUTSIDE:
        if name in ("kubepods", "kubepods.slice") or name.endswith("-kubepods.slice"):
            return GroupKind.KUBEPODS
        return GroupKind.BESIDE if parent is GroupKind.TOP else None
    if parent is GroupKind.KUBEPODS:
        stem = name.removesuffix(".slice")
        return GroupKind.QOS if stem.endswith(("burstable", "besteffort")) else GroupKind.POD
    if parent is GroupKind.QOS:
        return GroupKind.POD
    return GroupKind.CONTAINER if parent is GroupKind.POD else None


class CgroupWatch:
    """`root` is where the hierarchy is mounted. Raises OSError when the kernel has no inotify left.

    `complete` is False while some group is not watched, because the kernel allows no more watches.
    The kernel keeps the watch of a cgroup that was removed (its inode still has links), so this
    class ends it.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._queue = Inotify()
        self._watched: dict[int, tuple[str, GroupKind]] = {}
        self._numbers: dict[str, int] = {}
        self.complete = True
        self._enter(root, GroupKind.TOP)

    def fileno(self) -> int:
        return self._queue.fileno()

    def read(self) -> bool:
        """Whether a change needs a pass; new groups are watched from now on."""
        news = False
        for event in self._queue.read():
            if event.mask & kernel_events.OVERFLOW:
                news = True
                self.watch_all()
            elif not event.mask & kernel_events.IGNORED:
                news |= self._happened(event)
        return news

    def watch_all(self) -> None:
        """Walks the tree: watches groups that are not watched yet, and no others."""
        self.complete = True
        before, self._numbers = self._numbers, {}
        self._enter(self._root, GroupKind.TOP)
        there = set(self._numbers.values())
        for number in before.values():
            if number not in there:
                self._unwatch(number)

    def close(self) -> None:
        self._queue.close()

    def _happened(self, event: kernel_events.InotifyEvent) -> bool:
        directory, place = self._watched.get(event.watch, ("", None))
        if place is None:
            return False
        if not event.mask & kernel_events.IS_DIRECTORY:
            return event.mask & kernel_events.MODIFY != 0 and event.name in _FILES
        below = place_below(place, event.name)
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

    def _enter(self, directory: str, place: GroupKind) -> None:
        """Watches first and lists then: changes in between are reported twice, never missed."""
        try:
            number = self._queue.watch(directory, _MASKS[place])
            if (before := self._numbers.get(directory, number)) != number:
                self._unwatch(before)
            self._watched[number] = (directory, place)
            self._numbers[directory] = number
            if place is GroupKind.CONTAINER:
                return
            with os.scandir(directory) as entries:
                names = [each.name for each in entries if each.is_dir(follow_symlinks=False)]
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV, errno.ENOTDIR):
                if self.complete:
                    log.warning("not every cgroup is watched: %s", error)
                self.complete = False
            return
        for name in names:
            below = place_below(place, name)
            if below is not None:
                self._enter(os.path.join(directory, name), below)
