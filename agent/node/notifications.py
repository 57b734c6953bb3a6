"""Notifications of the frontends: the datagram socket on which the agent receives them, and the
pods and containers that they announced and that the runtime does not list yet.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
from collections.abc import Collection, Mapping

import msgspec

from agent.hooks.requests import announced
from agent.host import locks
from agent.host.files import reason
from agent.host.locks import FrontendSession
from agent.model.linux_resources import LinuxResources
from agent.model.notifications import (
    ContainerAnnounced,
    Notification,
    NotificationError,
    PodAnnounced,
    SessionEnded,
    decode,
)
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod.pods import Pod

LARGEST_BYTES = 1 << 18
MAX_NOTIFICATIONS = 1024
MAX_BYTES = 1 << 20
"""The most notifications, and bytes of them, that one wait returns: a flood of notifications must
neither block the agent nor fill its memory."""
MAX_SESSIONS = 16
"""The most sessions whose end is detected; there are two while one proxy drains and the next
serves."""

log = logging.getLogger(__name__)


class NotificationSocket:
    """The socket for notifications. It replaces one that an earlier agent left. `wake` may be
    called from a signal handler."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._sessions: dict[FrontendSession, None] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.fchmod(self._socket.fileno(), 0o600)  # before anybody can connect
        self._socket.bind(path)
        self._inode = os.stat(path).st_ino
        self.woken = False
        """Whether `wake` ended the last wait, or was called during it."""
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._notified = select.poll()
        self._notified.register(self._socket, select.POLLIN)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)

    def wait(
        self, timeout_seconds: float, cooldown_seconds: float = 0.0, collect_seconds: float = 0.0
    ) -> list[Notification | SessionEnded]:
        """Waits for a notification, `wake` or the timeout, and returns the received notifications,
        then the ends of sessions that announced something. During the first `cooldown_seconds`, and
        for `collect_seconds` after another event, only a notification ends the wait."""
        if not self._notified.poll(cooldown_seconds * 1000) and self._poll.poll(
            max(timeout_seconds - cooldown_seconds, 0) * 1000
        ):
            self._notified.poll(collect_seconds * 1000)
        self.woken = False
        with contextlib.suppress(BlockingIOError):
            self.woken = bool(os.read(self._woken, 4096))
        received: list[Notification | SessionEnded] = []
        received_bytes = 0
        for _ in range(MAX_NOTIFICATIONS):
            if received_bytes >= MAX_BYTES:
                break
            try:
                datagram = self._socket.recv(LARGEST_BYTES)
            except BlockingIOError:
                break
            received_bytes += len(datagram)
            try:
                notification = decode(datagram)
            except NotificationError as error:
                log.warning("%s", error)
            else:
                received.append(notification)
                self._follow(notification)
        return [*received, *self._ended_sessions()]

    def _follow(self, notification: Notification) -> None:
        pod = notification.pod if isinstance(notification, ContainerAnnounced) else notification
        if isinstance(pod, PodAnnounced) and pod.session is not None:
            self._sessions[FrontendSession(*pod.session)] = None
            if len(self._sessions) > MAX_SESSIONS:
                del self._sessions[next(iter(self._sessions))]

    def _ended_sessions(self) -> list[SessionEnded]:
        folder = os.path.dirname(self._path)
        ended = [each for each in self._sessions if locks.has_ended(folder, each)]
        for each in ended:
            del self._sessions[each]
        return [SessionEnded(each) for each in ended]

    def also_wake_on(self, descriptor: int) -> None:
        """Makes a wait also end when this descriptor is readable. The caller reads it."""
        self._poll.register(descriptor, select.POLLIN)

    def lost(self) -> str:
        """Why no notification arrives any more, "" while they do: the socket's path was removed,
        belongs to another socket or can't be reached."""
        try:
            own = os.stat(self._path).st_ino == self._inode
        except FileNotFoundError:
            return f"{self._path} was removed"
        except OSError as error:
            return reason(error)
        return "" if own else f"{self._path} is another agent's"

    def wake(self) -> None:
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
MAX_ANNOUNCED = 256
"""The most announced pods, and containers, that are kept: a kubelet creates a few at a time. The
oldest are dropped first."""


class _PodEntry(msgspec.Struct, frozen=True):
    pod: Pod
    cgroup_parent: str
    until: float
    """Seconds on the monotonic clock."""
    session: tuple[int, int] | None


class AnnouncedPods:
    """Keeps a pod from its notification until the runtime lists or removes it, its sandbox fails,
    the process that had the call ends, the API server says that the pod has ended, or
    PATIENCE_SECONDS pass."""

    def __init__(self) -> None:
        self._pods: dict[str, _PodEntry] = {}
        self._in_api: frozenset[str] = frozenset()

    def add(self, notification: PodAnnounced, now_seconds: float, wall_nanoseconds: int) -> None:
        """A repeated notification keeps the time of the first one, so that the order of pods does
        not change."""
        before = self._pods.get(notification.uid)
        created_at = before.pod.created_at if before else wall_nanoseconds
        self._pods[notification.uid] = _PodEntry(
            announced(notification, created_at),
            notification.cgroup_parent,
            now_seconds + PATIENCE_SECONDS,
            notification.session,
        )
        if len(self._pods) > MAX_ANNOUNCED:
            del self._pods[next(iter(self._pods))]

    def drop(self, uid: str) -> None:
        """The sandbox failed, or the runtime has created or removed it, so that the runtime's list
        decides whether the pod exists."""
        self._pods.pop(uid, None)

    def session_ended(self, session: tuple[int, int]) -> None:
        """Drops the pods of a session: its calls have failed. The kubelet repeats them through
        another session, which announces the pods again."""
        self._pods = {uid: each for uid, each in self._pods.items() if each.session != session}

    def in_api(self, pods: Mapping[str, ApiPod]) -> None:
        """Drops the pods that have ended according to the API server, and those that it has
        removed. Keeps a pod that the API never had: it is static, or the API does not list it yet.

        `pods`: all pods of the node in the API, by uid."""
        gone = self._in_api.difference(pods)
        self._in_api = frozenset(pods)
        for uid in [*self._pods]:
            if uid in gone or (uid in pods and pods[uid].terminal):
                del self._pods[uid]

    def missing_from(self, listed: Collection[str], now_seconds: float) -> tuple[Pod, ...]:
        """The announced pods that are not among the `listed` uids. Drops the others, and those
        whose time has expired."""
        self._pods = {
            uid: each
            for uid, each in self._pods.items()
            if uid not in listed and each.until > now_seconds
        }
        return tuple(each.pod for each in self._pods.values())

    @property
    def cgroup_parents(self) -> dict[str, str]:
        """By uid, of the pods that the last call of `missing_from` returned."""
        return {uid: each.cgroup_parent for uid, each in self._pods.items()}


class AnnouncedContainer(msgspec.Struct, frozen=True):
    uid: str
    name: str
    requested: LinuxResources
    created_at: int
    """The time of its first notification, in nanoseconds since 1970."""


class _ContainerEntry(msgspec.Struct, frozen=True):
    container: AnnouncedContainer
    until: float
    """Seconds on the monotonic clock."""
    session: tuple[int, int] | None


class AnnouncedContainers:
    """Keeps a container from its notification until the runtime lists it, its creation fails, the
    process that had the call ends, or PATIENCE_SECONDS pass."""

    def __init__(self) -> None:
        self._containers: dict[tuple[str, str], _ContainerEntry] = {}

    def add(
        self, notification: ContainerAnnounced, now_seconds: float, wall_nanoseconds: int
    ) -> None:
        """A repeated notification keeps the time of the first one."""
        key = notification.pod.uid, notification.name
        before = self._containers.get(key)
        created_at = before.container.created_at if before else wall_nanoseconds
        self._containers[key] = _ContainerEntry(
            AnnouncedContainer(*key, notification.requested, created_at),
            now_seconds + PATIENCE_SECONDS,
            notification.pod.session,
        )
        if len(self._containers) > MAX_ANNOUNCED:
            del self._containers[next(iter(self._containers))]

    def drop(self, uid: str, name: str) -> None:
        """The creation failed."""
        self._containers.pop((uid, name), None)

    def session_ended(self, session: tuple[int, int]) -> None:
        """Drops the containers of a session, as AnnouncedPods does."""
        self._containers = {
            key: each for key, each in self._containers.items() if each.session != session
        }

    def missing_from(
        self, pods: Collection[Pod], now_seconds: float
    ) -> tuple[AnnouncedContainer, ...]:
        """The announced containers of these pods that the runtime does not list. Drops the others,
        and those whose time has expired."""
        present = {(pod.uid, each.name) for pod in pods for each in pod.containers}
        uids = {pod.uid for pod in pods}
        self._containers = {
            key: each
            for key, each in self._containers.items()
            if key not in present and key[0] in uids and each.until > now_seconds
        }
        return tuple(each.container for each in self._containers.values())
