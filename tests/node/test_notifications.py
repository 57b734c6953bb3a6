"""Both ends of notifications over a real socket."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from agent.hooks.agent_client import Notifier
from agent.hooks.requests import announced, announced_pod
from agent.host import locks
from agent.model.notifications import (
    ContainerAnnounced,
    Created,
    Notification,
    PodAnnounced,
    PodFailed,
    RequestedResources,
    SessionEnded,
    SnapshotRequest,
)
from agent.model.pod.pods import ANNOTATIONS
from agent.node import notifications
from agent.node.notifications import AnnouncedContainers, AnnouncedPods, NotificationSocket
from tests.waiting import eventually

SPAWN = multiprocessing.get_context("spawn")

COMES = PodAnnounced("u", "ns", "n", {"é": "1"}, {"a": "{}"}, "/kubepods/podu")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "doorbell.sock")


@pytest.fixture
def ears(path: str) -> Iterator[NotificationSocket]:
    it = NotificationSocket(path)
    yield it
    it.close()


@pytest.fixture
def notifier(path: str) -> Iterator[Notifier]:
    it = Notifier(path)
    yield it
    it.close()


def test_notifications_are_received_in_order(ears: NotificationSocket, notifier: Notifier) -> None:
    sent = [COMES, PodFailed("u"), Created("c", RequestedResources("0-3")), SnapshotRequest()]
    for notification in sent:
        notifier.notify(notification)
    assert ears.wait(10) == sent
    assert ears.wait(0) == []
    assert (notifier.sent, notifier.undelivered) == (4, 0)


@pytest.mark.parametrize(
    "datagram", [b"", b"\xff", b'{"type":"failed","uid":"\xff"}', b"{}", b"[" * 90_000]
)
def test_invalid_datagram_is_dropped_and_the_next_received(
    ears: NotificationSocket, notifier: Notifier, path: str, datagram: bytes
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(datagram, path)
    notifier.notify(SnapshotRequest())
    assert ears.wait(10) == [SnapshotRequest()]


def test_endless_notifications_do_not_delay_a_pass(
    ears: NotificationSocket, notifier: Notifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "MAX_NOTIFICATIONS", 3)
    for _ in range(5):
        notifier.notify(SnapshotRequest())
    assert [len(ears.wait(10)), len(ears.wait(10))] == [3, 2]


def test_notifications_of_one_wait_are_bounded_in_bytes(
    ears: NotificationSocket, notifier: Notifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of hostile pods are as large as the bounds of their annotations allow."""
    monkeypatch.setattr(notifications, "MAX_BYTES", 50_000)
    notes = dict.fromkeys(ANNOTATIONS, "x" * 200000)
    pod = announced_pod("uid", "ns", "p", {}, notes, "/kubepods")
    for _ in range(2):
        notifier.notify(pod)
    assert notifier.undelivered == 0
    assert [len(ears.wait(10)), len(ears.wait(10))] == [1, 1]


def test_wake_ends_a_wait_even_if_it_came_before(ears: NotificationSocket) -> None:
    ears.wake()
    assert ears.wait(60) == []
    received: list[list[Notification]] = []
    waiting = threading.Thread(target=lambda: received.append(ears.wait(60)))
    waiting.start()
    ears.wake()
    waiting.join(10)
    assert received == [[]]


def test_only_a_notification_ends_the_cooldown(
    ears: NotificationSocket, notifier: Notifier
) -> None:
    ears.wake()
    notification = threading.Timer(0.2, lambda: notifier.notify(SnapshotRequest()))
    notification.start()
    assert ears.wait(60, 60) == [SnapshotRequest()]
    notification.join()
    ears.wake()
    assert ears.wait(60, 0.01) == [], "received after the pause"


def test_wait_collects_the_notification_that_follows_another_event(
    ears: NotificationSocket, notifier: Notifier
) -> None:
    ears.wake()
    notification = threading.Timer(0.2, lambda: notifier.notify(SnapshotRequest()))
    notification.start()
    assert ears.wait(60, collect_seconds=60) == [SnapshotRequest()]
    notification.join()
    ears.wake()
    assert ears.wait(60, collect_seconds=0.01) == [], "ends also without one"


def test_agent_that_is_away_and_returns(path: str, notifier: Notifier) -> None:
    notifier.notify(SnapshotRequest())
    first = NotificationSocket(path)
    notifier.notify(SnapshotRequest())
    assert first.wait(10) == [SnapshotRequest()]
    first.close()
    notifier.notify(SnapshotRequest())
    second = NotificationSocket(path)
    notifier.notify(COMES)
    assert second.wait(10) == [COMES]
    assert (notifier.sent, notifier.undelivered) == (4, 2)
    second.close()


def test_socket_left_by_a_killed_agent_is_replaced_and_private(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(path)
    ears = NotificationSocket(path)
    assert Path(path).stat().st_mode & 0o777 == 0o600
    ears.close()
    assert not Path(path).exists()


def announce_and_stay(state_dir: str, uid: str) -> None:
    session = locks.lock_for_relay(state_dir).session()
    notifier = Notifier(f"{state_dir}/doorbell.sock", session)
    notifier.notify(msgspec.structs.replace(COMES, uid=uid))
    notifier.notify(ContainerAnnounced(msgspec.structs.replace(COMES, uid=uid), "main", 1024))
    signal.pause()


def test_killed_proxy_ends_its_announcements_and_no_others(
    ears: NotificationSocket, notifier: Notifier, path: str
) -> None:
    """Another proxy, which drains or has just connected, keeps those of its own calls; and those of
    an NRI plugin, whose calls the runtime continues without it, name no session."""
    state_dir = os.path.dirname(path)
    killed, other = (
        SPAWN.Process(target=announce_and_stay, args=(state_dir, uid))
        for uid in ("killed", "other")
    )
    heard: list[Notification | SessionEnded] = []
    try:
        for each in (killed, other):
            each.start()
            heard += received(ears, 2)
        notifier.notify(msgspec.structs.replace(COMES, uid="plugin"))
        heard += received(ears, 1)
        killed.kill()
        killed.join()
        notifier.notify(SnapshotRequest())
        heard += received(ears, 2)
        again = ears.wait(0)
    finally:
        for each in (killed, other):
            each.kill()
    pods, containers = AnnouncedPods(), AnnouncedContainers()
    for notification in heard:
        if isinstance(notification, PodAnnounced):
            pods.add(notification, 0.0, 0)
        elif isinstance(notification, ContainerAnnounced):
            containers.add(notification, 0.0, 0)
        elif isinstance(notification, SessionEnded):
            pods.session_ended(notification.session)
            containers.session_ended(notification.session)
    left = pods.missing_from([], 0.0)
    assert [each.uid for each in left] == ["other", "plugin"]
    sandbox_exists = announced(msgspec.structs.replace(COMES, uid="killed"), 0)
    coming = containers.missing_from([*left, sandbox_exists], 0.0)
    assert [each.uid for each in coming] == ["other"]
    assert not any(isinstance(each, SessionEnded) for each in again), "the end is reported once"


def received(ears: NotificationSocket, number: int) -> list[Notification | SessionEnded]:
    found: list[Notification | SessionEnded] = []

    def enough() -> bool:
        found.extend(ears.wait(1))
        return len(found) >= number

    eventually(f"{number} notifications", enough)
    return found
