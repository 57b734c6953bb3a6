"""Notifications of the frontends: the datagram socket on which the agent receives them, and the
pods and containers that they announced and that the runtime does not list yet.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
from collections.abc import Collection

import msgspec

from agent.hooks.requests import announced
from agent.model.notifications import (
    ContainerAnnounced,
    Notification,
    NotificationError,
    PodAnnounced,
    decode,
)
from agent.model.pod.pods import Pod

LARGEST_BYTES = 1 << 18
MOST_NOTIFICATIONS = 1024
MOST_BYTES = 1 << 20
"""The most that one wait returns: a flood of notifications must neither block the agent nor fill
its memory."""

log = logging.getLogger(__name__)


class NotificationSocket:
    """The socket for notifications. It replaces one that an earlier agent left. `wake` may be
    called from a signal handler."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self._socket.bind(path)
        os.chmod(path, 0o600)
        self._inode = os.stat(path).st_ino
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._notified = select.poll()
        self._notified.register(self._socket, select.POLLIN)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)

    def wait(self, timeout_seconds: float, cooldown_seconds: float = 0.0) -> list[Notification]:
        """Waits for a notification, `wake` or the timeout, and returns the received notifications.
        During the first `cooldown_seconds` only a notification ends the wait."""
        if not self._notified.poll(cooldown_seconds * 1000):
            self._poll.poll(max(timeout_seconds - cooldown_seconds, 0) * 1000)
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)
        received: list[Notification] = []
        received_bytes = 0
        for _ in range(MOST_NOTIFICATIONS):
            if received_bytes >= MOST_BYTES:
                break
            try:
                datagram = self._socket.recv(LARGEST_BYTES)
            except BlockingIOError:
                break
            received_bytes += len(datagram)
            try:
                received.append(decode(datagram))
            except NotificationError as error:
                log.warning("%s", error)
        return received

    def also_wake_on(self, descriptor: int) -> None:
        """A wait also ends when this descriptor is readable; the caller reads it."""
        self._poll.register(descriptor, select.POLLIN)

    def lost(self) -> bool:
        """Whether the socket's path was removed or belongs to another socket: no notification
        arrives any more."""
        try:
            return os.stat(self._path).st_ino != self._inode
        except OSError:
            return True

    def wake(self) -> None:
        """Ends a wait."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b".")

    def close(self) -> None:
        """Removes the socket: a notification then fails at once."""
        self._socket.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        os.close(self._woken)
        os.close(self._waker)


PATIENCE_SECONDS = 300.0
"""How long an announced pod keeps its claim: a kubelet allows 4 minutes for RunPodSandbox."""
MOST = 256
"""The most announced pods, and containers, that are kept: a kubelet creates a few at a time. The
oldest are dropped first."""


class Announced:
    """Keeps a pod from its notification until the runtime lists it, its sandbox fails or
    PATIENCE_SECONDS pass."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[Pod, str, float]] = {}

    def add(self, notification: PodAnnounced, now_seconds: float, wall_nanoseconds: int) -> None:
        """A repeated notification keeps the time of the first one, so that the order of pods does
        not change."""
        known = self._pods.get(notification.uid)
        created_at = known[0].created_at if known else wall_nanoseconds
        self._pods[notification.uid] = (
            announced(notification, created_at),
            notification.cgroup_parent,
            now_seconds + PATIENCE_SECONDS,
        )
        if len(self._pods) > MOST:
            del self._pods[next(iter(self._pods))]

    def drop(self, uid: str) -> None:
        """The sandbox failed."""
        self._pods.pop(uid, None)

    def missing_from(self, listed: Collection[str], now_seconds: float) -> tuple[Pod, ...]:
        """The announced pods that are not listed. Drops the others, and those whose time has
        expired."""
        self._pods = {
            uid: (pod, cgroup_parent, until)
            for uid, (pod, cgroup_parent, until) in self._pods.items()
            if uid not in listed and until > now_seconds
        }
        return tuple(pod for pod, _, _ in self._pods.values())

    @property
    def cgroup_parents(self) -> dict[str, str]:
        """Those of the pods that the last call of `missing_from` returned, by uid."""
        return {uid: cgroup_parent for uid, (_, cgroup_parent, _) in self._pods.items()}


class AnnouncedContainer(msgspec.Struct, frozen=True):
    """`created_at` (of its first notification) in nanoseconds since 1970; `hugepages`: by page
    size, the requested bytes."""

    uid: str
    name: str
    shares: int
    created_at: int
    hugepages: dict[int, int] = {}


class AnnouncedContainers:
    """Keeps a container from its notification until the runtime lists it, its creation fails or
    PATIENCE_SECONDS pass."""

    def __init__(self) -> None:
        self._containers: dict[tuple[str, str], tuple[AnnouncedContainer, float]] = {}

    def add(
        self, notification: ContainerAnnounced, now_seconds: float, wall_nanoseconds: int
    ) -> None:
        """A repeated notification keeps the time of the first one."""
        key = notification.pod.uid, notification.name
        known = self._containers.get(key)
        created_at = known[0].created_at if known else wall_nanoseconds
        container = AnnouncedContainer(
            *key, notification.shares, created_at, notification.hugepages
        )
        self._containers[key] = container, now_seconds + PATIENCE_SECONDS
        if len(self._containers) > MOST:
            del self._containers[next(iter(self._containers))]

    def drop(self, uid: str, name: str) -> None:
        """The creation failed."""
        self._containers.pop((uid, name), None)

    def missing_from(
        self, pods: Collection[Pod], now_seconds: float
    ) -> tuple[AnnouncedContainer, ...]:
        """The announced containers of these pods that are not listed. Drops the others, and those
        whose time has expired."""
        present = {(pod.uid, each.name) for pod in pods for each in pod.containers}
        uids = {pod.uid for pod in pods}
        self._containers = {
            key: (container, until)
            for key, (container, until) in self._containers.items()
            if key not in present and key[0] in uids and until > now_seconds
        }
        return tuple(container for container, _ in self._containers.values())
