"""The datagrams with which the frontends notify the agent before and after a call."""

from __future__ import annotations

from typing import Final

import msgspec

from agent.model import bounds
from agent.model.bounds import JsonError
from agent.model.linux_resources import LinuxResources

SOCKET: Final = "notifications.sock"
"""In the state folder."""


class NotificationError(ValueError):
    """An invalid datagram."""


class PodAnnounced(msgspec.Struct, frozen=True, tag="pod"):
    """A pod's sandbox or container is about to be created. The notification has only what decisions
    read."""

    uid: str
    namespace: str
    name: str
    labels: dict[str, str]
    annotations: dict[str, str]
    cgroup_parent: str
    session: tuple[int, int] | None = None
    """The frontend's (`host.locks.FrontendSession`) if its calls end with its process, otherwise
    None."""


class PodFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The sandbox of an announced pod was not created."""

    uid: str


class ContainerAnnounced(msgspec.Struct, frozen=True, tag="container"):
    """A container that qualifies for its own CPUs by a node-local policy is about to be created."""

    pod: PodAnnounced
    name: str
    requested: LinuxResources
    """Its CPU request follows from the shares."""


class ContainerFailed(msgspec.Struct, frozen=True, tag="container-failed"):
    """An announced container was not created."""

    uid: str
    name: str


class Resized(msgspec.Struct, frozen=True, tag="resized"):
    """The runtime changed a container."""

    container_id: str
    requested: LinuxResources
    """The values that the caller requested, before the frontend's change."""


class Created(msgspec.Struct, frozen=True, tag="created"):
    """A container exists."""

    container_id: str
    requested: LinuxResources
    """The values that the caller requested, before the frontend's change."""
    kept: tuple[str, ...] = ()
    """The fields of `requested` that the frontend did not change."""


class SessionEnded(msgspec.Struct, frozen=True, tag="session-ended"):
    """The process of a session has ended, and with it the calls that it announced. No frontend
    sends this: the agent detects it."""

    session: tuple[int, int]


class SnapshotRequest(msgspec.Struct, frozen=True, omit_defaults=True, tag="snapshot"):
    """A frontend waits for a new snapshot, or reports that something has changed."""

    waits: bool = True
    """False if it only reports a change."""
    sandbox_uid: str = ""
    """The pod whose sandbox the runtime has just created or removed: from now on the runtime's list
    decides whether the pod exists."""


Notification = (
    PodAnnounced
    | PodFailed
    | ContainerAnnounced
    | ContainerFailed
    | Created
    | Resized
    | SnapshotRequest
)


def answers_a_call(notification: Notification | SessionEnded) -> bool:
    """Whether a frontend may hold a call until the pass that follows this notification. Other
    notifications only report a change, and may wait for a later pass."""
    if isinstance(notification, SnapshotRequest):
        return notification.waits
    return not isinstance(notification, Created | Resized)


_decoder: msgspec.json.Decoder[Notification] = msgspec.json.Decoder(Notification)


def encode(notification: Notification) -> bytes:
    """One datagram."""
    return msgspec.json.encode(notification)


def decode(datagram: bytes) -> Notification:
    """Raises NotificationError."""
    try:
        return bounds.decode(_decoder, datagram)
    except JsonError as error:
        raise NotificationError(f"notification: {error}") from None
